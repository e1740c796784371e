"""Checks the logs whose loss would delete or hide data: the metadata log, the logs of coordinators, and
consumer offsets.

After an unclean stop such a log may end with an incomplete batch. That batch was never acknowledged, and is
removed. Any other fault is damage. If damaged records were removed, topics, objects or offsets would
disappear. Therefore damage stops the start before any byte is changed. The error names the file, the offset
and the steps to take.

Three facts distinguish an incomplete end from damage:

* ``durable-offset``, a file in the folder of the log. All records below its offset were synced. The file is
  written after each sync, but is not synced itself. A loss of power may therefore leave an older value, which
  is also correct. The file also contains the checksum of the batch that ends at its offset. The checksum
  shows whether the log belongs to another partition, or is an older copy that was continued.
* Whether the machine has been up since the log was last opened (``same_boot``). If so, all written bytes
  still exist, and only the last write can be incomplete. Therefore no valid batch may follow a bad batch.
  After a loss of power any part of the unsynced bytes may be missing.
* ``written_offset``: the end of the log according to the checkpoints of its folder. The recovery point
  contains only synced offsets and is written durably, so it is correct after a loss of power. A truncation
  lowers it before any byte is removed.

The file of the leader epochs is a fourth fact, for a log whose ``durable-offset`` was also lost. It is
written after the first segment is created, and its last epoch begins below the former end of the log.
"""

import contextlib
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from moldau.records.batch import HEADER_SIZE_BYTES, BatchHeader, check_batch
from moldau.records.errors import CorruptRecordError
from moldau.runtime.files.disk import Disk, File
from moldau.storage.folders.file_names import LEADER_EPOCHS, LOG_SUFFIX, segment_file
from moldau.storage.folders.log_directory import LogDirectoryError
from moldau.storage.log.leader_epochs import LeaderEpochs
from moldau.storage.segments.batch_scan import scan_checked

__all__ = [
    "ADVICE",
    "DURABLE_OFFSET",
    "CriticalLog",
    "DamagedLogError",
    "DurableOffset",
    "IntegrityRules",
    "OpenableLog",
    "check_segments",
    "valid_batch_behind",
]

DURABLE_OFFSET: Final = "durable-offset"
_VERSION: Final = 1
_VERSION_WITHOUT_CHECKSUM: Final = 0
_NO_CHECKSUM: Final = b"-" * 8
_SEARCH_CHUNK_BYTES: Final = 4 * 1024 * 1024
ADVICE: Final = (
    "Nothing was changed. Restore the folder from a backup, or see 'Damaged files' in docs/operations.md."
)
# A valid batch begins with zeros, because its offset and length are small numbers in every log that fits on a
# disk. The magic is 2.
_CANDIDATE: Final = re.compile(rb"(?=\x00\x00.{6}[\x00-\x0f].{7}\x02)", re.DOTALL)


class DamagedLogError(LogDirectoryError):
    """A critical log is damaged, or the log file of a segment belongs to another partition. The message names
    the file, the offset and the steps to take."""


@dataclass(frozen=True, slots=True)
class IntegrityRules:
    """The properties of a critical log that are known before it is opened."""

    same_boot: bool = True
    """Whether the machine has not been restarted since the log was last open. The value is true if this is
    unknown."""
    written_offset: int = 0
    """End of the log according to the checkpoints. At some time the log contained all records below this
    offset."""
    written_by: str = ""
    """The path of the checkpoint that contains ``written_offset``."""
    is_dense: bool = True
    """Whether the log's offsets have no gaps. Only compaction creates gaps."""
    has_snapshots: bool = False
    """Whether snapshots replace the records before the log's first segment. If not, the start of the log is
    checkpointed."""
    is_only_replica: bool = False
    """Whether this node has the only copy of the log, so that the log is never truncated after an election.
    """


