"""Kafka's configuration: the names, types and defaults of keys, and how each key may be changed."""

from moldau.config.broker import BROKER, BrokerConfig
from moldau.config.definition import (
    ConfigDef,
    ConfigError,
    ConfigKey,
    ConfigSource,
    ConfigType,
    Importance,
    Update,
)
from moldau.config.described_config import ConfigEntry, ConfigSynonym
from moldau.config.listeners import ConfiguredVoter, ListenerEndpoint
from moldau.config.properties import parse_overrides, parse_properties
from moldau.config.topic_config import TOPIC, TopicConfig

__all__ = [
    "BROKER",
    "TOPIC",
    "BrokerConfig",
    "ConfigDef",
    "ConfigEntry",
    "ConfigError",
    "ConfigKey",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "ConfiguredVoter",
    "Importance",
    "ListenerEndpoint",
    "TopicConfig",
    "Update",
    "parse_overrides",
    "parse_properties",
]
