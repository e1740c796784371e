"""Conversion between the core's messages and Kafka's."""
