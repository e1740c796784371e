"""A closed local segment for the remote storage manager: the bytes of its files."""

from typing import NamedTuple

from moldau.records.batch import HEADER_SIZE_BYTES, parse_header
from moldau.runtime import Disk
from moldau.storage.folders.checkpoint import format_checkpoint
from moldau.storage.folders.file_names import TRANSACTION_INDEX_SUFFIX
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.producers.producer_snapshot import (
    CorruptSnapshotError,
    decode_producer_snapshot,
    encode_producer_snapshot,
)
from moldau.storage.producers.producer_state import ProducerState
from moldau.storage.segments.batch_scan import scan
from moldau.storage.segments.segment import Segment
from moldau.tiered.metadata.segments import EpochStart
from moldau.tiered.storage.storage_manager import LogSegmentData

__all__ = ["ClosedSegment", "epochs_of", "read_segment"]


class ClosedSegment(NamedTuple):
    """A segment that gets no further appends, and the offset after the last record of the segment."""

    segment: Segment
    next_offset: int


def epochs_of(log: PartitionLog, closed: ClosedSegment) -> list[EpochStart]:
    """The leader epochs with records in the segment. Epochs below the log's start are unknown."""
    entries = log.leader_epochs.in_range(closed.segment.base_offset, closed.next_offset)
    return [EpochStart(entry.epoch, entry.start_offset) for entry in entries]


def read_segment(disk: Disk, log: PartitionLog, closed: ClosedSegment) -> LogSegmentData:
    """All files of the segment; the log is a view. This call blocks.

    Raises ``OSError`` when the disk fails, and ``FileNotFoundError`` when the segment has just been deleted.
    """
    segment, next_offset = closed
    transactions = segment.path(TRANSACTION_INDEX_SUFFIX)
    return LogSegmentData(
        log_segment=segment.file.view(0, segment.size_bytes),
        offset_index=disk.read(segment.offset_index.path),
        time_index=disk.read(segment.time_index.path),
        transaction_index=disk.read(transactions) if len(segment.transaction_index) else None,
        producer_snapshot=_producers_at(disk, log, closed),
        leader_epochs=format_checkpoint(log.leader_epochs.in_range(-1, next_offset)),
    )


def _producers_at(disk: Disk, log: PartitionLog, closed: ClosedSegment) -> bytes:
    """The producers' state after the segment. It was written when the segment was closed."""
    path = log.producers.snapshots.path(closed.next_offset)
    try:
        content = disk.read(path)
        decode_producer_snapshot(content, path)
    except (FileNotFoundError, CorruptSnapshotError):
        return _replayed_producers(disk, log, closed)
    return content


def _replayed_producers(disk: Disk, log: PartitionLog, closed: ClosedSegment) -> bytes:
    """Replace a lost snapshot: take the earlier state, if it exists, and apply the segment's own batches."""
    segment, next_offset = closed
    state = ProducerState(expiration_ms=log.config.producer_id_expiration_ms)
    path = log.producers.snapshots.path(segment.base_offset)
    try:
        state.reset(segment.base_offset, decode_producer_snapshot(disk.read(path), path), 0)
    except (FileNotFoundError, CorruptSnapshotError):
        state.reset(segment.base_offset)
    for sketch in scan(segment.file, 0, segment.size_bytes):
        header = parse_header(segment.file.read_at(sketch.position, HEADER_SIZE_BYTES))
        if header.producer_id >= 0:
            state.apply_batch(segment.batch_view(sketch) if header.is_control else b"", header)
    state.advance_end(next_offset)
    return encode_producer_snapshot(state)
