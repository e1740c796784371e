"""Batches of idempotent producers that arrive before their predecessors, through other brokers. Pure.

A batch may overtake the previous one where a producer changes brokers with requests in flight. It is then
*held*: its broker commits it again with its next object, while the missing one is in progress. If the missing
batch does not arrive in time, the held one is checked, as Kafka's brokers do immediately.

This is transient state: it is in no record, and a new leader starts the waits over.
"""

from dataclasses import dataclass
from typing import Final

PATIENCE_MS: Final = 30_000
"""How long to wait for a known producer's missing batch. OUT_OF_ORDER_SEQUENCE_NUMBER makes clients begin a
new epoch, and then batches of the old one that are still in progress are lost or duplicated.
"""
BELIEF_MS: Final = 10_000
"""How long to wait for sequence 0 of an unknown producer. After that it is assumed that the producer began
elsewhere, before it was forgotten; its order up to here is not proven.
"""
_GAPS_MAX: Final = 10_000
_SEQUENCES: Final = 1 << 31


@dataclass(slots=True)
class _Gap:
    expected: int
    """The missing sequence; -1 where the producer, or its epoch, is unknown."""
    since_ms: int
    """Start of the gap, by a clock that does not jump."""
    lowest: int
    """The lowest sequence that has arrived."""


class ProducerGaps:
    """The gaps of one coordinator's producers; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._gaps: dict[tuple[int, int, int], _Gap] = {}

    def waited_ms(self, key: tuple[int, int, int], expected: int, sequence: int, now_ms: int) -> int:
        """How long a batch's predecessor has been missing; ``key``: partition number, producer id, epoch.

        ``now_ms`` is of a clock that does not jump: a wait that ends too soon loses batches. Counted from the
        arrival of the first batch after the gap, from any broker.
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

    def is_first(self, key: tuple[int, int, int], sequence: int) -> bool:
        """Whether no lower sequence has arrived while the gap existed."""
        gap = self._gaps.get(key)
        return gap is None or gap.lowest == sequence
