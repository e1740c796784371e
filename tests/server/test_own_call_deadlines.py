"""Handlers of Moldau's own calls. The caller's time-out begins when the request arrives."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Iterator, Mapping
from typing import Any, TypeAlias
from uuid import UUID

import pytest

from moldau.cluster.controller.decided_apis import DECIDED_APIS
from moldau.coordinators.diskless.calls.declaration import DisklessCall
from moldau.coordinators.diskless.calls.subjects.reading import FIND_BATCHES
from moldau.coordinators.diskless.codecs.batch_columns import encode_batches
from moldau.coordinators.diskless.handlers import DisklessHandlers
from moldau.network.authorization import AllowEveryone
from moldau.network.context import ConnectionContext, RequestContext
from moldau.network.own_calls import BrokerCall, CallDeclaration
from moldau.network.own_serving import BrokerCallHandlers
from moldau.network.served import Handler
from moldau.protocol.api import OWN_API_KEY_MIN
from moldau.protocol.own import MODULES
from moldau.protocol.own.describe_own_apis import DescribeOwnApisRequest
from moldau.protocol.own.diskless.commit_parts import DisklessCommitPart, DisklessCommitPartsRequest
from moldau.protocol.own.diskless.hand_over import DisklessHandedOverFile, DisklessHandOverRequest
from moldau.protocol.own.diskless.prune import (
    DisklessPrunePartition,
    DisklessPruneRequest,
    DisklessPruneTopic,
)
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, Machine
from moldau.server.node import ServerNode
from moldau.simulation.world.world import World
from moldau.testing import Node

TIMEOUT_MS = 1_000
DECIDED = {key for key in DECIDED_APIS if key >= OWN_API_KEY_MIN}
"""The APIs of Moldau that the controller decides. A request to one of them has the deadline of the channel to
the controller."""
CALLS = sorted(set(MODULES) - DECIDED - {DescribeOwnApisRequest.API_KEY})

Calls: TypeAlias = Mapping[int, CallDeclaration[Any, Any]]


@pytest.fixture(scope="module")
def node() -> Iterator[ServerNode]:
    """A node with every subsystem that serves calls of Moldau's own."""
    properties = {
        "remote.log.storage.system.enable": "true",
        "remote.log.metadata.topic.replication.factor": "1",
        "remote.log.metadata.topic.num.partitions": "1",
        "diskless.metadata.topic.num.partitions": "1",
        "backup.enable": "true",
    }
    with Node(diskless=True, properties=properties) as running:
        assert running._node is not None
        yield running._node


@pytest.fixture(scope="module")
def calls(node: ServerNode) -> Calls:
    return node.extensions.own_calls


