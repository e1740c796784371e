"""Handlers of our own calls: the caller's time-out begins when its request arrives."""

import asyncio
import dataclasses
from collections.abc import Awaitable
from typing import Any
from uuid import UUID

import pytest

from moldau.backup.calls import SAVE_LOGS
from moldau.chunks.calls import FETCH_CHUNK_FILE, FIND_IN_CHUNK, HAND_OVER_CHUNK, READ_CHUNK
from moldau.cluster.controller.decided_apis import DECIDED_APIS
from moldau.coordinators.diskless.calls.reading import FIND_BATCHES
from moldau.coordinators.diskless.calls.table import CALLS as DISKLESS_CALLS
from moldau.coordinators.diskless.codecs.batch_columns import encode_batches
from moldau.coordinators.diskless.handlers import DisklessHandlers
from moldau.diskless.reading.rack_call import READ_OBJECT
from moldau.network.authorization import AllowEveryone
from moldau.network.context import ConnectionContext, RequestContext
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
from moldau.simulation.world.world import World
from moldau.tiered.calls import CALLS as TIERED_CALLS
from moldau.tiered.consolidation.calls import CALLS as CONSOLIDATION_CALLS
from moldau.tiered.metadata.calls import METADATA_CALLS

TIMEOUT_MS = 1_000
CHUNK_CALLS = (READ_CHUNK, FIND_IN_CHUNK, HAND_OVER_CHUNK, FETCH_CHUNK_FILE)
SINGLE_CALLS = {call.api_key: call for call in (READ_OBJECT, SAVE_LOGS, *CHUNK_CALLS)}
BROKER_CALLS = (SINGLE_CALLS, TIERED_CALLS, METADATA_CALLS, CONSOLIDATION_CALLS)
DECIDED = {key for key in DECIDED_APIS if key >= OWN_API_KEY_MIN}
"""The controller decides these requests; their deadlines are those of the channel to it."""
REQUESTS: dict[int, type[Message]] = {
    key: call.request for calls in (DISKLESS_CALLS, *BROKER_CALLS) for key, call in calls.items()
}


class Stuck:
    """A service that begins every operation, and ends none."""

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
"""Fields whose rows are necessary for an effect of the request."""

VALUES: dict[type[Message], dict[str, Any]] = {DisklessCommitPart: {"columns": encode_batches([])}}
"""Fields of rows whose default cannot be read."""


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


def request_to(api_key: int, **fields: Any) -> Message:
    return filled(REQUESTS[api_key], NESTED.get(api_key, {}), timeout_ms=TIMEOUT_MS, **fields)


def handler_of(api_key: int, service: Any) -> Handler:
    tables = [DisklessHandlers(service, AllowEveryone(), lambda _: "t").table()]
    tables += [BrokerCallHandlers(calls, service, AllowEveryone()).table() for calls in BROKER_CALLS]
    return next(table[api_key] for table in tables if api_key in table)


async def asked(api_key: int, service: Any, waited_s: float, **fields: Any) -> Any:
    """The response to a request that arrived ``waited_s`` ago."""
    connection = ConnectionContext(1, "PLAINTEXT", "127.0.0.1", 9092, None)  # type: ignore[arg-type]
    received_at = asyncio.get_running_loop().time() - waited_s
    context = RequestContext(api_key, 0, 1, "client", connection, received_at)
    answer = handler_of(api_key, service)(context, request_to(api_key, **fields))
    assert isinstance(answer, Awaitable)
    return await answer


def test_every_own_call_is_among_them() -> None:
    undeclared = set(MODULES) - {DescribeOwnApisRequest.API_KEY} - DECIDED - set(REQUESTS)
    names = [MODULES[key][0] for key in undeclared]
    assert not undeclared, f"declare a call, or name its table here: {names}"
    assert set(REQUESTS) <= set(MODULES), "give each call a row in MODULES (protocol/own)"


@pytest.mark.parametrize("api_key", sorted(REQUESTS))
def test_a_call_whose_time_is_over_does_not_begin(api_key: int) -> None:
    async def story(machine: Machine) -> None:
        service = Stuck()
        response = await asked(api_key, service, waited_s=TIMEOUT_MS / 1000)
        assert response.error_code is ErrorCode.request_timed_out
        assert service.begun == []

    play(story)


@pytest.mark.parametrize("api_key", sorted(REQUESTS))
def test_a_call_ends_with_the_time_that_was_left_at_its_arrival(api_key: int) -> None:
    async def story(machine: Machine) -> None:
        service, loop = Stuck(), asyncio.get_running_loop()
        began_s = loop.time()
        response = await asked(api_key, service, waited_s=0.9)
        assert response.error_code is ErrorCode.request_timed_out
        assert len(service.begun) == 1
        assert loop.time() - began_s == pytest.approx(0.1, abs=0.001)

    play(story)


def test_a_question_that_is_overtaken_has_no_more_time_than_before() -> None:
    async def story(machine: Machine) -> None:
        service, loop = Stuck(), asyncio.get_running_loop()
        began_s = loop.time()
        connection = ConnectionContext(1, "PLAINTEXT", "127.0.0.1", 9092, None)  # type: ignore[arg-type]
        context = RequestContext(FIND_BATCHES.api_key, 0, 1, "client", connection, began_s - 0.8)
        handlers = DisklessHandlers(service, AllowEveryone(), lambda _: "t")  # type: ignore[arg-type]
        request = request_to(FIND_BATCHES.api_key, max_wait_ms=500)
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
