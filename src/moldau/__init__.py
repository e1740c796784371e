"""Moldau: Kafka-compatible streaming on object storage."""

__version__ = "0.1.0"
