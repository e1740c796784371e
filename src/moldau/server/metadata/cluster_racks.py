"""Computes two things from this broker's metadata: the produce gateways of each rack, and the rack of a
client.

All brokers that have the same metadata compute the same results.
"""

import re
from collections.abc import Callable, Collection, Sequence
from operator import is_
from typing import Final

from moldau.cluster.decisions.kinds.kind import TopicKind
from moldau.cluster.decisions.kinds.table import KINDS, kind_of
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.racks.gateways import Gateways, RackBroker, produce_gateways
from moldau.cluster.racks.rendezvous import preferred

_NAMED: Final = re.compile(r"(?<![A-Za-z0-9_.-])(?:rack|diskless_az|ws_az|automq_az)=([^,;&\s]+)")
_CLIENTS_MAX: Final = 10_000
"""Maximum number of client ids whose racks are cached."""


def named_rack(client_id: str | None) -> str | None:
    """Return the rack that is named in a client's id. For example, ``orders,rack=b`` names ``b``.

    ``diskless_az``, ``ws_az`` and ``automq_az`` mean the same as ``rack``. Settings are separated by ``,``,
    ``;``, ``&`` or blanks.
    """
    found = _NAMED.search(client_id) if client_id else None
    return found[1] if found else None


class ClusterRacks:
    """Knows the racks of the cluster, the live brokers and the produce gateways. Results are cached until the
    metadata change."""

    def __init__(self, local_id: int, image: Callable[[], MetadataImage]) -> None:
        self._local_id = local_id
        self._image = image
        self._brokers: object = None
        self._coordinators: list[Topic | None] = []
        self._gateways: dict[str, Gateways] = {}
        self._racks: frozenset[str] = frozenset()
        self._live: dict[str | None, tuple[int, ...]] = {}
        self._of_clients: dict[str, str | None] = {}

    def gateways_of(self, kind: TopicKind) -> Gateways:
        """Return the produce gateways of all racks for a kind of topics. The kind must have gateways."""
        self._refresh()
        return self._gateways[kind.name]

    @property
    def own_rack(self) -> str | None:
        """The rack in this broker's registration."""
        own = self._image().brokers.get(self._local_id)
        return None if own is None else own.rack

    def of_client(self, client_id: str | None) -> str | None:
        """Return the rack that is named in a client's id, if a broker is registered in that rack.

        Client libraries append text to client ids (``rack=b-StreamThread-1``). The result is therefore the
        longest known rack with which the value begins. After the rack, the value must end or continue with a
        ``-``, ``_`` or ``.``.
        """
        if client_id is None or "=" not in client_id:
            return None
        self._refresh()
        known = self._of_clients
        if client_id not in known:
            if len(known) >= _CLIENTS_MAX:
                known.clear()
            known[client_id] = _resolved(named_rack(client_id), self._racks)
        return known[client_id]

    def shown_leaders(
        self, topic: Topic, client_id: str | None, reachable: Collection[int]
    ) -> Callable[[int], int]:
        """Return a function that returns the broker that a client sees as the leader of a partition.
        ``reachable`` are the brokers that the client can connect to."""
        kind = kind_of(topic)
        by_rack = kind.rack_brokers
        if by_rack is None:
            return lambda index: topic.partitions[index].leader
        gateways, rack = self.gateways_of(kind), self.of_client(client_id)
        return lambda index: by_rack.leader(gateways, topic, index, rack, reachable)

    def nearest_broker(self, topic: Topic, index: int, client_rack: str) -> int:
        """Return the broker to which this broker redirects a consumer in ``client_rack`` (KIP-392): the
        gateway of that rack. The result is -1 if this broker serves the consumer itself."""
        if client_rack == self.own_rack:
            return -1
        owner = topic.partitions[index].owner
        found = self.gateways_of(kind_of(topic)).of_partition(topic.topic_id, index, owner, client_rack)
        return -1 if found is None or found == self._local_id else found

    @property
    def has_peers(self) -> bool:
        """Whether this broker has a rack and other live brokers are in the same rack."""
        self._refresh()
        rack = self.own_rack
        return rack is not None and any(each != self._local_id for each in self._live.get(rack, ()))

    @property
    def has_rack_readers(self) -> bool:
        """Whether another live broker has a rack. Such a broker reads whole objects; see
        :meth:`reader_of`."""
        self._refresh()
        return any(
            rack is not None and any(each != self._local_id for each in live)
            for rack, live in self._live.items()
        )

    def reader_of(self, object_key: str, writer_id: int) -> int | None:
        """Return the broker that reads an object from the store for all brokers of this broker's rack.

        If the broker that wrote the object is in this rack, it is the result, because it has the object in
        memory. A broker that is alone in its rack is the reader of all objects. Its caches follow several
        coordinators, and each of them needs another part of the object at another time. The result is None
        when this broker has no rack. This broker then reads each range of the object itself.
        """
        if self.own_rack is None:
            return None
        if not self.has_peers:
            return self._local_id
        live = self._live.get(self.own_rack, ())
        return writer_id if writer_id in live else preferred(object_key, live)

    def _refresh(self) -> None:
        image = self._image()
        kinds = {kind.name: kind.metadata_topic for kind in KINDS if kind.rack_brokers is not None}
        coordinators = [image.topics.get(name or "") for name in kinds.values()]
        if image.brokers is self._brokers and all(map(is_, coordinators, self._coordinators)):
            return
        brokers = [RackBroker(each.broker_id, each.rack, each.is_active) for each in image.brokers.values()]
        self._gateways = {
            name: produce_gateways(brokers, _hosts(topic))
            for name, topic in zip(kinds, coordinators, strict=True)
        }
        self._racks = frozenset(each.rack for each in brokers if each.rack is not None)
        self._live = {
            rack: tuple(each.broker_id for each in brokers if each.rack == rack and each.is_live)
            for rack in {each.rack for each in brokers}
        }
        self._of_clients.clear()
        self._brokers, self._coordinators = image.brokers, coordinators


def _hosts(coordinators: Topic | None) -> Sequence[int]:
    return () if coordinators is None else [each.preferred_leader for each in coordinators.partitions]


def _resolved(text: str | None, racks: Collection[str]) -> str | None:
    if text is None or text in racks:
        return text
    found = [rack for rack in racks if text.startswith(rack) and text[len(rack)] in "-_."]
    return max(found, key=len, default=None)
