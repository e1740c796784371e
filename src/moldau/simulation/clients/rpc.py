"""A client's connection to a node. Several requests may be in flight, and the responses come in order."""

import asyncio
from collections import deque
from typing import Any

from moldau.protocol.codec import decode_response, encode_request
from moldau.protocol.framing import RequestHeader, parse_response_header, request_frame
from moldau.protocol.schema import Message
from moldau.simulation.world.process import PROCESS


class RpcConnection(asyncio.Protocol):
    """Sends requests and receives responses by Kafka's protocol. When the connection fails, every request in
    flight fails."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiting: deque[tuple[int, int, int, asyncio.Future[Any]]] = deque()
        self._correlation_id = 0
        self.closed = False

    @classmethod
    async def open(cls, client_id: str, host: str, port: int, *, timeout_s: float = 5.0) -> "RpcConnection":
        """Connect to the node. Raises OSError (including TimeoutError)."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(lambda: cls(client_id), host, port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            size = int.from_bytes(self._received[:4], "big")
            if len(self._received) < 4 + size:
                return
            frame = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            self._answered(frame)

    def _answered(self, frame: bytes) -> None:
        api_key, version, correlation_id, answer = self._waiting.popleft()
        given_id, start = parse_response_header(frame, api_key, version)
        assert given_id == correlation_id, "answers are out of order"
        if not answer.done():
            answer.set_result(decode_response(api_key, version, memoryview(frame)[start:]))

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        while self._waiting:
            answer = self._waiting.popleft()[3]
            if not answer.done():
                answer.set_exception(ConnectionResetError("the connection is lost"))
                # if the caller was cancelled, it does not retrieve the exception
                answer.exception()

    async def request(self, api_key: int, version: int, message: Message, *, timeout_s: float = 10.0) -> Any:
        """Send a request and wait for its response. Raises OSError (including TimeoutError)."""
        if self.closed or self._transport is None:
            raise ConnectionResetError("the connection is lost")
        self._correlation_id += 1
        header = RequestHeader(api_key, version, self._correlation_id, self._client_id)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((api_key, version, self._correlation_id, answer))
        self._transport.writelines(request_frame(header, encode_request(api_key, version, message)))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            world = PROCESS.get().host.world
            silence = f"{self._client_id}: no answer to API {api_key} in {timeout_s:.0f} s"
            world.silences.append(f"{silence} at {world.loop.elapsed_s():.3f}")
            raise

    def close(self) -> None:
        """Close the connection and drop the requests in flight."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
