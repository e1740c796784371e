"""A copy of a partition's state gives the same results as the original. Later changes of the copy do not
affect the original, and later changes of the original do not affect the copy."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from moldau.coordinators.diskless.state.partitions import PartitionState
from moldau.coordinators.diskless.state.transactions import PartitionTransactions
from moldau.coordinators.diskless.store.database import WrittenPartition
from moldau.protocol.partitions import PartitionKey

OFFSETS = st.integers(0, 1_000)


def transactions_of(rows: list[tuple[int, int, int]]) -> PartitionTransactions:
    made = PartitionTransactions()
    made.restore(rows)
    return made


TRANSACTIONS = st.none() | st.lists(st.tuples(st.integers(0, 9), OFFSETS, st.integers(-1, 5))).map(
    transactions_of
)


def answers(partition: PartitionState) -> tuple[object, ...]:
    """The state of a partition that readers and the coordinator read. Producers are not included."""
    found = partition.transactions
    return (
        (partition.log_start, partition.wal_start, partition.next, partition.last_stable),
        (partition.prune_epoch, partition.last_prune, partition.remote_position),
        None if found is None else [found.row(producer_id) for producer_id in range(10)],
    )


@given(st.lists(OFFSETS, min_size=4, max_size=4), TRANSACTIONS)
def test_a_copy_is_equal_to_the_original_and_independent_of_it(
    offsets: list[int], transactions: PartitionTransactions | None
) -> None:
    original = WrittenPartition(3, PartitionKey(UUID(int=1), 0), "topic")
    original.log_start, original.wal_start, original.next, original.remote_position = sorted(offsets)
    original.prune(0, original.wal_start, 7, original.remote_position)
    original.transactions = transactions
    before = answers(original)
    copied = original.copy()
    assert answers(copied) == before
    copied.delete_before(2_000)
    if copied.transactions is not None:
        copied.begin_transaction(99, 0)
        for producer_id in range(10):
            copied.end_transaction(producer_id, 9)
    assert answers(original) == before
