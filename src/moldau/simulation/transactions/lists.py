"""Checks the reads and writes of transactions on lists. Each partition is a list. Transactions append to the
lists and read them.

These checks use the time and the offset of each read, so they are stricter than :func:`check_transactions`. A
cycle of writes (G0) is an anomaly here only between transactions that do not overlap in time. Kafka's
transactions take no locks, so two overlapping transactions may write to two partitions in opposite orders.
"""

from collections.abc import Mapping, Sequence

from moldau.simulation.transactions.reader import CommittedRead
from moldau.simulation.transactions.record import RecordedTransaction

Lists = Mapping[int, Sequence[CommittedRead]]


def check_lists(
    transactions: Sequence[RecordedTransaction], final: Lists, consumers: Mapping[str, Lists]
) -> list[str]:
    """The violations. There are three kinds. First, reads before the commit (G1a, G1b). Second, reads that
    differ from the final list or skip a part of it. Third, writes that contradict the order of transactions
    (G0).

    ``final`` and the reads of each consumer have one entry for each partition.
    """
    writers = {
        (partition, value): each
        for each in transactions
        for partition, values in each.values.items()
        for value in values
    }
    found: list[str] = []
    for partition, elements in final.items():
        found += _against_order(partition, [writers.get((partition, each.value)) for each in elements])
    for name, lists in consumers.items():
        for partition, reads in lists.items():
            found += _early(name, [(each, writers.get((partition, each.value))) for each in reads])
            found += _another_list(name, partition, reads, final.get(partition, ()))
    return found


def _early(name: str, reads: Sequence[tuple[CommittedRead, RecordedTransaction | None]]) -> list[str]:
    return [
        f"{name} read {read.value} before its commit was requested (G1a, G1b)"
        for read, writer in reads
        if writer is not None and read.at_s < writer.commit_requested_s
    ]


def _another_list(
    name: str, partition: int, reads: Sequence[CommittedRead], final: Sequence[CommittedRead]
) -> list[str]:
    seen = [(each.offset, each.value) for each in reads]
    there = [(each.offset, each.value) for each in final]
    if seen == there[: len(seen)]:
        return []
    at = next((at for at, pair in enumerate(seen) if pair not in there[at : at + 1]), len(there))
    expected = there[at] if at < len(there) else None
    return [f"{name} read {seen[at]} in partition {partition} where the list has {expected}"]


def _against_order(partition: int, writers: Sequence[RecordedTransaction | None]) -> list[str]:
    found: list[str] = []
    newest: RecordedTransaction | None = None
    for each in writers:
        if each is None:
            continue
        if newest is not None and each.ended_s < newest.began_s:
            found.append(
                f"{each.name} is after {newest.name} in partition {partition}, and ended before it began (G0)"
            )
        if newest is None or each.began_s > newest.began_s:
            newest = each
    return found
