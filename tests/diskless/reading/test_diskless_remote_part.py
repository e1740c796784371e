"""Reads and lookups of records before the WAL's start. Some of these records leave the WAL during
the read."""

import asyncio
from typing import Any

import pytest
from reading_fakes import ReadingBroker, consume, key, read, values_of
from test_diskless_reading import run

from moldau.diskless.cache.cacher import CacherSettings
from moldau.diskless.partition.partition import DisklessPartition
from moldau.protocol.special_timestamps import (
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    MAX_TIMESTAMP,
)
from moldau.records import Record, build_batch
from moldau.replication.lookups.record_lookup import RecordLookup
from moldau.replication.partition_interface import (
    FoundOffset,
    ReadOutcome,
    ReadRequest,
)
from moldau.runtime import ErrorCode
from moldau.server.subsystems.consolidation.remote_part import DisklessRemotePart
from moldau.tiered.metadata.manager import NO_POSITION, MetadataPosition
from moldau.tiered.reading.requests import RemoteRead

K = key()
FAR = CacherSettings(tail_max_wait_ms=600_000)


class Remote:
    """Remote storage with some batches of one record each. The segments in ``missing`` do not
    exist any more."""

    def __init__(self) -> None:
        self.batches: dict[int, bytes] = {}
        self.missing: set[int] = set()
        self.reads: list[int] = []

    def add(self, offset: int, value: bytes, timestamp_ms: int = 1_000) -> None:
        record = Record(offset, timestamp_ms, None, value, ())
        self.batches[offset] = bytes(build_batch([record], base_offset=offset, leader_epoch=0))

    async def read(self, request: ReadRequest, known: ReadOutcome) -> ReadOutcome:
        self.reads.append(request.offset)
        await asyncio.sleep(0.01)
        if request.offset in self.missing or request.offset not in self.batches:
            return known._replace(error=ErrorCode.unknown_server_error)
        content = self.batches[request.offset]
        return known._replace(views=(content,), size_bytes=len(content))

    async def find_timestamp(
        self, timestamp_ms: int, start: int, end: int, lookup: RecordLookup
    ) -> FoundOffset | None:
        for offset in range(start, end):
            found = await lookup.at_or_after(self.batches[offset], timestamp_ms, start)
            if found is not None:
                return FoundOffset(*found, 0)
        return None

    async def find_max_timestamp(
        self, above_ms: int, start: int, end: int, lookup: RecordLookup
    ) -> FoundOffset | None:
        best = None
        for offset in range(start, end):
            found = await lookup.at_or_after(self.batches[offset], above_ms + 1, start)
            if found is not None:
                best, above_ms = FoundOffset(*found, 0), found[1]
        return best


def test_a_reader_goes_through_both_parts() -> None:
    async def story(broker: ReadingBroker) -> None:
        remote = Remote()
        for number in range(4):
            await broker.commit((K, [b"%d" % number]))
            remote.add(number, b"%d" % number)
        broker.coordinator.partitions[K].wal_start = 2
        partition = broker.open(K)
        partition.begin_remote(remote)
        await broker.until_cached(partition, 4)
        assert await consume(partition, 0, 4) == {0: b"0", 1: b"1", 2: b"2", 3: b"3"}
        assert remote.reads == [0, 1]

    run(story)


def test_the_earliest_pending_upload_is_the_first_record_in_the_wal() -> None:
    async def story(broker: ReadingBroker) -> None:
        for number in range(4):
            await broker.commit((K, [b"%d" % number]))
        partition = broker.open(K)
        partition.begin_remote(Remote())
        known = broker.coordinator.partitions[K]
        for log_start, wal_start, pending in ((0, 0, 0), (0, 2, 2), (1, 2, 2), (3, 3, 3)):
            known.log_start, known.wal_start = log_start, wal_start
            found = await partition.find_offset(
                EARLIEST_PENDING_UPLOAD_TIMESTAMP, read_committed=False, current_leader_epoch=-1
            )
            assert found == FoundOffset(pending, -1, 0)

    run(story)


def test_records_that_have_just_left_the_wal_are_read_from_the_remote_tier() -> None:
    async def story(broker: ReadingBroker) -> None:
        remote = Remote()
        objects = [await broker.commit((K, [b"%d" % number])) for number in range(3)]
        partition = broker.open(K)
        partition.begin_remote(remote)
        await broker.until_cached(partition, 3)
        await partition.cache.restart_at(3)
        await read(partition, 0, 1)  # the coordinates of the other batches are cached
        for number in range(2):
            remote.add(number, b"%d" % number)
        broker.coordinator.partitions[K].wal_start = 2
        await broker.memory.delete(objects[:2])
        assert values_of(await read(partition, 1), 1) == [(1, b"1")]
        assert values_of(await read(partition, 0), 0) == [(0, b"0")]
        assert partition.cache.wal_start_offset == 2
        assert values_of(await read(partition, 2), 2) == [(2, b"2")]

    run(story, settings=FAR)


