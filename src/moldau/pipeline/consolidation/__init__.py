"""Consolidation of the WAL into Kafka segments on Spark. Leaders plan and publish segments. Tasks build and
copy them."""
