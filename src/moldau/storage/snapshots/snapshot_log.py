"""A partition log with snapshots. It is the log of the quorum and of the coordinators."""

import uuid
from collections.abc import Sequence
from typing import cast

from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import iter_headers, parse_header
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.runtime.buffers import Buffer
from moldau.storage.critical_logs.integrity_check import ADVICE, DamagedLogError, IntegrityRules
from moldau.storage.critical_logs.recovery_report import RecoveryReport
from moldau.storage.folders.file_names import PART_SUFFIX
from moldau.storage.log.append_info import AppendInfo, AppendOrigin, ReadResult
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.snapshots.replicated_log import (
    Divergence,
    LogPosition,
    OffsetValidation,
    RawSnapshotWriter,
    SnapshotWriter,
)
from moldau.storage.snapshots.snapshot import (
    FileRawSnapshotWriter,
    FileSnapshotReader,
    FileSnapshotWriter,
    LogName,
    origin_of,
    snapshot_file,
    snapshot_of,
)


class SnapshotLog:
    """A partition log with snapshots, in files. Implements
    :class:`moldau.storage.snapshots.replicated_log.ReplicatedLog`."""

    def __init__(self, machine: Machine, log: PartitionLog) -> None:
        self._machine = machine
        self.log = log
        self._snapshots: list[LogPosition] = []
        self._find_snapshots()

    @classmethod
    def open(
        cls,
        machine: Machine,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig | None = None,
        *,
        topic_id: uuid.UUID | None = None,
        recovery_point: int = 0,
        clean_shutdown: bool = False,
        integrity: IntegrityRules | None = None,
        report: RecoveryReport | None = None,
    ) -> "SnapshotLog":
        """Open the folder. If it does not exist, it is created. This call blocks.

        Batches at or after ``recovery_point`` are checked. If records at the start of the log were removed,
        the log begins at or after the end of its first snapshot. If the latest snapshot ends above the log's
        end, all records are dropped and the log begins at the end of that snapshot.
        """
        log = PartitionLog.open(
            machine,
            directory,
            topic_partition,
            config,
            topic_id=topic_id,
            recovery_point=recovery_point,
            clean_shutdown=clean_shutdown,
            integrity=integrity,
            report=report,
        )
        replicated = cls(machine, log)
        try:
            replicated._check_latest_snapshot(
                is_only_replica=integrity is not None and integrity.is_only_replica
            )
        except DamagedLogError:
            log.close()
            raise
        replicated.truncate_to_latest_snapshot_now()
        earliest = replicated.earliest_snapshot_id()
        if earliest is not None and log.log_start_offset < earliest.offset and log.log_start_offset > 0:
            log.update_log_start_offset(min(earliest.offset, log.log_end_offset))
            with log.disk_work("writing the leader epochs of"):
                log.epochs.save()
        log.high_watermark = log.log_start_offset
        return replicated

    def _find_snapshots(self) -> None:
        disk, folder = self._machine.disk, self.log.directory
        for name in disk.list(folder):
            snapshot_id = snapshot_of(name)
            if snapshot_id is not None:
                self._snapshots.append(snapshot_id)
            elif name.endswith(PART_SUFFIX):
                disk.remove(f"{folder}/{name}")
        self._snapshots.sort()

    def _check_latest_snapshot(self, *, is_only_replica: bool) -> None:
        """Raise :class:`DamagedLogError` when the latest snapshot belongs to another log, or contradicts this
        log. No file is changed."""
        snapshot_id, log = self.latest_snapshot_id(), self.log
        if snapshot_id is None or not snapshot_id.offset:
            return
        path, (offset, epoch) = f"{log.directory}/{snapshot_file(snapshot_id)}", snapshot_id
        reader = self.open_snapshot(snapshot_id)
        assert reader is not None
        try:
            header = reader.header()
        except KafkaError as error:
            raise DamagedLogError(error.message) from error
        finally:
            reader.close()
        if is_only_replica and log.log_end_offset and offset > log.log_end_offset:
            # Only a follower stores snapshots that end above the end of its log.
            raise DamagedLogError(
                f"{path} ends at offset {offset}, and the log ends at offset {log.log_end_offset}, though no"
                f" other node has it. {ADVICE}"
            )
        if not log.log_start_offset < offset <= log.log_end_offset:
            return
        last = next(parse_header(view) for view in log.read(offset - 1, 1).views)
        has_other_time = header.last_contained_log_timestamp != last.max_timestamp
        if last.partition_leader_epoch != epoch or (header.origin is None and has_other_time):
            raise DamagedLogError(
                f"{path} is damaged: it says that the last record before offset {offset} is of epoch {epoch}"
                f" and time {header.last_contained_log_timestamp}, and the log has there a record of epoch"
                f" {last.partition_leader_epoch} and time {last.max_timestamp}. {ADVICE}"
            )

    # -- the log ------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def size_bytes(self) -> int:
        return self.log.size_bytes

    @property
    def flushed_offset(self) -> int:
        return self.log.flushed_offset

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def last_epoch(self) -> int:
        latest = self.log.leader_epochs.latest
        if latest is not None and self.log.log_end_offset > self.log.log_start_offset:
            return latest.epoch
        snapshot_id = self.latest_snapshot_id()
        if snapshot_id is not None and snapshot_id.offset == self.log.log_end_offset:
            return snapshot_id.epoch
        return latest.epoch if latest is not None else 0

    def append_as_leader(self, batches: Buffer, epoch: int) -> AppendInfo:
        view = memoryview(batches)
        headers = [header for _, header in iter_headers(view)]
        if not headers or sum(header.size_bytes for header in headers) != len(view):
            raise KafkaError(ErrorCode.invalid_record, "an append takes one or more whole batches")
        return self.log.append_as_leader(view, headers, epoch, origin=AppendOrigin.RAFT)

    def append_as_follower(self, batches: Buffer) -> AppendInfo:
        return self.log.append_as_follower(batches)

    def read(self, offset: int, max_bytes: int, *, upper_bound_offset: int | None = None) -> ReadResult:
        return self.log.read(offset, max_bytes, upper_bound_offset=upper_bound_offset)

    def initialize_epoch(self, epoch: int) -> None:
        self.log.begin_epoch(epoch)

    def end_offset_for_epoch(self, epoch: int) -> LogPosition:
        found = self.log.end_offset_for_epoch(epoch)
        if found.epoch == epoch or (found.epoch >= 0 and found.end_offset > self.start_offset):
            return LogPosition(found.end_offset, found.epoch)
        earliest = self.earliest_snapshot_id()
        if earliest is not None and earliest.offset == self.start_offset and epoch >= earliest.epoch:
            if found.epoch < 0:
                return LogPosition(self.end_offset, self.last_epoch)
            return earliest
        if found.epoch < 0:
            return LogPosition(self.end_offset, self.last_epoch)
        return LogPosition(self.start_offset, epoch)

    def validate_offset_and_epoch(self, offset: int, epoch: int) -> OffsetValidation:
        asked = LogPosition(offset, epoch)
        if self.start_offset == 0 and offset == 0 and epoch == 0:
            return OffsetValidation(Divergence.VALID, asked)
        earliest = self.earliest_snapshot_id()
        if earliest is not None and (
            offset < self.start_offset
            or (offset == self.start_offset and asked != earliest and self.start_offset == earliest.offset)
            or epoch < earliest.epoch
        ):
            latest = self.latest_snapshot_id()
            assert latest is not None
            return OffsetValidation(Divergence.SNAPSHOT, latest)
        end = self.end_offset_for_epoch(epoch)
        if end.epoch != epoch or end.offset < offset:
            return OffsetValidation(Divergence.DIVERGING, end)
        return OffsetValidation(Divergence.VALID, asked)

    def update_high_watermark(self, offset: int) -> None:
        self.log.high_watermark = max(self.log.high_watermark, min(offset, self.log.log_end_offset))

    async def truncate_to(self, offset: int) -> None:
        if offset < self.high_watermark:
            raise ValueError(f"truncation to {offset} is below the high watermark {self.high_watermark}")
        await self.log.truncate_to(offset)

    async def flush(self) -> int:
        return await self.log.flush()

    def close(self) -> None:
        self.log.close()

    # -- snapshots ----------------------------------------------------------------------------

    def latest_snapshot_id(self) -> LogPosition | None:
        return self._snapshots[-1] if self._snapshots else None

    def earliest_snapshot_id(self) -> LogPosition | None:
        return self._snapshots[0] if self._snapshots else None

    def snapshot_ids(self) -> Sequence[LogPosition]:
        return tuple(self._snapshots)

    async def truncate_to_latest_snapshot(self) -> bool:
        latest = self._snapshot_ahead()
        if latest is None:
            return False
        await self.log.truncate_fully_and_start_at(latest.offset)
        await self._remove_snapshots(self._begin_at(latest))
        return True

    async def begin_at_snapshot(self, snapshot_id: LogPosition) -> None:
        """Drop every record. The empty log begins at the end of an existing snapshot."""
        if snapshot_id not in self._snapshots:
            raise ValueError(f"there is no snapshot {snapshot_id}")
        await self.log.truncate_fully_and_start_at(snapshot_id.offset)
        await self._remove_snapshots(self._begin_at(snapshot_id))

    def truncate_to_latest_snapshot_now(self) -> bool:
        """Does the same as :meth:`truncate_to_latest_snapshot`, but on the calling thread. This call
        blocks."""
        latest = self._snapshot_ahead()
        if latest is None:
            return False
        self.log.truncate_fully_now(latest.offset)
        with self.log.disk_work("deleting snapshots of"):
            self._remove(self._begin_at(latest))
        return True

    def _snapshot_ahead(self) -> LogPosition | None:
        """Return the latest snapshot if it ends above the log's end, or at the log's end with a newer epoch
        than the last record. Otherwise return None."""
        latest = self.latest_snapshot_id()
        if latest is None:
            return None
        behind = latest.offset > self.end_offset or (
            latest.offset == self.end_offset and latest.epoch > self._last_record_epoch()
        )
        return latest if behind else None

    def _begin_at(self, snapshot_id: LogPosition) -> list[str]:
        """Let the empty log begin at the end of a snapshot. Returns the files of older snapshots, which must
        be removed."""
        self.log.begin_epoch(snapshot_id.epoch)
        self.log.high_watermark = snapshot_id.offset
        return self._take_snapshots_before(snapshot_id)

    def _last_record_epoch(self) -> int:
        epoch = self.log.leader_epochs.latest_epoch
        return -1 if epoch is None else epoch

    def create_snapshot(self, snapshot_id: LogPosition, last_log_timestamp_ms: int) -> SnapshotWriter | None:
        if snapshot_id.offset > self.high_watermark:
            raise ValueError(f"snapshot {snapshot_id} is above the high watermark {self.high_watermark}")
        latest = self.latest_snapshot_id()
        if latest is not None and snapshot_id.offset <= latest.offset:
            return None
        if snapshot_id.offset < self.start_offset:
            raise ValueError(f"snapshot {snapshot_id} ends before the log's start {self.start_offset}")
        known = self.log.epoch_for_offset(snapshot_id.offset - 1)
        if snapshot_id.offset > self.start_offset and known != snapshot_id.epoch:
            raise ValueError(f"snapshot {snapshot_id} has another epoch than the log, {known}")
        with self.log.disk_work("writing a snapshot to"):
            origin = origin_of(self._name, snapshot_id)
            writer = FileSnapshotWriter(
                self._machine, self.log.directory, snapshot_id, last_log_timestamp_ms, origin=origin
            )
        return cast(SnapshotWriter, _Announcing(self, writer))

    def store_snapshot(self, snapshot_id: LogPosition) -> RawSnapshotWriter | None:
        if snapshot_id in self._snapshots:
            return None
        with self.log.disk_work("writing a snapshot to"):
            writer = FileRawSnapshotWriter(self._machine, self.log.directory, snapshot_id)
        return cast(RawSnapshotWriter, _Announcing(self, writer))

    def _announce(self, snapshot_id: LogPosition) -> None:
        if snapshot_id not in self._snapshots:
            self._snapshots.append(snapshot_id)
            self._snapshots.sort()

    def open_snapshot(self, snapshot_id: LogPosition) -> FileSnapshotReader | None:
        if snapshot_id not in self._snapshots:
            return None
        with self.log.disk_work("reading a snapshot of"):
            path = f"{self.log.directory}/{snapshot_file(snapshot_id)}"
            file = self._machine.disk.open(path, read_only=True)
            return FileSnapshotReader(file, snapshot_id, self._name)

    @property
    def _name(self) -> LogName:
        return LogName(self.log.topic_partition, self.log.topic_id)

    async def delete_before_snapshot(self, snapshot_id: LogPosition) -> bool:
        if snapshot_id not in self._snapshots or snapshot_id.offset > self.end_offset:
            return False
        log = self.log
        moved = log.update_log_start_offset(snapshot_id.offset)
        await log.persist_start()
        old = self._take_snapshots_before(snapshot_id)
        await self._remove_snapshots(old)
        paths = await log.delete_segments_before_start()
        with log.disk_work("deleting segments of"):
            await self._machine.workers.run(self._remove, paths)
        return moved or bool(old) or bool(paths)

    def _take_snapshots_before(self, snapshot_id: LogPosition) -> list[str]:
        old = [found for found in self._snapshots if found < snapshot_id]
        for found in old:
            self._snapshots.remove(found)
        return [f"{self.log.directory}/{snapshot_file(each)}" for each in old]

    async def _remove_snapshots(self, paths: Sequence[str]) -> None:
        with self.log.disk_work("deleting snapshots of"):
            await self._machine.workers.run(self._remove, paths)

    def _remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._machine.disk.remove(path)


