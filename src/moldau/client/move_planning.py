"""Plans moves of partitions between brokers. Plans respect racks, and move as few bytes as possible. Pure.

A replica leaves its broker only if the broker must be emptied or if the replication factor becomes smaller. A
new replica is placed in the rack that has the fewest replicas of the partition. In this rack, the broker with
the fewest bytes is chosen.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass


class NoRoomError(ValueError):
    """There are fewer allowed brokers than requested replicas."""


@dataclass(frozen=True, slots=True)
class PlacedPartition:
    """A partition with the brokers of its replicas. The preferred leader comes first."""

    topic: str
    index: int
    replicas: tuple[int, ...]
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A partition and its target replicas."""

    partition: PlacedPartition
    target: tuple[int, ...]

    @property
    def moved_bytes(self) -> int:
        """Number of bytes that the new replicas copy."""
        return self.partition.size_bytes * len(set(self.target) - set(self.partition.replicas))


def plan_moves(
    partitions: Iterable[PlacedPartition],
    racks: Mapping[int, str | None],
    *,
    load_bytes: Mapping[int, int],
    replication_factor: int | None = None,
    leaving: Collection[int] = (),
) -> list[PlannedMove]:
    """Plan the moves. After them, no replica is on a broker of ``leaving``, and each partition has the target
    number of replicas.

    ``racks`` are the racks of the allowed brokers. ``load_bytes`` are the current bytes by broker. The
    largest partitions are placed first. Raises :class:`NoRoomError`.
    """
    takers = {broker_id: rack for broker_id, rack in racks.items() if broker_id not in leaving}
    load = Counter({broker_id: load_bytes.get(broker_id, 0) for broker_id in takers})
    counts: Counter[int] = Counter()
    moves = []
    for partition in sorted(partitions, key=lambda each: (-each.size_bytes, each.topic, each.index)):
        factor = len(partition.replicas) if replication_factor is None else replication_factor
        target = _target(partition.replicas, factor, takers, racks, leaving, load, counts)
        for broker_id in set(target) - set(partition.replicas):
            load[broker_id] += partition.size_bytes
            counts[broker_id] += 1
        if target != partition.replicas:
            moves.append(PlannedMove(partition, target))
    return moves


def _target(
    replicas: tuple[int, ...],
    factor: int,
    takers: Mapping[int, str | None],
    racks: Mapping[int, str | None],
    leaving: Collection[int],
    load: Mapping[int, int],
    counts: Mapping[int, int],
) -> tuple[int, ...]:
    # A position is None if its replica must leave its broker. The new replica gets this position. If the
    # position is the first, the new replica becomes the preferred leader.
    places: list[int | None] = [None if each in leaving else each for each in replicas]
    while len(places) > factor:
        del places[_least_wanted(places, racks)]
    places += [None] * (factor - len(places))
    for position, place in enumerate(places):
        if place is not None:
            continue
        held = [each for each in places if each is not None]
        candidates = [broker_id for broker_id in takers if broker_id not in held]
        if not candidates:
            raise NoRoomError(f"{factor} replicas need {factor} brokers, and there are {len(takers)}")
        in_rack = Counter(racks.get(each) for each in held)
        places[position] = min(
            candidates,
            key=lambda each: (in_rack[takers[each]] if takers[each] else 0, load[each], counts[each], each),
        )
    return tuple(each for each in places if each is not None)


def _least_wanted(places: list[int | None], racks: Mapping[int, str | None]) -> int:
    """The position of the replica that is removed. The first choice is a replica on a broker that must be
    emptied. The second choice is the last replica that shares its rack with another replica. If there is no
    such replica, the last replica is removed.
    """
    if None in places:
        return len(places) - 1 - places[::-1].index(None)
    in_rack = Counter(racks.get(each) for each in places if each is not None)
    for position in range(len(places) - 1, 0, -1):
        place = places[position]
        if place is not None and racks.get(place) and in_rack[racks[place]] > 1:
            return position
    return len(places) - 1
