"""Batches of idempotent producers that arrive before the previous batches of the same producers, which were
sent through other brokers. Pure.

A batch may overtake the previous batch when a producer changes brokers with requests in flight. The
coordinator then lets this batch wait. The batch gets no offset, and the broker commits the batch again with
the broker's next object. Meanwhile the missing batch may arrive. If the missing batch does not arrive in
time, the coordinator refuses the waiting batch because of its sequence, as Kafka's brokers do immediately.
But the first batch of an unknown producer is accepted after :data:`BELIEF_MS`.

This state is in no record, so the waits start again at a new leader.
"""

from dataclasses import dataclass
from typing import Final

PATIENCE_MS: Final = 30_000
"""Maximum wait for a missing batch of a known producer. The wait is long, because a client begins a new epoch
after the error OUT_OF_ORDER_SEQUENCE_NUMBER. Batches of the old epoch that are still in progress are then
lost or duplicated."""
BELIEF_MS: Final = 10_000
"""Maximum wait for sequence 0 of an unknown producer. After that time the coordinator assumes that it has
already removed the state of this producer, and accepts the later batch. If this assumption is wrong, the
batches of the producer may be out of order."""
_GAPS_MAX: Final = 10_000
_SEQUENCES: Final = 1 << 31


@dataclass(slots=True)
class _Gap:
    expected: int
    """The sequence number that is missing; -1 if the producer or its epoch is unknown."""
    since_ms: int
    """Time in ms at which the gap began, by a clock without jumps."""
    lowest: int
    """The lowest sequence number that has arrived since the gap began."""


class ProducerGaps:
    """The gaps of one coordinator's producers. When there are too many gaps, the oldest are removed first."""

    def __init__(self) -> None:
        self._gaps: dict[tuple[int, int, int], _Gap] = {}

    def waited_ms(self, key: tuple[int, int, int], expected: int, sequence: int, now_ms: int) -> int:
        """Return the time for which the batch before this batch has been missing. ``key`` is the partition
        number, producer id and epoch.

        The time begins when the first batch with a later sequence arrives, from any broker. ``now_ms`` must
        come from a clock without jumps, because batches are lost if a wait ends too soon.
        """
        gap = self._gaps.get(key)
        if gap is None or gap.expected != expected or gap.since_ms > now_ms:
            self._gaps.pop(key, None)
            gap = self._gaps[key] = _Gap(expected, now_ms, sequence)
            if len(self._gaps) > _GAPS_MAX:
                del self._gaps[next(iter(self._gaps))]
        if 0 < (gap.lowest - sequence) % _SEQUENCES < _SEQUENCES // 2:
            gap.lowest = sequence
        return now_ms - gap.since_ms

    def ended(self, key: tuple[int, int, int]) -> None:
        """Called when the first batch of an unknown producer or epoch is accepted. If the producer is unknown
        again later, another gap begins. A gap of a known producer ends by itself, because another sequence
        number is then expected."""
        self._gaps.pop(key, None)

    def is_first(self, key: tuple[int, int, int], sequence: int) -> bool:
        """Whether no lower sequence has arrived since the gap began."""
        gap = self._gaps.get(key)
        return gap is None or gap.lowest == sequence
