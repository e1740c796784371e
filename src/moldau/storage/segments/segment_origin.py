"""Detects a log file that its partition has not written. For example, a restore may have put the file of
another partition in its place.

Every batch of such a file is valid, so only other files can show the error. These files contain witnesses,
which are compared with the batches. There are three kinds of witnesses: the entries of the offset index
(position and offset), the entries of the time index (timestamp and offset), and the entries of the producer
snapshot at the end of the segment (producer and offset).

If some entries of an index match the log file, the index itself is damaged and is rebuilt. The index is also
rebuilt if a correct index cannot have such entries. In both cases its entries are not counted as witnesses.
The log file is refused if at least two of the other witnesses contradict it.

Each start compares only the end of a segment. When the end contradicts an index, the whole file is read. A
replaced file is not detected if it has batches of the same offsets, lengths and timestamps, or if there are
too few witnesses. A segment of less than one index interval without idempotent producers has only one
witness. If a process was killed before it wrote an index, its last segment has no witness.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple

from moldau.records.batch import HEADER_SIZE_BYTES, MAGIC, BatchHeader
from moldau.runtime.files.disk import Disk
from moldau.storage.critical_logs.integrity_check import ADVICE, DamagedLogError
from moldau.storage.folders.file_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_file,
)
from moldau.storage.producers.producer_snapshot import CorruptSnapshotError, decode_producer_snapshot
from moldau.storage.segments.batch_scan import scan_checked, sketch_at
from moldau.storage.segments.offset_index import OffsetIndex
from moldau.storage.segments.segment import Segment
from moldau.storage.segments.time_index import TimeIndex

_SAMPLES_MAX: Final = 32
_TAIL_BYTES: Final = 64 * 1024


class _BatchWitness(NamedTuple):
    """A witness: the data that another file contains about the batch with ``offset``."""

    offset: int
    value: int
    agrees: Callable[["_BatchWitness", int, BatchHeader], bool]
    """Whether this witness matches the batch at a position."""


def _is_at(witness: _BatchWitness, position: int, header: BatchHeader) -> bool:
    return witness.value == position


def _is_of_time(witness: _BatchWitness, _position: int, header: BatchHeader) -> bool:
    return witness.value == header.max_timestamp


def _is_of_producer(witness: _BatchWitness, _position: int, header: BatchHeader) -> bool:
    return witness.value == header.producer_id


def check_origin(disk: Disk, segment: Segment, end_offset: int | None) -> str | None:
    """Compare the end of a segment's log file with the segment's indexes. Returns the contradiction, if there
    is one.

    ``end_offset`` is the base offset of the next segment.

    Raises :class:`DamagedLogError` when the whole file does not match the witnesses; see the docstring of the
    module.
    """
    index, time_index = segment.path(OFFSET_INDEX_SUFFIX), segment.path(TIME_INDEX_SUFFIX)
    last_position = _last_entry(disk, index, OffsetIndex.entry)
    last_time = _last_entry(disk, time_index, TimeIndex.entry)
    reason = _contradiction(segment, last_position, last_time)
    if reason is None:
        return None
    base = segment.base_offset
    positions = _entries(disk, index, OffsetIndex.entry)
    times = _entries(disk, time_index, TimeIndex.entry)
    kinds = [
        [_BatchWitness(base + offset, position, _is_at) for offset, position in _possible(positions)],
        [_BatchWitness(base + offset, time_ms, _is_of_time) for time_ms, offset in _possible(times)],
        _producers(disk, segment, end_offset),
    ]
    if _is_foreign(segment, kinds):
        raise DamagedLogError(
            f"{segment.path(LOG_SUFFIX)} is damaged: it was replaced by the log file of another partition."
            f" {reason}, and the other entries of that index are not true of it, either. If the log file is"
            f" right, remove its {OFFSET_INDEX_SUFFIX} and {TIME_INDEX_SUFFIX}. {ADVICE}"
        )
    return reason


def _last_entry(disk: Disk, path: str, entry: Struct) -> tuple[int, int] | None:
    """Return the last whole entry of an index file. It is ``None`` if there is no entry, or if zeros follow
    the entries."""
    try:
        file = disk.open(path, read_only=True)
    except FileNotFoundError:
        return None
    try:
        count = file.size() // entry.size
        found: tuple[int, int] = (
            entry.unpack(file.read_at((count - 1) * entry.size, entry.size)) if count else (0, 0)
        )
    finally:
        file.close()
    return found if any(found) else None


def _entries(disk: Disk, path: str, entry: Struct) -> list[tuple[int, int]]:
    """The entries of an index file, without a check and without zeros at the end of the file."""
    try:
        content = disk.read(path)
    except FileNotFoundError:
        return []
    whole = content[: len(content) // entry.size * entry.size]
    entries = [(first, second) for first, second in entry.iter_unpack(whole)]
    while entries and entries[-1] == (0, 0):
        entries.pop()
    return entries


def _possible(entries: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """A sample of an index's entries. The result is empty if the entries do not ascend, because a correct
    index cannot have such entries."""
    ascends = all(one[0] < two[0] and one[1] <= two[1] for one, two in pairwise(entries))
    return _sample(entries) if ascends else []


def _sample(entries: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    step = max(1, len(entries) // _SAMPLES_MAX)
    return [*entries[::step], *entries[-1:]]


def _producers(disk: Disk, segment: Segment, end_offset: int | None) -> list[_BatchWitness]:
    if end_offset is None:
        return []
    path = f"{segment.folder}/{segment_file(end_offset, PRODUCER_SNAPSHOT_SUFFIX)}"
    try:
        entries = decode_producer_snapshot(disk.read(path), path)
    except (FileNotFoundError, CorruptSnapshotError):
        return []
    last = [(each.batches[-1].last_offset, each.producer_id) for each in entries if each.batches]
    return [
        _BatchWitness(*each, _is_of_producer)
        for each in _sample(sorted(last))
        if each[0] >= segment.base_offset
    ]


def _contradiction(
    segment: Segment, last_position: tuple[int, int] | None, last_time: tuple[int, int] | None
) -> str | None:
    """Read the batches from the last entry of the offset index on, and compare them with the last entries of
    both indexes. Returns a sentence about the contradiction, if there is one."""
    file, base = segment.file, segment.base_offset
    size_bytes = file.size()
    indexed, start = last_position or (0, 0)
    if start + HEADER_SIZE_BYTES > size_bytes:
        return None  # the log file was shortened, so it does not contain the indexed batch
    chunk = file.read_at(start, min(_TAIL_BYTES, size_bytes - start))
    at = 0
    time_ms, wanted = last_time or (-1, -1)
    while len(chunk) - at >= HEADER_SIZE_BYTES:
        sketch = sketch_at(chunk, at, start + at)
        is_batch = chunk[at + 16] == MAGIC and sketch.size_bytes >= HEADER_SIZE_BYTES
        if not is_batch or sketch.base_offset < base:
            return f"There is no batch at byte {start + at}" if not at else None
        if not at and last_position is not None and sketch.last_offset > base + indexed:
            return f"The batch at byte {start} ends at offset {sketch.last_offset}, not {base + indexed}"
        if sketch.base_offset <= base + wanted <= sketch.last_offset:
            if sketch.max_timestamp_ms != time_ms:
                return f"Offset {base + wanted} has timestamp {sketch.max_timestamp_ms}, not {time_ms}"
            return None
        at += sketch.size_bytes
        if start + at == size_bytes and sketch.last_offset < base + wanted:
            return f"The last offset is {sketch.last_offset}, and an index names {base + wanted}"
    return None


def _is_foreign(segment: Segment, kinds: Sequence[Sequence[_BatchWitness]]) -> bool:
    """Whether the valid batches contradict at least two witnesses. A kind of witnesses does not count if one
    of its witnesses matches."""
    refuted = [0] * len(kinds)
    confirmed: set[int] = set()
    waiting = sorted(
        ((witness, kind) for kind, witnesses in enumerate(kinds) for witness in set(witnesses)),
        key=lambda each: (each[0].offset, each[1]),
        reverse=True,
    )
    for position, header, _ in scan_checked(segment.file, 0, segment.file.size()):
        while waiting and waiting[-1][0].offset <= header.last_offset:
            witness, kind = waiting.pop()
            if witness.offset >= header.base_offset and witness.agrees(witness, position, header):
                confirmed.add(kind)
            else:
                refuted[kind] += 1
    against = [count for kind, count in enumerate(refuted) if count and kind not in confirmed]
    return sum(against) > 1
