"""Reads and searches of a classic partition while its local part gets smaller. No record between the two
tiers is missed."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from remote_house import PARTITION, House

from moldau.metrics import Meters
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.special_timestamps import (
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
)
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.context import ReplicaContext
from moldau.replication.lookups.record_lookup import RecordLookup
from moldau.replication.partition_interface import AbortedTransaction, FoundOffset, ReadOutcome, ReadRequest
from moldau.replication.waiters import WaitingRoom
from moldau.server.subsystems.tiered.kind import TieredKind, Tiering
from moldau.server.subsystems.tiered.reads import ClassicRemotePart
from moldau.tiered.reading.reader import RemoteReader
from moldau.tiered.reading.requests import RemoteRead

Story = Callable[[House], Awaitable[None]]


class NotingReader:
    """Records the requests for remote reads. The returned futures never complete."""

    def __init__(self) -> None:
        self.asked: list[RemoteRead] = []

    def read(self, wanted: RemoteRead, known: ReadOutcome) -> "asyncio.Future[ReadOutcome]":
        self.asked.append(wanted)
        return asyncio.get_running_loop().create_future()


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Story], None]:
    async def told(story: Story) -> None:
        house = House(tmp_path)
        await house.indexes.start()
        async with asyncio.timeout(200):
            await story(house)
        await house.reader.close()
        await house.indexes.close()

    return lambda story: asyncio.run(told(story))


def ask(
    house: House, request: ReadRequest, read_local: Callable[[ReadRequest], ReadOutcome] | None = None
) -> RemoteRead:
    """Start the remote part of a read with the current state of the log. Returns the request to the remote
    reader."""
    reader = NotingReader()
    local = read_local or (lambda request: ReadOutcome())
    part = ClassicRemotePart(PARTITION, house.log, cast(RemoteReader, reader), local)
    part.read(request, ReadOutcome())
    return reader.asked[0]


def led(house: House) -> ClassicPartition:
    partition = ClassicPartition(
        ReplicaContext(house.machine, 1, WaitingRoom(), BrokerTopicMeters(Meters())),
        PartitionKey(PARTITION.topic_id, 0),
        house.log,
        min_in_sync=1,
        high_watermark=0,
    )
    partition.become_leader(0, (1,), (1,))
    return partition


async def free(house: House, segments: int) -> None:
    await house.log.delete_old_segments(house.clock.time_ms, max_segments=segments)


def test_aborted_transactions_are_returned_if_their_markers_leave_the_disk_during_the_read(
    play: Callable[[Story], None],
) -> None:
    async def story(house: House) -> None:
        for producer_id in (7, 8):
            house.append(b"aborted", producer=(producer_id, 0))
        for producer_id in (8, 7):
            house.log.roll()
            house.end_transaction(producer_id, commit=False)
        house.fill(2)
        await house.copying.run()
        await free(house, 1)
        assert house.log.local_log_start_offset == 2
        wanted = ask(house, ReadRequest(0, 1 << 20, read_committed=True))
        await house.free()
        assert house.log.local_log_start_offset > 4
        found = await house.reader.fetch(wanted)
        assert found.next_offset == 2
        assert found.aborted is not None
        assert set(found.aborted) == {AbortedTransaction(7, 0), AbortedTransaction(8, 1)}

    play(story)


def test_the_local_part_is_read_from_its_start_at_the_beginning_of_the_read(
    play: Callable[[Story], None],
) -> None:
    async def story(house: House) -> None:
        house.fill(3)
        await house.copying.run()
        await free(house, 1)
        asked: list[int] = []

        def read_local(request: ReadRequest) -> ReadOutcome:
            asked.append(request.offset)
            return ReadOutcome()

        wanted = ask(house, ReadRequest(0, 1 << 20), read_local)
        await house.free()
        assert wanted.read_behind is not None
        wanted.read_behind()
        assert asked == [wanted.end_offset] == [3]

    play(story)


def test_a_search_by_time_continues_in_records_that_became_remote(play: Callable[[Story], None]) -> None:
    class Remote:
        """A remote tier that contains the records before the local part. The local part gets smaller during
        the first search."""

        def __init__(self, house: House) -> None:
            self.house = house
            self.searched: list[int] = []

        async def find_timestamp(
            self, timestamp_ms: int, before_offset: int, lookup: RecordLookup
        ) -> FoundOffset | None:
            end_offset = min(before_offset, self.house.log.local_log_start_offset)
            self.searched.append(end_offset)
            await self.house.free()
            return None if end_offset == 3 else FoundOffset(4, timestamp_ms, 0)

    async def story(house: House) -> None:
        start_ms = house.clock.time_ms
        house.fill(3)
        partition = led(house)
        await house.copying.run()
        await free(house, 1)
        remote = Remote(house)
        partition.remote.begin(cast(Any, remote))
        found = await partition.find_offset(start_ms + 4_000, read_committed=False, current_leader_epoch=-1)
        assert (found.offset, remote.searched) == (4, [3, 9])

    play(story)


def test_the_earliest_pending_upload_follows_the_copied_part(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        partition = led(house)

        async def pending() -> FoundOffset:
            return await partition.find_offset(
                EARLIEST_PENDING_UPLOAD_TIMESTAMP, read_committed=False, current_leader_epoch=-1
            )

        house.fill(3)
        assert await pending() == FoundOffset(), "the topic is not tiered"
        partition.remote.begin(ClassicRemotePart(PARTITION, house.log, house.reader, partition.read))
        assert await pending() == FoundOffset(0, -1, 0), "no segment is copied yet"
        house.log.update_log_start_offset(1)
        assert await pending() == FoundOffset(1, -1, 0)
        await house.copying.run()
        assert await pending() == FoundOffset(9, -1, 0)
        house.fill(1)
        house.log.update_log_start_offset(10)
        assert await pending() == FoundOffset(10, -1, 0), "what lies before the log's start is deleted"

    play(story)


def test_a_leader_that_does_not_know_its_remote_part_does_not_guess_what_is_pending(
    play: Callable[[Story], None],
) -> None:
    async def story(house: House) -> None:
        async def none_copied() -> int:
            return -1

        house.fill(3)
        partition = led(house)
        await house.copying.run()
        await house.free()
        partition.remote.begin(cast(Any, SimpleNamespace(highest_offset=none_copied)))
        found = await partition.find_offset(
            EARLIEST_PENDING_UPLOAD_TIMESTAMP, read_committed=False, current_leader_epoch=-1
        )
        assert found == FoundOffset()

    play(story)


class Broker:
    """A tiered partition kind in a fixed environment. It records its calls to the remote log manager."""

    def __init__(self) -> None:
        self.led: list[Any] = []
        self.hosted: dict[tuple[Any, int], ClassicPartition] = {}
        self.remover = SimpleNamespace(is_at_work_on=lambda _: False)
        manager = SimpleNamespace(lead=lambda name, *_, **__: self.led.append(name))
        registry = SimpleNamespace(get_by_id=lambda *key: self.hosted.get(key))
        reader, until_current = cast(Any, NotingReader()), cast(Any, None)  # no test removes remote data
        self.tiering = Tiering(cast(Any, registry), cast(Any, manager), reader, until_current)
        parts = (SimpleNamespace(reconfigure=lambda _: None), manager, self.remover, self.tiering)
        self.kind = TieredKind(*(cast(Any, part) for part in parts))


def test_a_partition_that_becomes_tiered_has_no_copies(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.fill(3)
        # An old task may set the highest copied offset even after all remote copies were removed.
        house.log.highest_copied_offset = 5
        broker = Broker()
        broker.kind.reconfigure(led(house))
        assert broker.led == [PARTITION]
        assert house.log.highest_copied_offset == -1

    play(story)


def test_a_deleted_partition_is_not_tiered_again_when_it_has_been_emptied(
    play: Callable[[Story], None],
) -> None:
    async def story(house: House) -> None:
        broker = Broker()
        broker.tiering.emptied(PARTITION)
        assert not broker.led
        broker.hosted[PARTITION.topic_id, 0] = led(house)
        broker.tiering.emptied(PARTITION)
        assert broker.led == [PARTITION]

    play(story)
