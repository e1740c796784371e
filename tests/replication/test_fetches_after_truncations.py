"""A follower whose log diverges is truncated and fetches again soon, because a new leader commits no records
before this fetch."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from test_fetch_answers import EPOCH, LEADER, fetcher_of

from moldau.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from moldau.protocol.partitions import PartitionKey
from moldau.replication.core.follower import FetchPosition
from moldau.replication.fetching.replica_fetcher import HURRY_S
from moldau.runtime import ErrorCode, KafkaError
from moldau.simulation.world.world import World

TOPIC_ID = UUID(int=1)
DIVERGING, IDLE = 0, 1
TRUNCATION_S = 0.01


class Replica:
    """A synced partition, which diverges from the leader's log until it is truncated."""

    topic = "t"
    snapshots = None
    is_cutting = False

    def __init__(self, index: int, end_offset: int) -> None:
        self.key = PartitionKey(TOPIC_ID, index)
        self.end_offset = end_offset
        self.following = self

    def position(self) -> FetchPosition:
        return FetchPosition(LEADER, EPOCH, self.end_offset, EPOCH - 1)

    def remote_truncation(self, epoch: int, diverging_epoch: int, end_offset: int) -> int | None:
        return None

    def is_synced(self, position: FetchPosition) -> bool:
        return True

    async def truncate(self, epoch: int, diverging_epoch: int, end_offset: int) -> None:
        await asyncio.sleep(TRUNCATION_S)
        self.end_offset = end_offset

    def begins_inside(self, records: bytes) -> bool:
        return False

    def append(self, epoch: int, records: bytes, **offsets: int) -> Any:
        return SimpleNamespace(size_bytes=0)


class Leader:
    """Answers a request when it has something for the follower, otherwise when its wait is over."""

    def __init__(self) -> None:
        self.truncated_at_s: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._lost = asyncio.Event()

    def disconnect(self) -> None:
        self._lost.set()

    async def ask(self, request: FetchRequest, timeout_ms: int) -> FetchResponse:
        rows = []
        for topic in request.topics:
            for part in topic.partitions:
                if part.partition != DIVERGING:
                    continue
                if part.fetch_offset == 7:
                    diverging = EpochEndOffset(epoch=EPOCH - 1, end_offset=5)
                    rows.append(PartitionData(partition_index=DIVERGING, diverging_epoch=diverging))
                else:
                    self.truncated_at_s.set_result(asyncio.get_running_loop().time())
                    await asyncio.Event().wait()
        if not rows:
            self._lost.clear()
            try:
                async with asyncio.timeout(request.max_wait_ms / 1000):
                    await self._lost.wait()
                raise KafkaError(ErrorCode.network_exception)
            except TimeoutError:
                pass
        return FetchResponse(
            session_id=1, responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=rows)]
        )


def test_a_truncated_log_is_fetched_without_the_wait_of_an_idle_leader() -> None:
    async def story() -> float:
        leader, began_s = Leader(), asyncio.get_running_loop().time()
        fetcher = fetcher_of(leader.ask)
        fetcher._leader = lambda: leader  # type: ignore[method-assign, assignment, return-value]
        for replica in (Replica(DIVERGING, 7), Replica(IDLE, 0)):
            fetcher.add(replica)  # type: ignore[arg-type]
        truncated_at_s = await leader.truncated_at_s
        await fetcher.stop()
        return truncated_at_s - began_s

    assert World(1).run(story()) < TRUNCATION_S + 2 * HURRY_S
