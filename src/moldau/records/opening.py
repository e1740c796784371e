"""Opening a batch as a job in steps, with a bound on the memory that several of them take together."""

from typing import Final

from moldau.records.batch import BatchHeader, Buffer
from moldau.records.errors import OpenedSizeError
from moldau.records.record import open_batch
from moldau.runtime.fair_lane import NextTurn, Steps

__all__ = ["RECORDS_A_STEP", "open_in_turn"]

RECORDS_A_STEP: Final = 10_000
"""Some 10 ms of a worker's time, after which other clients' batches have their turn."""

_MODEST_RATIO: Final = 16
_MODEST_BYTES: Final = 1024 * 1024
"""Records that take no more than this once they are decompressed, or than 16 times their batch, may be in
memory along with those of other clients; of larger ones, those of one batch at a time."""


def open_in_turn(batch: Buffer) -> Steps[tuple[BatchHeader, bytes]]:
    """As ``open_batch``."""
    try:
        return open_batch(batch, max(_MODEST_BYTES, _MODEST_RATIO * len(batch)))
    except OpenedSizeError:
        yield NextTurn.LARGE
        return open_batch(batch)
