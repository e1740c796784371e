"""Transactions as their producers know them, and the checks of the records that were read at the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf

ZOMBIE = "zombie"
"""Prefix of the values that a producer sends after it was fenced."""


class Fate(Enum):
    """The outcome of a transaction, as its producer knows it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    """The producer never requested the commit of the transaction."""
    UNKNOWN = "unknown"
    """The commit was requested and got no response. The transaction took effect in all of its partitions, or
    in no partition."""


@dataclass(slots=True)
class RecordedTransaction:
    """A transaction: its values by partition, and the offset that it commits for its group. The offset is -1
    if the transaction commits no offset."""

    name: str
    group: str
    number: int
    fate: Fate = Fate.ABORTED
    values: dict[int, list[str]] = field(default_factory=dict)
    offset: int = -1
    began_s: float = 0.0
    commit_requested_s: float = inf
    """The time at which the producer requested the commit. It is infinite if the producer never requested a
    commit."""
    ended_s: float = inf
    """The time at which the producer learned the outcome. It is infinite if the producer did not learn the
    outcome."""


def check_transactions(
    transactions: Sequence[RecordedTransaction],
    final: Mapping[int, Sequence[str]],
    observed: Mapping[int, Sequence[str]],
    offsets: Mapping[str, int],
) -> list[str]:
    """The violations. ``final`` has all committed values by partition, and ``observed`` has the values that
    were read during the scenario. ``offsets`` has the committed offset of each group.

    The check finds an aborted read (G1a) and an intermediate read (G1b). An intermediate read returns only a
    part of a transaction, or returns values before the outcome of the transaction. The check also finds lost
    and repeated values, and values in another order than the order of sending. It finds values of a fenced
    producer, and offsets that differ from the outcomes.
    """
    found: list[str] = []
    for partition, values in final.items():
        if len(set(values)) != len(values):
            found.append(f"partition {partition} has values twice")
        found += [f"a fenced producer's {value} is committed" for value in values if _is_zombie(value)]
    visible = {partition: set(values) for partition, values in final.items()}
    committed: dict[str, int] = {}
    for each in transactions:
        there = [value in visible.get(index, ()) for index, sent in each.values.items() for value in sent]
        if each.fate is Fate.COMMITTED and not all(there):
            found.append(f"{each.name} was committed, and lost {there.count(False)} of {len(there)} values")
        elif each.fate is Fate.ABORTED and any(there):
            found.append(f"{each.name} was aborted, and {there.count(True)} values are read (G1a)")
        elif any(there) and not all(there):
            found.append(f"{each.name} is committed in part: {there.count(True)} of {len(there)} (G1b)")
        happened = each.fate is Fate.COMMITTED or (each.fate is Fate.UNKNOWN and bool(there) and all(there))
        if happened and each.offset >= 0:
            committed[each.group] = each.offset
        found += _misordered(each, final) if happened else []
    found += [
        f"{group} has offset {offset}, and its last transaction committed {committed.get(group, -1)}"
        for group, offset in offsets.items()
        if offset != committed.get(group, -1)
    ]
    for partition, values in observed.items():
        early = set(values) - visible.get(partition, set())
        found += [f"{value} was read as committed, and is not (G1a, G1b)" for value in sorted(early)]
    return found


def _is_zombie(value: str) -> bool:
    return value.startswith(ZOMBIE)


def _misordered(each: RecordedTransaction, final: Mapping[int, Sequence[str]]) -> list[str]:
    for index, sent in each.values.items():
        places = [final[index].index(value) for value in sent if value in final.get(index, ())]
        if places != sorted(places):
            return [f"{each.name} is out of order in partition {index}"]
    return []
