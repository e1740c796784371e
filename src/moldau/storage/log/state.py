"""The parts of a partition log and the gate that a failed disk closes."""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, NoReturn, Self

from moldau.records.batch import HEADER_SIZE_BYTES, BatchHeader, parse_header
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.runtime.files.descriptors import LACK_OF_DESCRIPTORS
from moldau.storage.folders.checkpoint import CheckpointError
from moldau.storage.folders.file_names import LEADER_EPOCHS, LOG_START_OFFSETS, PARTITION_METADATA
from moldau.storage.folders.partition_metadata import (
    is_misread,
    read_partition_metadata,
    write_partition_metadata,
)
from moldau.storage.guards.guarding import DurableOffset, GuardedLog, LogGuard
from moldau.storage.guards.recovery_report import RecoveryReport, Repair, RepairKind
from moldau.storage.log.config import LogConfig
from moldau.storage.log.leader_epochs import EpochEntry, LeaderEpochFile, LeaderEpochs, SavedEpochs
from moldau.storage.log.producers import LogProducers
from moldau.storage.log.segmented_log import SegmentedLog
from moldau.storage.segments.batch_scan import scan
from moldau.storage.segments.segment_loading import load_segments
from moldau.storage.snapshots.snapshot import snapshot_of
from moldau.storage.topic_partition import TopicPartition

logger = logging.getLogger(__name__)


