import re

import pytest

from moldau.config import (
    BrokerConfig,
    ConfigError,
    ConfigSource,
    ConfiguredVoter,
    ListenerEndpoint,
    TopicConfig,
)

COMBINED = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@localhost:9093",
}
BROKER_ONLY = {
    "process.roles": "broker",
    "node.id": "2",
    "listeners": "PLAINTEXT://localhost:9092",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@localhost:9093",
}


def test_the_configuration_of_a_combined_node():
    config = BrokerConfig.from_properties(COMBINED, {"log.dirs": "/a, /b"})
    assert config.node_id == 1
    assert config.is_broker
    assert config.is_controller
    assert config.log_dirs == ("/a", "/b")
    assert config.metadata_log_dir == "/a"
    assert config.broker_listeners == (ListenerEndpoint("PLAINTEXT", "localhost", 9092),)
    assert config.controller_listeners == (ListenerEndpoint("CONTROLLER", "localhost", 9093),)
    assert config.advertised_listeners == config.broker_listeners
    assert config.security_protocols["CONTROLLER"] == "PLAINTEXT"
    assert config.quorum_voters == (ConfiguredVoter(1, "localhost", 9093),)
    assert config.inter_broker_listener_name == "PLAINTEXT"
    assert config.integer("num.partitions") == 1
    assert config["log.flush.interval.ms"] is None


def test_listeners_and_voters_may_have_ipv6_addresses():
    config = BrokerConfig.from_properties(
        BROKER_ONLY, {"listeners": "PLAINTEXT://[::1]:9092", "controller.quorum.voters": "1@[::1]:9093"}
    )
    assert config.listeners == (ListenerEndpoint("PLAINTEXT", "::1", 9092),)
    assert str(config.listeners[0]) == "PLAINTEXT://[::1]:9092"
    assert config.quorum_voters[0].host == "::1"


