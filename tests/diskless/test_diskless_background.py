"""Background work of diskless topics: deletions of unused files and of orphans, retention, and changes of the
topics in the metadata. The tests use real coordinators on files."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.coordinators.diskless.calls import (
    BatchToCommit,
    CommitFileCall,
    OffsetToDelete,
    PartitionsToCreate,
    RetentionPolicy,
)
from moldau.coordinators.diskless.reads import wal_retention
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.diskless.image_sync import ImageSync
from moldau.diskless.kept_objects import kept_topics, store_kept
from moldau.diskless.object_keys import new_object_key
from moldau.diskless.upkeep.coordinator_upkeep import CoordinatorUpkeep
from moldau.diskless.upkeep.file_deletion import FileReclaimer
from moldau.diskless.upkeep.orphans import OrphanScan, OrphanSettings
from moldau.diskless.upkeep.unowned_files import UnownedFileScan
from moldau.metrics import Meters
from moldau.objects import FaultyStorage, MemoryStorage
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import ErrorCode, InlineWorkers, KafkaError, LocalDisk, Machine, SeededEntropy
from moldau.simulation.world.world import World
from moldau.storage.snapshots.snapshot_log import SnapshotLog
from moldau.testing.lone_partition import lone_metadata_log

TOPIC = UUID(int=0xA)
HOUR_MS = 3_600_000
GRACE_MS = 600_000


class MovedClock:
    def __init__(self) -> None:
        self.time_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.time_ms


class Cluster:
    """Two coordinators and a store, with the background work of the broker that leads both coordinators."""

    def __init__(self, folder: Path) -> None:
        self.clock = MovedClock()
        self.machine = Machine(self.clock, SeededEntropy(5), LocalDisk(), InlineWorkers())
        # The clock for deletions ignores jumps of the machine's clock. The test moves its clock only in small
        # steps, so the coordinators can use it as the clock for deletions, too.
        object.__setattr__(self.machine, "deletion_clock", self.clock)
        self.memory = MemoryStorage(self.clock)
        self.storage = FaultyStorage(self.memory, self.machine.entropy)
        self.service = DisklessCoordinator(self.machine)
        self.folder = folder
        self.logs: list[SnapshotLog] = []
        self.reclaimer = FileReclaimer(
            self.service, self.service, self.storage, self.clock, GRACE_MS, Meters()
        )
        settings = OrphanSettings(120_000, 60_000, 300_000)
        self.orphans = OrphanScan(self.storage, self.service, lambda: (0, 1), self.clock, settings, Meters())

    async def start(self) -> None:
        for number in (0, 1):
            name = TopicPartition(DISKLESS_METADATA_TOPIC, number)
            self.logs.append(SnapshotLog.open(self.machine, str(self.folder / str(name)), name))
            await self.load(number)
            await self.service.create_partitions(number, [PartitionsToCreate(TOPIC, "t", [number])])

    async def load(self, number: int, epoch: int = 0) -> None:
        local = lone_metadata_log(self.machine, self.logs[number], epoch)
        self.service.load(number, epoch, local)
        await self.service.until_loaded(number)

    async def stop(self) -> None:
        await self.service.close()
        for log in self.logs:
            log.close()

    async def upload(self) -> str:
        key = new_object_key(self.clock.now_ms(), 1, self.machine.entropy)
        await self.memory.upload(key, b"x" * 200, 200)
        return key

    async def commit(
        self, key: str, *partitions: int, created_ms: int | None = None, owners: Sequence[int] = ()
    ) -> None:
        """Commit one batch in each partition. Coordinator n has partition n."""
        created_ms = self.clock.now_ms() if created_ms is None else created_ms
        for number in partitions:
            batch = BatchToCommit(TOPIC, number, 0, 100 * number, 100, 9, 10, self.clock.now_ms(), 0)
            call = CommitFileCall(key, 200, created_ms, 1, [batch], owner_ids=owners or partitions)
            result = await self.service.commit_file(number, call)
            assert result.batches[0].error is ErrorCode.none

    async def delete_all(self, *partitions: int) -> None:
        for number in partitions:
            await self.service.delete_records(number, [OffsetToDelete(TOPIC, number, -1)])
        # The coordinators' stores subtract the deleted bytes from the sizes of files a little after the
        # deletion.
        await asyncio.sleep(0.2)

    def stored(self) -> set[str]:
        return set(self.memory._objects)


def run(story: Coroutine[Any, Any, None]) -> None:
    """Run a test in virtual time, so that background work runs at its time even on a busy machine."""
    with World(1) as world:
        world.run(story)


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    made = Cluster(folder)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def test_a_file_is_deleted_after_its_grace_and_only_when_every_owner_is_done(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as here:
            key = await here.upload()
            await here.commit(key, 0, 1)
            await here.delete_all(0)
            here.clock.time_ms += HOUR_MS
            # The first owner of the file, coordinator 0, has no batches in the file any more, so it hands the
            # file over. The next owner, coordinator 1, still has a batch in the file.
            assert (await here.reclaimer.run_once()).handed_over == 1
            assert (await here.reclaimer.run_once()).deleted == 0
            assert here.stored() == {key}
            await here.delete_all(1)
            assert (await here.reclaimer.run_once()).deleted == 0
            here.clock.time_ms += GRACE_MS - 1
            assert (await here.reclaimer.run_once()).deleted == 0
            here.clock.time_ms += 2
            assert (await here.reclaimer.run_once()).deleted == 1
            assert here.stored() == set()
            assert (await here.reclaimer.run_once()).deleted == 0

    run(story())


def test_a_failed_deletion_is_repeated_until_it_succeeds(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as here:
            key = await here.upload()
            await here.commit(key, 0)
            await here.delete_all(0)
            here.clock.time_ms += HOUR_MS
            here.storage.weather.down = True
            assert (await here.reclaimer.run_once()).failed == 1
            assert here.stored() == {key}
            here.storage.weather.down = False
            here.storage.weather.answer_lost_chance = 1.0
            assert (await here.reclaimer.run_once()).failed == 1
            here.storage.weather.answer_lost_chance = 0.0
            assert (await here.reclaimer.run_once()).deleted == 1
            assert here.stored() == set()

    run(story())


def test_only_objects_that_no_coordinator_knows_are_orphans(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as here:
            orphan, first, second = [await here.upload() for _ in range(3)]
            await here.commit(first, 0)
            await here.commit(second, 1)
            await here.memory.upload("wal/0/2020010100/a-stranger", b"x", 1)
            assert (await here.orphans.run()).old == 0
            here.clock.time_ms += HOUR_MS
            young = await here.upload()
            report = await here.orphans.run(dry_run=True)
            assert (report.orphans, report.known, report.deleted, report.examples) == (1, 2, 0, [orphan])
            assert orphan in here.stored()
            report = await here.orphans.run()
            assert (report.orphans, report.deleted, report.orphan_bytes) == (1, 1, 200)
            assert here.stored() == {first, second, young, "wal/0/2020010100/a-stranger"}

    run(story())


def test_objects_with_records_of_unknown_topics_are_kept(tmp_path: Path) -> None:
    """A restore lists every object with records of an unknown topic, even if a coordinator has other batches
    of the object."""

    async def story() -> None:
        async with cluster(tmp_path) as here:
            mixed, unknown, orphan = [await here.upload() for _ in range(3)]
            topic_id = UUID(int=99)
            await store_kept(here.memory, "0000000001", {mixed: [topic_id], unknown: [topic_id]})
            kept = here.stored() - {orphan}
            await here.commit(mixed, 0)
            await here.delete_all(0)
            here.clock.time_ms += HOUR_MS
            await here.reclaimer.run_once()
            await asyncio.sleep(0.2)
            report = await here.orphans.run()
            assert (report.orphans, report.kept, report.known, report.examples) == (1, 1, 1, [orphan])
            assert here.stored() == kept
            assert await kept_topics(here.memory) == {mixed: [topic_id], unknown: [topic_id]}

    run(story())


def test_a_commit_of_an_object_that_was_deleted_as_an_orphan_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as here:
            created_ms = here.clock.now_ms()
            key = await here.upload()
            here.clock.time_ms += 301_000
            assert (await here.orphans.run()).deleted == 1
            batch = BatchToCommit(TOPIC, 0, 0, 0, 100, 9, 10, here.clock.now_ms(), 0)
            for claimed_ms in (created_ms, here.clock.now_ms()):
                call = CommitFileCall(key, 200, claimed_ms, 1, [batch], owner_ids=[0])
                with pytest.raises(KafkaError, match=r"old|closed"):
                    await here.service.commit_file(0, call)

    run(story())


def test_no_orphan_is_deleted_while_a_coordinator_does_not_respond(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as here:
            key = await here.upload()
            here.clock.time_ms += HOUR_MS
            here.service.unload(1)
            report = await here.orphans.run()
            assert (report.unanswered, report.deleted) == (1, 0)
            assert here.stored() == {key}

    run(story())


def test_a_file_that_its_owner_does_not_know_is_adopted_and_deleted(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as here:
            strays = UnownedFileScan(here.service, here.service, lambda: (0, 1), here.clock, 180_000)
            stray, whole, live = [await here.upload() for _ in range(3)]
            # The file is committed only at coordinator 1, as if the broker had stopped before it committed
            # the file at its owner, coordinator 0.
            await here.commit(stray, 1, owners=(0, 1))
            await here.commit(whole, 0, 1)
            await here.delete_all(0, 1)
            for _ in range(500):
                described = await here.service.describe_files(1, [stray, whole])
                if not any(file.has_live_batches for file in described):
                    break
                await asyncio.sleep(0.02)
            await here.commit(live, 1, owners=(0, 1))
            here.clock.time_ms += 170_000
            assert await strays.run() == 0  # the writer of the object could still commit it
            here.clock.time_ms += HOUR_MS
            here.service.unload(0)
            assert await strays.run() == 0  # the owner of the file does not respond, so the file is kept
            await here.load(0, epoch=1)
            assert await strays.run() == 1
            assert await strays.run() == 0
            for key, is_owned in ((stray, True), (whole, False), (live, False)):
                (file,) = await here.service.describe_files(1, [key])
                assert file.is_owned is is_owned
            # The owner has closed the object's key, so it refuses a late commit of the object.
            with pytest.raises(KafkaError, match=r"old|closed"):
                await here.commit(stray, 0, owners=(0, 1))
            for _ in range(200):
                await here.reclaimer.run_once()
                if len(here.stored()) == 1:
                    break
                # A file appears in the list of deletable files only a moment after it was handed over or
                # freed.
                here.clock.time_ms += GRACE_MS + 1
                await asyncio.sleep(0.05)
            assert here.stored() == {live}

    run(story())


def test_retention_by_time_continues_until_nothing_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_retention, "RETENTION_EXTENTS", 1)

    async def story() -> None:
        async with cluster(tmp_path) as here:
            for _ in range(5):
                await here.commit(await here.upload(), 0)
                here.clock.time_ms += 1_000

            def policies(coordinator_id: int) -> Sequence[RetentionPolicy]:
                return [RetentionPolicy(TOPIC, 0, 2_500, -1)] if coordinator_id == 0 else []

            await here.service.apply_retention(0, policies(0))
            (described,) = await here.service.describe_topics(0)
            assert described.log_start_offset == 10  # the work of one pass is limited
            upkeep = CoordinatorUpkeep(here.service, policies, Meters(), snapshot_records=1)
            await upkeep.apply_retention()
            (described,) = await here.service.describe_topics(0)
            assert (described.log_start_offset, described.high_watermark) == (30, 50)
            await upkeep.snapshot_and_expire()
            assert here.service.records_since_snapshot(0) == 0

    run(story())


async def nothing_new() -> None:
    """Return immediately, because the broker's metadata contain all committed changes."""


