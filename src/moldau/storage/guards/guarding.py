"""The guard of logs whose loss would delete or hide data: metadata, coordinators' logs, consumers' offsets.

After an unclean stop such a log may end with an incomplete batch: it was never acknowledged, and is cut
off. Anything else is damage, and cutting it would make topics, objects or offsets disappear. Damage stops
the start before any byte is changed, with the file, the offset and the steps to take.

Three facts distinguish the two cases:

* ``durable-offset``, a file beside the segments: everything below was synced. It is written after each sync
  without a sync of its own, so that a loss of power may leave an older value, which is true as well.
* Whether the machine has been up since the log was last opened (``same_boot``). If so, everything written is
  still there, and only the last write can be torn: no valid batch may follow a bad one. After a loss of power
  any part of what was not synced may be missing.
* ``written_offset``: the end of the log according to the checkpoints of its folder. The recovery point is
  written from syncs alone, and durably, so that it holds after a loss of power; a truncation lowers it before
  a byte is cut.

The file of the leader epochs is a fourth one, for a log whose ``durable-offset`` was lost, too: it is
written after the first segment is created, and the last epoch begins below the log's former end.
"""

import contextlib
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from moldau.records.batch import HEADER_SIZE_BYTES, check_batch
from moldau.records.errors import CorruptRecordError
from moldau.runtime.files.disk import Disk, File
from moldau.storage.folders.file_names import LEADER_EPOCHS, LOG_SUFFIX, segment_file
from moldau.storage.folders.log_directory import LogDirectoryError
from moldau.storage.log.leader_epochs import LeaderEpochs
from moldau.storage.segments.batch_scan import scan_checked

__all__ = [
    "ADVICE",
    "DURABLE_OFFSET",
    "DamagedLogError",
    "DurableOffset",
    "GuardedLog",
    "LogGuard",
    "OpenableLog",
    "check_segments",
    "valid_batch_behind",
]

DURABLE_OFFSET: Final = "durable-offset"
_VERSION: Final = 0
_SEARCH_CHUNK_BYTES: Final = 4 * 1024 * 1024
ADVICE: Final = (
    "Nothing was changed. Restore the folder from a backup, or see 'Damaged files' in docs/operations.md."
)
# Base offset and length begin with zeros in every log that fits on a disk; magic 2.
_CANDIDATE: Final = re.compile(rb"(?=\x00\x00.{6}[\x00-\x0f].{7}\x02)", re.DOTALL)


class DamagedLogError(LogDirectoryError):
    """A guarded log is damaged; the message names the file, the offset and the steps to take."""


@dataclass(frozen=True, slots=True)
class LogGuard:
    """Facts about a guarded log from before it is opened."""

    same_boot: bool = True
    """Whether the machine has not been restarted since the log was last open. Unknown counts as yes."""
    written_offset: int = 0
    """End of the log according to the checkpoints: it has contained everything below."""
    written_by: str = ""
    """The file that records this end."""
    is_dense: bool = True
    """Whether its offsets have no holes; compaction creates some."""
    has_snapshots: bool = False
    """Whether snapshots cover the records before its first segment; otherwise its start is checkpointed."""
    is_only_replica: bool = False
    """Whether no other node has it, so that it is never truncated after an election."""


