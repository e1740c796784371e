"""Which batches of idempotent producers follow one that this broker dropped. Pure.

A coordinator sees a gap by itself where it knows the producer. Of one that is new to it, it takes any
sequence number, as Kafka does: were the first batch dropped because its producer had timed out, and the
second committed, the first could never be taken any more and order would be lost. So the broker tells the
coordinator which batches follow a dropped one. It does not refuse them itself: the producer may have sent
the dropped batch again to another broker.
"""

from typing import Final, NamedTuple

from moldau.records import BatchHeader
from moldau.replication.partition import PartitionKey

_GAPS_MAX: Final = 10_000
_SEQUENCES: Final = 1 << 31


class _Producer(NamedTuple):
    key: PartitionKey
    producer_id: int
    epoch: int


class SequenceGaps:
    """Told of the batches of some partitions in their order. The oldest gaps are forgotten first."""

    def __init__(self) -> None:
        self._next: dict[_Producer, int] = {}

    def dropped(self, key: PartitionKey, header: BatchHeader) -> None:
        """This batch was not committed: its producer, told of a time-out, will send it again."""
        if header.producer_id < 0:
            return
        self._next.setdefault(_Producer(key, header.producer_id, header.producer_epoch), header.base_sequence)
        if len(self._next) > _GAPS_MAX:
            del self._next[next(iter(self._next))]

    def follows_dropped(self, key: PartitionKey, header: BatchHeader) -> bool:
        """Whether a batch before this one was dropped here, and did not come again here."""
        if not self._next or header.producer_id < 0:
            return False
        producer = _Producer(key, header.producer_id, header.producer_epoch)
        expected = self._next.get(producer)
        if expected is None:
            return False
        ahead = (header.base_sequence - expected) % _SEQUENCES
        if ahead == 0:
            del self._next[producer]
        return 0 < ahead < _SEQUENCES // 2

    def committed(self, key: PartitionKey, header: BatchHeader) -> None:
        """This batch has an offset: what was dropped before it has come again, at whichever broker."""
        self._next.pop(_Producer(key, header.producer_id, header.producer_epoch), None)
