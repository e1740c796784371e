"""Clients that name their rack: brokers get it when they connect, and Metadata leads them."""

from typing import Final

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.simulation.clients.client import Consumer, Producer, SimulatedClient
from moldau.simulation.clients.rpc import RpcConnection
from moldau.simulation.history import PartitionName

_INTRODUCTION: Final = ApiVersionsRequest(client_software_name="simulated", client_software_version="1")


class _Introduced(SimulatedClient):
    """Sends ApiVersions first on each connection to a leader, as clients do."""

    async def leader(self, partition: PartitionName) -> RpcConnection:
        known = self._connection
        connection = await super().leader(partition)
        if connection is not known:
            await connection.request(ApiKey.API_VERSIONS, 3, _INTRODUCTION)
        return connection


class RackProducer(_Introduced, Producer):
    """A producer whose name is its client id."""


class RackConsumer(_Introduced, Consumer):
    """A consumer whose name is its client id."""
