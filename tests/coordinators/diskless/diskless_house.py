"""A coordinator on real files, and short functions that call it."""

from pathlib import Path
from uuid import UUID

from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.coordinators.diskless.calls import BatchToCommit, CommitFileCall, PartitionsToCreate
from moldau.coordinators.diskless.service import DATABASE_FILE, DisklessCoordinator
from moldau.coordinators.diskless.state.file_memory import CoordinatorTimes
from moldau.coordinators.diskless.store.schema import SqliteOpener, open_sqlite
from moldau.coordinators.diskless.store.store import DisklessStore
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import LocalDisk, Machine
from moldau.runtime.entropy import SeededEntropy
from moldau.runtime.workers import InlineWorkers, Workers
from moldau.storage.snapshots.snapshot_log import SnapshotLog
from moldau.testing.lone_partition import lone_metadata_log

TOPIC = UUID(int=0xA)
OTHER = UUID(int=0xB)


class SetClock:
    """A clock that a test sets."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> int:
        return self.time_ms


COMMIT_TIMEOUT_MS = 300_000
"""The time limit for commits is long, because other tests use the same real disk at the same time."""


class House:
    """One coordinator (number 0) in a folder. It can be started and stopped many times."""

    def __init__(
        self,
        folder: Path,
        *,
        settings: CoordinatorTimes | None = None,
        opener: SqliteOpener = open_sqlite,
        workers: Workers | None = None,
        topic_id: UUID | None = None,
    ) -> None:
        self.clock = SetClock()
        self.folder = str(folder / f"{DISKLESS_METADATA_TOPIC}-0")
        self.database_path = f"{self.folder}/{DATABASE_FILE}"
        self.machine = Machine(self.clock, SeededEntropy(1), LocalDisk(), workers or InlineWorkers())
        # The clock for deletions ignores jumps of the machine's clock. The test moves its clock only in small
        # steps, so the coordinator can use it as the clock for deletions, too.
        object.__setattr__(self.machine, "deletion_clock", self.clock)
        self.epoch = -1
        self._topic_id = topic_id
        self._settings = settings
        self._opener = opener

    async def start(self) -> DisklessCoordinator:
        self.epoch += 1
        self.snapshot_log = SnapshotLog.open(
            self.machine, self.folder, TopicPartition(DISKLESS_METADATA_TOPIC, 0), topic_id=self._topic_id
        )
        self.log = lone_metadata_log(self.machine, self.snapshot_log, self.epoch)
        await self.log.settled()
        self.service = DisklessCoordinator(
            self.machine, self._settings, opener=self._opener, commit_timeout_ms=COMMIT_TIMEOUT_MS
        )
        self.service.load(0, self.epoch, self.log)
        await self.service.until_loaded(0)
        assert self.service.is_active(0)
        return self.service

    @property
    def store(self) -> DisklessStore:
        led = self.service.led(0)
        assert led is not None
        return led.store

    async def stop(self) -> None:
        await self.service.close()
        await self.log.settled()
        self.snapshot_log.close()

    def delete_database(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            self.machine.disk.remove(self.database_path + suffix)


def batch(
    index: int = 0,
    records: int = 1,
    *,
    topic: UUID = TOPIC,
    at: int = 0,
    size: int = 100,
    time: int = 5000,
    append_time: bool = False,
    producer: tuple[int, int, int] | None = None,
    transactional: bool = False,
) -> BatchToCommit:
    """A batch. ``producer`` has the producer id, the producer epoch and the base sequence of the batch."""
    pid, epoch, sequence = producer or (-1, -1, -1)
    last = -1 if producer is None else (sequence + records - 1) % (1 << 31)
    return BatchToCommit(
        topic, index, 0, at, size, records - 1, records, time, int(append_time), pid, epoch, sequence, last,
        transactional,
    )  # fmt: skip


def file(
    key: str, *batches: BatchToCommit, created: int = 1_000_000, owners: tuple[int, ...] = ()
) -> CommitFileCall:
    """A file with adjacent batches."""
    placed = []
    end = 0
    for given in batches:
        placed.append(given._replace(byte_offset=end))
        end += given.size_bytes
    return CommitFileCall(key, max(end, 1), created, 1, placed, owners)


def topic(partitions: int = 2, topic_id: UUID = TOPIC, name: str = "t") -> PartitionsToCreate:
    return PartitionsToCreate(topic_id, name, range(partitions))