class DurableOffset:
    """The file that stores the offset below which a log is durable."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self.path = f"{folder}/{DURABLE_OFFSET}"
        self._lock = threading.Lock()
        self._generation = 0
        self._noted = -1
        self._exists = False

    def read(self) -> int | None:
        """Read the offset; None when there is no file. Raises ``ValueError`` when it is unreadable."""
        try:
            content = self._disk.read(self.path)
        except FileNotFoundError:
            return None
        self._exists = True
        words = content.split()
        if len(words) != 3 or words[0] != b"%d" % _VERSION or content != _encode(int(words[1])):
            raise ValueError(f"{self.path} is damaged")
        return int(words[1])

    @property
    def generation(self) -> int:
        """Changes with each :meth:`lower`."""
        return self._generation

    def note(self, offset: int, generation: int) -> None:
        """Everything below ``offset`` was synced. Blocking; does nothing after a :meth:`lower` meanwhile."""
        with self._lock:
            if generation != self._generation or offset <= self._noted:
                return
            self._noted = offset
            content = _encode(offset)
            # If the write fails, an older, lower offset remains, which is valid as well.
            with contextlib.suppress(OSError):
                if not self._exists:
                    self._disk.write_atomically(self.path, content)
                    self._exists = True
                    return
                file = self._disk.open(self.path, create=True)
                try:
                    file.write_at(0, [content])
                finally:
                    file.close()

    def lower(self, offset: int) -> None:
        """The log is about to be truncated to ``offset``: lower the stored offset durably. Blocking."""
        with self._lock:
            self._generation += 1
            self._noted = -1
            try:
                known = self.read()
            except ValueError:
                known = None
            if self._exists and (known is None or known > offset):
                self._disk.write_atomically(self.path, _encode(offset))


def _encode(offset: int) -> bytes:
    text = b"%d %020d" % (_VERSION, offset)
    return b"%b %08x\n" % (text, crc32c(text))


@dataclass(frozen=True, slots=True)
class GuardedLog:
    """A guarded log before it is opened, and the content of its other files."""

    guard: LogGuard
    durable_offset: int = 0
    latest_start: int | None = None
    """The latest possible start of its first segment; None when it is unknown."""
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    """Empty when they are lost."""
    has_durable_offset: bool = True
    """Whether a file ``durable-offset`` existed, whatever its content."""

    @property
    def required_offset(self) -> int:
        """The log must not end before it."""
        return max(self.guard.written_offset, self.durable_offset)

    @property
    def requirement(self) -> str:
        """The offset that the log has reached, and the file that records it, as text."""
        guard = self.guard
        witness = DURABLE_OFFSET if self.durable_offset >= guard.written_offset else guard.written_by
        return f"it reached offset {self.required_offset}, as {witness} says"


@dataclass(frozen=True, slots=True)
class OpenableLog:
    """A guarded log that may be opened."""

    first: int = 0
    """Index of the first segment that belongs to the log: after a loss of power during a deletion below a
    snapshot, an older one may remain, followed by a gap.
    """
    torn_base: int | None = None
    """The segment with this base offset has a torn end; it and the later ones must be recovered."""


def check_segments(disk: Disk, folder: str, bases: Sequence[int], log: GuardedLog) -> OpenableLog:
    """Read a whole guarded log; raise :class:`DamagedLogError` unless the only fault is a torn end.

    ``bases``: the base offsets of the segments on the disk, in order. Changes nothing. Blocking.
    """
    guard, required = log.guard, log.required_offset
    first = 0
    if bases and log.latest_start is not None and bases[0] > log.latest_start:
        raise DamagedLogError(
            f"{folder} is damaged: its first segment begins at offset {bases[0]}, and no segment or snapshot"
            f" holds offset {log.latest_start} to {bases[0] - 1}. {ADVICE}"
        )
    expected = bases[0] if bases else 0
    for index, base_offset in enumerate(bases):
        path = f"{folder}/{segment_file(base_offset, LOG_SUFFIX)}"
        if base_offset != expected and (guard.is_dense or base_offset < expected):
            if (
                guard.has_snapshots
                and not guard.same_boot
                and expected < base_offset <= (log.latest_start or 0)
            ):
                first, expected = index, base_offset
            # After a loss of power, a file that was never synced may be missing while a later one exists.
            elif expected < required or guard.same_boot:
                raise DamagedLogError(
                    f"{folder} is damaged: offsets {expected} to {base_offset - 1} are missing before"
                    f" {path}. {ADVICE}"
                )
            else:
                return OpenableLog(first)
        expected = base_offset
        file = disk.open(path, read_only=True)
        try:
            position, expected, size_bytes = _walk(file, base_offset, log)
            if position < size_bytes:
                has_more = _any_batch(disk, folder, bases[index + 1 :])
                _check_torn(file, position, expected, log, has_more=has_more)
                return OpenableLog(first, torn_base=base_offset)
        finally:
            file.close()
    if not bases and guard.has_snapshots:
        # A snapshot that contains the whole log replaces it: if the process is killed meanwhile, no segment
        # is left.
        expected = log.latest_start or 0
    if expected < required:
        last = f"{folder}/{segment_file(bases[-1], LOG_SUFFIX)}" if bases else folder
        held = f"ends at offset {expected}" if bases else "holds no segment"
        raise DamagedLogError(f"{last} is damaged: the log {held}, but {log.requirement}. {ADVICE}")
    _check_epochs(folder, bases, expected, log)
    return OpenableLog(first)


def _check_epochs(folder: str, bases: Sequence[int], end_offset: int, log: GuardedLog) -> None:
    """Raise when the file of the leader epochs shows that the log was longer."""
    latest, guard = log.epochs.latest, log.guard
    if latest is None:
        return
    # A snapshot that ends above the log replaces it: after a crash meanwhile no segment is left.
    snapshot_offset = (log.latest_start or 0) if guard.has_snapshots else 0
    is_gone = not bases and not log.has_durable_offset and latest.start_offset >= snapshot_offset
    is_shorter = (
        guard.is_only_replica and guard.same_boot and latest.start_offset > max(end_offset, snapshot_offset)
    )
    if is_gone or is_shorter:
        held = f"ends at offset {end_offset}" if bases else "holds no segment"
        raise DamagedLogError(
            f"{folder} is damaged: the log {held}, but {folder}/{LEADER_EPOCHS} says that epoch"
            f" {latest.epoch} began at offset {latest.start_offset}. {ADVICE}"
        )


def _walk(file: File, base_offset: int, log: GuardedLog) -> tuple[int, int, int]:
    """Position and offset after the last valid batch, and the size of the file."""
    size_bytes = file.size()
    position, next_offset, epoch = 0, base_offset, -1
    for at, header, batch in scan_checked(file, 0, size_bytes):
        if header.base_offset < next_offset or header.partition_leader_epoch < epoch:
            break
        # Neither the offset nor the epoch is covered by the batch's checksum.
        if log.guard.is_dense and header.base_offset > next_offset:
            break
        if not _is_known_epoch(log, header.base_offset, header.partition_leader_epoch):
            break
        position, next_offset, epoch = at + len(batch), header.next_offset, header.partition_leader_epoch
    return position, next_offset, size_bytes


def _is_known_epoch(log: GuardedLog, offset: int, epoch: int) -> bool:
    known = log.epochs.epoch_for_offset(offset)
    if known is None or known == epoch:
        return True
    # The file is written before batches become durable: it may contain a later epoch.
    return offset >= log.durable_offset and known == log.epochs.latest_epoch and epoch > known


def _check_torn(file: File, position: int, offset: int, log: GuardedLog, *, has_more: bool) -> None:
    """Raise unless the invalid batch at ``position``, where ``offset`` is expected, is a torn end."""
    where = f"{file.path} is damaged at byte {position}: the batch at offset {offset} is not valid"
    if offset < log.required_offset:
        raise DamagedLogError(f"{where}, but the log was whole there: {log.requirement}. {ADVICE}")
    if not log.guard.same_boot:
        return
    behind = valid_batch_behind(file, position, offset)
    if behind is not None or has_more:
        seen = "in a later segment" if behind is None else f"at byte {behind}"
        raise DamagedLogError(f"{where}, and a valid one follows {seen}. {ADVICE}")


def _any_batch(disk: Disk, folder: str, bases: Sequence[int]) -> bool:
    for base_offset in bases:
        file = disk.open(f"{folder}/{segment_file(base_offset, LOG_SUFFIX)}", read_only=True)
        try:
            if next(scan_checked(file, 0, file.size()), None) is not None:
                return True
        finally:
            file.close()
    return False


def valid_batch_behind(file: File, position: int, offset: int) -> int | None:
    """Position of a valid batch with an offset from ``offset`` on, at ``position`` or later; None if none."""
    size_bytes = file.size()
    while size_bytes - position >= HEADER_SIZE_BYTES:
        chunk = file.read_at(position, min(_SEARCH_CHUNK_BYTES, size_bytes - position))
        for match in _CANDIDATE.finditer(chunk):
            at = position + match.start()
            length = int.from_bytes(chunk[match.start() + 8 : match.start() + 12], "big") + 12
            if HEADER_SIZE_BYTES <= length <= size_bytes - at:
                try:
                    header = check_batch(memoryview(file.read_at(at, length)))
                except CorruptRecordError:
                    continue
                if header.base_offset >= offset:
                    return at
        # A candidate needs 17 bytes to be recognised.
        position += max(1, len(chunk) - 16)
    return None
