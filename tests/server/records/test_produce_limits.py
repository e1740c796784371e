"""Some legal config values cause the refusal of every producer. While such a value is set, it is reported
with its key."""

import asyncio
import json
import logging
import urllib.request
from collections.abc import Awaitable, Callable, Iterator

import pytest
from plain_requests import Requests

from moldau.protocol.messages import incremental_alter_configs as incremental
from moldau.runtime import ErrorCode
from moldau.testing import Node

BROKER, TOPIC = 4, 2
LARGEST = str(2**31 - 1)
Story = Callable[[Requests], Awaitable[None]]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(properties={"metrics.listener": "127.0.0.1:0"}) as running:
        yield running


def play(node: Node, story: Story) -> None:
    async def told() -> None:
        async with Requests(node.bootstrap_servers) as client, asyncio.timeout(120):
            await story(client)

    asyncio.run(told())


async def alter(client: Requests, kind: int, name: str, key: str, value: str | None) -> None:
    config = incremental.AlterableConfig(name=key, config_operation=value is None, value=value)
    resource = incremental.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
    answer = await client.ask(incremental.IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code is ErrorCode.none


def notice(node: Node) -> str:
    with urllib.request.urlopen(f"{node.monitoring_url}/health", timeout=100) as answer:
        notices: dict[str, str] = json.load(answer).get("notices", {})
    return notices.get("limits", "")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("message.max.bytes", "5"),
        ("min.insync.replicas", LARGEST),
        ("log.message.timestamp.before.max.ms", "0"),
    ],
)
def test_a_limit_of_a_broker_is_reported_while_it_is_set(
    node: Node, caplog: pytest.LogCaptureFixture, key: str, value: str
) -> None:
    async def set_it(client: Requests) -> None:
        await alter(client, BROKER, "", key, value)

    async def delete_it(client: Requests) -> None:
        await alter(client, BROKER, "", key, None)

    assert notice(node) == ""
    with caplog.at_level(logging.WARNING):
        play(node, set_it)
    assert f"{key}={value}" in notice(node)
    assert [f"{key}={value}" in line for line in caplog.messages if "refuses all producers" in line] == [True]
    play(node, delete_it)
    assert notice(node) == ""


@pytest.mark.parametrize(("key", "value"), [("max_message_bytes", "60"), ("min_insync_replicas", "2")])
def test_a_limit_of_a_topic_is_reported_until_it_is_removed(node: Node, key: str, value: str) -> None:
    async def story(client: Requests) -> None:
        await client.create("deaf", 1, **{key: value})
        await client.create("well", min_insync_replicas="1", max_message_bytes="68")
        assert notice(node).startswith(f"topic deaf: {key.replace('_', '.')}={value}")
        assert "well" not in notice(node)
        await client.delete("deaf")
        await client.delete("well")
        assert notice(node) == ""

    play(node, story)
