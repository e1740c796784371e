"""No single request may make a node unusable. The tests set each dynamic key to its extreme values, and
delete the value afterwards."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from wire import ask as ask_once

from moldau.config.broker import BROKER
from moldau.config.definition import ConfigKey, ConfigType, Update
from moldau.protocol.messages import incremental_alter_configs as incremental
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError
from moldau.testing import Node

SET, DELETE, BROKER_RESOURCE = 0, 1, 4
INTEGERS = {ConfigType.SHORT: 15, ConfigType.INT: 31, ConfigType.LONG: 63}


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    properties = {"diskless.system.enable": "true", "diskless.storage.url": "memory://"}
    with Node(properties=properties) as running:
        yield running


def ask(node: Node, message: Message) -> Any:
    """Send a request. If it fails, send it again, because the node may not have closed the previous
    connection yet."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return ask_once(node, message)
        except KafkaError as error:
            if error.code is not ErrorCode.network_exception or time.monotonic() > deadline:
                raise


def extremes(key: ConfigKey) -> list[str]:
    match key.type:
        case ConfigType.SHORT | ConfigType.INT | ConfigType.LONG:
            edge = 1 << INTEGERS[key.type]
            return [str(value) for value in (-edge, -2, -1, 0, 1, edge - 1)]
        case ConfigType.DOUBLE:
            return ["0", "0.0000001", "1", "1e300", "Infinity", "NaN"]
        case ConfigType.BOOLEAN:
            return ["true", "false"]
        case _:
            return ["", "x", "127.0.0.1:0", "127.0.0.2:0"]


def alter(node: Node, key: str, value: str | None) -> ErrorCode:
    """Set or delete a default of all brokers, on a new connection."""
    config = incremental.AlterableConfig(
        name=key, config_operation=DELETE if value is None else SET, value=value
    )
    resource = incremental.AlterConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name="", configs=[config]
    )
    answer = ask(node, incremental.IncrementalAlterConfigsRequest(resources=[resource]))
    code: ErrorCode = answer.responses[0].error_code
    return code


@pytest.mark.parametrize("name", [key.name for key in BROKER if key.update is Update.CLUSTER_WIDE])
def test_an_extreme_value_can_be_deleted_again(node: Node, name: str) -> None:
    for value in extremes(BROKER[name]):
        outcome = alter(node, name, value)
        assert outcome in (ErrorCode.none, ErrorCode.invalid_request), (name, value, outcome)
        assert ask(node, DescribeClusterRequest()).error_code is ErrorCode.none
        assert alter(node, name, None) is ErrorCode.none, (name, value)


def test_an_operator_can_connect_with_any_limit_of_connections(node: Node) -> None:
    assert alter(node, "max.connections.per.ip.overrides", "10.1.1.1:5,127.0.0.1:0") is ErrorCode.none
    assert alter(node, "max.connections.per.ip", "0") is ErrorCode.none
    assert alter(node, "max.connections", "1") is ErrorCode.none
    assert ask(node, DescribeClusterRequest()).error_code is ErrorCode.none
    for key in ("max.connections", "max.connections.per.ip", "max.connections.per.ip.overrides"):
        assert alter(node, key, None) is ErrorCode.none