@pytest.mark.parametrize(
    ("base", "changes", "key", "reason"),
    [
        (COMBINED, {"process.roles": ""}, "process.roles", "Missing required configuration"),
        (
            COMBINED,
            {"process.roles": "broker,king"},
            "process.roles",
            "String must be one of: broker, controller",
        ),
        (COMBINED, {"node.id": "-1"}, "node.id", "Missing configuration `node.id`"),
        (COMBINED, {"broker.id": "7"}, "broker.id", "same value"),
        (
            COMBINED,
            {"controller.quorum.voters": "5@localhost:9093"},
            "controller.quorum.voters",
            "must be included",
        ),
        (BROKER_ONLY, {"node.id": "1"}, "controller.quorum.voters", "must not be included"),
        (BROKER_ONLY, {"controller.quorum.voters": ""}, "controller.quorum.voters", "either"),
        (
            COMBINED,
            {"controller.quorum.voters": "1-localhost"},
            "controller.quorum.voters",
            "{id}@{host}:{port}",
        ),
        (COMBINED, {"controller.listener.names": "OTHER"}, "listeners", "No security protocol defined"),
        (COMBINED, {"controller.listener.names": "SSL"}, "listeners", "No security protocol defined"),
        (
            BROKER_ONLY,
            {"controller.listener.names": "PLAINTEXT"},
            "controller.listener.names",
            "must not contain",
        ),
        (
            COMBINED,
            {"process.roles": "controller"},
            "listeners",
            "must only contain KRaft controller listeners",
        ),
        (COMBINED, {"listeners": "PLAINTEXT:9092"}, "listeners", "Unable to parse PLAINTEXT:9092"),
        (COMBINED, {"listeners": "PLAINTEXT://a:70000"}, "listeners", "70000 is not a port"),
        (
            COMBINED,
            {"listeners": "PLAINTEXT://a:1,PLAINTEXT://a:2"},
            "listeners",
            "Each listener must have a different name",
        ),
        (
            COMBINED,
            {"listeners": "PLAINTEXT://a:1,CONTROLLER://a:1"},
            "listeners",
            "Each listener must have a different port",
        ),
        (COMBINED, {"advertised.listeners": "SSL://a:1"}, "advertised.listeners", "subset"),
        (COMBINED, {"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, "advertised.listeners", "0.0.0.0"),
        (
            COMBINED,
            {"listeners": "PLAINTEXT://0.0.0.0:1,CONTROLLER://a:2"},
            "listeners",
            "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0",
        ),
        (
            COMBINED,
            {"listener.security.protocol.map": "PLAINTEXT:PLAIN,CONTROLLER:PLAINTEXT"},
            "listener.security.protocol.map",
            "Invalid security protocol `PLAIN`",
        ),
        (
            COMBINED,
            {"inter.broker.listener.name": "INTERNAL"},
            "inter.broker.listener.name",
            "must be a listener",
        ),
        (COMBINED, {"log.retention.ms": "0"}, "log.retention.ms", "unlimited (-1)"),
        (COMBINED, {"log.dirs": "/a,/a"}, "log.dirs", "Duplicate log directory"),
        (COMBINED, {"queued.max.request.bytes": "10"}, "queued.max.request.bytes", "larger or equal"),
        (COMBINED, {"max.connections.per.ip": "0"}, "max.connections.per.ip", "zero only if"),
        (COMBINED, {"broker.session.timeout.ms": "2500"}, "broker.session.timeout.ms", "half"),
        (COMBINED, {"num.partitons": "3"}, "num.partitons", "Did you mean num.partitions?"),
    ],
)
def test_contradictions_name_the_key_and_the_reason(base, changes, key, reason):
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_properties(base, changes)
    assert caught.value.key == key
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_key_with_the_finest_unit_of_time_takes_precedence():
    assert BrokerConfig({}).log_retention_ms == 7 * 24 * 3_600_000
    assert BrokerConfig({"log.retention.hours": "2"}).log_retention_ms == 7_200_000
    assert (
        BrokerConfig({"log.retention.hours": "2", "log.retention.minutes": "3"}).log_retention_ms == 180_000
    )
    assert BrokerConfig({"log.retention.minutes": "3", "log.retention.ms": "4"}).log_retention_ms == 4
    assert BrokerConfig({"log.retention.hours": "-1"}).log_retention_ms == -1


def test_dynamic_values_take_precedence_over_the_file_and_the_defaults():
    static = BrokerConfig({"log.retention.bytes": "1"})
    assert static.entry("log.retention.bytes").source is ConfigSource.STATIC_BROKER
    config = static.with_dynamic({"log.retention.bytes": "2"}, {"log.retention.bytes": "3"})
    entry = config.entry("log.retention.bytes")
    assert entry.value == 3
    assert [(synonym.text, synonym.source) for synonym in entry.synonyms] == [
        ("3", ConfigSource.DYNAMIC_BROKER),
        ("2", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("1", ConfigSource.STATIC_BROKER),
        ("-1", ConfigSource.DEFAULT),
    ]
    assert not entry.is_read_only
    assert static.integer("log.retention.bytes") == 1
    assert len(config.describe()) > 200


def test_synonyms_of_a_broker_config():
    entry = BrokerConfig({"log.retention.minutes": "5"}).entry("log.retention.ms")
    assert entry.value is None
    assert [synonym.name for synonym in entry.synonyms] == ["log.retention.minutes", "log.retention.hours"]


def check_dynamic(name: str, value: str, *, is_default: bool = True) -> None:
    BrokerConfig.from_properties(COMBINED).check_dynamic({name: value}, is_default=is_default)


def test_a_running_node_accepts_dynamic_configs():
    check_dynamic("log.retention.ms", "5")
    check_dynamic("a.key.of.a.plugin", "x")
    check_dynamic("sasl.enabled.mechanisms", "PLAIN", is_default=False)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (
            "listener.name.plaintext.max.connections",
            "x",
            "listener.name.plaintext.max.connections: Not a num",
        ),
        ("node.id", "5", "Cannot update these configs dynamically: node.id"),
        ("listeners", "PLAINTEXT://:1", "broker id must be specified: listeners"),
        ("sasl.enabled.mechanisms", "PLAIN", "broker id must be specified: sasl.enabled.mechanisms"),
        ("ssl.keystore.location", "/a", "only per-listener"),
        ("log.retention.ms", "x", "Not a number"),
        ("max.connections", "0", "Value must be at least 1 on a running node"),
        ("num.io.threads", "100", "not be greater than double the current value 8"),
    ],
)
def test_a_running_node_refuses_read_only_and_invalid_configs(name, value, reason):
    with pytest.raises(ConfigError, match=re.escape(reason)) as caught:
        check_dynamic(name, value)
    assert caught.value.key == name


def test_a_dynamic_number_of_threads_can_always_be_removed():
    config = BrokerConfig.from_properties(COMBINED).with_dynamic({"num.network.threads": "1"})
    config.check_dynamic({}, is_default=True)
    with pytest.raises(ConfigError, match="not be greater than double the current value 1"):
        config.check_dynamic({"num.network.threads": "3"}, is_default=True)


def test_values_in_the_file_of_a_started_node_do_not_prevent_other_changes():
    static = {"log.local.retention.bytes": "10", "log.retention.bytes": "5"}
    config = BrokerConfig.from_properties(COMBINED, static)
    config.check_dynamic({"log.roll.ms": "7"}, is_default=True)
    with pytest.raises(ConfigError, match="must not be more than"):
        config.check_dynamic({"log.retention.bytes": "6"}, is_default=True)


def test_dynamic_values_that_cannot_be_used_are_left_out_and_named():
    config = BrokerConfig.from_properties(COMBINED).with_dynamic(
        {"max.connections": "0", "log.retention.ms": "7", "a.key.of.a.plugin": "x"},
        {"log.roll.ms": "never"},
    )
    assert config.integer("max.connections") == 2**31 - 1
    assert config.integer("log.retention.ms") == 7
    assert config["log.roll.ms"] is None
    assert sorted(config.unusable) == ["log.roll.ms", "max.connections"]


def test_a_time_below_zero_is_for_ever_in_a_topic_too():
    config = BrokerConfig.from_properties(COMBINED, {"log.retention.ms": "-5"})
    assert config.log_retention_ms == -1
    assert TopicConfig.effective(config, {}).retention_ms == -1


@pytest.mark.parametrize("listener", ["127.0.0.1:22;x", "x", "a:70000", "a:-1", ":80", "a:b:80"])
def test_the_listener_of_metrics_is_a_host_and_a_port(listener):
    with pytest.raises(
        ConfigError, match=re.escape(f"Invalid value {listener} for configuration metrics.listener")
    ):
        BrokerConfig.from_properties(COMBINED, {"metrics.listener": listener})
