"""A broker with inactive chunks, but without the active chunk, serves consumers that were sent to it."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from damaged_copies import DamagedStore, StoreOfDamagedLogs, holder_of
from registered_chunks import chunk, partition

from moldau.chunks.calls import ChunkRead, ChunkRecords
from moldau.chunks.holder import ChunkHolder
from moldau.chunks.leader_start import FRESH_S, RETRY_S, LeaderStart
from moldau.chunks.meters import ChunkMeters
from moldau.chunks.redirects import ChunkRedirects
from moldau.chunks.stand_in import ChunkStandIn, PartitionElsewhere
from moldau.cluster.image.persistent_map import PersistentMap
from moldau.metrics import Meters
from moldau.metrics.meters import Counter
from moldau.protocol.partitions import PartitionKey
from moldau.replication.partition_interface import (
    AbortedTransaction,
    ReadOutcome,
    ReadRequest,
    TransactionMarker,
)
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.subsystems.chunks.subsystem import ChunksSubsystem
from moldau.simulation.world.world import World

KEY = PartitionKey(UUID(int=1), 0)
BOTH = partition(chunk(0, 9, 1), chunk(10, 19, 2), replicas=(7,))
ABORTED = AbortedTransaction(5, 3)
METERS = ChunkMeters(Meters())


class Holder:
    """Broker 1, which has the first chunk. A transaction may be open at the end of the chunk."""

    def __init__(self, open_offset: int = -1, first_offset: int = 0) -> None:
        self._first_offset = first_offset
        self.wanted: list[ChunkRead] = []
        self._open_offset = open_offset

    def has(self, chunk: Any) -> bool:
        return bool(chunk == (*KEY, 0))

    async def first_offset(self, topic: str, chunk: Any) -> int:
        return self._first_offset

    async def open_offset(self, topic: str, chunk: Any) -> int:
        return self._open_offset

    async def read(self, topic: str, wanted: ChunkRead) -> ChunkRecords:
        self.wanted.append(wanted)
        return ChunkRecords([b"records"], 7, wanted.end_offset, [ABORTED])


class Leader:
    """The leader of the active chunk, whose first offset may rise."""

    def __init__(self, first_offset: int = 0) -> None:
        self.first_offset = first_offset
        self.is_alive = True
        self.asked = 0

    async def ask(self, partition: Any) -> int:
        assert partition == BOTH
        self.asked += 1
        if not self.is_alive:
            raise KafkaError(ErrorCode.request_timed_out)
        return self.first_offset


def stand_in(
    holder: Holder | ChunkHolder,
    start: LeaderStart | None = None,
    meters: ChunkMeters | None = None,
) -> ChunkStandIn:
    fetched: Any = SimpleNamespace(fetched=lambda size_bytes: None)
    found: Any = holder
    redirects = ChunkRedirects(1, PersistentMap, Counter())
    start = start or LeaderStart(Leader().ask)
    served = PartitionElsewhere(KEY, "t", lambda: BOTH, start)
    return ChunkStandIn(served, found, redirects, fetched, meters or METERS)


def read(
    holder: Holder | ChunkHolder,
    start: LeaderStart | None = None,
    meters: ChunkMeters | None = None,
    **fields: Any,
) -> ReadOutcome:
    async def run() -> ReadOutcome:
        request = ReadRequest(**{"max_bytes": 100, "client_rack": "a", "memory": {}, **fields})
        answer = stand_in(holder, start, meters).read(request)
        return answer if isinstance(answer, ReadOutcome) else await answer

    return asyncio.run(run())


def test_the_records_of_a_chunk_come_with_offsets_that_are_certain() -> None:
    found = read(Holder(), offset=4)
    assert (found.error, found.size_bytes, found.aborted, found.is_cut) == (ErrorCode.none, 7, None, True)
    assert (found.high_watermark, found.last_stable_offset, found.log_start_offset) == (20, 20, 0)


@pytest.mark.parametrize(("open_offset", "end_offset"), [(-1, 10), (6, 6)])
def test_read_committed_ends_before_a_transaction_that_is_open_at_the_border(
    open_offset: int, end_offset: int
) -> None:
    holder = Holder(open_offset)
    assert read(holder, offset=4, read_committed=True).aborted == [ABORTED]
    assert [each.end_offset for each in holder.wanted] == [end_offset]


@pytest.mark.parametrize("offset", [6, 9])
def test_a_consumer_goes_back_to_the_leader_for_an_undecided_transaction(offset: int) -> None:
    found = read(Holder(6), offset=offset, read_committed=True)
    assert (found.error, found.preferred_read_replica, found.size_bytes) == (ErrorCode.none, 7, 0)


@pytest.mark.parametrize("offset", [0, 3])
def test_a_consumer_of_deleted_records_goes_back_to_the_leader(offset: int) -> None:
    holder = Holder()
    found = read(holder, LeaderStart(Leader(4).ask), offset=offset)
    assert (found.preferred_read_replica, found.size_bytes, holder.wanted) == (7, 0, [])


def test_the_other_records_of_the_chunk_come_with_the_first_offset_that_is_left() -> None:
    found = read(Holder(), LeaderStart(Leader(4).ask), offset=4)
    assert (found.size_bytes, found.log_start_offset) == (7, 4)


def test_the_bytes_for_consumers_are_counted_as_bytes_of_an_own_copy() -> None:
    meters = ChunkMeters(Meters())
    assert read(Holder(), meters=meters, offset=4).size_bytes == 7
    assert (meters.local_bytes.value, meters.proxied_bytes.value) == (7, 0)


def test_the_leader_is_asked_for_the_first_offset_once_in_a_second() -> None:
    async def run() -> None:
        leader = Leader(4)
        start = LeaderStart(leader.ask)
        assert await asyncio.gather(*(start.offset(BOTH) for _ in range(3))) == [4, 4, 4]
        assert leader.asked == 1
        leader.first_offset = 6
        await asyncio.sleep(FRESH_S)
        assert await start.offset(BOTH) == 6

    with World(1) as world:
        world.run(run())


def test_a_leader_that_does_not_respond_is_not_asked_for_each_read() -> None:
    async def run() -> None:
        leader = Leader(4)
        start = LeaderStart(leader.ask)
        leader.is_alive = False
        assert [await start.offset(BOTH), await start.offset(replace(BOTH, leader=-1))] == [-1, -1]
        assert leader.asked == 1
        leader.is_alive = True
        await asyncio.sleep(RETRY_S)
        assert await start.offset(BOTH) == 4

    with World(1) as world:
        world.run(run())


@pytest.mark.parametrize("offset", [10, 19, 20, 99])
def test_a_consumer_of_another_chunk_goes_back_to_the_leader(offset: int) -> None:
    assert read(Holder(), offset=offset).preferred_read_replica == 7


def test_a_consumer_that_comes_again_looks_for_the_leader_itself() -> None:
    """Brokers that do not agree about the leader must not send a consumer from one to another for long."""
    memory: dict[str, Any] = {}
    found = [read(Holder(), offset=20, memory=memory) for _ in range(2)]
    assert [each.preferred_read_replica for each in found] == [7, -1]
    assert found[1].error is ErrorCode.not_leader_or_follower


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"replica_id": 3}, ErrorCode.not_leader_or_follower),
        ({"client_rack": "", "memory": None}, ErrorCode.not_leader_or_follower),
        ({"current_leader_epoch": BOTH.leader_epoch - 1}, ErrorCode.fenced_leader_epoch),
        ({"current_leader_epoch": BOTH.leader_epoch + 1}, ErrorCode.unknown_leader_epoch),
    ],
)
def test_other_readers_are_refused(fields: dict[str, Any], code: ErrorCode) -> None:
    assert read(Holder(), offset=4, **fields).error is code


@pytest.mark.parametrize("store", [DamagedStore, StoreOfDamagedLogs])
@pytest.mark.parametrize(
    "failure", [KafkaError(ErrorCode.kafka_storage_error, "a bad copy"), OSError("a bad disk")]
)
def test_a_copy_that_cannot_be_read_sends_the_consumer_away_and_is_replaced(
    failure: Exception, store: type[DamagedStore]
) -> None:
    unreadable: list[Any] = []
    holder = holder_of(store(failure), unreadable)
    assert read(holder, offset=4).error is ErrorCode.not_leader_or_follower
    assert unreadable == [(*KEY, 0)]


def test_writes_and_lookups_are_for_the_leader() -> None:
    async def run() -> None:
        part = stand_in(Holder())
        assert part.append(memoryview(b""), required_acks=1, timeout_ms=1) == (
            ErrorCode.not_leader_or_follower,
            *part.append(memoryview(b""), required_acks=1, timeout_ms=1)[1:],
        )
        for call in (
            part.find_offset(-1, read_committed=False, current_leader_epoch=-1),
            part.delete_records(5),
            part.transactions.write_marker(TransactionMarker(1, 0, True, 0)),
        ):
            with pytest.raises(KafkaError) as refused:
                await call
            assert refused.value.code is ErrorCode.not_leader_or_follower

    asyncio.run(run())


def test_the_epoch_is_the_newest_of_the_metadata() -> None:
    assert stand_in(Holder()).leader_epoch == BOTH.leader_epoch
    assert replace(BOTH, leader_epoch=9).leader_epoch == 9


def test_a_broker_whose_replica_is_not_open_yet_redirects_no_consumer() -> None:
    """This broker may be the leader, and a consumer must not be sent from a broker to itself."""
    context = SimpleNamespace(view=SimpleNamespace(local_id=7))
    subsystem: Any = SimpleNamespace(_context=context, _stand_ins={})
    topic: Any = SimpleNamespace(topic_id=KEY.topic_id, partitions=[partition(chunk(0, 9, 7), replicas=(7,))])
    assert ChunksSubsystem._stand_in(subsystem, topic, 0) is None
