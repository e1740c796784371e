"""Produce gateways (KIP-1164): the brokers of each rack that accept records for a diskless coordinator.

A producer that sends records to the gateway of its own rack causes no traffic between racks. The partitions
of a gateway belong to a small number of coordinators. Therefore the commit of one of its WAL objects needs
only a few calls to coordinators over the network.

The gateways are computed from the registered brokers, their racks and the *preferred* replicas of the
coordinators' partitions. The current leader of a coordinator has no effect, so a failover moves no gateway. A
*host* is a broker that is the preferred replica of a coordinator.

* A rack with at least as many brokers as there are coordinators is *saturated*: each coordinator has
  ``brokers // coordinators`` gateways there, and a broker is the gateway of at most one coordinator.
* In a smaller rack each coordinator has one gateway. Coordinators with the same preferred replica have the
  same gateway there (co-location), so the gateway calls one broker for all of them. If there are fewer
  preferred replicas than brokers, the largest groups of coordinators are divided until every broker has a
  group.
* In its own rack, a host is a gateway of the coordinators whose preferred replica it is. If these
  coordinators are divided, the host is the gateway of one group. Its commits at its own coordinators need no
  network call.
* A fenced broker stays a gateway. Until the broker is unfenced, the coordinator's other gateways in the rack
  replace it. If there are no other gateways, its coordinators are divided evenly among the live brokers of
  the rack.

While no broker is fenced, the number of network commit calls for a WAL object is limited. In a saturated rack
a broker makes at most one call. In a smaller rack with ``brokers`` brokers, a broker calls the hosts of each
other rack. If the other rack has ``hosts`` hosts, the broker makes at most ``ceil(hosts / brokers)`` calls to
this rack. If all racks have the same size, this is one call to each other rack.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from moldau.cluster.racks.rendezvous import even_quotas, preferred, spread


class RackBroker(NamedTuple):
    """A registered broker."""

    broker_id: int
    rack: str | None
    """The rack of the broker. ``None`` means that the broker has no rack. All brokers without a rack
    together count as one rack."""
    is_live: bool = True
    """Whether the broker is not fenced and will not stop soon."""


class _CoordinatorGroup(NamedTuple):
    """A group of coordinators that have the same gateway in a rack."""

    name: str
    host: int
    """The preferred replica of the group's coordinators."""
    coordinators: tuple[int, ...]
    stays: bool
    """Whether the host must be the gateway of the group. This has an effect only in the rack of the host."""


@dataclass(frozen=True, slots=True)
class Gateways:
    """The gateways of a cluster."""

    hosts: Sequence[int]
    """The preferred replica of each coordinator, by its number."""
    by_rack: Mapping[str | None, Mapping[int, tuple[int, ...]]]
    """The gateways by rack and coordinator. A rack without live brokers is not in it."""

    @property
    def racks(self) -> list[str | None]:
        """The racks with gateways by name; brokers without a rack come first."""
        return sorted(self.by_rack, key=lambda rack: (rack is not None, rack or ""))

    def of(self, coordinator_id: int, rack: str | None) -> tuple[int, ...]:
        """The gateways of a coordinator in a rack; empty if the rack has no gateway for it."""
        return self.by_rack.get(rack, {}).get(coordinator_id, ())

    def of_partition(self, topic_id: UUID, index: int, coordinator_id: int, rack: str | None) -> int | None:
        """Return the gateway in a rack for the clients of a partition; ``None`` if the rack has no
        gateway."""
        found = self.of(coordinator_id, rack)
        if len(found) <= 1:
            return found[0] if found else None
        return preferred(f"{topic_id.hex}-{index}", found)

    def coordinators_of(self, broker_id: int) -> tuple[int, ...]:
        """Return the coordinators for which a broker is a gateway."""
        return tuple(
            sorted(
                coordinator_id
                for rows in self.by_rack.values()
                for coordinator_id, brokers in rows.items()
                if broker_id in brokers
            )
        )

    def commit_calls(self, broker_id: int) -> int:
        """Return the maximum number of commit calls over the network that a gateway makes for one WAL object,
        provided that every coordinator is led by its preferred replica."""
        return len({self.hosts[each] for each in self.coordinators_of(broker_id)} - {broker_id})


