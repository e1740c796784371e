"""Converts between the core's messages and Kafka's messages."""
