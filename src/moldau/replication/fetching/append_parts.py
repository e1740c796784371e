"""Splits fetched records, so that an append to a follower's log never keeps the event loop busy for long.
Pure.

A long append delays everything else on the event loop. If the follower is in sync in other partitions, the
producers of those partitions wait for the append, too.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final

from moldau.records.batch import HEADER_SIZE_BYTES, LOG_OVERHEAD_BYTES
from moldau.runtime.buffers import Buffer

TURN_COST: Final = 1 << 20
"""Cost of the appends of one iteration of the event loop, in bytes. An append with this cost takes about half
a millisecond."""
BATCH_COST: Final = 3 * 1024
"""Number of bytes whose append takes as long as the checks and the index entries of one batch."""

_unpack_length = Struct(">8xi").unpack_from


def append_parts(records: Buffer) -> Iterator[tuple[memoryview, int]]:
    """Split batches into parts of whole batches. Yields each part and its cost, which is at most
    :data:`TURN_COST` plus the cost of the last batch.

    An incomplete batch at the end is in the last part. If a length is wrong, the last part contains all
    bytes from there, and the append finds the error. There is at least one part, even without bytes.
    """
    view = memoryview(records)
    begin = position = cost = 0
    while len(view) - position >= LOG_OVERHEAD_BYTES:
        size_bytes = LOG_OVERHEAD_BYTES + _unpack_length(view, position)[0]
        if size_bytes < HEADER_SIZE_BYTES:
            break
        position += size_bytes
        cost += size_bytes + BATCH_COST
        if cost >= TURN_COST:
            yield view[begin:position], cost
            begin, cost = position, 0
    if begin < len(view) or not view:
        yield view[begin:], cost
