"""Requests to one node at its address. Brokers use it for requests to each other."""

import asyncio
from typing import Any, NamedTuple

from moldau.network.client.rpc_client import RpcClient
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError

__all__ = ["NodeAddress", "NodeConnection"]


class NodeAddress(NamedTuple):
    """The host and port at which a node is reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class NodeConnection:
    """One node, and a client's connection to it.

    If a request fails, the connection is closed, and its other requests in flight fail, too. The next request
    uses a new connection, because the old connection may deliver data in only one direction.
    """

    __slots__ = ("_rpc", "address")

    def __init__(self, rpc: RpcClient, address: NodeAddress) -> None:
        self._rpc = rpc
        self.address = address

    async def version_of(self, api_key: int, timeout_ms: int) -> int:
        """Return the highest version of an API that both sides support. Connects first if necessary. Raises
        ``KafkaError``."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._rpc.version_of(*self.address, api_key)
        except TimeoutError:
            self.disconnect()
            reason = f"no answer from {self.address.host}:{self.address.port} within {timeout_ms} ms"
            raise KafkaError(ErrorCode.request_timed_out, reason) from None
        except KafkaError as error:
            self._failed(error)
            raise

    async def ask(self, request: Message, timeout_ms: int, version: int | None = None) -> Any:
        """The response. If ``version`` is ``None``, the request has the highest version that both sides
        support. Raises ``KafkaError``."""
        try:
            return await self._rpc.request(*self.address, request.API_KEY, version, request, timeout_ms)
        except KafkaError as error:
            self._failed(error)
            raise

    def _failed(self, error: KafkaError) -> None:
        # the node has answered that it does not support an API, so its connection works
        if error.code is not ErrorCode.unsupported_version:
            self.disconnect()

    def disconnect(self) -> None:
        """Close the connection. Requests in flight fail."""
        self._rpc.disconnect(*self.address)
