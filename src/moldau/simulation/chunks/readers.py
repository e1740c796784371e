"""Consumers of partitions with chunks."""

from collections.abc import Callable
from typing import Any

from moldau.simulation.clients.client import Consumer, SimulatedClient
from moldau.simulation.clients.rpc import RpcConnection
from moldau.simulation.cluster.node_config import BROKER_PORT
from moldau.simulation.transactions.cluster_clients import LeaderReader


class RedirectedClient(SimulatedClient):
    """A client that leaders may send to other brokers.

    It keeps its connections to the brokers, as clients do. A leader remembers for each connection that it has
    sent the client to another broker.
    """

    on_sent: Callable[[], None] = staticmethod(lambda: None)
    """Called when the client is sent to another broker."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._kept: dict[int, RpcConnection] = {}
        self._left: RpcConnection | None = None
        """The connection to the leader that has sent the client to another broker."""
        self._is_back = False

    @property
    def was_sent(self) -> bool:
        return self._left is not None or self._is_back

    async def go_to(self, broker_id: int) -> None:
        """Send the next requests to another broker."""
        self.on_sent()
        if self._left is None:
            self._left = self._connection
        known = self._kept.get(broker_id)
        if known is None or known.closed:
            known = await RpcConnection.open(self.name, f"node-{broker_id}", BROKER_PORT)
            self._kept[broker_id] = known
        self._connection = known

    def disconnect(self) -> None:
        """Close the connection. A client that was sent away goes back to the leader."""
        super().disconnect()
        self._connection, self._left = self._left, None
        # The consumer is back at the leader, if its connection to the leader is still known. This broker has
        # perhaps lost the leadership in the meantime.
        self._is_back = self._connection is not None


class ChunkReader(RedirectedClient, Consumer):
    """A consumer that may name its rack. Leaders can then send it to other brokers, and it reads chunks from
    them."""

    async def _follow(self, broker_id: int) -> None:
        if self.rack:
            await self.go_to(broker_id)
        else:
            await super()._follow(broker_id)


class CommittedChunkReader(RedirectedClient, LeaderReader):
    """A consumer with ``read_committed`` that may name its rack.

    Kafka's clients use the aborted transactions of a response only for the batches of this response. So each
    response must name all transactions whose aborted records it contains.
    """

    async def _follow(self, broker_id: int) -> None:
        if self.rack:
            await self.go_to(broker_id)
        else:
            await super()._follow(broker_id)

    def _note_batches(self, row: Any) -> None:
        self._aborting.clear()
        super()._note_batches(row)


class ShortenedReader(ChunkReader):
    """Reads a partition whose first records are deleted."""

    deleted_before: Callable[[], int]

    async def read_to_end(self) -> list[tuple[int, bytes]]:
        """Return the records that must still exist, because they are after the deleted records."""
        found = await super().read_to_end()
        first_offset = found[0][0] if found else self.position
        if first_offset < self.history.deletions.get(self.partition, 0):
            self.history.violate(f"{self.partition} begins at {first_offset}, which was deleted")
        self.first_offset = max(self.first_offset, self.deleted_before())
        return [each for each in found if each[0] >= self.first_offset]
