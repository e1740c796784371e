"""The client's end of a connection. It has correlation ids and requests in flight, and matches responses to
requests by id."""

import asyncio
import struct
from dataclasses import dataclass
from typing import Any, cast

from moldau.network.context import Buffers
from moldau.network.frames import FrameReceiver
from moldau.network.memory import ReceiveMemory
from moldau.network.wakeups import WakeupThreshold
from moldau.network.writing import WriteQueue, transport_sends_vectors
from moldau.protocol.api import ApiKey
from moldau.protocol.codec import ProtocolError, decode_response
from moldau.protocol.framing import RequestHeader, parse_response_header, request_frame
from moldau.runtime import recycled_memory
from moldau.runtime.errors import ErrorCode, KafkaError

MAX_RESPONSE_BYTES = 2**31 - 1
_RECYCLED_MIN_BYTES = 128 * 1024
"""Size in bytes. If a frame has at least this size, a new block of memory for it would consist of new pages
from the system, so the frame gets recycled memory.
"""

_unpack_correlation_id = struct.Struct(">i").unpack_from
_unpack_error = struct.Struct(">h").unpack_from


@dataclass(frozen=True, slots=True)
class _Sent:
    api_key: int
    version: int
    answer: "asyncio.Future[Any]"


class ClientConnection(FrameReceiver):
    """Sends requests, and completes the futures of their responses. If the connection is lost, all pending
    futures fail.
    """

    def __init__(self, name: str, client_id: str | None, max_response_bytes: int) -> None:
        super().__init__(ReceiveMemory.of_running_loop(), max_response_bytes)
        self._name = name
        self._client_id = client_id
        self._loop = asyncio.get_running_loop()
        self._sent: dict[int, _Sent] = {}
        self._next_id = 0
        self._transport: asyncio.Transport | None = None
        self._writes: WriteQueue | None = None
        self._flush_scheduled = False
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._wakeups = WakeupThreshold.of(transport)
        self._writes = WriteQueue(self._transport, vectored=transport_sends_vectors(self._loop))
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._drop_received()
        reason = f"connection to {self._name} was lost" + (f": {exc}" if exc else "")
        self._fail_all(KafkaError(ErrorCode.network_exception, reason))

    def send(self, api_key: int, version: int, body: Buffers) -> "asyncio.Future[Any]":
        """Return a future of the decoded response. If the future is cancelled, the response to the request is
        dropped."""
        if not self.is_open or self._writes is None:
            raise KafkaError(ErrorCode.network_exception, f"connection to {self._name} is closed")
        correlation_id = self._next_id
        self._next_id = (correlation_id + 1) & 0x7FFFFFFF
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._sent[correlation_id] = _Sent(api_key, version, answer)
        header = RequestHeader(api_key, version, correlation_id, self._client_id)
        self._writes.add(request_frame(header, body))
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)
        return answer

    def close(self) -> None:
        """Close the connection. Requests in flight fail."""
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self.is_open and self._writes is not None:
            self._writes.flush()

    def pause_writing(self) -> None:
        if self._writes is not None:
            self._writes.paused = True

    def resume_writing(self) -> None:
        if self._writes is not None:
            self._writes.paused = False
            self._flush()

    def _memory_to_keep(self, size: int) -> memoryview | None:
        # Records in the response are views of the frame, so the frame needs memory that is not reused too
        # early. A small frame is copied. A large frame is received into recycled memory, because the first
        # access to the new pages of a fresh block costs more than a copy.
        return None if size < _RECYCLED_MIN_BYTES else recycled_memory.PROCESS.allocate(size)

    def _on_frame(self, frame: memoryview) -> None:
        self._on_kept_frame(_kept(frame))

    def _on_kept_frame(self, frame: memoryview) -> None:
        if len(frame) < 4:
            self._break(f"{self._name} sent a response of {len(frame)} bytes")
            return
        correlation_id: int = _unpack_correlation_id(frame)[0]
        sent = self._sent.pop(correlation_id, None)
        if sent is None:
            self._break(f"{self._name} answered request {correlation_id}, which is not in flight")
            return
        if sent.answer.done():
            return
        try:
            sent.answer.set_result(_decode(sent, frame))
        except ProtocolError as error:
            sent.answer.set_exception(
                KafkaError(ErrorCode.unknown_server_error, f"{self._name} sent a malformed response: {error}")
            )
            self._break(f"{self._name} sent a malformed response")

    def _on_bad_length(self, length: int) -> None:
        self._break(f"{self._name} announced a response of {length} bytes")

    def _break(self, reason: str) -> None:
        self._finished = True
        self.is_open = False
        self._fail_all(KafkaError(ErrorCode.network_exception, reason))
        if self._transport is not None:
            self._transport.abort()

    def _fail_all(self, error: KafkaError) -> None:
        sent, self._sent = self._sent, {}
        for each in sent.values():
            if not each.answer.done():
                each.answer.set_exception(error)


def _kept(frame: memoryview) -> memoryview:
    """A copy of a frame. Records in the response are views of it, and the receive buffer is reused."""
    if len(frame) < _RECYCLED_MIN_BYTES:
        return memoryview(bytes(frame))
    # Recycled memory is used, because the first access to the new pages of a fresh block costs more than the
    # copy.
    copy = recycled_memory.PROCESS.allocate(len(frame))
    copy[:] = frame
    return copy


def _decode(sent: _Sent, frame: memoryview) -> Any:
    _, position = parse_response_header(frame, sent.api_key, sent.version)
    body = frame[position:]
    version = sent.version
    if (
        sent.api_key == ApiKey.API_VERSIONS
        and len(body) >= 2
        and _unpack_error(body)[0] == ErrorCode.unsupported_version.value
    ):
        # KIP-511: if the peer does not know the version of an ApiVersions request, its response has a body of
        # version 0.
        version = 0
    return decode_response(sent.api_key, version, body)
