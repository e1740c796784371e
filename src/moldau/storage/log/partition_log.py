"""One partition's log: the records that a replica stores, in Kafka's file formats.

:class:`PartitionLog` interprets the bytes of a :class:`SegmentedLog`. A :class:`PartitionLog` assigns or
checks offsets, checks idempotent producers, and tracks epochs and transactions. All calls are made on the
thread of the event loop. No synchronous call waits for a disk, except ``close`` and the calls that are
described as blocking. ``flush`` and operations on segments run in ``Workers``, one at a time.

**Failure.** When the disk refuses an operation, the call raises ``KafkaError(kafka_storage_error)``, and the
:class:`LogKeeper` of the log is notified once. From then on every call that needs the disk raises the same
error, because the content of the file is unknown until the log is opened (and recovered) again.
"""

import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Self

from moldau.protocol.partitions import TopicPartition
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.storage.critical_logs.integrity_check import DurableOffset, IntegrityRules
from moldau.storage.critical_logs.recovery_report import RecoveryReport
from moldau.storage.log.append_info import EpochEndOffset
from moldau.storage.log.appending import Appender
from moldau.storage.log.config import LogConfig
from moldau.storage.log.files.disk_steps import FileOperations
from moldau.storage.log.files.flusher import LogFlusher
from moldau.storage.log.files.removal import SegmentRemoval
from moldau.storage.log.files.truncation import Truncation
from moldau.storage.log.log_loading import Checkpoints, LoadedState, claim_folder, load_log
from moldau.storage.log.reading import LogReader
from moldau.storage.log.segmented_log import SegmentedLog
from moldau.storage.log.staging import StagedAppends
from moldau.storage.log.state.disk_access import DiskAccess
from moldau.storage.log.state.log_state import LogState
from moldau.storage.log.state.start import LogStart
from moldau.storage.log.worker_appends import AsideAppends


@dataclass(frozen=True, slots=True, kw_only=True)
class LogKeeper:
    """The owner of an open log. It writes the checkpoints of the log's folder."""

    failed: Callable[[OSError], None]
    """Called once when the disk fails."""
    truncated: Callable[[], Callable[[], None]]
    """Called at least once in each truncation, before the next append. It returns a function, which a worker
    runs before the truncation is complete."""
    epochs_changed: Callable[[], None]
    """Called when the file of leader epochs is out of date."""
    persist_start: Callable[[], Coroutine[Any, Any, None]]
    """Makes the log's start durable, after its leader epochs. Raises ``OSError`` if the disk fails."""