class _Announcing:
    """A writer whose snapshot becomes part of the log when the snapshot is frozen. If the writer's I/O fails,
    the log fails, too."""

    def __init__(self, log: SnapshotLog, writer: FileSnapshotWriter | FileRawSnapshotWriter) -> None:
        self._log = log
        self._writer = writer

    @property
    def snapshot_id(self) -> LogPosition:
        return self._writer.snapshot_id

    @property
    def size_bytes(self) -> int:
        return self._writer.size_bytes if isinstance(self._writer, FileRawSnapshotWriter) else 0

    def append(self, content: object) -> None:
        with self._log.log.disk_work("writing a snapshot to"):
            self._writer.append(content)  # type: ignore[arg-type]

    def append_control(self, key: bytes, value: bytes) -> None:
        assert isinstance(self._writer, FileSnapshotWriter)
        with self._log.log.disk_work("writing a snapshot to"):
            self._writer.append_control(key, value)

    async def settle(self) -> None:
        assert isinstance(self._writer, FileSnapshotWriter)
        with self._log.log.disk_work("writing a snapshot to"):
            await self._writer.settle()

    async def freeze(self) -> None:
        with self._log.log.disk_work("writing a snapshot to"):
            await self._writer.freeze()
        self._log._announce(self._writer.snapshot_id)

    def abandon(self) -> None:
        with self._log.log.disk_work("dropping a snapshot of"):
            self._writer.abandon()
