"""Opens the segments of a log. They are unchanged after a clean stop, and are checked after a crash.

After a crash of the machine, bytes that were not synced may be damaged. The tail of a file may be incomplete,
zero or missing. A new file may be missing while a later file exists. An index may contain any bytes.
Therefore everything after the recovery point is read and checked, and everything after the first gap or
invalid batch is dropped. None of the dropped batches was acknowledged as durable.

Everything below the recovery point is synced. Compaction may rewrite segments only below the recovery point,
because a gap above it between two segments counts as a loss.
"""

from typing import Final

from moldau.runtime.files.disk import Disk
from moldau.storage.critical_logs.integrity_check import (
    CriticalLog,
    DamagedLogError,
    check_segments,
)
from moldau.storage.critical_logs.recovery_report import RecoveryReport, Repair, RepairKind
from moldau.storage.folders.file_names import (
    CLEANED_SUFFIX,
    CUT_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    base_offset_of,
    segment_file,
)
from moldau.storage.log.config import LogConfig
from moldau.storage.segments.batch_scan import scan_checked
from moldau.storage.segments.segment import Segment
from moldau.storage.segments.segment_origin import check_origin
from moldau.storage.segments.segment_recovery import recover_segment
from moldau.storage.segments.segment_swap import complete_swaps
from moldau.storage.segments.sparse_index import CorruptIndexError

