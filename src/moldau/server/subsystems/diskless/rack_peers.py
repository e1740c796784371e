"""The other brokers of this broker's rack. Brokers of a rack read objects for each other."""

from typing import Final

from moldau.diskless.reading.rack_call import CALLS, READ_OBJECT, ObjectRange, RackReader
from moldau.network.authorization import Authorizer
from moldau.network.client.rpc_client import ClientLimits, RpcClient
from moldau.network.own_calls import BrokerChannel
from moldau.network.own_serving import BrokerCallHandlers, CallHandlers
from moldau.runtime.entropy import Entropy
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.metadata.cluster_view import ClusterView

TIMEOUT_MS: Final = 2_000
"""Time-out in ms of a call that reads an object from another broker. After the time-out, this broker reads
the object from the store itself. A GET of the store nearly always takes less time than this."""
_LIMITS: Final = ClientLimits(connect_timeout_ms=1_000, reconnect_backoff_max_ms=500)
_CONNECTIONS: Final = 4
"""Number of connections to each broker. On a connection, responses come in the order of the requests, so one
slow object delays the later responses."""


class RackPeerCalls:
    """Asks other brokers for ranges of objects. It uses the listener for connections between brokers."""

    def __init__(self, view: ClusterView, listener_name: str, entropy: Entropy) -> None:
        self._view = view
        self._listener_name = listener_name
        self._clients = [
            RpcClient(entropy, client_id=f"broker-{view.local_id}-rack-{number}", limits=_LIMITS)
            for number in range(_CONNECTIONS)
        ]
        self._turn = 0

    async def read_object(self, broker_id: int, wanted: ObjectRange) -> memoryview:
        """Return a range of an object. Raises ``KafkaError`` if the call fails."""
        address = self._view.address(broker_id, self._listener_name)
        if address is None:
            raise KafkaError(ErrorCode.broker_not_available, f"broker {broker_id} is not known")
        self._turn += 1
        client = self._clients[self._turn % _CONNECTIONS]
        return await BrokerChannel(client, *address, TIMEOUT_MS).call(READ_OBJECT, wanted)

    async def close(self) -> None:
        """Close all connections. Calls in progress fail."""
        for client in self._clients:
            await client.close()


def rack_handlers(reader: RackReader, authorizer: Authorizer) -> CallHandlers:
    """Return the handlers of the calls with which other brokers of the rack read objects through this
    broker."""
    return BrokerCallHandlers[RackReader](CALLS, reader, authorizer)