def _topic(number: int, owners: Sequence[int]) -> Topic:
    partitions = tuple(
        PartitionRegistration(
            replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0, owner=owner
        )
        for owner in owners
    )
    return Topic(f"topic-{number}", UUID(int=number), partitions)


def test_coordinators_follow_the_metadata(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as here:
            topics = {number: _topic(number, (0, 1, 1)) for number in (1, 2)}
            topics[0xA] = _topic(0xA, (0, 1))
            sync = ImageSync(here.service, lambda: list(topics.values()), nothing_new)

            async def partitions(coordinator_id: int) -> set[tuple[int, int]]:
                found = await here.service.describe_topics(coordinator_id)
                return {(one.topic_id.int, one.partition_index) for one in found}

            await sync.run_once()
            assert await partitions(0) == {(1, 0), (2, 0), (0xA, 0)}
            assert await partitions(1) == {(1, 1), (1, 2), (2, 1), (2, 2), (0xA, 1)}
            removed, topics[3] = topics.pop(2), _topic(3, (1,))
            assert sync.topics_changed([topics[3]], [removed])
            await sync.run_once()
            await sync.run_once()
            assert await partitions(0) == {(1, 0), (0xA, 0)}
            assert await partitions(1) == {(1, 1), (1, 2), (3, 0), (0xA, 1)}

    run(story())
