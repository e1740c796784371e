"""The brokers of a restored cluster, and the assignment of replicas to them. Pure.

If a new broker has the id of an old broker, the new broker gets the replicas of the old broker. Each other
replica goes to the least used broker of the same rack or, if that rack has no broker left, of any rack. For
the first replica of a partition, this is the broker that has the fewest first replicas. For the other
replicas, it is the broker that has the fewest replicas. If there are fewer brokers than replicas, the
partition has a replica on each broker.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from moldau.runtime.errors import ErrorCode, KafkaError

__all__ = ["NewBroker", "ReplicaPlacement"]


class NewBroker(NamedTuple):
    """A broker of the restored cluster."""

    node_id: int
    directory_id: UUID
    """The log directory into which the saved logs are written."""
    rack: str | None = None


class ReplicaPlacement:
    """Assigns replicas to the new brokers, one partition after another."""

    def __init__(self, brokers: Sequence[NewBroker]) -> None:
        """Raises ``KafkaError`` when there is no broker."""
        if not brokers:
            raise KafkaError(ErrorCode.invalid_request, "a restored cluster needs a broker")
        self.brokers: Mapping[int, NewBroker] = {each.node_id: each for each in brokers}
        self._old_racks: dict[int, str | None] = {}
        self._led: Counter[int] = Counter()
        self._held: Counter[int] = Counter()

    def note_old_broker(self, node_id: int, rack: str | None) -> None:
        """Store the rack of a broker of the old cluster, for the placement of its replicas."""
        self._old_racks[node_id] = rack

    def replicas(self, old: Sequence[int]) -> list[NewBroker]:
        """The new replicas of a partition, in the order of its old replicas. The old replicas were on the
        brokers ``old``. The first replica is the preferred leader."""
        kept = {each for each in old if each in self.brokers}
        found: list[int] = []
        for position, node_id in enumerate(old):
            chosen = node_id if node_id in kept else self._substitute(node_id, kept, is_first=position == 0)
            if chosen is None:
                continue
            kept.add(chosen)
            found.append(chosen)
        found = found or [self._least_used(list(self.brokers), is_first=True)]
        self._led[found[0]] += 1
        self._held.update(found)
        return [self.brokers[each] for each in found]

    def _substitute(self, old: int, taken: set[int], *, is_first: bool) -> int | None:
        """A broker for a replica whose old broker does not exist any more; None when every broker already has
        a replica."""
        free = [each for each in self.brokers if each not in taken]
        rack = self._old_racks.get(old)
        same = [each for each in free if rack is not None and self.brokers[each].rack == rack]
        return self._least_used(same or free, is_first=is_first) if free else None

    def _least_used(self, candidates: Sequence[int], *, is_first: bool) -> int:
        return min(candidates, key=lambda each: (self._led[each] if is_first else 0, self._held[each], each))