def test_records_deleted_meanwhile_are_out_of_range_and_failures_are_errors() -> None:
    async def story(broker: ReadingBroker) -> None:
        remote = Remote()
        for number in range(4):
            await broker.commit((K, [b"%d" % number]))
            remote.add(number, b"%d" % number)
        known = broker.coordinator.partitions[K]
        known.wal_start = 3
        partition = broker.open(K)
        partition.begin_remote(remote)
        await broker.until_cached(partition, 4)
        remote.missing = {0, 1}
        assert (await read(partition, 1)).error is ErrorCode.unknown_server_error
        known.log_start = 1
        assert (await read(partition, 0)).error is ErrorCode.offset_out_of_range
        assert (await read(partition, 2)).log_start_offset == 1

    run(story, settings=FAR)


def test_times_are_looked_up_in_both_parts() -> None:
    async def story(broker: ReadingBroker) -> None:
        remote = Remote()
        times = (1_000, 5_000, 3_000, 5_000, 4_000)
        for number, time_ms in enumerate(times):
            await broker.commit((K, [b"%d" % number]), timestamps=[time_ms])
            remote.add(number, b"%d" % number, time_ms)
        known = broker.coordinator.partitions[K]
        known.wal_start, known.batches = 3, known.batches[3:]
        partition = broker.open(K)
        partition.begin_remote(remote)
        await broker.until_cached(partition, 5)

        async def find(timestamp_ms: int) -> int:
            found = await partition.find_offset(timestamp_ms, read_committed=False, current_leader_epoch=-1)
            return found.offset

        assert [await find(time_ms) for time_ms in (1, 1_001, 5_000, 5_001)] == [0, 1, 1, -1]
        assert await find(MAX_TIMESTAMP) == 1  # the first of two records with this timestamp
        known.log_start = 2
        assert [await find(time_ms) for time_ms in (1, 3_001)] == [2, 3]
        assert await find(MAX_TIMESTAMP) == 3
        known.wal_start = 5
        known.batches.clear()
        assert [await find(time_ms) for time_ms in (3_001, MAX_TIMESTAMP)] == [3, 3]

    run(story, settings=FAR)


class LateMetadata:
    """Remote metadata that this broker has read up to ``applied``."""

    def __init__(self) -> None:
        self.applied = 0
        self.awaited: list[MetadataPosition] = []

    async def wait_applied(self, position: MetadataPosition) -> None:
        if position == NO_POSITION:
            return
        self.awaited.append(position)
        while self.applied < position.offset:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class WaitingReader:
    """Waits for the metadata as the real reader does. Then it reads from ``remote``."""

    def __init__(self, metadata: LateMetadata, remote: Remote) -> None:
        self.metadata = metadata
        self._remote = remote

    def read(self, wanted: RemoteRead, known: ReadOutcome) -> "asyncio.Future[ReadOutcome]":
        async def read() -> ReadOutcome:
            await self.metadata.wait_applied(wanted.metadata_position)
            request = ReadRequest(wanted.offset, 0, 1 << 20, True, False)
            return await self._remote.read(request, known)

        return asyncio.ensure_future(read())


METADATA_PARTITION = 5


def waiting_part(partition: DisklessPartition, metadata: LateMetadata, remote: Remote) -> DisklessRemotePart:
    reader: Any = WaitingReader(metadata, remote)
    return DisklessRemotePart(partition.cache, reader, lambda _: METADATA_PARTITION)


@pytest.mark.parametrize("way", ["follow", "cold read", "list offsets"])
def test_a_read_waits_for_the_metadata_of_the_records_that_left_the_wal(way: str) -> None:
    """Another broker has moved records to the tier. This broker learns the new start of the WAL from the
    coordinator, perhaps before it has read the segments' metadata. Without the wait, it would report that the
    records do not exist."""

    async def story(broker: ReadingBroker) -> None:
        remote, metadata = Remote(), LateMetadata()
        for number in range(4):
            await broker.commit((K, [b"%d" % number]))
            remote.add(number, b"%d" % number)
        known = broker.coordinator.partitions[K]
        partition = broker.open(K)
        partition.begin_remote(waiting_part(partition, metadata, remote))
        if way != "follow":
            await broker.until_cached(partition, 4)
        known.wal_start, known.remote_position = 2, 17
        if way == "follow":
            await broker.until_cached(partition, 4)
        else:
            await partition.cache.restart_at(4)
        if way == "list offsets":
            await partition.find_offset(
                EARLIEST_PENDING_UPLOAD_TIMESTAMP, read_committed=False, current_leader_epoch=-1
            )
        reading = asyncio.ensure_future(read(partition, 1))
        await asyncio.sleep(0.1)
        assert not reading.done()
        metadata.applied = 16
        await asyncio.sleep(0.1)
        assert not reading.done()
        metadata.applied = 17
        assert values_of(await reading, 1) == [(1, b"1")]
        assert set(metadata.awaited) == {MetadataPosition(METADATA_PARTITION, 17)}

    run(story, settings=FAR)
