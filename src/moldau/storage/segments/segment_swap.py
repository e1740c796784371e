"""Replaces segments by one rewritten segment. A crash at any time loses no records.

The files go through four states. From the second state on, a start of the node uses the new segment:

1. The files ``.cleaned`` are complete and durable, and the old segments are in use. A start of the node in
   this state removes the new files.
2. The new log file has the suffix ``.swap``. A start of the node in this state removes the old segments, and
   completes the replacement.
3. The old files are renamed or removed, and the new indexes have their final names.
4. The new log file has its final name. The replacement is complete.

In each step, the log file is renamed last.
"""

import contextlib
import logging

from moldau.runtime.files.disk import Disk
from moldau.storage.critical_logs.integrity_check import ADVICE, DamagedLogError
from moldau.storage.critical_logs.recovery_report import RecoveryReport, Repair, RepairKind
from moldau.storage.folders.file_names import (
    CLEANED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    base_offset_of,
    segment_file,
)
from moldau.storage.segments.batch_scan import scan_checked

logger = logging.getLogger(__name__)


def commit_cleaned(disk: Disk, folder: str, base_offset: int) -> None:
    """Go from state 1 to state 2. When this function returns, the new segment survives a loss of power."""
    for suffix in (*INDEX_SUFFIXES, LOG_SUFFIX):
        path = f"{folder}/{segment_file(base_offset, suffix)}"
        with contextlib.suppress(FileNotFoundError):
            disk.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
    disk.sync_dir(folder)


def move_in(disk: Disk, folder: str, base_offset: int) -> None:
    """Go from state 2 to state 4. The caller has already removed the old files. The change is durable after
    the folder's next sync."""
    for suffix in INDEX_SUFFIXES:
        path = f"{folder}/{segment_file(base_offset, suffix)}"
        for made in (path + SWAP_SUFFIX, path + CLEANED_SUFFIX):
            if disk.exists(made):
                disk.rename(made, path)
                break
    disk.sync_dir(folder)
    path = f"{folder}/{segment_file(base_offset, LOG_SUFFIX)}"
    disk.rename(path + SWAP_SUFFIX, path)


def remove_cleaned(disk: Disk, folder: str, base_offset: int) -> None:
    """Undo a swap in state 1."""
    for suffix in SEGMENT_SUFFIXES:
        disk.remove(f"{folder}/{segment_file(base_offset, suffix)}{CLEANED_SUFFIX}")


def complete_swaps(disk: Disk, folder: str, report: RecoveryReport, *, is_critical: bool) -> None:
    """Finish a swap that a crash interrupted in state 2 or 3. Called at the start. This call blocks.

    The new segment was durable before state 2. If it is incomplete now, it is damaged, and its end is
    unknown. In this case a critical log raises :class:`DamagedLogError`. For other logs the old segments are
    kept if they exist.
    """
    names = disk.list(folder)
    swaps = [base_offset_of(name, LOG_SUFFIX + SWAP_SUFFIX) for name in names]
    bases = [base_offset_of(name, LOG_SUFFIX) for name in names]
    ends = {base: _end_of_swap(disk, folder, base) for base in swaps if base is not None}
    for base_offset, (end_offset, damaged_at) in ends.items():
        path = f"{folder}/{segment_file(base_offset, LOG_SUFFIX)}{SWAP_SUFFIX}"
        if damaged_at is not None:
            reason = f"is damaged at byte {damaged_at}: the batch there is not valid"
            if is_critical:
                raise DamagedLogError(f"{path} {reason}. {ADVICE}")
            keeps_old = base_offset in bases
            kept = "the segments before compaction" if keeps_old else "the valid batches before this byte"
            report.add(Repair(RepairKind.LOST, path, f"{reason}; the log continues with {kept}", end_offset))
            if keeps_old:
                continue
        logger.info("%s: finishing the compaction of offsets %d to %d", folder, base_offset, end_offset - 1)
        for old in bases:
            if old is not None and base_offset <= old < end_offset:
                for suffix in SEGMENT_SUFFIXES:
                    disk.remove(f"{folder}/{segment_file(old, suffix)}")
        # The removals must be durable first. Otherwise a crash could restore an old index together with the
        # new log file.
        disk.sync_dir(folder)
        move_in(disk, folder, base_offset)
        disk.sync_dir(folder)
    for name in disk.list(folder):
        if name.endswith(SWAP_SUFFIX):
            disk.remove(f"{folder}/{name}")


def _end_of_swap(disk: Disk, folder: str, base_offset: int) -> tuple[int, int | None]:
    """Return the offset after the last valid batch, and the position of the first damaged byte. The position
    is ``None`` if the file is undamaged."""
    path = f"{folder}/{segment_file(base_offset, LOG_SUFFIX)}{SWAP_SUFFIX}"
    file = disk.open(path, read_only=True)
    try:
        end, end_offset = 0, base_offset + 1
        for position, header, _ in scan_checked(file, 0, file.size()):
            if header.next_offset < end_offset:
                break
            end, end_offset = position + header.size_bytes, header.next_offset
        return end_offset, None if end == file.size() else end
    finally:
        file.close()
