"""Whose turn it is after a batch of an idempotent producer was dropped."""

from uuid import UUID

from moldau.diskless.sequence_gaps import SequenceGaps
from moldau.records import BatchHeader
from moldau.records.batch import parse_header
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.partition import PartitionKey

KEY = PartitionKey(UUID(int=1), 0)
RECORD = Record(0, 1, None, b"value", ())


def header(sequence: int, *, producer_id: int = 7, epoch: int = 0) -> BatchHeader:
    batch = build_batch([RECORD], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return parse_header(batch)


def test_what_follows_a_dropped_batch_waits_until_it_came_again() -> None:
    gaps = SequenceGaps()
    gaps.dropped(KEY, header(5))
    gaps.dropped(KEY, header(6))
    assert not gaps.allows(KEY, header(6))
    assert gaps.allows(KEY, header(4))
    assert gaps.allows(KEY, header(5))
    assert gaps.allows(KEY, header(6))


def test_sequences_wrap_around() -> None:
    gaps = SequenceGaps()
    gaps.dropped(KEY, header(2**31 - 1))
    assert not gaps.allows(KEY, header(0))
    assert gaps.allows(KEY, header(2**31 - 2))
    assert gaps.allows(KEY, header(2**31 - 1))
    assert gaps.allows(KEY, header(0))


def test_other_epochs_producers_and_partitions_do_not_wait() -> None:
    gaps = SequenceGaps()
    gaps.dropped(KEY, header(0))
    gaps.dropped(KEY, header(-1, producer_id=-1))
    assert gaps.allows(KEY, header(3, epoch=1))
    assert gaps.allows(KEY, header(3, producer_id=8))
    assert gaps.allows(PartitionKey(UUID(int=1), 1), header(3))
    assert gaps.allows(KEY, header(-1, producer_id=-1))
    assert not gaps.allows(KEY, header(3))