class PartitionLog:
    """The log of one partition on one disk, created by :meth:`open`.

    Its state is in ``segments`` (the bytes), ``offsets``, ``epochs``, ``start`` and ``producers``; ``access``
    shows whether the disk works. Its methods are methods of the following objects, where they are
    described. They are bound once, so that frequent calls have no extra cost:

    - :class:`Appender`: appends by a leader and a follower, the admission of batches, epochs, rolls;
    - :class:`StagedAppends` and :class:`AsideAppends`: appends in groups, and by a worker;
    - :class:`LogReader`: reads, aborted transactions, searches by timestamp;
    - :class:`LogFlusher`: flushes;
    - :class:`SegmentRemoval`: retention, eviction, the replacement of cleaned segments;
    - :class:`Truncation`: truncation, and restarts at another offset.
    """

    def __init__(
        self,
        machine: Machine,
        topic_partition: TopicPartition,
        access: DiskAccess,
        segments: SegmentedLog,
        state: LoadedState,
        report: RecoveryReport,
        *,
        has_snapshots: bool,
    ) -> None:
        offsets, epochs, producers, durable = state
        self._machine = machine
        self._report = report
        self._closed = False
        self.is_being_copied = False
        """Whether the log is being copied to another log folder. It is not compacted during the copy."""
        self.directory = segments.folder
        self.topic_partition = topic_partition
        self.topic_id: uuid.UUID | None = None
        self.access = access
        self.segments = segments
        """The segments with the bytes. They are used for tiering, compaction and tools."""
        self.offsets = offsets
        self.epochs = epochs
        self.leader_epochs = epochs.entries
        self.producers = producers
        shared = LogState(
            access=access, segments=segments, offsets=offsets, epochs=epochs, producers=producers
        )
        self.start = LogStart(shared, report, has_snapshots=has_snapshots)
        self.restore_epochs = self.start.restore_epochs
        self.active_producers = producers.active
        self.producer = producers.state.entry
        self.disk_work = access.disk_work
        self.fail = access.fail
        self.take_offline = access.close
        self._bind_appends(shared)
        self._bind_reads(shared)
        self._bind_file_operations(shared, durable)

    def _bind_appends(self, state: LogState) -> None:
        now_ms = self._machine.clock.now_ms
        appender = Appender(self.topic_partition, now_ms, state)
        self.append_as_leader = appender.append_as_leader
        self.append_as_follower = appender.append_as_follower
        self.admit = appender.admit
        self.is_slow_to_admit = appender.is_slow_to_admit
        self.begin_epoch = appender.begin_epoch
        self.roll = appender.roll

        staged = StagedAppends(now_ms, state, appender)
        self.may_stage = staged.may_stage
        self.stage = staged.stage
        self.write_staged = staged.write_staged

        self.aside = AsideAppends(now_ms, state, appender)
        self.begin_aside = self.aside.begin
        self.end_aside = self.aside.end

    def _bind_reads(self, state: LogState) -> None:
        reader = LogReader(self.topic_partition, state)
        self.read = reader.read
        self.cold_range = reader.cold_range
        self.aborted_transactions = reader.aborted_transactions
        self.timestamp_step = reader.timestamp_step
        self.latest_batch = reader.latest_batch

    def _bind_file_operations(self, state: LogState, durable: DurableOffset | None) -> None:
        now_ms = self._machine.clock.now_ms
        durability = LogFlusher(state, durable, now_ms)
        self._durability = durability
        self.flush = durability.flush
        self.is_flush_due = durability.is_due

        operations = FileOperations(self._machine.workers, state)
        removal = SegmentRemoval(operations, state, self.start, self.roll)
        self.delete_old_segments = removal.delete_old
        self.delete_segments_before_start = removal.delete_before_start
        self.evict_segments_before_start = removal.evict_before_start
        self.replace_segments = removal.replace

        self.truncation = Truncation(operations, state, durable, now_ms)
        self.truncate_to = self.truncation.truncate_to
        self.truncate_fully_and_start_at = self.truncation.restart_at
        self.truncate_fully_now = self.truncation.restart_now
        self.begin_behind_remote = self.truncation.begin_behind_remote

    @classmethod
    def open(
        cls,
        machine: Machine,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig | None = None,
        *,
        recovery_point: int = 0,
        clean_shutdown: bool = False,
        log_start_offset: int = 0,
        topic_id: uuid.UUID | None = None,
        may_be_tiered: bool = False,
        was_killed: bool = False,
        integrity: IntegrityRules | None = None,
        report: RecoveryReport | None = None,
    ) -> Self:
        """Open a partition's folder with the path ``directory``; it is created if it does not exist. This
        call blocks.

        All records below ``recovery_point`` are assumed to be durable. Unless ``clean_shutdown`` is set,
        later batches are checked. The first invalid batch and everything after it are cut off.
        ``may_be_tiered`` means that the topic's configuration will be set later. Until then records before
        the first local segment are assumed to be in the remote tier. ``was_killed`` means that the machine
        has kept every byte that an earlier process wrote, so that indexes may be compared with the bytes
        after ``recovery_point``.

        With ``integrity`` (a critical log), only an incomplete batch at the end is cut off, and any other
        fault raises :class:`DamagedLogError`. All repairs are reported to ``report``.

        Raises ``KafkaError(kafka_storage_error)`` when the disk fails, and
        ``KafkaError(inconsistent_topic_id)`` when the folder belongs to another topic id. Raises
        :class:`DamagedLogError` when a critical log is damaged, or when a log file belongs to another
        partition.
        """
        report = report or RecoveryReport()
        segments = SegmentedLog(machine, directory, config or LogConfig())
        access = DiskAccess(directory, segments.abandon)
        with access.disk_work("opening"):
            checkpoints = Checkpoints(recovery_point, clean_shutdown, log_start_offset, was_killed)
            state = load_log(machine, segments, checkpoints, integrity, report)
            has_snapshots = integrity is not None and integrity.has_snapshots
            log = cls(machine, topic_partition, access, segments, state, report, has_snapshots=has_snapshots)
            log.take_topic_id(topic_id)
            log.start.awaits_config = may_be_tiered
            if not may_be_tiered:
                log.start.settle()
                log.epochs.save()
        return log

    # -- properties of the log ----------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        return self.offsets.log_start_offset

    def last_stable_offset(self, high_watermark: int) -> int:
        """The end of ``read_committed`` reads. It is never below the log's start, although an open
        transaction may begin below it."""
        stable, start = self.producers.last_stable_offset(high_watermark), self.offsets.log_start_offset
        return stable if stable >= start else min(start, high_watermark)

    @property
    def local_log_start_offset(self) -> int:
        """The start of the data on this replica's disk. The records between the log's start and this offset
        are in the remote tier or in inactive chunks."""
        return max(self.offsets.log_start_offset, self.segments.segments[0].base_offset)

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self.segments.end_offset

    @property
    def high_watermark(self) -> int:
        """The offset up to which consumers may read. The replica sets this value."""
        return self.offsets.high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        self.offsets.high_watermark = offset

    @property
    def flushed_offset(self) -> int:
        """All records below this offset are durable."""
        return self.offsets.flushed_offset

    @flushed_offset.setter
    def flushed_offset(self, offset: int) -> None:
        self.offsets.flushed_offset = offset

    @property
    def highest_copied_offset(self) -> int:
        """The last offset that is in the remote tier. It is -1 when the tier has no records, or while the
        offset is not known."""
        return self.offsets.highest_copied_offset

    @highest_copied_offset.setter
    def highest_copied_offset(self, offset: int) -> None:
        self.offsets.highest_copied_offset = offset

    @property
    def truncation_count(self) -> int:
        """Number of truncations of the log since it was opened."""
        return self.offsets.truncation_count

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Ranges of offsets that were missing between segments when the log was opened. Each range has its
        start and its end."""
        return self.segments.holes

    @property
    def size_bytes(self) -> int:
        """Size of the log files in bytes."""
        return self.segments.size_bytes

    def size_bytes_from(self, offset: int) -> int:
        """Size of the batches that end after ``offset``, in bytes."""
        return self.segments.size_bytes_from(offset)

    @property
    def must_flush(self) -> bool:
        """Whether ``flush.messages`` requires a flush before an append is acknowledged."""
        segments = self.segments
        return segments.end_offset - self.offsets.flushed_offset >= segments.config.flush_messages

    @property
    def config(self) -> LogConfig:
        return self.segments.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self.segments.config = config
        self.start.configured()

    @property
    def awaits_config(self) -> bool:
        """Whether the configuration of the log's topic is not known yet. No data may be deleted before it is
        known."""
        return self.start.awaits_config

    @property
    def is_offline(self) -> bool:
        """Whether the log cannot be used any more, because its disk has failed or because it was closed."""
        return self.access.failure is not None

    def adopt(self, keeper: LogKeeper) -> None:
        """Set the keeper. It is notified of changes that it must make durable. Call this at most once for a
        log.

        A log without a keeper saves its epochs itself, and its start is not checkpointed.
        """
        self.access.on_failure = keeper.failed
        self.truncation.on_truncation = keeper.truncated
        self.epochs.on_change = keeper.epochs_changed
        self.start.checkpoint = keeper.persist_start

    # -- epochs and start ---------------------------------------------------------------------

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset:
        """Find an epoch, or the next lower epoch if the log does not have it. Returns that epoch and its end
        offset; (-1, -1) when it is unknown."""
        return self.leader_epochs.end_offset_for(leader_epoch, self.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        """Return the leader epoch in which an offset was or will be written; -1 when it is unknown."""
        epoch = self.leader_epochs.epoch_for_offset(offset)
        return -1 if epoch is None else epoch

    def forget_empty_epochs(self) -> None:
        """Drop the epochs without records, because a new leader may have records of earlier epochs."""
        self.epochs.forget_empty(self.log_end_offset)

    def update_log_start_offset(self, offset: int) -> bool:
        """Move the log's start up (DeleteRecords). The start may be inside a batch, and never moves back.

        The next retention pass deletes the bytes. Raises ``KafkaError(offset_out_of_range)`` if the new start
        is above the log's end.
        """
        self.access.check()
        if offset > self.log_end_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{self.topic_partition}: cannot begin at {offset}, it ends at {self.log_end_offset}",
            )
        if offset <= self.log_start_offset:
            return False
        with self.access.disk_work("writing the leader epochs of"):
            self.start.move(offset)
        return True

    async def persist_start(self) -> None:
        """Wait until the present start of the log is durable, if the owner of the log makes it durable.

        Raises ``KafkaError(kafka_storage_error)`` if the disk fails.
        """
        await self.start.persist(self._machine.workers)

    # -- the log's folder ---------------------------------------------------------------------

    def take_topic_id(self, topic_id: uuid.UUID | None) -> None:
        """Store the topic id of the folder's data in the folder. Raises the errors of :meth:`open`. This call
        blocks."""
        self.topic_id = claim_folder(self._machine.disk, self.directory, topic_id, self._report)

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def close(self) -> None:
        """Make all appends durable and release the files. This call blocks. A second call does nothing."""
        if self._closed or self.access.failure is not None:
            self._closed = True
            return
        self._closed = True
        with self.access.disk_work("closing"):
            self._durability.flush_and_close()
        self.access.end(f"{self.directory} is closed")
