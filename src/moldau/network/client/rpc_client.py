"""Requests to other nodes. There is one connection to each node. A connection negotiates versions, stays
open, and is replaced after a failure.

Every failure is a :class:`KafkaError`. ``network_exception`` means that the node cannot be reached, or that
the connection broke. The node may have executed the request. The other errors are ``request_timed_out``, and
``unsupported_version`` when both sides have no version in common.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

from moldau.network.client.client_connection import MAX_RESPONSE_BYTES, ClientConnection
from moldau.protocol.api import OWN_API_KEY_MIN, SUPPORTED, ApiKey, VersionRange
from moldau.protocol.codec import encode_request
from moldau.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from moldau.protocol.own import MODULES as OWN_MODULES
from moldau.protocol.own.describe_own_apis import DescribeOwnApisRequest, DescribeOwnApisResponse
from moldau.protocol.schema import parse_versions
from moldau.runtime.entropy import Entropy
from moldau.runtime.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Limits of a client. Limits that also exist in Kafka's clients have Kafka's names."""

    max_in_flight_requests: int = 64
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    max_response_bytes: int = MAX_RESPONSE_BYTES


class _RpcPeer:
    """One node, with the connection to it and the backoff after failures."""

    def __init__(self, host: str, port: int, client: "RpcClient") -> None:
        self.host = host
        self.port = port
        self.failures = 0
        self.retry_at = 0.0
        self.versions: dict[int, tuple[int, int]] = {}
        self.connection: ClientConnection | None = None
        self.connecting = asyncio.Lock()
        self.places = asyncio.Semaphore(client.limits.max_in_flight_requests)
        self._client = client
        self._own_asked: ClientConnection | None = None
        """The connection on which the peer's list of own APIs was requested."""

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"

    async def connected(self) -> ClientConnection:
        """An open connection with negotiated versions. After a failure, waits until the backoff is over."""
        if self.connection is not None and self.connection.is_open:
            return self.connection
        async with self.connecting:
            if self.connection is not None and self.connection.is_open:
                return self.connection
            loop = asyncio.get_running_loop()
            if self.retry_at > loop.time():
                await asyncio.sleep(self.retry_at - loop.time())
            try:
                self.connection = await self._connect(loop)
            except BaseException:
                self._back_off(loop)
                raise
            self.failures = 0
            return self.connection

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> ClientConnection:
        client = self._client
        limits = client.limits
        try:
            async with asyncio.timeout(limits.connect_timeout_ms / 1000):
                _, connection = await loop.create_connection(
                    lambda: ClientConnection(self.name, client.client_id, limits.max_response_bytes),
                    self.host,
                    self.port,
                )
                try:
                    self.versions = await _negotiate(connection, client)
                except BaseException:
                    connection.close()
                    raise
                return connection
        except TimeoutError:
            reason = f"no connection to {self.name} within {limits.connect_timeout_ms} ms"
            raise KafkaError(ErrorCode.network_exception, reason) from None
        except OSError as error:
            reason = f"cannot connect to {self.name}: {error.strerror or error}"
            raise KafkaError(ErrorCode.network_exception, reason) from error

    def _back_off(self, loop: asyncio.AbstractEventLoop) -> None:
        limits = self._client.limits
        longest = min(
            limits.reconnect_backoff_max_ms, limits.reconnect_backoff_ms * 2 ** min(self.failures, 20)
        )
        self.failures += 1
        self.retry_at = loop.time() + longest / 1000 * self._client.entropy.uniform(0.8, 1.2)

    async def chosen(self, connection: ClientConnection, api_key: int) -> int:
        """The highest version that both sides support. On each connection, the client requests the peer's
        versions of Moldau's own APIs once, when it needs them for the first time."""
        if api_key >= OWN_API_KEY_MIN and self._own_asked is not connection:
            key = DescribeOwnApisRequest.API_KEY
            response: DescribeOwnApisResponse = await connection.send(
                key, 0, encode_request(key, 0, DescribeOwnApisRequest())
            )
            if response.error_code is not ErrorCode.none:
                raise KafkaError(response.error_code, response.error_message)
            self._own_asked = connection
            self.versions.update({row.api_key: (row.min_version, row.max_version) for row in response.apis})
        return self._common_version(api_key)

    def _common_version(self, api_key: int) -> int:
        theirs = self.versions.get(api_key)
        ours = _versions_known(api_key)
        if theirs is None or ours is None:
            raise KafkaError(
                ErrorCode.unsupported_version, f"{self.name} does not serve API key {api_key} here"
            )
        low, high = max(theirs[0], ours.min), min(theirs[1], ours.max)
        if low > high:
            raise KafkaError(
                ErrorCode.unsupported_version,
                f"{self.name} has versions {theirs[0]}-{theirs[1]} of API key {api_key}, "
                f"not {ours.min}-{ours.max}",
            )
        return high


