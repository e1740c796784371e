"""A producer that sends each request through any broker, and changes brokers while requests are in flight."""

import asyncio
import random
from typing import Any, cast

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.partitions import TopicPartition
from moldau.protocol.schema import Message
from moldau.simulation.clients.client import METADATA_VERSION, Producer
from moldau.simulation.clients.rpc import RpcConnection

CHANGE_CHANCE = 0.2


class BrokerConnections:
    """Connections to all brokers. The producer uses them like a single connection, but each request may use
    another connection."""

    def __init__(self, name: str, brokers: list[tuple[str, int]], chance: random.Random) -> None:
        self._name = name
        self._brokers = brokers
        self._chance = chance
        self._at = chance.choice(brokers)
        self._connections: dict[tuple[str, int], RpcConnection] = {}
        self._opening = asyncio.Lock()
        self._is_closed = False

    @property
    def closed(self) -> bool:
        """Whether one of the connections is lost. All connections are then opened again, as in real
        clients."""
        return self._is_closed or any(each.closed for each in self._connections.values())

    async def request(self, api_key: int, version: int, message: Message) -> Any:
        """Send a request, as if there were a single connection."""
        if api_key == ApiKey.PRODUCE and self._chance.random() < CHANGE_CHANCE:
            self._at = self._chance.choice(self._brokers)
        at = self._at
        async with self._opening:
            if at not in self._connections:
                self._connections[at] = await RpcConnection.open(self._name, *at)
        return await self._connections[at].request(api_key, version, message)

    def close(self) -> None:
        """Close the connections and drop the requests in flight."""
        self._is_closed = True
        for each in self._connections.values():
            each.close()


class RovingProducer(Producer):
    """A producer that treats every broker as the leader."""

    async def leader(self, partition: TopicPartition) -> RpcConnection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        bootstrap = await self._begin()
        request = MetadataRequest(topics=[MetadataRequestTopic(name=partition.topic)])
        try:
            response = await bootstrap.request(ApiKey.METADATA, METADATA_VERSION, request)
        finally:
            bootstrap.close()
        brokers = sorted((node.host, node.port) for node in response.brokers)
        if not brokers:
            raise ConnectionRefusedError("no broker is there")
        self._connection = cast(RpcConnection, BrokerConnections(self.name, brokers, self.chance))
        return self._connection
