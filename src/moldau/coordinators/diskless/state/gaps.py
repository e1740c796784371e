"""Batches of idempotent producers that came before their predecessors, by way of other brokers. Pure.

A batch may overtake the one before it where a producer changes brokers in mid-flight. It is *held* then: its
broker commits it again with its next object, while the one before it is on its way. Only when that has not
come for long, the batch is judged as Kafka's brokers judge it at once.

This is state of the moment: it is in no record, and a new leader begins to wait anew.
"""

from dataclasses import dataclass
from typing import Final

PATIENCE_MS: Final = 30_000
"""How long a known producer's missing batch may take. OUT_OF_ORDER_SEQUENCE_NUMBER makes clients begin a new
epoch, and then what is still under way of the old one is lost or doubled."""
BELIEF_MS: Final = 10_000
"""How long a producer that is not known is awaited at sequence 0; after that it is believed to have begun
elsewhere, before it was forgotten, and its order up to here is not proven."""
_GAPS_MAX: Final = 10_000
_SEQUENCES: Final = 1 << 31


@dataclass(slots=True)
class _Gap:
    expected: int
    """The sequence that is missing; -1 where the producer, or its epoch, is not known."""
    since_ms: int
    lowest: int
    """Of the sequences that have come."""


class ProducerGaps:
    """The gaps of one coordinator's producers; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._gaps: dict[tuple[int, int, int], _Gap] = {}

    def waited_ms(self, key: tuple[int, int, int], expected: int, sequence: int, now_ms: int) -> int:
        """How long a batch's predecessor has been missing; ``key``: partition number, producer id, epoch.

        It counts from when the first batch behind the gap came, of whichever broker.
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
        """Whether no batch before this one has come while the gap was there."""
        gap = self._gaps.get(key)
        return gap is None or gap.lowest == sequence