_LEFTOVER_SUFFIXES: Final = (DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")


class LoadedSegments:
    """The opened segments, with their end offset and the base offset of the first rebuilt segment. The last
    segment is not sealed."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.end_offset = 0
        self.rebuilt_from: int | None = None
        self.holes: list[tuple[int, int]] = []
        """Offsets between the end of a segment and the start of the next segment. Compaction creates such
        holes, too."""

    def rebuilt(self, segment: Segment) -> bool:
        """Whether the indexes of this segment or of an earlier segment were rebuilt. The transaction index of
        this segment must then still be filled."""
        return self.rebuilt_from is not None and segment.base_offset >= self.rebuilt_from


def load_segments(
    disk: Disk,
    folder: str,
    config: LogConfig,
    *,
    recovery_point: int,
    clean_shutdown: bool,
    was_killed: bool = False,
    critical: CriticalLog | None = None,
    report: RecoveryReport | None = None,
) -> LoadedSegments:
    """Open all segments of a folder. A folder without log files has no segments. This call blocks.

    Truncated and rebuilt files are added to ``report``. ``was_killed`` means that the machine has kept every
    byte that an earlier process wrote.

    Raises :class:`DamagedLogError` for a critical log with any fault except an incomplete end, and for the
    log file of another partition.
    """
    report = report or RecoveryReport()
    bases, torn_base = _remaining_segments(disk, folder, critical, report)
    loaded = LoadedSegments()
    for index, base_offset in enumerate(bases):
        is_last = index + 1 == len(bases)
        segment = Segment(disk, folder, base_offset, config)
        next_base = None if is_last else bases[index + 1]
        suspect = not clean_shutdown and may_be_damaged(next_base, recovery_point)
        suspect = suspect or (torn_base is not None and base_offset >= torn_base)
        # After a loss of power an index may have entries of records that are lost.
        is_other = (was_killed or not suspect) and _has_other_content(disk, segment, next_base, report)
        end_offset = None if suspect or is_other else _open_clean(segment, is_last, report)
        if end_offset is None:
            end_offset = recover_segment(
                disk, segment, recovery_point, report, may_be_torn=is_last and not clean_shutdown
            )
            if loaded.rebuilt_from is None:
                loaded.rebuilt_from = base_offset
        elif not is_last:
            end_offset = segment.last_batch_end()
        loaded.segments.append(segment)
        loaded.end_offset = end_offset
        # A gap below the recovery point comes from compaction.
        if suspect and not is_last and end_offset != bases[index + 1] > recovery_point:
            _drop_segments(disk, folder, bases[index + 1 :], end_offset, report)
            break
        if not is_last and end_offset < bases[index + 1]:
            loaded.holes.append((end_offset, bases[index + 1]))
    for segment in loaded.segments[:-1]:
        segment.seal()
    return loaded


def may_be_damaged(next_base: int | None, recovery_point: int) -> bool:
    """Whether a crash may have damaged a segment, so that all its batches are checked. ``next_base`` is the
    base offset of the next segment, or ``None`` for the last segment.

    The segment that ends at the recovery point, and its indexes, may have been completed after the recovery
    point was written.
    """
    return next_base is None or next_base >= recovery_point


def _has_other_content(disk: Disk, segment: Segment, end_offset: int | None, report: RecoveryReport) -> bool:
    """Whether the indexes of a segment contradict its log file. They must then be rebuilt.

    Raises :class:`DamagedLogError` when the log file belongs to another partition. If the log is a cache, the
    file is emptied instead.
    """
    try:
        reason = check_origin(disk, segment, end_offset)
    except DamagedLogError as error:
        if not report.is_of_cache:
            raise
        report.add(Repair(RepairKind.REBUILT, segment.path(LOG_SUFFIX), f"is emptied: {error}"))
        segment.file.truncate(0)
        return True
    if reason is None:
        return False
    report.add(Repair(RepairKind.REBUILT, segment.path(LOG_SUFFIX), f"its indexes are rebuilt. {reason}"))
    return True


def _remaining_segments(
    disk: Disk, folder: str, critical: CriticalLog | None, report: RecoveryReport
) -> tuple[list[int], int | None]:
    """Complete interrupted replacements of segments, and remove the other files that a crash has left.
    Returns the base offsets of the segments, and the base offset of the first incomplete segment."""
    complete_swaps(disk, folder, report, is_critical=critical is not None)
    names = disk.list(folder)
    bases = sorted(base for name in names if (base := base_offset_of(name, LOG_SUFFIX)) is not None)
    torn_base = None if critical is None else _checked(disk, folder, bases, critical, report)
    known = set(bases)
    for name in names:
        index_of = [base_offset_of(name, suffix) for suffix in INDEX_SUFFIXES]
        orphan = any(base is not None and base not in known for base in index_of)
        if orphan or name.endswith(_LEFTOVER_SUFFIXES):
            disk.remove(f"{folder}/{name}")
    return bases, torn_base


def _checked(
    disk: Disk, folder: str, bases: list[int], critical: CriticalLog, report: RecoveryReport
) -> int | None:
    """Remove segments that do not belong to a critical log. Returns the base offset of the incomplete
    segment."""
    verdict = check_segments(disk, folder, bases, critical)
    if verdict.first:
        first = bases[verdict.first]
        reason = f"{verdict.first} segments before offset {first} were deleted, and are deleted again"
        report.add(Repair(RepairKind.REBUILT, folder, reason))
        for base_offset in bases[: verdict.first]:
            disk.remove(f"{folder}/{segment_file(base_offset, LOG_SUFFIX)}")
        disk.sync_dir(folder)
        del bases[: verdict.first]
    return verdict.torn_base


def _open_clean(segment: Segment, is_last: bool, report: RecoveryReport) -> int | None:
    """The end offset of a segment that should be undamaged. The result is None when the segment must be
    recovered.

    The end is determined only for the last segment. For other segments the result is 0.
    """
    try:
        segment.open_existing(sealed=not is_last)
    except CorruptIndexError as error:
        reason = f"its indexes are rebuilt: {error}"
        report.add(Repair(RepairKind.REBUILT, segment.path(LOG_SUFFIX), reason))
        return None
    if not is_last:
        return 0
    start = segment.offset_index.boundary_before(segment.size_bytes)
    end, end_offset = start, segment.base_offset
    for position, header, _ in scan_checked(segment.file, start, segment.size_bytes):
        end, end_offset = position + header.size_bytes, header.next_offset
    return end_offset if end == segment.size_bytes else None


def _drop_segments(
    disk: Disk, folder: str, bases: list[int], end_offset: int, report: RecoveryReport
) -> None:
    """Remove the segments after a gap in the offsets, the last segment first. A crash then leaves no new gap.

    The bytes of the segments are kept under other names.
    """
    sizes = [disk.size(f"{folder}/{base_offset:020d}{LOG_SUFFIX}") for base_offset in bases]
    report.add(
        Repair(
            RepairKind.LOST if any(sizes) else RepairKind.TORN_TAIL,
            folder,
            f"the log ends at offset {end_offset}; removed {len(bases)} segments after the gap that follows"
            f" (kept as *{LOG_SUFFIX}{CUT_SUFFIX})",
            end_offset,
            sum(sizes),
        )
    )
    for base_offset, size_bytes in zip(reversed(bases), reversed(sizes), strict=True):
        path = f"{folder}/{segment_file(base_offset, LOG_SUFFIX)}"
        if size_bytes:
            disk.rename(path, path + CUT_SUFFIX)
        for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
            disk.remove(f"{folder}/{segment_file(base_offset, suffix)}")
    # After a loss of power, a removed segment must not come back behind newer records.
    disk.sync_dir(folder)
