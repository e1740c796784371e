"""Idempotent producers of a partition: their last batches and Kafka's sequence rules. Pure.

A window is one byte string, which is the same in memory and in the store. Each batch changes a window, so a
change must be fast. With tuples of tuples instead of byte strings, these changes would take a third of the
coordinator's CPU time. The string consists of native 64-bit integers. It begins with the epoch, and the time
of the last batch in ms. An :data:`Entry` for each of the last batches of that epoch follows, oldest first.
"""

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from heapq import nlargest
from itertools import chain, repeat
from operator import sub
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

SEQUENCE_MODULUS: Final = 1 << 31
WINDOW_BATCHES: Final = 5
NO_EPOCH: Final = -1
"""The epoch of batches from a producer that has an id but no epoch. As in Kafka, the first sequence of such a
producer may be any number."""

Window: TypeAlias = bytes

Entry: TypeAlias = tuple[int, int, int, int]
"""Base sequence, last sequence, base offset and append time of a batch. The append time is -1 for CreateTime.
If a duplicate of the batch arrives, its result is made from this entry."""

KNOWN_MS: Final = 30 * 86_400_000
"""Time in ms for which idle producers stay known."""
IDLE_MAX: Final = 10_000
"""Maximum number of idle producers in the partitions of a coordinator. They need some 3 MB of memory."""
_HEAD: Final = Struct("=2q")
_ENTRY: Final = Struct("=4q")
_FULL: Final = Struct(f"{_HEAD.size + WINDOW_BATCHES * _ENTRY.size}s")
_NUMBERS: Final = _FULL.size // 8
"""Number of integers in a full window."""
_NO_BATCH: Final = (-1, -1, -1, -1)
"""The entry of a producer whose epoch is known only from a marker. The producer's next batch must have
sequence 0."""


class OpenWindow(NamedTuple):
    """The content of a window."""

    epoch: int
    time_ms: int
    entries: tuple[Entry, ...]


class Verdict(Enum):
    """Errors in the producer fields of a batch."""

    STALE_EPOCH = "stale epoch"
    COMMITTED_BEFORE = "committed before the batches of the window"
    OUT_OF_ORDER = "out of order"
    AHEAD = "ahead of a batch that has not come yet"


def last_sequence(base_sequence: int, last_offset_delta: int) -> int:
    """Sequence of the last record of a batch. The sequence after 2^31 - 1 is 0."""
    return (base_sequence + last_offset_delta) % SEQUENCE_MODULUS


def opened(window: Window) -> OpenWindow:
    epoch, time_ms = _HEAD.unpack_from(window)
    return OpenWindow(epoch, time_ms, tuple(_ENTRY.iter_unpack(window[_HEAD.size :])))


def time_of(window: Window) -> int:
    """Time of the producer's last commit, in ms."""
    time_ms: int = _HEAD.unpack_from(window)[1]
    return time_ms


def expiry_cutoff_ms(now_ms: int, expiration_ms: int, times_ms: Iterable[int]) -> int:
    """The time limit of expiry. If the last batch of a producer was committed before this time, the producer
    is forgotten.

    A producer is idle if its last batch is older than ``expiration_ms`` (``producer.id.expiration.ms``). Idle
    producers stay known for :data:`KNOWN_MS`, so that their order can still be verified. If there are more
    than :data:`IDLE_MAX` of them, the oldest are forgotten earlier. ``times_ms`` are the times of the last
    batches of all producers, see :func:`time_of`.
    """
    idle_before_ms = now_ms - expiration_ms
    newest = nlargest(IDLE_MAX, (time_ms for time_ms in times_ms if time_ms < idle_before_ms))
    known_from_ms = min(idle_before_ms, now_ms - KNOWN_MS)
    return max(known_from_ms, newest[-1]) if len(newest) == IDLE_MAX else known_from_ms


def expired_ids(
    windows: Mapping[int, Window], cutoff_ms: int, in_transaction: Collection[int]
) -> Iterator[int]:
    """Ids of the expired producers of a partition. Their last batch is older than the cutoff, and they have
    no open transaction.

    The key of ``windows`` is the producer id. ``in_transaction`` contains the ids of the producers with an
    open transaction in the partition.
    """
    for producer_id, window in windows.items():
        if time_of(window) < cutoff_ms and producer_id not in in_transaction:
            yield producer_id