class LogState:
    """Opening a log, what it consists of, and the gate that a failed disk closes."""

    def __init__(
        self,
        machine: Machine,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
    ) -> None:
        self._machine = machine
        self._now_ms = machine.clock.now_ms
        self.directory = directory
        self.topic_partition = topic_partition
        self._config = config
        self._guard: LogGuard | None = None
        self._report = RecoveryReport()
        self._durable: DurableOffset | None = None
        self.on_failure: Callable[[OSError], None] | None = None
        """Told once when the disk fails."""
        self.on_truncation: Callable[[], Callable[[], None]] | None = None
        """Told after each truncation, before anything is appended behind it. What it returns is run by a
        worker before the truncation is over."""
        self.on_epochs: Callable[[], None] | None = None
        """Told when the file of the leader epochs is out of date: :meth:`epochs_to_save` is to be written."""
        self.checkpoint_start: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Makes its start durable, and its leader epochs before. Raises ``OSError``."""
        self._failure: KafkaError | None = None
        self._closed = False
        self._segments = SegmentedLog(machine, directory, config)
        self._epoch_file = LeaderEpochFile(machine.disk, f"{directory}/{LEADER_EPOCHS}")
        self.leader_epochs = LeaderEpochs()
        self.producers = LogProducers(machine.disk, directory, config)
        self.topic_id: uuid.UUID | None = None
        self.holes: list[tuple[int, int]] = []
        """Offsets that are missing between segments, as the log was opened."""
        self.awaits_config = False
        """Whether its topic's configuration is not known yet, so that nothing may be taken away."""
        self._is_new_here = True
        """Whether its start was not settled since it was opened."""
        self.log_start_offset = 0
        self._start_by_epochs = 0
        self._epochs_are_lost = False
        """Includes epochs of the remote part: rebuilt epochs are not written before these are known."""
        self._epochs_are_unreadable = False
        self.highest_copied_offset = -1
        """The last offset that is in the remote tier; -1 when there is none, or while it is not known."""
        self.high_watermark = 0
        self.flushed_offset = 0
        self._noted_epochs: tuple[EpochEntry, ...] = ()
        self._epochs_version = 0
        self._last_epoch = -1
        self._truncations = 0
        self._files = asyncio.Lock()
        """Held by operations on the files of segments that wait for the disk."""
        self._last_flush_ms = machine.clock.now_ms()

    # -- opening ------------------------------------------------------------------------------

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
        guard: LogGuard | None = None,
        report: RecoveryReport | None = None,
    ) -> Self:
        """Open a partition's folder (``directory``, its path), making it when absent. Blocking.

        Everything below ``recovery_point`` is taken to be durable; the rest is checked and torn bytes
        are cut, unless ``clean_shutdown``. ``may_be_tiered``: the topic's configuration will be set later;
        until then what lies before the first local segment is taken to be in the remote tier.

        With ``guard``, only a torn end is cut; ``report`` gets whatever is repaired.

        Raises ``KafkaError(kafka_storage_error)`` when the disk fails,
        ``KafkaError(inconsistent_topic_id)`` when the folder belongs to another topic id, and
        :class:`DamagedLogError` when a guarded log is damaged.
        """
        log = cls(machine, directory, topic_partition, config or LogConfig())
        log._report = report or log._report
        if guard is not None:
            log._guard, log._durable = guard, DurableOffset(machine.disk, directory)
        with log.guarded("opening"):
            log._load(recovery_point, clean_shutdown, log_start_offset)
            log.take_topic_id(topic_id)
            log.awaits_config = may_be_tiered
            if not may_be_tiered:
                log.settle_start()
                log.save_epochs()
        return log

    def _load(self, recovery_point: int, clean_shutdown: bool, log_start_offset: int) -> None:
        disk = self._machine.disk
        self._make_folder()
        epochs = self.leader_epochs = self._load_epochs()
        log_start_offset = self._checked_start(log_start_offset, epochs)
        guarded = None if self._guard is None else self._guarded(self._guard, epochs, log_start_offset)
        if guarded is not None:
            recovery_point = max(recovery_point, guarded.durable_offset)
        loaded = load_segments(
            disk,
            self.directory,
            self._config,
            recovery_point=recovery_point,
            clean_shutdown=clean_shutdown,
            guarded=guarded,
            report=self._report,
        )
        segments, self.holes = self._segments, loaded.holes
        if loaded.segments:
            segments.adopt(loaded.segments, loaded.end_offset)
        if loaded.segments and segments.end_offset < log_start_offset:
            logger.warning(
                "%s ends at offset %d, before its checkpointed start %d: what it holds is dropped",
                self.directory,
                segments.end_offset,
                log_start_offset,
            )
        if not loaded.segments or segments.end_offset < log_start_offset:
            segments.drop_files(segments.segments)
            segments.restart_at(log_start_offset)
        # The epochs are cut at the log's start, at once and durably, whenever it moves: the checkpoint may
        # be older, or lost. Without a remote tier they may also just begin behind a hole.
        earliest = epochs.earliest
        if earliest is not None:
            self._start_by_epochs = min(earliest.start_offset, segments.end_offset)
        first_offset = segments.segments[0].base_offset
        self.log_start_offset = max(log_start_offset, min(self._start_by_epochs, first_offset))
        self.flushed_offset = min(recovery_point, segments.end_offset)
        if clean_shutdown and loaded.rebuilt_from is None:
            self.flushed_offset = segments.end_offset
        self._noted_epochs = epochs.entries
        epochs.truncate_from_end(segments.end_offset)
        if earliest is not None and not len(epochs):
            # All records were deleted, and the start may be known here alone: it outlives this start, too.
            epochs.assign(earliest.epoch, segments.end_offset)
        epochs.truncate_from_start(self.log_start_offset)
        if not self._noted_epochs and segments.end_offset:
            self._epochs_are_lost = True
            self._learn_lost_epochs()
        self.high_watermark = self.log_start_offset
        self.producers.load(
            segments,
            log_start_offset=self.log_start_offset,
            now_ms=self._now_ms(),
            rebuilt_from=loaded.rebuilt_from,
            on_epoch=self._learn_epoch,
        )
        self._save_epochs_now()
        self._last_epoch = self._latest_epoch()

    def _make_folder(self) -> None:
        disk = self._machine.disk
        if not disk.is_dir(self.directory):
            disk.make_dirs(self.directory)
            disk.sync_dir(self.directory.rpartition("/")[0])

    def _load_epochs(self) -> LeaderEpochs:
        """The epochs as the file has them; none when it is unreadable, for the log tells them again."""
        try:
            return self._epoch_file.load()
        except CheckpointError as error:
            reason = f"is made anew, line {error.line} cannot be read: {error.reason}"
            self._report.add(Repair(RepairKind.REBUILT, self._epoch_file.path, reason))
            self._machine.disk.remove(self._epoch_file.path)
            self._epochs_are_unreadable = True
            return LeaderEpochs()

    def _checked_start(self, log_start_offset: int, epochs: LeaderEpochs) -> int:
        """The checkpointed start, unless the epochs, which are cut first and durably, begin before it."""
        earliest = epochs.earliest
        if earliest is None or earliest.start_offset >= log_start_offset:
            return log_start_offset
        reason = f"is not believed: it begins the log at {log_start_offset}, {LEADER_EPOCHS} at {earliest[1]}"
        self._report.add(Repair(RepairKind.REBUILT, f"{LOG_START_OFFSETS} of {self.directory}", reason))
        return earliest.start_offset

    def _guarded(self, guard: LogGuard, epochs: LeaderEpochs, log_start_offset: int) -> GuardedLog:
        assert self._durable is not None
        durable_offset: int | None = 0
        try:
            durable_offset = self._durable.read()
        except ValueError:
            self._report.add(Repair(RepairKind.REBUILT, self._durable.path, "is rebuilt: it cannot be read"))
            self._machine.disk.remove(self._durable.path)
        latest_start: int | None = log_start_offset
        if guard.has_snapshots:
            found = map(snapshot_of, self._machine.disk.list(self.directory))
            latest_start = max((each.offset for each in found if each is not None), default=0)
        elif epochs.earliest is not None:
            latest_start = max(log_start_offset, epochs.earliest.start_offset)
        elif not log_start_offset:
            latest_start = None
        return GuardedLog(guard, durable_offset or 0, latest_start, epochs, durable_offset is not None)

    def _lower_durable(self, offset: int) -> None:
        """Before a truncation: the log must not be held to what it is about to lose."""
        if self._durable is not None:
            self._durable.lower(offset)

    def restore_epochs(self, entries: Iterable[EpochEntry]) -> None:
        """The epochs of offsets before the first local segment, if they were lost; none if there are none."""
        with self.guarded("writing the leader epochs of"):
            self._epochs_are_lost = False
            self.leader_epochs.extend_back(entries)
            self.leader_epochs.truncate_from_start(self.log_start_offset)
            self._save_epochs()

    def settle_start(self) -> None:
        """With the configuration it is known whether anything lies before the first local segment."""
        tiered = self._config.remote_storage_enable
        start = self._start_by_epochs if tiered else self._segments.segments[0].base_offset
        if self._epochs_are_lost and not tiered:
            self.restore_epochs(())
        if self.log_start_offset < start:
            has_snapshots = self._guard is not None and self._guard.has_snapshots
            if not (tiered or has_snapshots) and self._is_new_here:
                reason = (
                    f"offsets {self.log_start_offset} to {start - 1} are missing: its first segment is gone"
                )
                self._report.add(Repair(RepairKind.LOST, self.directory, reason, self.log_start_offset))
            self._move_start(start)
        if self._is_new_here and not self._config.cleanup_compact:
            self._report_holes()
        self._is_new_here = False

    def _report_holes(self) -> None:
        for start, end in self.holes:
            reason = f"offsets {start} to {end - 1} are missing: a segment between them is gone or shorter"
            self._report.add(Repair(RepairKind.LOST, self.directory, reason, start))

    def _move_start(self, offset: int) -> None:
        """The caller has made sure that it is a move up, to what is not above the end.

        It is durable once the owner of the log has saved its epochs, or the caller has.
        """
        self.log_start_offset = offset
        self.high_watermark = max(self.high_watermark, offset)
        self.leader_epochs.truncate_from_start(offset)
        self.producers.state.advance_log_start(offset)
        self._note_epochs()
        if self.on_epochs is not None and not self.epochs_are_saved:
            self.on_epochs()

    def _learn_lost_epochs(self) -> None:
        if self._epochs_are_unreadable:
            self._learn_all_epochs()
        else:
            self._learn_first_epoch()

    def _learn_first_epoch(self) -> None:
        """The epochs were lost: the first batch knows its own, so that they begin where the log does."""
        segment = self._segments.segments[0]
        if segment.size_bytes:
            header = parse_header(segment.file.read_at(0, HEADER_SIZE_BYTES))
            if header.partition_leader_epoch >= 0:
                self.leader_epochs.assign(header.partition_leader_epoch, segment.base_offset)

    def _learn_all_epochs(self) -> None:
        for segment in self._segments.segments:
            for sketch in scan(segment.file, 0, segment.size_bytes):
                self._learn_epoch(parse_header(segment.file.read_at(sketch.position, HEADER_SIZE_BYTES)))

    def _learn_epoch(self, header: BatchHeader) -> None:
        if header.partition_leader_epoch > self._latest_epoch():
            self.leader_epochs.assign(header.partition_leader_epoch, header.base_offset)

    def _latest_epoch(self) -> int:
        epoch = self.leader_epochs.latest_epoch
        return -1 if epoch is None else epoch

    def _assign_epoch(self, epoch: int, start_offset: int) -> None:
        """An epoch is in the file before its first batch is durable; until then its batches tell of it."""
        if epoch > self._latest_epoch():
            self.leader_epochs.assign(epoch, start_offset)
        self._note_epochs()
        if self.on_epochs is not None:
            self.on_epochs()
        self._last_epoch = epoch

    def _note_epochs(self) -> None:
        if self._epochs_are_lost or self._config.is_cache:
            return
        entries = self.leader_epochs.entries
        if entries != self._noted_epochs:
            # In this order: a worker reads the version first.
            self._noted_epochs = entries
            self._epochs_version += 1

    def _save_epochs(self) -> None:
        """Soon, where the owner of the log sees to it; else at once."""
        self._note_epochs()
        if self.on_epochs is None:
            self.save_epochs()
        elif not self.epochs_are_saved:
            self.on_epochs()

    def _save_epochs_now(self) -> None:
        self._note_epochs()
        self.save_epochs()

    @property
    def epochs_are_saved(self) -> bool:
        """Whether the file holds what was last noted."""
        return self._epoch_file.saved_version >= self._epochs_version

    def epochs_to_save(self) -> SavedEpochs:
        """The epochs to write, with their version. Thread-safe."""
        version = self._epochs_version
        return SavedEpochs(self._epoch_file, self._noted_epochs, version)

    def save_epochs(self) -> None:
        """Bring the file up to date, durably. Blocking; for any thread."""
        _, entries, version = self.epochs_to_save()
        self._epoch_file.save(entries, version)

    def end_epoch_file(self) -> None:
        """Nothing more is written to the file: the folder gets another name. Blocking."""
        self._epoch_file.end()

    def take_topic_id(self, topic_id: uuid.UUID | None) -> None:
        """Note, in the folder, whose data this is; raises as :meth:`open`."""
        stored = read_partition_metadata(self._machine.disk, self.directory)
        if stored is not None and topic_id is not None and is_misread(stored, topic_id):
            reason = f"is rebuilt: its topic id was damaged, {stored} stood for {topic_id}"
            self._report.add(Repair(RepairKind.REBUILT, f"{self.directory}/{PARTITION_METADATA}", reason))
            stored = None
        if stored is None and topic_id is not None:
            write_partition_metadata(self._machine.disk, self.directory, topic_id)
        elif topic_id is not None and stored != topic_id:
            raise KafkaError(
                ErrorCode.inconsistent_topic_id,
                f"{self.directory} holds topic id {stored}, not {topic_id}",
            )
        self.topic_id = stored or topic_id

    # -- what it is ---------------------------------------------------------------------------

    @property
    def local_log_start_offset(self) -> int:
        """Where this replica's own data begin; what lies before, down to the log's start, is remote."""
        return max(self.log_start_offset, self._segments.segments[0].base_offset)

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self._segments.end_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of its log files."""
        return self._segments.size_bytes

    @property
    def segments(self) -> SegmentedLog:
        """The bytes below; for tiering, compaction and tools."""
        return self._segments

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = self._segments.config = config
        self.awaits_config = False
        if not config.remote_storage_enable:
            self.highest_copied_offset = -1
        if self._failure is None:
            with self.guarded("writing the leader epochs of"):
                self.settle_start()

    @property
    def truncation_count(self) -> int:
        """How often the log was truncated since it was opened."""
        return self._truncations

    @property
    def is_offline(self) -> bool:
        """Whether its disk has failed it."""
        return self._failure is not None

    def last_stable_offset(self, high_watermark: int) -> int:
        """Where ``read_committed`` ends: before the first transaction that is still open."""
        unstable = self.producers.first_unstable_offset(high_watermark)
        return high_watermark if unstable is None else min(unstable, high_watermark)

    # -- failure ------------------------------------------------------------------------------

    def fail(self, doing: str, error: OSError) -> NoReturn:
        """The disk refused: take the log offline, tell the owner once, raise."""
        if self._failure is None:
            reason = f"{doing} {self.directory} failed: {error.strerror or error}"
            self._failure = KafkaError(ErrorCode.kafka_storage_error, reason)
            with contextlib.suppress(OSError):
                self._segments.abandon()
            if self.on_failure is not None:
                self.on_failure(error)
        raise KafkaError(ErrorCode.kafka_storage_error, self._failure.message) from error

    def check_descriptors(self, doing: str, error: OSError) -> None:
        """Raise a retriable error if nothing but a free file descriptor was missing: the log is well."""
        if error.errno in LACK_OF_DESCRIPTORS:
            reason = f"{doing} {self.directory} failed: {error.strerror or error} (see ulimit -n)"
            raise KafkaError(ErrorCode.kafka_storage_error, reason) from error

    @contextlib.contextmanager
    def guarded(self, doing: str) -> Iterator[None]:
        """Run disk work of this log: a failure in it is the log's."""
        self._check_online()
        try:
            yield
        except OSError as error:
            self.fail(doing, error)

    def _check_online(self) -> None:
        if self._failure is not None:
            raise KafkaError(ErrorCode.kafka_storage_error, self._failure.message)

    def take_offline(self, message: str) -> None:
        """Another log of the same disk has failed: refuse everything from now on."""
        if self._failure is None:
            self._failure = KafkaError(ErrorCode.kafka_storage_error, message)
            with contextlib.suppress(OSError):
                self._segments.abandon()
