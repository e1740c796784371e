"""Settings whose fields name their config keys. Each field must name a declared key, with the same type and
default."""

from dataclasses import MISSING, fields

import pytest

from moldau.cluster.decisions.view import ControllerSettings
from moldau.config.broker import BROKER, BrokerConfig
from moldau.config.definition import ConfigDef
from moldau.config.key_fields import key_fields
from moldau.config.topic_config import TOPIC, TopicConfig
from moldau.server.settings import controller_settings, log_config
from moldau.storage.log.config import LogConfig

COMPUTED = {
    LogConfig: {
        "compression",
        "producer_id_expiration_ms",
        "remote_storage_enable",
        "local_retention_ms",
        "local_retention_bytes",
        "is_cache",
    },
    ControllerSettings: {
        "cluster_id",
        "supported_features",
        "partitions_per_request_max",
        "only_broker_id",
        "leader_balance_interval_ms",
        "enabled_kinds",
    },
}
"""The fields that do not have the value of exactly one key."""


@pytest.mark.parametrize(("settings", "keys"), [(LogConfig, TOPIC), (ControllerSettings, BROKER)])
def test_every_field_has_a_declared_key_or_is_computed(settings: type, keys: ConfigDef) -> None:
    named = key_fields(settings)
    names = {each.name for each in fields(settings)}
    assert names - set(named) == COMPUTED[settings], "name the key by from_key, or the field in COMPUTED"
    for name, field in named.items():
        assert field.key in keys, f"declare the key of {settings.__name__}.{name} in config/keys"


def test_every_synonym_of_a_topics_key_is_a_key_of_the_broker() -> None:
    for key in TOPIC:
        for synonym in key.synonyms:
            assert synonym.name in BROKER, f"declare {synonym.name}, the default of {key.name}"


def test_a_log_without_a_configuration_has_the_defaults_of_the_keys() -> None:
    for each in fields(LogConfig):
        field = key_fields(LogConfig).get(each.name)
        if field is not None:
            assert each.default is not MISSING
            assert field.value(TOPIC[field.key].default) == each.default, each.name


def test_values_arrive_in_their_fields() -> None:
    broker = BrokerConfig({"node.id": "1", "process.roles": "broker,controller", "num.partitions": "7"})
    overrides = {
        "segment.bytes": "2000000",
        "cleanup.policy": "compact",
        "message.timestamp.type": "LogAppendTime",
        "min.cleanable.dirty.ratio": "0.25",
    }
    log = log_config(TopicConfig.effective(broker, overrides))
    assert (log.segment_bytes, log.min_cleanable_dirty_ratio, int(log.message_timestamp_type)) == (
        2_000_000,
        0.25,
        1,
    )
    assert (log.cleanup_compact, log.cleanup_delete) == (True, False)
    settings = controller_settings(broker, "cluster")
    assert (settings.default_partition_count, settings.session_timeout_ms) == (7, 9_000)
