"""A copy of a partition's state answers as the original did, and is independent of it."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from moldau.coordinators.diskless.calls import AbortedRange, PartitionId
from moldau.coordinators.diskless.state.partitions import PartitionState
from moldau.coordinators.diskless.state.transactions import PartitionTransactions
from moldau.coordinators.diskless.store.database import WrittenPartition

OFFSETS = st.integers(0, 1_000)
RANGES = st.tuples(st.integers(0, 9), OFFSETS, OFFSETS).map(
    lambda found: AbortedRange(found[0], min(found[1:]), max(found[1:]))
)
TRANSACTIONS = st.none() | st.builds(
    PartitionTransactions, st.dictionaries(st.integers(0, 9), OFFSETS), st.lists(RANGES)
)


def answers(partition: PartitionState) -> tuple[object, ...]:
    """Everything that readers and the coordinator read of a partition, except its producers."""
    found = partition.transactions
    return (
        (partition.log_start, partition.wal_start, partition.next, partition.last_stable),
        (partition.prune_epoch, partition.last_prune, partition.remote_position),
        None if found is None else [found.aborted_within(at, at + 100) for at in range(0, 1_000, 50)],
    )


@given(st.lists(OFFSETS, min_size=4, max_size=4), TRANSACTIONS)
def test_a_copy_is_alike_and_independent(
    offsets: list[int], transactions: PartitionTransactions | None
) -> None:
    original = WrittenPartition(3, PartitionId(UUID(int=1), 0), "topic")
    original.log_start, original.wal_start, original.next, original.remote_position = sorted(offsets)
    original.prune(0, original.wal_start, 7, original.remote_position)
    original.transactions = transactions
    before = answers(original)
    copied = original.copy()
    assert answers(copied) == before
    copied.delete_before(2_000)
    if copied.transactions is not None:
        copied.transactions.open_from[99] = -1
        copied.transactions.aborted.append(AbortedRange(99, 0, 1_000))
    assert answers(original) == before
