"""The calls of diskless coordinators over the network."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar

from moldau.coordinators.diskless.calls.asking import DisklessCoordinatorCalls
from moldau.coordinators.diskless.calls.declaration import DisklessCall
from moldau.network.client.rpc_client import RpcClient
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError

A = TypeVar("A")
R = TypeVar("R")

MOVED: Final = frozenset({ErrorCode.not_coordinator, ErrorCode.coordinator_not_available})
"""The error codes of a broker that does not lead the coordinator, or that leads it but cannot handle requests
to it at the moment."""


class CoordinatorChannel(Protocol):
    """Sends requests to the broker that leads a coordinator. Raises ``KafkaError``.

    Once the address of a coordinator is known, requests to it are sent in the order of the calls.
    """

    @property
    def timeout_ms(self) -> int:
        """Time in ms for which a caller waits for a response. Requests to the coordinator contain this
        time."""
        ...

    async def version(self, coordinator_id: int, api_key: int) -> int:
        """Return the version of requests that the coordinator's broker supports."""
        ...

    async def send(self, coordinator_id: int, version: int, request: Message) -> Any:
        """Send a request and return the response."""
        ...


class RpcChannel:
    """A :class:`CoordinatorChannel` over connections to brokers."""

    def __init__(
        self,
        rpc: RpcClient,
        locate: Callable[[int], Awaitable[tuple[str, int]]],
        moved: Callable[[int], None],
        timeout_ms: int,
    ) -> None:
        """``locate`` returns the host and port of the broker that leads a coordinator. It is called for every
        request, so it should cache the addresses.

        ``moved`` is called with a coordinator when another broker may now lead this coordinator.
        """
        self._rpc = rpc
        self._locate = locate
        self._moved = moved
        self.timeout_ms = timeout_ms

    async def version(self, coordinator_id: int, api_key: int) -> int:
        host, port = await self._locate(coordinator_id)
        try:
            return await self._rpc.version_of(host, port, api_key)
        except KafkaError:
            self._moved(coordinator_id)
            raise

    async def send(self, coordinator_id: int, version: int, request: Message) -> Any:
        host, port = await self._locate(coordinator_id)
        api_key: int = request.API_KEY
        try:
            response = await self._rpc.request(host, port, api_key, version, request, self.timeout_ms)
        except KafkaError:
            self._moved(coordinator_id)
            raise
        if response.error_code in MOVED:
            self._moved(coordinator_id)
        return response


class NetworkDisklessCoordinators(DisklessCoordinatorCalls):
    """Makes calls to coordinators over a channel."""

    def __init__(self, channel: CoordinatorChannel) -> None:
        self._channel = channel

    async def call(self, call: DisklessCall[A, R], coordinator_id: int, arguments: A) -> R:
        channel = self._channel
        version = await channel.version(coordinator_id, call.api_key)
        request = call.ask(coordinator_id, arguments, version, channel.timeout_ms)
        return call.read(await channel.send(coordinator_id, version, request))
