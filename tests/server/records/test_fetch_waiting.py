"""A waiting fetch is woken by each event that happens after its first read."""

import asyncio
from collections.abc import Awaitable
from typing import Any, cast
from uuid import UUID

import pytest

from moldau.cluster.image.image import MetadataImage
from moldau.network.authorization import AllowEveryone
from moldau.network.context import ConnectionContext, RequestContext
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.protocol.partitions import PartitionKey
from moldau.replication.partition_interface import Partition, ReadAnswer, ReadOutcome, ReadRequest
from moldau.replication.waiters import WaitingRoom
from moldau.server.handlers.records.fetch import FetchHandlers
from moldau.server.handlers.records.fetch_services import FetchServices
from moldau.server.requests.fetch_sessions import FetchSessions
from moldau.server.topics.registry import PartitionRegistry
from moldau.simulation.world.world import World


class Growing:
    """A partition to which a test adds records. With ``remote``, its reads return a future."""

    topic = "t"
    key = PartitionKey(UUID(int=1), 0)

    def __init__(self, arrivals: WaitingRoom[PartitionKey], *, remote: bool) -> None:
        self._arrivals = arrivals
        self._remote = remote
        self._content = b""
        self.reading: asyncio.Future[ReadOutcome] | None = None

    def read(self, request: ReadRequest) -> ReadAnswer:
        outcome = ReadOutcome(views=(self._content,), size_bytes=len(self._content))
        if not self._remote or self._content:
            return outcome
        self.reading = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.01, self.reading.set_result, outcome)
        return self.reading

    def grow(self) -> None:
        self._content += b"more"
        self._arrivals.notify(self.key)


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("turns", range(4))
def test_an_append_at_any_moment_wakes_a_fetch(remote: bool, turns: int) -> None:
    async def story() -> None:
        arrivals: WaitingRoom[PartitionKey] = WaitingRoom()
        partition = Growing(arrivals, remote=remote)
        registry = PartitionRegistry(MetadataImage)
        registry.add(cast(Partition, partition))
        handlers = FetchHandlers(
            FetchServices(registry, arrivals, FetchSessions(0, lambda: 1), AllowEveryone(), 1 << 20)
        )
        rows = [FetchPartition(partition=0, partition_max_bytes=1000)]
        request = FetchRequest(
            max_wait_ms=60_000, min_bytes=1, topics=[FetchTopic(topic="t", partitions=rows)]
        )
        context = RequestContext(1, 12, 0, None, ConnectionContext("c", "PLAINTEXT"))
        outcome = cast(Awaitable[Any], handlers.fetch(context, request))
        if turns == 0:
            partition.grow()  # add the record before the coroutine of the fetch runs for the first time
        waiting = asyncio.ensure_future(outcome)
        for _ in range(turns - 1):
            await asyncio.sleep(0)
        if turns:
            partition.grow()
        answer = await asyncio.wait_for(waiting, 55)
        assert isinstance(answer, FetchResponse)
        assert answer.responses[0].partitions[0].records == (b"more",)
        assert len(arrivals) == 0

    asyncio.run(story())


class Small(Growing):
    """One of many partitions to which a test adds records, with its number."""

    def __init__(self, arrivals: WaitingRoom[PartitionKey], number: int) -> None:
        super().__init__(arrivals, remote=False)
        self.key = PartitionKey(UUID(int=1), number)


@pytest.mark.parametrize("turn", [0, 9, 14, 40])
@pytest.mark.parametrize("number", [0, 9_999])
def test_a_large_fetch_is_answered_in_turns_and_misses_nothing(turn: int, number: int) -> None:
    async def story() -> None:
        arrivals: WaitingRoom[PartitionKey] = WaitingRoom()
        registry = PartitionRegistry(MetadataImage)
        partitions = [Small(arrivals, index) for index in range(10_000)]
        for partition in partitions:
            registry.add(cast(Partition, partition))
        sessions = FetchSessions(10, lambda: 7)
        handlers = FetchHandlers(FetchServices(registry, arrivals, sessions, AllowEveryone(), 1 << 20))
        rows = [FetchPartition(partition=index, partition_max_bytes=1000) for index in range(10_000)]
        request = FetchRequest(
            session_epoch=0, max_wait_ms=60_000, min_bytes=1, topics=[FetchTopic(topic="t", partitions=rows)]
        )
        context = RequestContext(1, 12, 0, None, ConnectionContext("c", "PLAINTEXT"))
        answer = asyncio.ensure_future(cast(Awaitable[Any], handlers.fetch(context, request)))
        turns = 0
        while not answer.done():
            if turns == turn:
                partitions[number].grow()
            turns += 1
            await asyncio.sleep(0)
        assert turns > 20
        (topic,) = answer.result().responses
        assert len(topic.partitions) == 10_000
        assert [row.partition_index for row in topic.partitions if row.records != (b"",)] == [number]
        assert len(arrivals) == 0
        # The next request of the session names no partition, and gets the new records.
        partitions[number].grow()
        request = FetchRequest(session_id=7, session_epoch=1, max_wait_ms=60_000, min_bytes=1)
        again = await cast(Awaitable[Any], handlers.fetch(context, request))
        assert [row.partition_index for topic in again.responses for row in topic.partitions] == [number]

    with World(0) as world:
        world.run(story())


def test_the_rows_of_a_large_fetch_are_read_in_turns_before_its_session_is_opened() -> None:
    """Each partition is named ten times in the request. As in Kafka, only the last row of a partition has an
    effect."""

    async def story() -> None:
        arrivals: WaitingRoom[PartitionKey] = WaitingRoom()
        registry = PartitionRegistry(MetadataImage)
        for index in range(1_000):
            registry.add(cast(Partition, Small(arrivals, index)))
        sessions = FetchSessions(10, lambda: 7)
        handlers = FetchHandlers(FetchServices(registry, arrivals, sessions, AllowEveryone(), 1 << 20))
        rows = [
            FetchPartition(partition=index % 1_000, fetch_offset=index, partition_max_bytes=1000)
            for index in range(10_000)
        ]
        request = FetchRequest(session_epoch=0, topics=[FetchTopic(topic="t", partitions=rows)])
        context = RequestContext(1, 12, 0, None, ConnectionContext("c", "PLAINTEXT"))
        answer = asyncio.ensure_future(cast(Awaitable[Any], handlers.fetch(context, request)))
        turns = 0
        while not len(sessions):
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 10
        (topic,) = (await answer).responses
        assert [row.partition_index for row in topic.partitions] == list(range(1_000))
        scope = sessions.open(7, 1, {}, (), 0.0)
        assert [position.fetch_offset for position in scope.positions.values()] == list(range(9_000, 10_000))

    with World(0) as world:
        world.run(story())