def check_sequence(
    window: Window | None, epoch: int, base_sequence: int, delta: int
) -> Verdict | Entry | None:
    """Check a batch against its producer's window. Return ``None`` when the batch must be appended. For a
    duplicate, return the entry of the original batch.

    A new producer must begin at sequence 0. Each new epoch of a producer must also begin at sequence 0. A
    producer without an epoch may begin at any sequence.
    """
    if window is None:
        return None if base_sequence == 0 or epoch == NO_EPOCH else Verdict.AHEAD
    known_epoch, _, entries = opened(window)
    if epoch != known_epoch:
        if epoch < known_epoch:
            return Verdict.STALE_EPOCH
        return None if base_sequence == 0 or known_epoch == NO_EPOCH else Verdict.AHEAD
    ahead = (base_sequence - entries[-1][1] - 1) % SEQUENCE_MODULUS
    if ahead == 0:
        return None
    last = (base_sequence + delta) % SEQUENCE_MODULUS
    for entry in entries:
        if entry[0] == base_sequence and entry[1] == last:
            return entry
    if known_epoch == NO_EPOCH:
        return None
    return Verdict.AHEAD if ahead < SEQUENCE_MODULUS // 2 else Verdict.OUT_OF_ORDER


def expected_sequence(window: Window | None, epoch: int) -> int:
    """The sequence of the producer's next batch in an epoch; -1 if the epoch is not known."""
    if window is None or _HEAD.unpack_from(window)[0] != epoch:
        return -1
    last: int = _ENTRY.unpack_from(window, len(window) - _ENTRY.size)[1]
    return (last + 1) % SEQUENCE_MODULUS


def has_beginning(window: Window) -> bool:
    """Whether the window still has the beginning of the producer's epoch: the batch with sequence 0, or the
    marker before it."""
    first: int = _ENTRY.unpack_from(window, _HEAD.size)[0]
    return len(window) < _FULL.size and first <= 0


def is_before(window: Window, base_sequence: int, delta: int) -> bool:
    """Whether a batch ends at or before the last batch of the window. If the sequence has begun at 0 again,
    the numbers do not show this, and the result may be False. It is False for sequence 0, too, so that a
    client that begins again without a new epoch gets an error."""
    last: int = _ENTRY.unpack_from(window, len(window) - _ENTRY.size)[1]
    return 0 < base_sequence <= base_sequence + delta <= last


def follows(window: Window, epoch: int, base_sequence: int) -> bool:
    """Whether a batch has the window's epoch and the next sequence."""
    last: int = _ENTRY.unpack_from(window, len(window) - _ENTRY.size)[1]
    return base_sequence == (last + 1) % SEQUENCE_MODULUS and epoch == _HEAD.unpack_from(window)[0]


def extended(window: Window | None, epoch: int, now_ms: int, entry: Entry) -> Window:
    """The window after an accepted batch."""
    if window is None or _HEAD.unpack_from(window)[0] != epoch:
        return _HEAD.pack(epoch, now_ms) + _ENTRY.pack(*entry)
    kept = window[_HEAD.size + (_ENTRY.size if len(window) == _FULL.size else 0) :]
    return _HEAD.pack(epoch, now_ms) + kept + _ENTRY.pack(*entry)


def epoch_of(window: Window) -> int:
    """The newest epoch of the producer."""
    epoch: int = _HEAD.unpack_from(window)[0]
    return epoch


def marked(window: Window | None, epoch: int, now_ms: int) -> Window:
    """The window after a transaction marker. If the marker has a newer epoch, the next sequence is 0. In the
    same epoch the sequence continues."""
    if window is None or epoch_of(window) != epoch:
        return _HEAD.pack(epoch, now_ms) + _ENTRY.pack(*_NO_BATCH)
    return _HEAD.pack(epoch, now_ms) + window[_HEAD.size :]


def all_extended(
    windows: Sequence[Window],
    epochs: Sequence[int],
    base_sequences: Sequence[int],
    last_sequences: Sequence[int],
    base_offsets: Sequence[int],
    now_ms: int,
) -> list[Window] | None:
    """Add one batch to each of the windows, and return the new windows. The batches have the timestamp type
    CreateTime. The code computes all windows together, column by column, because this is faster.

    Returns ``None`` when a batch is not the next batch of its window, or when a window is not full yet. The
    batches must then be checked one by one.
    """
    count, step = len(windows), _NUMBERS
    numbers = array("q", b"".join(windows))
    # no window is longer than a full window, so this length shows that all windows are full
    if len(numbers) != step * count:
        return None
    pack = Struct(f"={count}q").pack
    packed_epochs = pack(*epochs)
    before = map(sub, base_sequences, repeat(1))
    if numbers[::step].tobytes() != packed_epochs or numbers[step - 3 :: step].tobytes() != pack(*before):
        return None
    # Remove the first four numbers of the joined windows. All later numbers then move by one entry, so each
    # window loses its oldest entry and has space for a new entry at its end.
    del numbers[:4]
    numbers.extend((0, 0, 0, 0))
    numbers[::step] = array("q", packed_epochs)
    numbers[1::step] = array("q", [now_ms]) * count
    numbers[step - 4 :: step] = array("q", pack(*base_sequences))
    numbers[step - 3 :: step] = array("q", pack(*last_sequences))
    numbers[step - 2 :: step] = array("q", pack(*base_offsets))
    numbers[step - 1 :: step] = array("q", [-1]) * count
    return list(chain.from_iterable(_FULL.iter_unpack(numbers)))
