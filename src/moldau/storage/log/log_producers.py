"""The producers of a partition log: their state, the snapshot files of this state, and the recovery of the
state from the log."""

from collections.abc import Callable, Sequence

from moldau.records.batch import CONTROL_BIT, BatchHeader
from moldau.records.control import EndTransactionMarker, parse_control_record
from moldau.records.errors import InvalidRecordError
from moldau.records.record import iter_records
from moldau.runtime.buffers import Buffer
from moldau.runtime.files.disk import Disk
from moldau.storage.log.append_info import AbortedEntry, AppendOrigin
from moldau.storage.log.config import LogConfig
from moldau.storage.log.segmented_log import SegmentedLog
from moldau.storage.log.state.offsets import LogOffsets
from moldau.storage.producers.producer_snapshot import ProducerSnapshots
from moldau.storage.producers.producer_state import (
    BatchMetadata,
    CompletedTransaction,
    ProducerEntry,
    ProducerState,
)
from moldau.storage.segments.batch_scan import scan_headers

BatchVisitor = Callable[[BatchHeader], None]


class LogProducers:
    """Uses the pure :class:`ProducerState` of one log."""

    def __init__(self, disk: Disk, directory: str, config: LogConfig) -> None:
        self.state = ProducerState(expiration_ms=config.producer_id_expiration_ms)
        self.snapshots = ProducerSnapshots(disk, directory)
        self._checked: tuple[BatchHeader, EndTransactionMarker] | None = None
        """The marker that was checked last, with the header of its batch. It is not parsed again when its
        batch is appended."""

    # -- opening and truncation ---------------------------------------------------------------

    def load(
        self,
        segments: SegmentedLog,
        offsets: LogOffsets,
        *,
        now_ms: int,
        rebuilt_from: int | None = None,
        on_epoch: BatchVisitor | None = None,
    ) -> None:
        """Rebuild the state from the newest usable snapshot and the batches after it.

        ``rebuilt_from`` is the base offset of the first segment whose indexes recovery has emptied. The
        replay also reads this segment and all later segments, and fills their transaction indexes.
        ``on_epoch`` gets the first batch of a segment. It also gets each batch whose leader epoch differs
        from the leader epoch of the previous batch. It does not get batches below the log's start.

        The snapshots at the replayed segments are written again. Otherwise, retention could remove the only
        batch of an idle producer, and after the next kill neither a batch nor a snapshot would show the
        producer. A start after a loss of power believes the snapshots at offsets that were flushed, so these
        are written durably.
        """
        end_offset = segments.end_offset
        limit = end_offset if rebuilt_from is None else min(rebuilt_from, end_offset)
        start_offset = self.snapshots.load_latest(self.state, segments.segments[0].base_offset, limit, now_ms)
        for segment in segments.segments[segments.index_holding(start_offset) :]:
            is_rebuilt = rebuilt_from is not None and segment.base_offset >= rebuilt_from
            if segment.base_offset > start_offset:
                self.write_snapshot(
                    segment.base_offset, durably=segment.base_offset <= offsets.flushed_offset
                )
            start = segment.position_of(start_offset) if segment.base_offset < start_offset else 0
            epoch = None
            for position, header in scan_headers(segment.file, start, segment.size_bytes):
                if header.partition_leader_epoch != epoch and header.last_offset >= offsets.log_start_offset:
                    epoch = header.partition_leader_epoch
                    if on_epoch is not None:
                        on_epoch(header)
                if header.producer_id < 0:
                    continue
                if not header.attributes & CONTROL_BIT:
                    self.state.apply(header, header.base_offset, header.max_timestamp)
                    continue
                batch = segment.file.view(position, header.size_bytes)
                completed = self.state.apply_batch(batch, header)
                if is_rebuilt and completed is not None and completed.aborted:
                    segment.transaction_index.append(_aborted(completed))
        self.state.advance_end(end_offset)

    def truncate_to(self, segments: SegmentedLog, offsets: LogOffsets, *, now_ms: int) -> None:
        """Forget the removed batches after a truncation of the log."""
        self.snapshots.remove_after(segments.end_offset)
        self.load(segments, offsets, now_ms=now_ms)

    def restart_at(self, offset: int, entries: Sequence[ProducerEntry] = (), now_ms: int = 0) -> None:
        """Begin again with the producers ``entries``, because the log is now empty and begins at ``offset``.

        The caller writes the snapshot.
        """
        for found in self.snapshots.offsets():
            self.snapshots.remove(found)
        self.state.reset(offset, entries, now_ms)

    # -- appending ----------------------------------------------------------------------------

    def check(self, header: BatchHeader, batch: Buffer, origin: AppendOrigin) -> BatchMetadata | None:
        """Check a batch with a producer id before it is appended. If the batch is a duplicate, the original
        is returned.

        For most data batches the caller uses ``state`` directly, which is faster.
        """
        if header.is_control:
            marker = _marker_of(batch)
            self._checked = header, marker
            self.state.check_marker(header.producer_id, header.producer_epoch, marker)
            return None
        return self.state.check(header, from_client=origin is AppendOrigin.CLIENT)

    def appended(self, header: BatchHeader, base_offset: int, batch: Buffer) -> AbortedEntry | None:
        """Record an appended batch that has a producer id. Returns the transaction that the batch aborts."""
        if not header.is_control:
            self.state.apply(header, base_offset, header.max_timestamp)
            return None
        checked, self._checked = self._checked, None
        marker = checked[1] if checked is not None and checked[0] is header else _marker_of(batch)
        completed = self.state.apply_marker(
            header.producer_id, header.producer_epoch, marker, base_offset, header.max_timestamp
        )
        return _aborted(completed) if completed is not None and completed.aborted else None

    # -- snapshots ----------------------------------------------------------------------------

    def write_snapshot(self, end_offset: int, *, durably: bool = True) -> None:
        """Write a snapshot of the producers' state at the end of the log, ``end_offset``."""
        self.state.advance_end(end_offset)
        self.snapshots.take_snapshot(self.state, durably=durably)

    # -- queries ------------------------------------------------------------------------------

    def last_stable_offset(self, high_watermark: int) -> int:
        """The end of ``read_committed`` reads. It is the start of the first transaction that is open or whose
        marker is at or above the watermark. Without such a transaction, it is the watermark."""
        state = self.state
        state.advance_high_watermark(high_watermark)
        unstable = state.first_unstable_offset
        return high_watermark if unstable is None else min(unstable, high_watermark)

    def active(self) -> list[tuple[int, int, int, int, int, int]]:
        """The producers for DescribeProducers. Each has its id, epoch, last sequence, last timestamp,
        coordinator epoch, and the start of its transaction."""
        return [
            (
                entry.producer_id,
                entry.producer_epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                -1 if entry.current_txn_first_offset is None else entry.current_txn_first_offset,
            )
            for entry in self.state
        ]


def _marker_of(batch: Buffer) -> EndTransactionMarker:
    for record in iter_records(batch):
        marker = parse_control_record(record)
        if isinstance(marker, EndTransactionMarker):
            return marker
    raise InvalidRecordError("a control batch with a producer id holds no transaction marker")


def _aborted(completed: CompletedTransaction) -> AbortedEntry:
    return AbortedEntry(
        completed.producer_id, completed.first_offset, completed.last_offset, completed.last_stable_offset
    )