class Stuck:
    """A service that begins every operation but never ends one."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def operation(*arguments: Any) -> Any:
            self.begun.append(name)
            await asyncio.Event().wait()

        return operation


NESTED: dict[int, dict[str, type[Message]]] = {
    DisklessCommitPartsRequest.API_KEY: {"parts": DisklessCommitPart},
    DisklessHandOverRequest.API_KEY: {"files": DisklessHandedOverFile},
    DisklessPruneRequest.API_KEY: {"topics": DisklessPruneTopic, "partitions": DisklessPrunePartition},
}
"""Array fields that need at least one row, because the request has no effect without a row."""

VALUES: dict[type[Message], dict[str, Any]] = {DisklessCommitPart: {"columns": encode_batches([])}}
"""Fields of rows whose default value cannot be decoded."""


def filled(kind: Any, nested: dict[str, type[Message]], **fields: Any) -> Message:
    """A message with a value in each field that has no default."""
    values = {"int": 1, "str": "t", "bytes": b"", "bool": False, "UUID": UUID(int=1)}
    for field in dataclasses.fields(kind):
        if field.name in nested:
            fields[field.name] = [filled(nested[field.name], nested, **VALUES.get(nested[field.name], {}))]
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            fields.setdefault(field.name, values.get(getattr(field.type, "__name__", str(field.type)), []))
    message: Message = kind(**fields)
    return message


def request_to(call: CallDeclaration[Any, Any], **fields: Any) -> Message:
    return filled(call.request, NESTED.get(call.api_key, {}), timeout_ms=TIMEOUT_MS, **fields)


def handler_of(call: CallDeclaration[Any, Any], service: Any) -> Handler:
    everyone = AllowEveryone()
    if isinstance(call, DisklessCall):
        return DisklessHandlers(service, everyone, lambda _: "t").table()[call.api_key]
    assert isinstance(call, BrokerCall)
    return BrokerCallHandlers({call.api_key: call}, service, everyone).table()[call.api_key]


async def asked(call: CallDeclaration[Any, Any], service: Any, waited_s: float) -> Any:
    """The response to a request that arrived ``waited_s`` ago."""
    connection = ConnectionContext(1, "PLAINTEXT", "127.0.0.1", 9092, None)  # type: ignore[arg-type]
    received_at = asyncio.get_running_loop().time() - waited_s
    context = RequestContext(call.api_key, 0, 1, "client", connection, received_at)
    answer = handler_of(call, service)(context, request_to(call))
    assert isinstance(answer, Awaitable)
    return await answer


def test_every_own_api_is_served_or_decided(node: ServerNode, calls: Calls) -> None:
    served = {key for key in node.extensions.handlers if key >= OWN_API_KEY_MIN}
    known = served | DECIDED | {DescribeOwnApisRequest.API_KEY}
    unserved = [MODULES[key][0] for key in set(MODULES) - known]
    assert not unserved, f"contribute their handlers: calls= of a Contribution, for {unserved}"
    assert known <= set(MODULES), "give each of our own APIs a row in MODULES (protocol/own)"
    undeclared = [MODULES[key][0] for key in set(CALLS) - set(calls)]
    assert not undeclared, f"declare a call with a deadline: {undeclared}"


@pytest.mark.parametrize("api_key", CALLS)
def test_a_call_whose_time_is_over_does_not_begin(api_key: int, calls: Calls) -> None:
    async def story(machine: Machine) -> None:
        service = Stuck()
        response = await asked(calls[api_key], service, waited_s=TIMEOUT_MS / 1000)
        assert response.error_code is ErrorCode.request_timed_out
        assert service.begun == []

    play(story)


@pytest.mark.parametrize("api_key", CALLS)
def test_a_call_ends_with_the_time_that_was_left_at_its_arrival(api_key: int, calls: Calls) -> None:
    async def story(machine: Machine) -> None:
        service, loop = Stuck(), asyncio.get_running_loop()
        began_s = loop.time()
        response = await asked(calls[api_key], service, waited_s=0.9)
        assert response.error_code is ErrorCode.request_timed_out
        assert len(service.begun) == 1
        assert loop.time() - began_s == pytest.approx(0.1, abs=0.001)

    play(story)


def test_a_replaced_request_keeps_its_deadline() -> None:
    async def story(machine: Machine) -> None:
        service, loop = Stuck(), asyncio.get_running_loop()
        began_s = loop.time()
        connection = ConnectionContext(1, "PLAINTEXT", "127.0.0.1", 9092, None)  # type: ignore[arg-type]
        context = RequestContext(FIND_BATCHES.api_key, 0, 1, "client", connection, began_s - 0.8)
        handlers = DisklessHandlers(service, AllowEveryone(), lambda _: "t")  # type: ignore[arg-type]
        request = request_to(FIND_BATCHES, max_wait_ms=500)
        first = asyncio.ensure_future(handlers.handle(context, request))
        await asyncio.sleep(0.05)
        asyncio.ensure_future(handlers.handle(context, request))  # noqa: RUF006
        response: Any = await first
        assert response.error_code is ErrorCode.request_timed_out
        assert loop.time() - began_s == pytest.approx(0.2, abs=0.001)

    play(story)


def play(story: Any) -> None:
    with World(7) as world:
        process = world.host("broker").start(story)
        assert process.main is not None
        world.run(asyncio.wait_for(process.main, 60))