class DurableOffset:
    """The file that stores the offset below which a log is durable.

    The file stays open between two syncs. Each system call of a worker thread costs more than the call
    itself, because the thread must then wait for the interpreter.
    """

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self.path = f"{folder}/{DURABLE_OFFSET}"
        self._lock = threading.Lock()
        self._file: File | None = None
        self._is_closed = False
        self._generation = 0
        self._noted = -1
        self._exists = False
        self.checksum: int | None = None
        """The checksum that was read from the file. It is the checksum of the batch that ends at the offset;
        ``None`` when it is not known."""

    def read(self) -> int | None:
        """Read the offset; ``None`` when the file does not exist. Raises ``ValueError`` when it is
        unreadable."""
        self.checksum = None
        try:
            content = self._disk.read(self.path)
        except FileNotFoundError:
            return None
        self._exists = True
        version, *words = content.split() or [b""]
        if (int(version), len(words)) not in ((_VERSION_WITHOUT_CHECKSUM, 2), (_VERSION, 3)):
            raise ValueError(f"{self.path} is damaged")
        offset = int(words[0])
        if int(version) == _VERSION and words[1] != _NO_CHECKSUM:
            self.checksum = int(words[1], 16)
        if content != _encode(offset, self.checksum, int(version)):
            raise ValueError(f"{self.path} is damaged")
        return offset

    @property
    def exists(self) -> bool:
        """Whether the file exists. If not, the first :meth:`note` creates it, which waits for the disk."""
        return self._exists

    @property
    def generation(self) -> int:
        """A number that changes with each call of :meth:`lower`."""
        return self._generation

    def note(self, offset: int, generation: int, checksum: int | None = None) -> None:
        """Store that all records below ``offset`` were synced. This call blocks. Does nothing if
        :meth:`lower` was called after ``generation`` was read.

        ``checksum`` is the checksum of the batch that ends at ``offset``.
        """
        with self._lock:
            if generation != self._generation or offset <= self._noted or self._is_closed:
                return
            self._noted = offset
            content = _encode(offset, checksum)
            # If the write fails, the file keeps an older, lower offset, which is also correct.
            with contextlib.suppress(OSError):
                if not self._exists:
                    self._disk.write_atomically(self.path, content)
                    self._exists = True
                    return
                if self._file is None:
                    self._file = self._disk.open(self.path, create=True)
                self._file.write_at(0, [content])

    def lower(self, offset: int) -> None:
        """Lower the stored offset durably, before the log is truncated to ``offset``. This call blocks."""
        with self._lock:
            self._generation += 1
            self._noted = -1
            try:
                known = self.read()
            except ValueError:
                known = None
            if self._exists and (known is None or known > offset):
                self._release()  # because another file gets this name
                self._disk.write_atomically(self.path, _encode(offset))

    def close(self) -> None:
        """Release the file. Later calls of :meth:`note` do nothing."""
        with self._lock:
            self._is_closed = True
            self._release()

    def _release(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _encode(offset: int, checksum: int | None = None, version: int = _VERSION) -> bytes:
    text = b"%d %020d" % (version, offset)
    if version == _VERSION:
        # All contents of the file have the same length, because a new content is written over the old
        # content.
        text += b" " + (_NO_CHECKSUM if checksum is None else b"%08x" % checksum)
    return b"%b %08x\n" % (text, crc32c(text))


@dataclass(frozen=True, slots=True)
class CriticalLog:
    """A critical log before it is opened, with the content of the other files of its folder."""

    integrity: IntegrityRules
    durable_offset: int = 0
    latest_start: int | None = None
    """The latest possible start of the log's first segment; ``None`` when it is unknown."""
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    """The leader epochs; empty when they are lost."""
    has_durable_offset: bool = True
    """Whether there was a file ``durable-offset``, even if it was unreadable."""
    durable_checksum: int | None = None
    """Checksum of the batch that ends at ``durable_offset``; ``None`` when it is not known."""

    @property
    def required_offset(self) -> int:
        """The offset that the log must have reached. A log that ends before this offset is damaged."""
        return max(self.integrity.written_offset, self.durable_offset)

    @property
    def requirement(self) -> str:
        """The offset that the log has reached, and the file that contains this offset. The result is a
        text."""
        integrity = self.integrity
        witness = DURABLE_OFFSET if self.durable_offset >= integrity.written_offset else integrity.written_by
        return f"it reached offset {self.required_offset}, as {witness} says"


@dataclass(frozen=True, slots=True)
class OpenableLog:
    """A critical log that was checked and may be opened."""

    first: int = 0
    """Index of the first segment that belongs to the log. Segments below a snapshot are deleted. If power is
    lost during this deletion, an older segment may remain, followed by a gap."""
    torn_base: int | None = None
    """The base offset of the segment with an incomplete end. This segment and all later segments must be
    recovered."""


def check_segments(disk: Disk, folder: str, bases: Sequence[int], log: CriticalLog) -> OpenableLog:
    """Read a whole critical log. Raises :class:`DamagedLogError` unless an incomplete end is the only fault.

    ``bases`` are the base offsets of the segments on the disk, in order. No file is changed. This call
    blocks.
    """
    integrity, required = log.integrity, log.required_offset
    first = 0
    if bases and log.latest_start is not None and bases[0] > log.latest_start:
        raise DamagedLogError(
            f"{folder} is damaged: its first segment begins at offset {bases[0]}, and no segment or snapshot"
            f" holds offset {log.latest_start} to {bases[0] - 1}. {ADVICE}"
        )
    expected = bases[0] if bases else 0
    for index, base_offset in enumerate(bases):
        path = f"{folder}/{segment_file(base_offset, LOG_SUFFIX)}"
        if base_offset != expected and (integrity.is_dense or base_offset < expected):
            if (
                integrity.has_snapshots
                and not integrity.same_boot
                and expected < base_offset <= (log.latest_start or 0)
            ):
                first, expected = index, base_offset
            # After a loss of power, a file that was never synced may be missing while a later file exists.
            elif expected < required or integrity.same_boot:
                raise DamagedLogError(
                    f"{folder} is damaged: offsets {expected} to {base_offset - 1} are missing before"
                    f" {path}. {ADVICE}"
                )
            else:
                return OpenableLog(first)
        expected = base_offset
        file = disk.open(path, read_only=True)
        try:
            # Compaction may have removed the batch that ends at the durable offset. But compaction changes
            # only closed segments, so the last segment must have this batch.
            has_checked = integrity.is_dense or index + 1 == len(bases)
            position, expected, size_bytes = _walk(file, base_offset, log, has_checked=has_checked)
            if position < size_bytes:
                has_more = _any_batch(disk, folder, bases[index + 1 :])
                _check_torn(file, position, expected, log, has_more=has_more)
                return OpenableLog(first, torn_base=base_offset)
        finally:
            file.close()
    if not bases and integrity.has_snapshots:
        # A snapshot that contains the whole log replaces the log. If the process is killed during the
        # replacement, there may be no segment.
        expected = log.latest_start or 0
    if expected < required:
        last = f"{folder}/{segment_file(bases[-1], LOG_SUFFIX)}" if bases else folder
        held = f"ends at offset {expected}" if bases else "holds no segment"
        raise DamagedLogError(f"{last} is damaged: the log {held}, but {log.requirement}. {ADVICE}")
    _check_epochs(folder, bases, expected, log)
    return OpenableLog(first)


def _check_epochs(folder: str, bases: Sequence[int], end_offset: int, log: CriticalLog) -> None:
    """Raise :class:`DamagedLogError` when the file of the leader epochs shows that the log was longer."""
    latest, integrity = log.epochs.latest, log.integrity
    if latest is None:
        return
    # A snapshot that ends after the end of the log replaces the log. After a crash during the replacement,
    # there may be no segment.
    snapshot_offset = (log.latest_start or 0) if integrity.has_snapshots else 0
    is_gone = not bases and not log.has_durable_offset and latest.start_offset >= snapshot_offset
    is_shorter = (
        integrity.is_only_replica
        and integrity.same_boot
        and latest.start_offset > max(end_offset, snapshot_offset)
    )
    if is_gone or is_shorter:
        held = f"ends at offset {end_offset}" if bases else "holds no segment"
        raise DamagedLogError(
            f"{folder} is damaged: the log {held}, but {folder}/{LEADER_EPOCHS} says that epoch"
            f" {latest.epoch} began at offset {latest.start_offset}. {ADVICE}"
        )


def _walk(
    file: File, base_offset: int, log: CriticalLog, *, has_checked: bool = True
) -> tuple[int, int, int]:
    """Find the last valid batch of a segment's file. Returns the position of its end, the offset after it,
    and the size of the file.

    The batch that ends at the durable offset is compared with the stored checksum. If it
    is another batch, this raises :class:`DamagedLogError`. ``has_checked`` is false if compaction may have
    removed this batch. The batches are then not compared.
    """
    size_bytes = file.size()
    position, next_offset, epoch = 0, base_offset, -1
    for at, header, batch in scan_checked(file, 0, size_bytes):
        if header.base_offset < next_offset or header.partition_leader_epoch < epoch:
            break
        # The checksum of a batch does not cover its offset and its epoch. Therefore both are compared with
        # the batches before it.
        if log.integrity.is_dense and header.base_offset > next_offset:
            break
        if not _is_known_epoch(log, header.base_offset, header.partition_leader_epoch):
            break
        if has_checked and next_offset < log.durable_offset <= header.next_offset:
            _check_last_durable(file, at, header, log)
        position, next_offset, epoch = at + len(batch), header.next_offset, header.partition_leader_epoch
    return position, next_offset, size_bytes


def _check_last_durable(file: File, position: int, header: BatchHeader, log: CriticalLog) -> None:
    """Check the batch at ``position``, which contains the last record before the durable offset. Raise
    :class:`DamagedLogError` unless it is the batch that was synced."""
    known = log.durable_checksum
    if known is not None and (header.next_offset, header.crc) != (log.durable_offset, known):
        raise DamagedLogError(
            f"{file.path} is damaged: the batch at byte {position}, offset {header.base_offset}, is not the"
            f" one that was written before offset {log.durable_offset}, as {DURABLE_OFFSET} says. One of the"
            f" two files was replaced. {ADVICE}"
        )


def _is_known_epoch(log: CriticalLog, offset: int, epoch: int) -> bool:
    known = log.epochs.epoch_for_offset(offset)
    if known is None or known == epoch:
        return True
    # The epoch file is written before the batches of a new epoch become durable. Therefore only a batch at or
    # after the durable offset may have a later epoch than the file.
    return offset >= log.durable_offset and known == log.epochs.latest_epoch and epoch > known


def _check_torn(file: File, position: int, offset: int, log: CriticalLog, *, has_more: bool) -> None:
    """Raise :class:`DamagedLogError` unless the invalid batch at ``position`` is an incomplete end of the
    log. ``offset`` is the expected offset of the batch."""
    where = f"{file.path} is damaged at byte {position}: the batch at offset {offset} is not valid"
    if offset < log.required_offset:
        raise DamagedLogError(f"{where}, but the log was whole there: {log.requirement}. {ADVICE}")
    if not log.integrity.same_boot:
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
    """Return the position of the first valid batch at or after ``position`` whose offset is at least
    ``offset``. The result is ``None`` if there is no such batch."""
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
        # At least 17 bytes are needed to recognise the beginning of a batch.
        position += max(1, len(chunk) - 16)
    return None
