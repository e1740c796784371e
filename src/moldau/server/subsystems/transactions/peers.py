"""Sends Kafka's own requests from this broker to other brokers."""

from typing import Any, Final

from moldau.network.client.rpc_client import RpcClient
from moldau.protocol.api import SUPPORTED, ApiKey
from moldau.runtime import Entropy
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.metadata.cluster_view import ClusterView

TIMEOUT_MS: Final = 30_000


class BrokerPeers:
    """Sends requests to brokers by their ids."""

    def __init__(self, view: ClusterView, listener_name: str, entropy: Entropy) -> None:
        """``listener_name`` names the listener for connections between brokers."""
        self._view = view
        self._listener_name = listener_name
        self._rpc = RpcClient(entropy, client_id=f"transactions-{view.local_id}")

    async def send(self, broker_id: int, api_key: ApiKey, request: Any) -> Any:
        """The response of a broker. The request is sent in the newest version that Moldau supports. Raises
        ``KafkaError`` if the broker does not support this version or does not respond."""
        broker = self._view.broker(broker_id, self._listener_name)
        if broker is None:
            raise KafkaError(ErrorCode.broker_not_available, f"broker {broker_id} is not in the cluster")
        version = await self._rpc.version_of(broker.host, broker.port, api_key)
        if version < SUPPORTED[api_key].max:
            raise KafkaError(
                ErrorCode.unsupported_version, f"broker {broker_id} has version {version} of {api_key.name}"
            )
        return await self._rpc.request(broker.host, broker.port, api_key, version, request, TIMEOUT_MS)

    async def close(self) -> None:
        """Close the connections. Requests in flight fail."""
        await self._rpc.close()
