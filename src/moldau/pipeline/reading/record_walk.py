"""Finds the start and end of each record in many batches. Only this step must go from record to record.

A record begins with its length, so the start of the next record is known only after this length is read. But
batches are independent. Many batches are therefore processed in parallel: one numpy operation handles one
record of each batch. If there are only a few long batches, a Python loop over each of them is cheaper.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from moldau.pipeline.reading.varints import PADDING_BYTES, Bytes, Longs, read_varints
from moldau.records.errors import InvalidRecordError
from moldau.records.varint import read_varlong

IN_STEP_COST: Final = 120
"""Number of records that a Python loop processes in the same time as one vectorised step."""
RECORD_SIZE_MIN: Final = 6
"""Each record has one byte of attributes and five varints of at least one byte."""
RUN_RECORDS: Final = 16
"""Number of records after which the search for records of equal size is repeated."""
RUN_TRIES_MAX: Final = 4

_TOO_FEW: Final = "the records end before the batch's count is reached"


def find_records(data: memoryview, sizes: Sequence[int], counts: Longs) -> tuple[Longs, Longs]:
    """Positions of the fields of each record (after its length) and of the end of each record, batch by
    batch.

    ``data`` contains the records of the batches one after the other, and then padding. ``sizes`` are the
    sizes of the batches in bytes, and ``counts`` their numbers of records. Raises :class:`InvalidRecordError`
    for invalid lengths.
    """
    ends = np.cumsum(np.array(sizes, np.int64))
    begins = ends - np.array(sizes, np.int64)
    total = int(counts.sum())
    # Counts are untrusted input. A wrong count must not cause a large allocation of memory.
    if np.any(counts * (RECORD_SIZE_MIN + 1) > ends - begins):
        raise InvalidRecordError(_TOO_FEW)
    if int(counts.max(initial=0)) * IN_STEP_COST < total:
        positions, behind = _walk_in_step(data, begins, counts)
    else:
        positions, behind = _walk_each(data, begins, counts)
    wrong = np.flatnonzero(behind != ends)
    if wrong.size:
        off = int(behind[wrong[0]] - ends[wrong[0]])
        raise InvalidRecordError(f"the records end {off:+d} bytes off their batch's end")
    lengths, starts = read_varints(np.frombuffer(data, np.uint8), positions, 32)
    if lengths.min(initial=RECORD_SIZE_MIN) < RECORD_SIZE_MIN:
        raise InvalidRecordError("a record is shorter than its own fields")
    return starts, starts + lengths


def _walk_in_step(data: memoryview, begins: Longs, counts: Longs) -> tuple[Longs, Longs]:
    """Return the start of each record, and the end of each batch."""
    limit = len(data) - PADDING_BYTES
    source = np.frombuffer(data, np.uint8)
    order = np.argsort(-counts, kind="stable")
    current = begins[order]
    slots = (np.cumsum(counts) - counts)[order]
    # For each n, the number of batches that have an n-th record. In ``order``, the batches with the most
    # records come first. Therefore the batches with an n-th record are always the first ones.
    active = np.searchsorted(-counts[order], -np.arange(1, int(counts.max(initial=0)) + 1), side="right")
    positions = np.empty(int(counts.sum()), np.int64)
    for step, count in enumerate(active):
        here = current[:count]
        positions[slots[:count] + step] = here
        lengths, behind = _lengths(source, here)
        behind += np.maximum(lengths, 0)
        if behind.max() > limit:
            raise InvalidRecordError(_TOO_FEW)
        current[:count] = behind
    ends = np.empty_like(current)
    ends[order] = current
    return positions, ends


def _lengths(source: Bytes, at: Longs) -> tuple[Longs, Longs]:
    """Like ``read_varints``. This function needs fewer operations for lengths of one or two bytes, which are
    most lengths."""
    first = source[at].astype(np.int64)
    if first.max() < 0x80:
        return first >> 1, at + 1
    second = source[at + 1].astype(np.int64)
    longer = first >= 0x80
    if np.any(second[longer] >= 0x80):
        return read_varints(source, at, 32)
    lengths = np.where(longer, first & 0x7F | second << 7, first) >> 1
    return lengths, at + 1 + longer


def _walk_each(data: memoryview, begins: Longs, counts: Longs) -> tuple[Longs, Longs]:
    """Return the start of each record, and the end of each batch, like :func:`_walk_in_step`. This function
    processes one batch after another."""
    # Indexing a view costs three times as much as indexing bytes. A later check detects a position beyond the
    # end.
    content = data.obj if isinstance(data.obj, bytes | bytearray) else bytes(data)
    source = np.frombuffer(data, np.uint8)
    parts: list[Longs] = []
    ends: list[int] = []
    for begin, count in zip(begins.tolist(), counts.tolist(), strict=True):
        ends.append(_walk(content, source, begin, count, parts))
    return np.concatenate(parts) if parts else np.empty(0, np.int64), np.array(ends, np.int64)


def _walk(data: bytes | bytearray, source: Bytes, position: int, count: int, parts: list[Longs]) -> int:
    """Add the starts of ``count`` records, and return the end of the last record. The lengths of these
    records are checked later.

    Adjacent records often have equal sizes. Such records are processed together. If the positions at a
    regular distance all contain this distance as a record's length, these positions are the starts of
    records. No loop is then needed to confirm them.
    """
    left = count
    run_tries = RUN_TRIES_MAX
    while left:
        if run_tries and left > RUN_RECORDS:
            found, position = _equal_records(source, position, left)
            left -= len(found)
            parts.append(found)
            # If sizes differ, the search for records of equal size ends after some tries.
            run_tries = run_tries + 1 if len(found) > 2 * RUN_RECORDS else run_tries - 1
            run_tries = min(run_tries, RUN_TRIES_MAX)
            if not left:
                break
        some = min(left, RUN_RECORDS if run_tries else left)
        positions: list[int] = []
        position = _walk_one_by_one(data, position, some, positions)
        parts.append(np.array(positions, np.int64))
        left -= some
    return position


def _equal_records(source: Bytes, position: int, count: int) -> tuple[Longs, int]:
    """Return the starts of adjacent records that have the same length, and the end of the last of these
    records. The first of these records begins at ``position``."""
    first = int(source[position])
    if first < 0x80:
        size_bytes, stride = 1, 1 + (first >> 1)
    else:
        second = int(source[position + 1])
        if second >= 0x80:
            return np.empty(0, np.int64), position
        size_bytes, stride = 2, 2 + ((first & 0x7F | second << 7) >> 1)
    count = min(count, (len(source) - PADDING_BYTES - position) // stride)
    if count <= 0:
        return np.empty(0, np.int64), position
    equal = source[position : position + count * stride : stride] == first
    if size_bytes == 2:
        equal &= source[position + 1 : position + 1 + count * stride : stride][: len(equal)] == second
    same = count if equal.all() else int(equal.argmin())
    return np.arange(position, position + same * stride, stride, dtype=np.int64), position + same * stride


def _walk_one_by_one(data: bytes | bytearray, position: int, count: int, positions: list[int]) -> int:
    """The only Python loop over records. It reads lengths of one or two bytes without a function call, which
    saves time."""
    append = positions.append
    try:
        for _ in range(count):
            append(position)
            raw = data[position]
            if raw < 0x80:
                position += 1 + (raw >> 1)
            elif (more := data[position + 1]) < 0x80:
                position += 2 + ((raw & 0x7F | more << 7) >> 1)
            else:
                size, position = read_varlong(data, position, 32)  # type: ignore[arg-type]
                position += max(size, 0)
    except IndexError:
        raise InvalidRecordError(_TOO_FEW) from None
    return position