def produce_gateways(brokers: Iterable[RackBroker], hosts: Sequence[int]) -> Gateways:
    """Compute the gateways. ``hosts`` is the preferred replica of each coordinator, by its number.

    A host that is not registered is treated as if it had its own rack.
    """
    racks: dict[str | None, list[RackBroker]] = defaultdict(list)
    for broker in sorted(set(brokers)):
        racks[broker.rack].append(broker)
    rack_of: dict[int, str | None] = {
        broker.broker_id: rack for rack, members in racks.items() for broker in members
    }
    found: dict[str | None, Mapping[int, tuple[int, ...]]] = {}
    for rack, members in racks.items():
        if hosts and any(broker.is_live for broker in members):
            found[rack] = _in_rack(members, hosts, rack_of)
    return Gateways(tuple(hosts), found)


def _in_rack(
    members: Sequence[RackBroker], hosts: Sequence[int], rack_of: Mapping[int, str | None]
) -> dict[int, tuple[int, ...]]:
    """The gateways of one rack by coordinator."""
    units = _units(hosts, len(members))
    places = _places(units, [broker.broker_id for broker in members], rack_of)
    live = {broker.broker_id for broker in members if broker.is_live}
    gateways: dict[int, list[int]] = defaultdict(list)
    for unit, place in zip(units, places, strict=True):
        if place in live:
            for coordinator_id in unit.coordinators:
                gateways[coordinator_id].append(place)
    orphans = {unit.name: unit for unit in units if unit.coordinators[0] not in gateways}
    loads = {broker_id: places.count(broker_id) for broker_id in live}
    # A coordinator needs only one substitute, even if several of its gateways in the rack are fenced.
    wanted = {unit.coordinators: name for name, unit in reversed(orphans.items())}
    names = sorted(wanted.values())
    substitutes = spread(names, even_quotas(len(names), loads, "substitutes"))
    for name in names:
        for coordinator_id in orphans[name].coordinators:
            gateways[coordinator_id].append(substitutes[name])
    return {coordinator_id: tuple(sorted(found)) for coordinator_id, found in sorted(gateways.items())}


def _units(hosts: Sequence[int], broker_count: int) -> list[_CoordinatorGroup]:
    """Divide the coordinators into groups for a rack. There is at most one group for each broker of the rack.
    But if the rack has fewer brokers than there are hosts, there is one group for each host."""
    groups: dict[int, list[int]] = defaultdict(list)
    for coordinator_id, host in enumerate(hosts):
        groups[host].append(coordinator_id)
    parts = dict.fromkeys(groups, 1)
    for _ in range(min(broker_count, len(hosts)) - len(groups)):
        largest = max(sorted(groups), key=lambda host: len(groups[host]) / parts[host])
        parts[largest] += 1
    units = []
    for copy in range(max(1, broker_count // len(hosts))):
        for host, coordinators in sorted(groups.items()):
            for part in range(parts[host]):
                some = tuple(coordinators[part :: parts[host]])
                units.append(_CoordinatorGroup(f"{some[0]}/{copy}", host, some, stays=part == copy == 0))
    return units


def _places(
    units: Sequence[_CoordinatorGroup], broker_ids: Sequence[int], rack_of: Mapping[int, str | None]
) -> list[int]:
    """Return a broker of the rack for each group of coordinators. The broker may be fenced."""
    found = {unit.name: unit.host for unit in units if unit.stays and unit.host in broker_ids}
    loads = {broker_id: list(found.values()).count(broker_id) for broker_id in broker_ids}
    sources: dict[tuple[bool, str], list[str]] = defaultdict(list)
    for unit in units:
        if unit.name not in found:
            # For each other rack: the groups whose hosts are in that rack are divided evenly among the
            # brokers of this rack. This limits the commit calls of one broker to the hosts of that rack.
            rack = rack_of.get(unit.host)
            source = (unit.host in rack_of, "" if rack is None else f"rack {rack}")
            sources[source if len(units) > len(broker_ids) else (True, "all")].append(unit.name)
    for source, names in sorted(sources.items()):
        placed = spread(names, even_quotas(len(names), loads, source[1]))
        for broker_id in placed.values():
            loads[broker_id] += 1
        found |= placed
    return [found[unit.name] for unit in units]
