"""What idempotent producers last wrote to a partition: Kafka's sequence rules. Pure.

Windows are plain immutable tuples: half a million a second are made.
"""

from enum import Enum
from typing import Final, TypeAlias

SEQUENCE_MODULUS: Final = 1 << 31
WINDOW_BATCHES: Final = 5

Entry: TypeAlias = tuple[int, int, int, int]
"""base sequence, last sequence, base offset, append time (-1 for CreateTime): what a duplicate is told."""

Window: TypeAlias = tuple[int, int, tuple[Entry, ...]]
"""epoch, time of the last batch in ms, the last batches of that epoch (oldest first)."""


class Verdict(Enum):
    """What is wrong with a batch's producer fields."""

    STALE_EPOCH = "stale epoch"
    OUT_OF_ORDER = "out of order"


def last_sequence(base_sequence: int, last_offset_delta: int) -> int:
    """Sequence of a batch's last record; after 2^31 - 1 comes 0."""
    return (base_sequence + last_offset_delta) % SEQUENCE_MODULUS


def judge(window: Window | None, epoch: int, base_sequence: int, delta: int) -> Verdict | Entry | None:
    """``None``: append it. An entry: it is a duplicate of that batch.

    A producer that is not known may begin anywhere: its state may have expired. A new epoch begins at 0.
    """
    if window is None:
        return None
    known_epoch, _, entries = window
    if epoch != known_epoch:
        if epoch < known_epoch:
            return Verdict.STALE_EPOCH
        return None if base_sequence == 0 else Verdict.OUT_OF_ORDER
    if base_sequence == (entries[-1][1] + 1) % SEQUENCE_MODULUS:
        return None
    last = (base_sequence + delta) % SEQUENCE_MODULUS
    for entry in entries:
        if entry[0] == base_sequence and entry[1] == last:
            return entry
    return Verdict.OUT_OF_ORDER


def extended(window: Window | None, epoch: int, now_ms: int, entry: Entry) -> Window:
    """The window after an accepted batch."""
    if window is None or window[0] != epoch:
        return (epoch, now_ms, (entry,))
    entries = window[2]
    if len(entries) == WINDOW_BATCHES:
        return (epoch, now_ms, (*entries[1:], entry))
    return (epoch, now_ms, (*entries, entry))
