"""Brokers whose process may have ended. Pure.

A broker is a *suspect* when the connection of its heartbeats ends, or when a new controller has received no
heartbeat of the broker. Its listeners are then probed. If all registered listeners refuse connections in two
consecutive probes, this is the evidence that the process has ended. With this evidence, the controller fences
the broker before its session expires. All other outcomes of a probe are no evidence.

The suspicion ends without a fencing in two cases: the broker sends a heartbeat, registers or begins a
controlled shutdown; or the last probe gives no evidence.
"""

from dataclasses import dataclass, replace
from typing import Final

from moldau.cluster.decisions.heartbeats import Heartbeats
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.registrations import BrokerRegistration, Endpoint

DELAYS_MS: Final = (0, 25, 25, 50, 100, 200, 400, 800)
"""The delay before each probe, in ms. A kernel that ends a process may close the connection of the heartbeats
before the listeners. Therefore more than two probes may be needed."""
REFUSALS: Final = 2
"""Number of consecutive refused probes that are evidence."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """An incarnation of a broker whose process may have ended."""

    broker_id: int
    epoch: int
    heartbeat_count: int
    """Number of heartbeats that the controller had received when the suspicion began."""
    probes: int = 0
    """Number of probes that have an outcome."""
    refusals: int = 0
    """Number of refused probes since the last probe that was not refused."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A request to the caller: after ``delay_ms``, connect to the listeners of a suspect, in the order of
    ``endpoints``. The probe is *refused* if every listener refuses the connection."""

    suspect: Suspect
    endpoints: tuple[Endpoint, ...]
    delay_ms: int


class EndedProcesses:
    """The suspects of one leadership, and the connections on which heartbeats arrive."""

    def __init__(self, heartbeats: Heartbeats, first_listener: str) -> None:
        """``first_listener`` is the name of the listener that is probed first. It is the listener between
        brokers, because the other nodes of the cluster can reach it."""
        self._heartbeats = heartbeats
        self._first_listener = first_listener
        self._connections: dict[int, tuple[int, str]] = {}
        """The epoch of each broker, and the connection of its last heartbeat."""

    def activate(self) -> None:
        """Forget all connections, because a leadership begins."""
        self._connections = {}

    def heartbeat_received(self, broker_id: int, epoch: int, connection: str) -> None:
        """Store the connection of an accepted heartbeat."""
        self._connections[broker_id] = (epoch, connection)

    def connection_ended(self, image: MetadataImage, connection: str) -> list[Probe]:
        """Return a probe for each broker whose last heartbeat arrived on this connection. A broker that has
        sent a heartbeat on a newer connection is not a suspect."""
        probes = []
        for broker_id, (epoch, last) in list(self._connections.items()):
            if last == connection:
                del self._connections[broker_id]
                probe = self._first_probe(image, broker_id, epoch)
                probes += [] if probe is None else [probe]
        return probes

    def leadership_began(self, image: MetadataImage, own_id: int) -> list[Probe]:
        """Return a probe for each unfenced broker, except the broker of this process (``own_id``)."""
        return [
            probe
            for broker in image.brokers.values()
            if broker.broker_id != own_id
            and (probe := self._first_probe(image, broker.broker_id, broker.epoch)) is not None
        ]

    def probed(self, image: MetadataImage, suspect: Suspect, *, is_refused: bool) -> Probe | Suspect | None:
        """Return the next step after a probe: another probe, the suspect if its process has ended, or None if
        the suspicion is over."""
        broker = self.confirmed(image, suspect)
        if broker is None:
            return None
        suspect = replace(
            suspect, probes=suspect.probes + 1, refusals=suspect.refusals + 1 if is_refused else 0
        )
        if suspect.refusals == REFUSALS:
            return suspect
        return self._probe(broker, suspect) if suspect.probes < len(DELAYS_MS) else None

    def confirmed(self, image: MetadataImage, suspect: Suspect) -> BrokerRegistration | None:
        """The suspect's registration; None if the suspicion is over."""
        broker = image.brokers.get(suspect.broker_id)
        if (
            broker is None
            or broker.epoch != suspect.epoch
            or not broker.is_active
            or self._heartbeats.count(broker.broker_id, broker.epoch) != suspect.heartbeat_count
        ):
            return None
        return broker

    def _first_probe(self, image: MetadataImage, broker_id: int, epoch: int) -> Probe | None:
        suspect = Suspect(broker_id, epoch, self._heartbeats.count(broker_id, epoch))
        broker = self.confirmed(image, suspect)
        # A broker without listeners gives no evidence.
        return self._probe(broker, suspect) if broker is not None and broker.endpoints else None

    def _probe(self, broker: BrokerRegistration, suspect: Suspect) -> Probe:
        endpoints = sorted(broker.endpoints, key=lambda each: each.name.upper() != self._first_listener)
        return Probe(suspect, tuple(endpoints), DELAYS_MS[suspect.probes])
