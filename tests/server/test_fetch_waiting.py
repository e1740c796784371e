"""A fetch that waits hears of everything that happens after it has looked."""

import asyncio
from collections.abc import Awaitable
from typing import Any, cast
from uuid import UUID

import pytest

from moldau.cluster.image import MetadataImage
from moldau.network.context import ConnectionContext, RequestContext
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.replication.partition import Partition, PartitionKey, ReadAnswer, ReadOutcome, ReadRequest
from moldau.replication.waiters import WaitingRoom
from moldau.server.authorization import AllowEveryone
from moldau.server.fetch_sessions import FetchSessions
from moldau.server.handlers.fetch import FetchHandlers
from moldau.server.registry import PartitionRegistry


class Growing:
    """A partition that is filled by hand; with ``remote``, what it reads comes by a future."""

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
        handlers = FetchHandlers(registry, arrivals, FetchSessions(0, lambda: 1), AllowEveryone(), 1 << 20)
        rows = [FetchPartition(partition=0, partition_max_bytes=1000)]
        request = FetchRequest(
            max_wait_ms=60_000, min_bytes=1, topics=[FetchTopic(topic="t", partitions=rows)]
        )
        context = RequestContext(1, 12, 0, None, ConnectionContext("c", "PLAINTEXT"))
        outcome = cast(Awaitable[Any], handlers.fetch(context, request))
        if turns == 0:
            partition.grow()  # before the coroutine has begun
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
