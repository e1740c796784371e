"""Consolidation of the WAL into Kafka segments on Spark. Leaders plan and publish the segments; tasks build
and copy them."""
