"""Finds the coordinator of a group for a client."""

import random
from typing import Final

from moldau.protocol.api import ApiKey
from moldau.protocol.coordinator_keys import CoordinatorKeyType
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.runtime import ErrorCode
from moldau.simulation.clients.client import Bootstrap, RetryError, SimulatedClient
from moldau.simulation.clients.rpc import RpcConnection
from moldau.simulation.history import History

FIND_COORDINATOR_VERSION: Final = 4


class GroupClient(SimulatedClient):
    """A client of a group."""

    def __init__(
        self, name: str, bootstrap: Bootstrap, history: History, chance: random.Random, group_id: str
    ) -> None:
        super().__init__(name, bootstrap, history, chance)
        self.group_id = group_id

    async def coordinator(self) -> RpcConnection:
        """Returns a connection to the group's coordinator. Raises RetryError or OSError."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        begun_at = self.begins_at()
        first = await RpcConnection.open(self.name, begun_at.host, begun_at.port)
        self._connection = first
        request = FindCoordinatorRequest(key_type=CoordinatorKeyType.GROUP, coordinator_keys=[self.group_id])
        response = await first.request(ApiKey.FIND_COORDINATOR, FIND_COORDINATOR_VERSION, request)
        found = response.coordinators[0]
        if found.error_code is not ErrorCode.none:
            raise RetryError(found.error_code.name)
        if (found.host, found.port) != (begun_at.host, begun_at.port):
            first.close()
            self._connection = await RpcConnection.open(self.name, found.host, found.port)
        return self._connection
