"""Settings whose fields name their config keys. Each field must name a declared key, with the same type and
default."""

import ast
import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

import moldau
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
        "leader_balance_interval_ms",
        "enabled_kinds",
        "first_probed_listener",
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


SOURCE = {path: path.read_text() for path in Path(moldau.__file__).parent.rglob("*.py")}
ATTRIBUTES = {path: set(re.findall(r"\.([a-z_0-9]+)\b(?! = )", text)) for path, text in SOURCE.items()}


def attributes_read(settings: type) -> tuple[set[str], dict[str, set[str]]]:
    """Return two results. The first is the set of attributes that are read outside the module of the class.
    The second has, for each method of the class, the attributes that the method reads."""
    home = Path(str(inspect.getsourcefile(settings)))
    outside = set().union(*(names for path, names in ATTRIBUTES.items() if path != home))
    methods: dict[str, set[str]] = {}
    for top in ast.parse(SOURCE[home]).body:
        if isinstance(top, ast.ClassDef) and top.name == settings.__name__:
            for method in top.body:
                if isinstance(method, ast.FunctionDef):
                    nodes = (each for each in ast.walk(method) if isinstance(each, ast.Attribute))
                    methods[method.name] = {each.attr for each in nodes}
    return outside, methods


@pytest.mark.parametrize("settings", [LogConfig, ControllerSettings])
def test_every_field_with_a_key_is_read(settings: type) -> None:
    """If no code reads a field, the field's key has no effect, although its name is in the code."""
    outside, methods = attributes_read(settings)
    read = outside.union(*(names for method, names in methods.items() if method in outside))
    unread = set(key_fields(settings)) - read
    assert not unread, f"read it, or move its key to config/keys/without_effect.py: {unread}"


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
