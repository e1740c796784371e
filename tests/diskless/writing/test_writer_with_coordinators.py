"""The writer with real coordinators on real files. Its calls are routed as on a node that leads all
coordinators."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

from writer_fakes import batch, key, topic

from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.coordinators.diskless.calls import (
    FindBatchesCall,
    OffsetToDelete,
    PartitionsToCreate,
    PartitionToFind,
    TimestampToList,
)
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.coordinators.diskless.state.file_memory import CoordinatorTimes
from moldau.diskless.object_keys import ObjectOrigin
from moldau.diskless.routing import RoutingBatchCoordinator
from moldau.diskless.writing.writer import DisklessWriter, WriterSettings
from moldau.metrics import Meters
from moldau.objects import FaultyStorage, FileStorage, Latency, StorageWeather
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.replication.partition_interface import AppendOutcome
from moldau.runtime import (
    ErrorCode,
    InlineWorkers,
    KafkaError,
    LocalDisk,
    Machine,
    SeededEntropy,
    SystemClock,
)
from moldau.storage.snapshots.snapshot_log import SnapshotLog
from moldau.testing.lone_partition import lone_metadata_log

COORDINATORS = 2
PARTITIONS = range(6)


def owner_of(topic_id: UUID, partition_index: int) -> int:
    if topic_id not in (topic(1), topic(2)):
        raise KafkaError(ErrorCode.unknown_topic_or_partition, "no such topic")
    return partition_index % COORDINATORS


@asynccontextmanager
async def coordinators(folder: Path, machine: Machine) -> AsyncIterator[RoutingBatchCoordinator]:
    service = DisklessCoordinator(machine)
    logs = []
    for number in range(COORDINATORS):
        log = SnapshotLog.open(
            machine, str(folder / f"log-{number}"), TopicPartition(DISKLESS_METADATA_TOPIC, number)
        )
        logs.append(log)
        local = lone_metadata_log(machine, log, 0)
        service.load(number, 0, local)
        await service.until_loaded(number)
        for topic_number in (1, 2):
            mine = [index for index in PARTITIONS if index % COORDINATORS == number]
            await service.create_partitions(number, [PartitionsToCreate(topic(topic_number), "t", mine)])
    try:
        yield RoutingBatchCoordinator(owner_of, lambda _: service)
    finally:
        await service.close()
        for log in logs:
            log.close()


def _machine() -> Machine:
    return Machine(SystemClock(), SeededEntropy(3), LocalDisk(), InlineWorkers())


def test_acknowledged_batches_are_found_by_their_coordinates_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        machine = _machine()
        weather = StorageWeather(put_latency=Latency(2, 20), failed_chance=0.1, answer_lost_chance=0.1)
        storage = FaultyStorage(FileStorage(machine, f"{tmp_path}/objects"), machine.entropy, weather)
        settings = WriterSettings(buffer_max_bytes=4_000, puts_per_second=500)
        async with coordinators(tmp_path, machine) as routed:
            writer = DisklessWriter(
                storage, routed, machine, Meters(), ObjectOrigin(1, machine.clock.now_ms), settings=settings
            )
            sent: dict[PartitionKey, list[bytes]] = defaultdict(list)
            answers = []
            sequences: dict[PartitionKey, int] = defaultdict(int)
            for number in range(400):
                where = key(1 + number % 2, machine.entropy.randrange(len(PARTITIONS)))
                records, header = batch(b"%d" % number, producer_id=9, epoch=0, sequence=sequences[where])
                sequences[where] += 1
                sent[where].append(bytes(records))
                answers.append(writer.append(where, records, header, timeout_ms=60_000))
                if number % 20 == 0:
                    await asyncio.sleep(0.002)
            unknown = writer.append(key(3), *batch(), timeout_ms=60_000)
            await writer.flush()
            assert not isinstance(unknown, AppendOutcome)
            assert (await unknown).error is ErrorCode.unknown_topic_or_partition
            outcomes = [one if isinstance(one, AppendOutcome) else await one for one in answers]
            assert {outcome.error for outcome in outcomes} == {ErrorCode.none}
            weather.failed_chance = 0.0
            for where, contents in sent.items():
                assert await _read(routed, storage, where) == contents
            await writer.close()

    asyncio.run(asyncio.wait_for(main(), 200))


async def _read(
    routed: RoutingBatchCoordinator, storage: FaultyStorage, where: PartitionKey
) -> Sequence[bytes]:
    [found] = await routed.find_batches(FindBatchesCall([PartitionToFind(*where, 0, 1 << 30)]))
    contents = []
    for one in found.batches:
        content = await storage.fetch(one.object_key, one.byte_offset, one.size_bytes)
        contents.append(bytes(content))
    return contents


def _from_start(at: PartitionKey) -> PartitionToFind:
    return PartitionToFind(at.topic_id, at.partition, 0)


def test_a_find_over_several_coordinators_is_woken_by_any_and_bounded_as_one(tmp_path: Path) -> None:
    async def main() -> None:
        machine = _machine()
        async with coordinators(tmp_path, machine) as routed:
            writer = DisklessWriter(
                FileStorage(machine, f"{tmp_path}/objects"),
                routed,
                machine,
                Meters(),
                ObjectOrigin(1, machine.clock.now_ms),
            )
            asked = [_from_start(key(1, index)) for index in PARTITIONS]
            call = FindBatchesCall(asked, min_bytes=1, max_wait_ms=60_000)
            waiting = asyncio.create_task(routed.find_batches(call))
            await asyncio.sleep(0.02)
            assert not waiting.done()
            writer.append(key(1, 3), *batch(b"x" * 50), timeout_ms=60_000)
            found = await waiting
            assert [(one.partition_index, len(one.batches)) for one in found] == [
                (index, int(index == 3)) for index in PARTITIONS
            ]
            for index in PARTITIONS:
                writer.append(key(1, index), *batch(b"x" * 50), timeout_ms=60_000)
            await writer.flush()
            size = len(batch(b"x" * 50)[0])
            bounded = await routed.find_batches(FindBatchesCall(asked, max_bytes=2 * size))
            assert [len(one.batches) for one in bounded] == [1, 1, 0, 0, 0, 0]
            first = await routed.find_batches(FindBatchesCall(asked, max_bytes=1))
            assert [len(one.batches) for one in first] == [1, 0, 0, 0, 0, 0]
            await writer.close()

    asyncio.run(asyncio.wait_for(main(), 200))


def test_an_unknown_partition_does_not_fail_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with coordinators(tmp_path, _machine()) as routed:
            partitions = [key(1, 0), key(3, 0), key(1, 1)]
            found = await routed.find_batches(
                FindBatchesCall([_from_start(one) for one in partitions], max_wait_ms=60_000, min_bytes=1)
            )
            assert [one.error.name for one in found] == ["none", "unknown_topic_or_partition", "none"]
            listed = await routed.list_offsets(
                [TimestampToList(one.topic_id, one.partition, -1) for one in partitions]
            )
            assert [(one.error.name, one.offset) for one in listed] == [
                ("none", 0),
                ("unknown_topic_or_partition", -1),
                ("none", 0),
            ]
            deleted = await routed.delete_records(
                [OffsetToDelete(one.topic_id, one.partition, -1) for one in partitions]
            )
            assert [one.low_watermark for one in deleted] == [0, -1, 0]

    asyncio.run(asyncio.wait_for(main(), 200))


class SetClock:
    """A clock that a test sets to a wrong time."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return SystemClock().now_ms() + self.ahead_ms


