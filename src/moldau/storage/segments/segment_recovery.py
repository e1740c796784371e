"""Recovers one segment: reads and checks its batches, removes invalid bytes, and rebuilds its indexes.

The accepted bytes are written once more and synced, because they may exist only in the page cache. After a
failed sync the system marks pages as clean although they were not written to the disk, and no later sync
writes them. Without the second write, a producer's retry could be acknowledged because of bytes that the next
loss of power removes.

The module ``storage/log/segment_loading.py`` decides which segments are recovered.
"""

from dataclasses import replace
from typing import Final

from moldau.records.batch import LOG_OVERHEAD_BYTES
from moldau.runtime.files.disk import Disk
from moldau.storage.critical_logs.integrity_check import valid_batch_behind
from moldau.storage.critical_logs.recovery_report import RecoveryReport, Repair, RepairKind
from moldau.storage.folders.file_names import CUT_SUFFIX, LOG_SUFFIX
from moldau.storage.segments.batch_scan import scan_checked
from moldau.storage.segments.segment import MAX_RELATIVE_OFFSET, Segment

_COPIED_BYTES: Final = 4 * 1024 * 1024
_REWRITTEN_BYTES: Final = 1024 * 1024


def recover_segment(
    disk: Disk, segment: Segment, recovery_point: int, report: RecoveryReport, *, may_be_torn: bool
) -> int:
    """Rebuild a segment's indexes from its valid batches, and remove all bytes after these batches. Returns
    the end offset.

    After the call, the batches at or after ``recovery_point`` are durable, too.
    """
    size_bytes = segment.file.size()
    segment.reset_indexes(size_bytes)
    end, end_offset, epoch = 0, segment.base_offset, -1
    rewritten_from: int | None = None
    note_batch = segment.note_batch
    for position, header, _ in scan_checked(segment.file, 0, size_bytes):
        base_offset, length, batch_epoch, _, _, _, last_offset_delta, _, max_timestamp_ms, _, _, _, _ = header
        if base_offset < end_offset or batch_epoch < epoch:
            break
        last_offset = base_offset + last_offset_delta
        if last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
            break  # The base offset is damaged. The checksum does not include it.
        if rewritten_from is None and last_offset >= recovery_point:
            rewritten_from = position
        note_batch(position, length + LOG_OVERHEAD_BYTES, last_offset, max_timestamp_ms)
        end, end_offset = position + length + LOG_OVERHEAD_BYTES, last_offset + 1
        epoch = batch_epoch
    if end < size_bytes:
        cut = _cut(segment, end, end_offset, size_bytes - end)
        if not may_be_torn:
            cut = replace(cut, kind=RepairKind.LOST)
        if cut.kind is RepairKind.LOST:
            _keep_tail(disk, segment, end, size_bytes)
        report.add(cut)
        segment.file.truncate(end)
        segment.size_bytes = end
    segment.write_indexes()
    if rewritten_from is not None:
        _rewrite(segment, rewritten_from, end)
        segment.sync()
    return end_offset


def _rewrite(segment: Segment, start: int, end: int) -> None:
    """Write valid bytes once more. The next sync then brings them to the disk."""
    for position in range(start, end, _REWRITTEN_BYTES):
        piece = segment.file.read_at(position, min(_REWRITTEN_BYTES, end - position))
        segment.file.write_at(position, [piece])


def _cut(segment: Segment, position: int, offset: int, size_bytes: int) -> Repair:
    """Return the repair that describes the removal of the byte at ``position`` and all bytes after it.
    The repair reports either an incomplete batch or a loss of valid batches."""
    behind = valid_batch_behind(segment.file, position, offset)
    reason = f"removed {size_bytes} bytes from byte {position} on, after offset {offset - 1}"
    if behind is None:
        return Repair(
            RepairKind.TORN_TAIL,
            segment.path(LOG_SUFFIX),
            f"{reason}: they contain no valid batch",
            offset,
            size_bytes,
        )
    reason = (
        f"{reason}: the batch at this byte is damaged, and valid batches from byte {behind} on were removed,"
        f" too; the removed bytes are kept in {_kept_tail(segment, position)}"
    )
    return Repair(RepairKind.LOST, segment.path(LOG_SUFFIX), reason, offset, size_bytes)


def _kept_tail(segment: Segment, position: int) -> str:
    return f"{segment.path(LOG_SUFFIX)}.{position}{CUT_SUFFIX}"


def _keep_tail(disk: Disk, segment: Segment, position: int, end: int) -> None:
    kept = disk.open(_kept_tail(segment, position), create=True)
    try:
        kept.truncate(0)
        for start in range(position, end, _COPIED_BYTES):
            piece = segment.file.read_at(start, min(_COPIED_BYTES, end - start))
            kept.write_at(start - position, [piece])
        kept.sync()
    finally:
        kept.close()
