"""Two brokers act for one diskless coordinator at the same time. The old leader does not know yet that the
other broker leads the coordinator. It must not delete an object because of a record that is not committed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import UUID

import pytest
from test_diskless_background import GRACE_MS, HOUR_MS, TOPIC, MovedClock, run

from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.coordinators.diskless.calls import (
    METADATA_MAX_MESSAGE_BYTES,
    BatchToCommit,
    CommitFileCall,
    DeletedRecords,
    OffsetToDelete,
    PartitionsToCreate,
)
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.coordinators.log import SnapshottedCoordinatorLog
from moldau.coordinators.shard_host import ShardHost
from moldau.diskless.object_keys import new_object_key
from moldau.diskless.upkeep.file_deletion import FileReclaimer
from moldau.metrics import Meters
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.objects import MemoryStorage
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.context import ReplicaContext
from moldau.replication.core.leader import LeaderReplica
from moldau.replication.core.policy import SNAPSHOTTED
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import ErrorCode, InlineWorkers, KafkaError, LocalDisk, Machine, SeededEntropy
from moldau.simulation.world.world import World
from moldau.storage.snapshots.snapshot_log import SnapshotLog
from replica_fetches import fetch_once

OLD, NEW = IDS = (1, 2)
NAME = TopicPartition(DISKLESS_METADATA_TOPIC, 0)
SECOND_S = 1.0


class Broker:
    """A broker with a replica of the coordinator's log. It deletes unused objects."""

    def __init__(self, folder: Path, broker_id: int, clock: MovedClock, storage: MemoryStorage) -> None:
        self.machine = Machine(clock, SeededEntropy(broker_id), LocalDisk(), InlineWorkers())
        # The test moves the clock only forwards, so it is also the clock for deletions.
        object.__setattr__(self.machine, "deletion_clock", clock)
        self.log = SnapshotLog.open(self.machine, str(folder / f"{broker_id}" / str(NAME)), NAME)
        meters = BrokerTopicMeters(Meters("kafka.server", "KafkaServer"))
        self.partition = ClassicPartition(
            ReplicaContext(self.machine, broker_id, WaitingRoom(), meters),
            PartitionKey(UUID(int=1), 0),
            self.log.log,
            min_in_sync=1,
            high_watermark=0,
            policy=SNAPSHOTTED,
            snapshots=self.log,
        )
        self.service = DisklessCoordinator(self.machine)
        self.reclaimer = FileReclaimer(self.service, self.service, storage, clock, GRACE_MS, Meters())

    async def lead(self, epoch: int, in_sync: tuple[int, ...]) -> None:
        self.partition.become_leader(epoch, IDS, in_sync, epoch)
        log = SnapshottedCoordinatorLog(self.partition, max_batch_bytes=METADATA_MAX_MESSAGE_BYTES)
        self.service.load(0, epoch, log)
        await self.service.until_loaded(0)
        assert self.service.is_active(0)

    async def fetch_from(self, leader: "Broker") -> None:
        """Make one fetch and process its response, as a fetcher does."""
        answer = await fetch_once(self.partition, NEW, leader.partition)
        assert answer.diverging_epoch is None
        await self.partition.settled()

    async def delete_records(self, partition: int) -> Sequence[DeletedRecords]:
        return await self.service.delete_records(0, [OffsetToDelete(TOPIC, partition, -1)])

    async def close(self) -> None:
        await self.service.close()
        self.log.close()


