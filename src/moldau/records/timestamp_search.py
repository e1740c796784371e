"""Timestamp lookups that find the exact record, and not only its batch."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias

from moldau.records.batch import TIMESTAMP_TYPE_BIT, BatchHeader
from moldau.records.errors import InvalidRecordError
from moldau.records.unpacking import RECORDS_A_STEP, open_in_turn
from moldau.records.varint import read_varlong, wrapped
from moldau.runtime.buffers import Buffer
from moldau.runtime.steps import NextTurn, Steps

__all__ = [
    "RecordChoice",
    "RecordPosition",
    "choose_at_or_after",
    "choose_exactly",
    "choose_latest",
    "search_batch",
]

RecordPosition: TypeAlias = tuple[int, int]
"""Offset and timestamp of a record."""
RecordChoice: TypeAlias = Callable[
    [Sequence[RecordPosition], RecordPosition | None], tuple[RecordPosition | None, bool]
]
"""A function that chooses a record. It gets consecutive positions and the best position so far. It returns
the best position, and whether the search is over."""


def search_batch(batch: Buffer, choose: RecordChoice) -> Steps[RecordPosition | None]:
    """Search the records of a batch. ``choose`` gets the positions (offset and timestamp) of many records at
    a time, until it ends the search. Returns the best position, or None if no record was chosen."""
    header, data = yield from open_in_turn(batch)
    positions = _iter_opened(header, data)
    best: RecordPosition | None = None
    while some := list(islice(positions, RECORDS_A_STEP)):
        best, is_found = choose(some, best)
        if is_found:
            break
        yield NextTurn.NEXT
    return best


def choose_at_or_after(timestamp_ms: int, starting_offset: int) -> RecordChoice:
    """Choose the first record with a timestamp of at least ``timestamp_ms`` and an offset of at least
    ``starting_offset``."""

    def choose(
        some: Sequence[RecordPosition], _: RecordPosition | None
    ) -> tuple[RecordPosition | None, bool]:
        for offset, timestamp in some:
            if timestamp >= timestamp_ms and offset >= starting_offset:
                return (offset, timestamp), True
        return None, False

    return choose


def choose_exactly(timestamp_ms: int) -> RecordChoice:
    """Choose the first record with exactly this timestamp."""

    def choose(
        some: Sequence[RecordPosition], _: RecordPosition | None
    ) -> tuple[RecordPosition | None, bool]:
        for offset, timestamp in some:
            if timestamp == timestamp_ms:
                return (offset, timestamp), True
        return None, False

    return choose


def choose_latest(starting_offset: int) -> RecordChoice:
    """Choose the first of the records with the largest timestamp. Records before ``starting_offset`` are
    ignored."""

    def choose(
        some: Sequence[RecordPosition], best: RecordPosition | None
    ) -> tuple[RecordPosition | None, bool]:
        for offset, timestamp in some:
            if offset >= starting_offset and (best is None or timestamp > best[1]):
                best = offset, timestamp
        return best, False

    return choose


def _iter_opened(header: BatchHeader, data: bytes) -> Iterator[RecordPosition]:
    append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else None
    position = 0
    for _ in range(header.records_count):
        try:
            size, position = read_varlong(data, position, 32)
            end = position + size
            if size < 0 or end > len(data):
                raise InvalidRecordError(f"a record says {size} bytes, {len(data) - position} are there")
            timestamp_delta, position = read_varlong(data, position + 1)
            offset_delta, position = read_varlong(data, position, 32)
        except IndexError:
            raise InvalidRecordError("the records end before the batch's count is reached") from None
        if position > end:
            raise InvalidRecordError(f"a record of {size} bytes is shorter than its own fields")
        position = end
        timestamp = wrapped(header.base_timestamp + timestamp_delta) if append_time is None else append_time
        yield header.base_offset + offset_delta, timestamp
