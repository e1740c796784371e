"""A fetch acknowledges synced records only. If a sync is short, the next fetch waits for it."""

import asyncio
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from test_fetch_answers import EPOCH, LEADER, fetcher_of

from moldau.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from moldau.protocol.partitions import PartitionKey
from moldau.replication.core.follower import FetchPosition
from moldau.replication.fetching.replica_fetcher import SYNC_PAUSE_S, SYNC_POLL_MS
from moldau.simulation.world.world import World

TOPIC_ID = UUID(int=1)
SYNCED, IDLE = 0, 1
ANSWER_S = 0.001


class Replica:
    """A partition whose records must be synced. Each append moves its end by 10."""

    topic = "t"
    snapshots = None
    is_cutting = False

    def __init__(self, index: int, sync_s: float) -> None:
        self.key = PartitionKey(TOPIC_ID, index)
        self.end_offset = self.synced_offset = 0
        self.following = self
        self._sync_s = sync_s

    def position(self) -> FetchPosition:
        return FetchPosition(LEADER, EPOCH, self.end_offset, -1)

    def is_synced(self, position: FetchPosition) -> bool:
        return position.offset <= self.synced_offset

    async def synced(self) -> None:
        end_offset = self.end_offset
        await asyncio.sleep(self._sync_s)
        self.synced_offset = end_offset

    def begins_inside(self, records: bytes) -> bool:
        return False

    def append(self, epoch: int, records: bytes, **offsets: int) -> Any:
        self.end_offset += 10
        return SimpleNamespace(size_bytes=len(records))


class Asked(NamedTuple):
    """A request: its time, the offset that it acknowledges (-1 if it leaves the partition out), its wait."""

    time_s: float
    offset: int
    max_wait_ms: int


def asked(count: int, sync_s: float) -> list[Asked]:
    """The first requests of a fetcher with a synced and an idle partition. The leader has new records for
    each acknowledgement. It answers other requests after their waits."""

    async def story() -> list[Asked]:
        loop, found, enough = asyncio.get_running_loop(), [], asyncio.Event()
        synced = Replica(SYNCED, sync_s)

        async def ask(request: FetchRequest, timeout_ms: int) -> FetchResponse:
            offsets = {
                part.partition: part.fetch_offset for topic in request.topics for part in topic.partitions
            }
            found.append(Asked(loop.time(), offsets.get(SYNCED, -1), request.max_wait_ms))
            if len(found) == count:
                enough.set()
                await asyncio.Event().wait()
            rows = []
            if SYNCED in offsets:
                await asyncio.sleep(ANSWER_S)
                rows = [PartitionData(partition_index=SYNCED, high_watermark=0, records=bytes(61))]
            else:
                await asyncio.sleep(request.max_wait_ms / 1000)
            return FetchResponse(
                session_id=1, responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=rows)]
            )

        fetcher = fetcher_of(ask)
        for replica in (synced, Replica(IDLE, 0)):
            fetcher.add(replica)  # type: ignore[arg-type]
        await enough.wait()
        await fetcher.stop()
        return found

    return World(1).run(story())


def test_a_fetch_waits_for_a_short_sync() -> None:
    requests = asked(6, sync_s=0.001)
    assert [each.offset for each in requests] == [0, 10, 20, 30, 40, 50]
    assert requests[-1].time_s - requests[0].time_s == pytest.approx(5 * (ANSWER_S + 0.001), abs=0.001)


def test_a_fetch_does_not_wait_for_long_syncs() -> None:
    sync_s = 10 * SYNC_PAUSE_S
    requests = asked(60, sync_s)
    acknowledged = [each for each in requests if each.offset >= 0]
    assert [each.offset for each in acknowledged] == [10 * number for number in range(len(acknowledged))]
    between = requests[requests.index(acknowledged[-2]) + 1 : requests.index(acknowledged[-1])]
    assert between[0].time_s == pytest.approx(acknowledged[-2].time_s + ANSWER_S, abs=0.0005)
    assert {each.max_wait_ms for each in between} == {SYNC_POLL_MS}
    cycle_s = acknowledged[-1].time_s - acknowledged[-2].time_s
    assert cycle_s <= sync_s + SYNC_POLL_MS / 1000 + 2 * ANSWER_S
