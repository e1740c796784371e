"""Tracks batches of idempotent producers that follow a batch that this broker dropped. Pure.

A coordinator that knows the producer detects a gap itself. From an unknown producer it accepts any sequence
number, as Kafka does. Assume that a producer's first batch was dropped after a timeout, and that its second
batch is then committed. The first batch could never be accepted afterwards, and the order would be lost.
Therefore the broker marks batches that follow a dropped batch. The broker does not refuse these batches
itself, because the producer may have sent the dropped batch again to another broker.
"""

from typing import Final, NamedTuple

from moldau.protocol.partitions import PartitionKey
from moldau.records import BatchHeader

_GAPS_MAX: Final = 10_000
_SEQUENCES: Final = 1 << 31


class _ProducerEpoch(NamedTuple):
    key: PartitionKey
    producer_id: int
    epoch: int


class SequenceGaps:
    """Tracks dropped batches. Its methods must be called in the order of the batches. If there are too many
    gaps, the oldest are removed."""

    def __init__(self) -> None:
        self._next: dict[_ProducerEpoch, int] = {}

    def dropped(self, key: PartitionKey, header: BatchHeader) -> None:
        """Record that this batch was not committed. Its producer got an error and will send the batch
        again."""
        if header.producer_id < 0:
            return
        self._next.setdefault(
            _ProducerEpoch(key, header.producer_id, header.producer_epoch), header.base_sequence
        )
        if len(self._next) > _GAPS_MAX:
            del self._next[next(iter(self._next))]

    def follows_dropped(self, key: PartitionKey, header: BatchHeader) -> bool:
        """Whether this broker dropped an earlier batch of the producer and has not received that batch
        again."""
        if not self._next or header.producer_id < 0:
            return False
        producer = _ProducerEpoch(key, header.producer_id, header.producer_epoch)
        expected = self._next.get(producer)
        if expected is None:
            return False
        ahead = (header.base_sequence - expected) % _SEQUENCES
        if ahead == 0:
            del self._next[producer]
        return 0 < ahead < _SEQUENCES // 2

    def committed(self, key: PartitionKey, header: BatchHeader) -> None:
        """Record that this batch has an offset, and remove the producer's gap. The dropped batches before it
        must have been sent again, to this broker or to another broker."""
        self._next.pop(_ProducerEpoch(key, header.producer_id, header.producer_epoch), None)