class Brokers:
    """The old and the new leader of coordinator 0, and their store. The new leader follows the old leader
    until :meth:`part`."""

    def __init__(self, folder: Path) -> None:
        self.clock = MovedClock()
        self.storage = MemoryStorage(self.clock)
        self.old, self.new = (Broker(folder, broker_id, self.clock, self.storage) for broker_id in IDS)
        self._replicating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.new.partition.follow(0, OLD)
        self._replicating = asyncio.get_running_loop().create_task(self._replicate())
        await self.old.lead(0, IDS)
        await self.old.service.create_partitions(0, [PartitionsToCreate(TOPIC, "t", [0, 1])])

    async def part(self) -> None:
        """Disconnect the brokers from each other, after the new leader has got all records."""
        assert self._replicating is not None
        old_log = self.old.partition.log
        while self.new.partition.high_watermark < old_log.log_end_offset:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        self._replicating.cancel()
        with suppress(asyncio.CancelledError):
            await self._replicating

    async def _replicate(self) -> None:
        while True:
            await self.new.fetch_from(self.old)
            await asyncio.sleep(0.01)

    async def commit(self, partition: int) -> str:
        """Upload an object with a batch of a partition, and commit it. Returns the object's key."""
        key = new_object_key(self.clock.now_ms(), 1, self.old.machine.entropy)
        await self.storage.upload(key, b"x" * 200, 200)
        batch = BatchToCommit(TOPIC, partition, 0, 0, 100, 9, 10, self.clock.now_ms(), 0)
        call = CommitFileCall(key, 200, self.clock.now_ms(), 1, [batch], owner_ids=[0])
        result = await self.old.service.commit_file(0, call)
        assert result.batches[0].error is ErrorCode.none
        return key

    async def reclaim(self, broker: Broker) -> set[str]:
        """Make one pass of a broker's deletions, long after all decisions. Returns the keys of the remaining
        objects."""
        # The coordinators' stores follow their logs a little later.
        await asyncio.sleep(SECOND_S)
        self.clock.time_ms += HOUR_MS
        await broker.reclaimer.run_once()
        return set(self.storage._objects)


@asynccontextmanager
async def brokers(folder: Path) -> AsyncIterator[Brokers]:
    made = Brokers(folder)
    await made.start()
    try:
        yield made
    finally:
        await made.old.close()
        await made.new.close()


async def play(folder: Path) -> list[str]:
    """Let the old leader and the new leader each delete other records. Returns the errors."""
    async with brokers(folder) as here:
        first, second = await here.commit(0), await here.commit(1)
        await here.part()
        # The old leader decides to delete the first records. No other broker gets the record about it.
        deleting = asyncio.ensure_future(here.old.delete_records(0))
        await asyncio.sleep(SECOND_S)
        await here.new.lead(1, (NEW,))
        await here.new.delete_records(1)
        errors = []
        for _ in range(2):
            left = await here.reclaim(here.old)
            assert here.old.service.is_active(0)
            if left != {first, second}:
                errors.append(f"the old leader has deleted {sorted({first, second} - left)}")
        left = await here.reclaim(here.new)
        if left != {first}:
            errors.append(f"the new leader has left {sorted(left)}")
        (described, _) = await here.new.service.describe_topics(0)
        if (described.log_start_offset, described.high_watermark) != (0, 10):
            errors.append(f"the new leader has {described}")
        # The old leader hears of the new leader, and its client is told to ask again.
        here.old.partition.follow(1, NEW)
        here.old.service.unload(0)
        if not isinstance((await asyncio.gather(deleting, return_exceptions=True))[0], KafkaError):
            errors.append("the old leader has confirmed a record that no other broker has")
        return errors


def test_only_committed_records_make_a_leader_delete_objects(tmp_path: Path) -> None:
    async def story() -> None:
        assert await play(tmp_path) == []

    run(story())


# -- inserted defects -------------------------------------------------------------------------------------


def followers_do_not_count(patch: pytest.MonkeyPatch) -> None:
    """A leader treats its own records as committed although its follower does not have them."""

    def advance(self: LeaderReplica) -> bool:
        moved = self.acknowledged_offset > self.high_watermark
        self.high_watermark = max(self.high_watermark, self.acknowledged_offset)
        return moved

    patch.setattr(LeaderReplica, "advance", advance)


def uncommitted_records_are_stored(patch: pytest.MonkeyPatch) -> None:
    """A coordinator writes each record to its tables as soon as the record is in its log."""
    hand_over = ShardHost._hand_over
    patch.setattr(ShardHost, "_hand_over", lambda self, _: hand_over(self, self._log.log_end_offset))


@pytest.mark.parametrize("defect", [followers_do_not_count, uncommitted_records_are_stored])
def test_a_leader_that_deletes_too_early_is_caught(
    defect: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> list[str]:
        defect(monkeypatch)
        return await play(tmp_path)

    with World(1) as world:
        found = world.run(story())
    assert any("the old leader has deleted" in each for each in found), found
