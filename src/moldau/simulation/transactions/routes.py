"""A client's connections to the brokers of a cluster: to coordinators, to leaders, and to any broker."""

import random
from collections.abc import Sequence
from typing import Final

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import ErrorCode
from moldau.simulation.clients.client import METADATA_VERSION, Bootstrap, RetryError
from moldau.simulation.clients.rpc import RpcConnection

GROUP: Final = 0
TRANSACTION: Final = 1
"""A key type of FindCoordinator, like ``GROUP``."""


class BrokerRoutes:
    """Finds brokers by their roles. It remembers the results until :meth:`forget`."""

    def __init__(self, name: str, brokers: Sequence[Bootstrap], chance: random.Random) -> None:
        """``name`` is the client id, and also the key in FindCoordinator requests (a group or a transactional
        id). ``brokers`` are all brokers of the cluster."""
        self._name = name
        self._brokers = brokers
        self._chance = chance
        self._connections: dict[Bootstrap, RpcConnection] = {}
        self._coordinators: dict[int, Bootstrap] = {}
        self._leaders: dict[TopicPartition, Bootstrap] = {}

    def any_broker(self) -> Bootstrap:
        return self._chance.choice(self._brokers)

    def forget(self) -> None:
        """Close all connections. Coordinators and leaders must then be found again."""
        for each in self._connections.values():
            each.close()
        self._connections.clear()
        self._coordinators.clear()
        self._leaders.clear()

    async def connection(self, broker: Bootstrap) -> RpcConnection:
        """Return the connection to a broker. If there is no open connection, a new connection is opened.
        Raises OSError."""
        known = self._connections.get(broker)
        if known is None or known.closed:
            known = self._connections[broker] = await RpcConnection.open(self._name, *_address(broker))
        return known

    async def coordinator(self, key_type: int) -> Bootstrap:
        """Return the coordinator of the client's group or transactional id. Raises OSError and RetryError."""
        known = self._coordinators.get(key_type)
        if known is not None:
            return known
        asked = await self.connection(self.any_broker())
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[self._name])
        found = (await asked.request(ApiKey.FIND_COORDINATOR, 4, request)).coordinators[0]
        if found.error_code is not ErrorCode.none:
            raise RetryError(found.error_code.name)
        self._coordinators[key_type] = Bootstrap(found.host, found.port)
        return self._coordinators[key_type]

    async def leader(self, place: TopicPartition) -> Bootstrap:
        """Return the leader, according to the metadata of some broker. Raises OSError and RetryError."""
        known = self._leaders.get(place)
        if known is not None:
            return known
        asked = await self.connection(self.any_broker())
        request = MetadataRequest(topics=[MetadataRequestTopic(name=place.topic)])
        answer = await asked.request(ApiKey.METADATA, METADATA_VERSION, request)
        nodes = {node.node_id: Bootstrap(node.host, node.port) for node in answer.brokers}
        for topic in answer.topics:
            for found in topic.partitions:
                name = TopicPartition(topic.name, found.partition_index)
                if name == place and found.leader_id in nodes:
                    leader = self._leaders[name] = nodes[found.leader_id]
                    return leader
        raise RetryError(f"no leader for {place}")


def _address(broker: Bootstrap) -> tuple[str, int]:
    return broker.host, broker.port
