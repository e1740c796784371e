"""Meters with Kafka's names. They are cheap to update, and available as text for Prometheus."""

from moldau.metrics.broker_topics import BrokerTopicMeters, TopicMeters
from moldau.metrics.meters import BYTES_BOUNDS, TIME_MS_BOUNDS, Counter, Gauge, Histogram
from moldau.metrics.registry import CONTENT_TYPE, MeterError, Meters

__all__ = [
    "BYTES_BOUNDS",
    "CONTENT_TYPE",
    "TIME_MS_BOUNDS",
    "BrokerTopicMeters",
    "Counter",
    "Gauge",
    "Histogram",
    "MeterError",
    "Meters",
    "TopicMeters",
]
