"""Configs of loggers, groups and client metrics. Some requests are refused before a request is sent to the
controller."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from wire import ask

from moldau.protocol.messages import alter_configs as legacy
from moldau.protocol.messages import describe_configs as describe
from moldau.protocol.messages import incremental_alter_configs as incremental
from moldau.protocol.messages import list_config_resources as resources
from moldau.runtime import ErrorCode
from moldau.testing import Node

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
INVALID_REQUEST, INVALID_CONFIG = ErrorCode.invalid_request, ErrorCode.invalid_config
NONE = ErrorCode.none


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(properties={"group.consumer.session.timeout.ms": "46000"}) as running:
        yield running


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger that only one test changes."""
    found = logging.getLogger("moldau.test.changed")
    yield found
    found.setLevel(logging.NOTSET)


def described(node: Node, kind: int, name: str, *keys: str) -> Any:
    resource = describe.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    return ask(node, describe.DescribeConfigsRequest(resources=[resource], include_synonyms=True)).results[0]


def values(node: Node, kind: int, name: str, *keys: str) -> dict[str, tuple[str | None, int]]:
    result = described(node, kind, name, *keys)
    assert result.error_code is NONE, result
    return {row.name: (row.value, row.config_source) for row in result.configs}


def change(*rows: tuple[int, str, str, int, str | None], validate_only: bool = False) -> Any:
    """A request with one resource per row: kind, name, key, operation, value."""
    return incremental.IncrementalAlterConfigsRequest(
        resources=[
            incremental.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[incremental.AlterableConfig(name=key, config_operation=operation, value=value)],
            )
            for kind, name, key, operation, value in rows
        ],
        validate_only=validate_only,
    )


def outcome(node: Node, kind: int, name: str, key: str, operation: int, value: str | None) -> ErrorCode:
    (row,) = ask(node, change((kind, name, key, operation, value))).responses
    code: ErrorCode = row.error_code
    return code


def test_loggers_are_listed_and_their_levels_set(node: Node, logger: logging.Logger) -> None:
    name = logger.name
    before = values(node, LOGGER, "1")
    assert before["root"] == before[name] == (before["root"][0], 6)
    assert "moldau.test" in before, "a name that only stands for others has a level too"
    assert outcome(node, LOGGER, "1", name, SET, "TRACE") is NONE
    assert values(node, LOGGER, "1", name) == {name: ("TRACE", 6)}
    assert logger.isEnabledFor(1) or logger.level == 5
    ask(node, change((LOGGER, "1", name, SET, "FATAL"), validate_only=True))
    assert values(node, LOGGER, "1", name) == {name: ("TRACE", 6)}
    assert outcome(node, LOGGER, "1", name, SET, "ERROR") is NONE
    assert logger.level == logging.ERROR
    assert outcome(node, LOGGER, "1", name, DELETE, None) is NONE
    assert values(node, LOGGER, "1", name)[name] == before["root"]


@pytest.mark.parametrize(
    ("broker", "name", "operation", "value", "code"),
    [
        ("1", "root", SET, "OFF", INVALID_CONFIG),
        ("1", "root", SET, "warn", INVALID_CONFIG),
        ("1", "root", SET, None, INVALID_REQUEST),
        ("1", "root", DELETE, None, INVALID_REQUEST),
        ("1", "root", APPEND, "INFO", INVALID_REQUEST),
        ("1", "root", SUBTRACT, "INFO", INVALID_REQUEST),
        ("1", "root", 9, "INFO", INVALID_REQUEST),
        ("1", "no.such.logger", SET, "INFO", INVALID_CONFIG),
        ("1", "no.such.logger", DELETE, None, INVALID_CONFIG),
        ("7", "root", SET, "INFO", INVALID_REQUEST),
        ("", "root", SET, "INFO", INVALID_REQUEST),
        ("x", "root", SET, "INFO", INVALID_REQUEST),
    ],
)
def test_levels_that_cannot_be_set(
    node: Node, broker: str, name: str, operation: int, value: str | None, code: ErrorCode
) -> None:
    assert outcome(node, LOGGER, broker, name, operation, value) is code
    assert "no.such.logger" not in logging.root.manager.loggerDict