def test_a_file_that_its_coordinator_has_forgotten_does_not_delay_later_files(tmp_path: Path) -> None:
    """A coordinator can forget a file before the writer gets the outcome of its commit. This happens after a
    clock error, or if a network failure takes longer than the maximum age of files."""

    async def main() -> None:
        clock = SetClock()
        machine = Machine(clock, SeededEntropy(3), LocalDisk(), InlineWorkers())
        async with coordinators(tmp_path, _machine()) as routed:
            writer = DisklessWriter(
                FileStorage(machine, f"{tmp_path}/objects"),
                routed,
                machine,
                Meters(),
                ObjectOrigin(1, machine.clock.now_ms),
            )
            clock.ahead_ms = -2 * CoordinatorTimes().repeat_age_ms
            forgotten = writer.append(key(1, 0), *batch(b"x"), timeout_ms=60_000)
            await asyncio.sleep(0.2)
            clock.ahead_ms = 0
            answer = writer.append(key(1, 0), *batch(b"y"), timeout_ms=60_000)
            assert not isinstance(forgotten, AppendOutcome)
            assert not isinstance(answer, AppendOutcome)
            # The commit was never sent before, so certainly no batch of the object is committed.
            assert (await forgotten).error is ErrorCode.kafka_storage_error
            assert (await answer).error is ErrorCode.none
            await writer.close()

    asyncio.run(asyncio.wait_for(main(), 20))