class RpcClient:
    """Sends requests to nodes by address. A client belongs to the event loop on which it is used for the
    first time."""

    def __init__(
        self,
        entropy: Entropy,
        *,
        client_id: str | None = "moldau",
        software_version: str = "0",
        limits: ClientLimits | None = None,
    ) -> None:
        self.entropy = entropy
        self.client_id = client_id
        self.software_version = software_version
        self.limits = limits if limits is not None else ClientLimits()
        self._peers: dict[tuple[str, int], _RpcPeer] = {}
        self._closed = False

    async def request(
        self,
        host: str,
        port: int,
        api_key: int,
        version: int | None,
        message: Any,
        timeout_ms: int | None = None,
    ) -> Any:
        """Return the decoded response. If ``version`` is ``None``, the request has the highest version that
        both sides support.

        The time-out includes the time for connecting, for backoff, and for waiting while too many requests
        are in flight. Raises :class:`KafkaError`.
        """
        if self._closed:
            raise KafkaError(ErrorCode.network_exception, "the client is closed")
        peer = self._peer(host, port)
        timeout_ms = self.limits.request_timeout_ms if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000), peer.places:
                connection = await peer.connected()
                chosen = await peer.chosen(connection, api_key) if version is None else version
                return await connection.send(api_key, chosen, encode_request(api_key, chosen, message))
        except TimeoutError:
            reason = f"no answer from {peer.name} within {timeout_ms} ms (API key {api_key})"
            raise KafkaError(ErrorCode.request_timed_out, reason) from None

    async def version_of(self, host: str, port: int, api_key: int) -> int:
        """Return the highest version of an API that both sides support. Raises :class:`KafkaError`."""
        peer = self._peer(host, port)
        return await peer.chosen(await peer.connected(), api_key)

    def disconnect(self, host: str, port: int) -> None:
        """Close the connection to a node. Requests in flight fail."""
        peer = self._peers.pop((host, port), None)
        if peer is not None and peer.connection is not None:
            peer.connection.close()

    async def close(self) -> None:
        """Close every connection. Requests in flight fail."""
        self._closed = True
        for host, port in list(self._peers):
            self.disconnect(host, port)
        # wait one iteration of the event loop, in which the transports close
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)

    def _peer(self, host: str, port: int) -> _RpcPeer:
        peer = self._peers.get((host, port))
        if peer is None:
            peer = self._peers[host, port] = _RpcPeer(host, port, self)
        return peer


def _versions_known(api_key: int) -> VersionRange | None:
    """The versions that this side can encode. They include Kafka's APIs and Moldau's own APIs."""
    own = OWN_MODULES.get(api_key)
    if own is not None:
        return parse_versions(own[1])
    return SUPPORTED[ApiKey(api_key)] if api_key in SUPPORTED else None


async def _negotiate(connection: ClientConnection, client: RpcClient) -> dict[int, tuple[int, int]]:
    version = SUPPORTED[ApiKey.API_VERSIONS].max
    request = ApiVersionsRequest(
        client_software_name="moldau", client_software_version=client.software_version
    )
    while True:
        body = encode_request(ApiKey.API_VERSIONS, version, request)
        response: ApiVersionsResponse = await connection.send(ApiKey.API_VERSIONS, version, body)
        if response.error_code is not ErrorCode.unsupported_version or version == 0:
            break
        offered = [key.max_version for key in response.api_keys if key.api_key == ApiKey.API_VERSIONS]
        version = min(version - 1, offered[0]) if offered and offered[0] >= 0 else 0
    if response.error_code is not ErrorCode.none:
        raise KafkaError(response.error_code, "the node refused to say which versions it has")
    return {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