def test_group_configs_and_their_bounds(node: Node) -> None:
    defaults = values(node, GROUP, "anybody")
    assert len(defaults) == 11
    assert defaults["consumer.session.timeout.ms"] == ("46000", 5)
    assert defaults["share.auto.offset.reset"] == ("latest", 5)
    assert outcome(node, GROUP, "mine", "consumer.session.timeout.ms", SET, "50000") is NONE
    (row,) = described(node, GROUP, "mine", "consumer.session.timeout.ms").configs
    assert (row.value, row.config_source, row.config_type, row.read_only) == ("50000", 8, 3, False)
    assert [(one.name, one.value, one.source) for one in row.synonyms] == [(row.name, "50000", 8)]
    for key, value in {
        "consumer.session.timeout.ms": "1",
        "consumer.heartbeat.interval.ms": "15001",
        "share.record.lock.duration.ms": "60001",
        "share.heartbeat.interval.ms": "4999",
        "share.auto.offset.reset": "by_duration:soon",
        "streams.num.standby.replicas": "3",
        "streams.session.timeout.ms": "many",
        "no.such.key": "1",
    }.items():
        assert outcome(node, GROUP, "mine", key, SET, value) is INVALID_CONFIG, key
    assert outcome(node, GROUP, "mine", "share.auto.offset.reset", SET, "by_duration:P1DT2H") is NONE
    assert outcome(node, GROUP, "", "share.isolation.level", SET, "read_committed") is INVALID_REQUEST
    listed = ask(node, resources.ListConfigResourcesRequest(resource_types=[GROUP])).config_resources
    names = {row.resource_name for row in listed}
    assert "mine" in names
    assert "anybody" not in names


def test_client_metrics_subscriptions_are_set_checked_and_deleted(node: Node) -> None:
    assert values(node, METRICS, "nobody") == {
        "interval.ms": ("300000", 5),
        "match": ("", 5),
        "metrics": ("", 5),
    }
    assert outcome(node, METRICS, "ours", "metrics", SET, "org.apache.,other.") is NONE
    assert outcome(node, METRICS, "ours", "match", SET, "client_id=a.*,client_software_name=b") is NONE
    assert values(node, METRICS, "ours", "metrics") == {"metrics": ("org.apache.,other.", 7)}
    for key, value, code in (
        ("interval.ms", "99", INVALID_REQUEST),
        ("interval.ms", "3600001", INVALID_REQUEST),
        ("interval.ms", "soon", INVALID_CONFIG),
        ("match", "client_id=[", INVALID_CONFIG),
        ("match", "colour=red", INVALID_CONFIG),
        ("match", "client_id", INVALID_CONFIG),
        ("no.such.key", "1", INVALID_REQUEST),
    ):
        assert outcome(node, METRICS, "ours", key, SET, value) is code, (key, value)
    assert outcome(node, METRICS, "", "interval.ms", SET, "100") is INVALID_REQUEST
    listed = ask(node, resources.ListConfigResourcesRequest(), 0).config_resources
    assert {(row.resource_type, row.resource_name) for row in listed} == {(METRICS, "ours")}


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (LOGGER, "", INVALID_REQUEST),
        (LOGGER, "x", INVALID_REQUEST),
        (LOGGER, "7", INVALID_REQUEST),
        (METRICS, "", INVALID_REQUEST),
        (GROUP, "", INVALID_REQUEST),
        (BROKER, "x", INVALID_REQUEST),
        (BROKER, "7", INVALID_REQUEST),
        (TOPIC, "", ErrorCode.invalid_topic_exception),
        (TOPIC, "a b", ErrorCode.invalid_topic_exception),
        (TOPIC, "nobody", ErrorCode.unknown_topic_or_partition),
        (99, "x", INVALID_REQUEST),
    ],
)
def test_resources_that_cannot_be_described(node: Node, kind: int, name: str, code: ErrorCode) -> None:
    assert described(node, kind, name).error_code is code


@pytest.mark.parametrize(
    ("kind", "name", "key", "value", "code"),
    [
        (BROKER, "x", "log.retention.ms", "5", INVALID_REQUEST),
        (BROKER, "7", "log.retention.ms", "5", INVALID_REQUEST),
        (BROKER, "1", "log.dirs", "/x", INVALID_REQUEST),
        (BROKER, "", "log.retention.ms", "soon", INVALID_REQUEST),
        (TOPIC, "", "retention.ms", "5", INVALID_REQUEST),
        (TOPIC, "nobody", "retention.ms", "5", ErrorCode.unknown_topic_or_partition),
        (TOPIC, "nobody", "retention.ms", None, INVALID_REQUEST),
        (99, "x", "a", "1", INVALID_REQUEST),
    ],
)
def test_configs_that_cannot_be_altered(
    node: Node, kind: int, name: str, key: str, value: str | None, code: ErrorCode
) -> None:
    assert outcome(node, kind, name, key, SET, value) is code
    resource = legacy.AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=[legacy.AlterableConfig(name=key, value=value)]
    )
    (row,) = ask(node, legacy.AlterConfigsRequest(resources=[resource])).responses
    assert row.error_code is code


