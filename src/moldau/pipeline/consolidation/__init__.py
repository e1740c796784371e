"""The WAL to Kafka segments on Spark: leaders plan and publish, tasks build and copy."""
