"""Decompresses and parses a batch in steps, and limits the memory that several such jobs use together."""

from typing import Final

from moldau.records.batch import BatchHeader
from moldau.records.errors import OpenedSizeError
from moldau.records.record import open_batch
from moldau.runtime.buffers import Buffer
from moldau.runtime.steps import NextTurn, Steps

__all__ = ["RECORDS_A_STEP", "open_in_turn"]

RECORDS_A_STEP: Final = 10_000
"""Number of records in a step, which takes about 10 ms of a worker's time. After a step, other clients'
batches are processed."""

_MODEST_RATIO: Final = 16
_MODEST_BYTES: Final = 1024 * 1024
"""Size in bytes. Batches of several clients may be opened at the same time if the records of each batch have
at most this size after decompression, or at most 16 times the size of the batch. Larger batches are opened
one at a time.
"""


def open_in_turn(batch: Buffer) -> Steps[tuple[BatchHeader, bytes]]:
    """Does the same as ``open_batch``, but in steps."""
    try:
        return open_batch(batch, max(_MODEST_BYTES, _MODEST_RATIO * len(batch)))
    except OpenedSizeError:
        yield NextTurn.LARGE
        return open_batch(batch)