def test_an_answer_for_each_resource_in_order(node: Node, logger: logging.Logger) -> None:
    request = change(
        (LOGGER, "1", logger.name, SET, "DEBUG"),
        (GROUP, "twice", "share.isolation.level", SET, "read_committed"),
        (GROUP, "once", "share.isolation.level", SET, "read_committed"),
        (GROUP, "twice", "share.isolation.level", SET, "read_uncommitted"),
        (METRICS, "sub", "interval.ms", SET, "1"),
    )
    rows = ask(node, request).responses
    assert [(row.resource_type, row.resource_name) for row in rows] == [
        (LOGGER, "1"),
        (GROUP, "twice"),
        (GROUP, "once"),
        (GROUP, "twice"),
        (METRICS, "sub"),
    ]
    assert [row.error_code for row in rows] == [NONE, INVALID_REQUEST, NONE, INVALID_REQUEST, INVALID_REQUEST]
    assert logger.level == logging.DEBUG
    assert values(node, GROUP, "once", "share.isolation.level") == {
        "share.isolation.level": ("read_committed", 8)
    }
    assert values(node, GROUP, "twice", "share.isolation.level")["share.isolation.level"][1] == 5


def test_a_cluster_wide_default_is_shown_as_it_was_set(node: Node) -> None:
    assert outcome(node, BROKER, "", "log.retention.ms", SET, "7777") is NONE
    assert outcome(node, BROKER, "1", "log.retention.ms", SET, "8888") is NONE
    (row,) = described(node, BROKER, "").configs
    assert (row.name, row.value, row.config_source) == ("log.retention.ms", "7777", 3)
    assert [(one.value, one.source) for one in row.synonyms] == [("7777", 3)]
    (own,) = described(node, BROKER, "1", "log.retention.ms").configs
    assert (own.value, own.config_source) == ("8888", 2)
    for name in ("", "1"):
        assert outcome(node, BROKER, name, "log.retention.ms", DELETE, None) is NONE


def test_a_key_that_is_not_defined_is_kept_and_shown_without_its_value(node: Node) -> None:
    assert outcome(node, BROKER, "1", "a.key.of.a.plugin", SET, "secret") is NONE
    assert outcome(node, BROKER, "1", "sasl.enabled.mechanisms", SET, "PLAIN") is NONE
    (row,) = described(node, BROKER, "1", "a.key.of.a.plugin").configs
    assert (row.name, row.value, row.config_source, row.is_sensitive) == ("a.key.of.a.plugin", None, 2, True)
    assert described(node, BROKER, "1", "sasl.enabled.mechanisms").configs[0].value == "PLAIN"
    for key in ("a.key.of.a.plugin", "sasl.enabled.mechanisms"):
        assert outcome(node, BROKER, "1", key, DELETE, None) is NONE
    assert not described(node, BROKER, "1", "a.key.of.a.plugin").configs


@pytest.mark.parametrize(
    ("name", "key", "value", "reason"),
    [
        (
            "",
            "max.connections",
            "0",
            "Invalid value 0 for configuration max.connections: Value must be at least 1",
        ),
        ("1", "num.io.threads", "99", "num.io.threads=99, value should not be greater than double"),
        (
            "",
            "log.retention.ms",
            "0",
            "log.retention.ms must be unlimited (-1) or, greater than or equal to 1",
        ),
        ("1", "node.id", "2", "Cannot update these configs dynamically: node.id"),
        ("", "sasl.enabled.mechanisms", "PLAIN", "broker id must be specified: sasl.enabled.mechanisms"),
        ("1", "ssl.keystore.location", "/a", "using the listener prefix: ssl.keystore.location"),
        (
            "",
            "message.max.bytes",
            "-1",
            "Invalid value -1 for configuration message.max.bytes: Value must be",
        ),
    ],
)
def test_a_refusal_names_key_value_and_bound(
    node: Node, name: str, key: str, value: str, reason: str
) -> None:
    (row,) = ask(node, change((BROKER, name, key, SET, value))).responses
    assert row.error_code is INVALID_REQUEST
    assert reason in row.error_message


def test_librdkafka_sees_and_sets_group_configs(node: Node) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    entry = ConfigEntry("share.session.timeout.ms", "50000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, "by-librdkafka", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(60)
    found = admin.describe_configs([resource])[resource].result(60)
    assert found["share.session.timeout.ms"].value == "50000"
