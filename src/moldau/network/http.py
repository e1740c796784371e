"""A small HTTP server for ``/metrics`` and ``/health``. It supports GET and HEAD, with one response per
connection."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

log = logging.getLogger("moldau.network.http")

_MAX_HEADER_BYTES = 8 * 1024
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The response of an HTTP page."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200


Page: TypeAlias = Callable[[], HttpAnswer]


class HttpServer:
    """Serves pages by path. ``start`` returns the bound port."""

    def __init__(
        self,
        pages: Mapping[str, Page],
        host: str | None,
        port: int,
        *,
        timeout_s: float = 10.0,
        max_connections: int = 64,
    ) -> None:
        self.pages = dict(pages)
        self.timeout_s = timeout_s
        self.max_connections = max_connections
        self.connections: dict[_HttpConnection, None] = {}
        self._host = host
        self._port = port
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> int:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _HttpConnection(self), self._host or None, self._port)
        self._server = server
        return int(server.sockets[0].getsockname()[1]) if server.sockets else self._port

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)

    def answer(self, method: str, target: str) -> HttpAnswer:
        """Return the response to a request with this method and target."""
        if method not in ("GET", "HEAD"):
            return HttpAnswer(b"only GET and HEAD are served\n", status=405)
        page = self.pages.get(target.partition("?")[0])
        if page is None:
            known = " ".join(sorted(self.pages))
            return HttpAnswer(f"there is no such page; there are: {known}\n".encode(), status=404)
        try:
            return page()
        except Exception:
            log.exception("page %s failed", target, extra={"path": target})
            return HttpAnswer(b"the page failed; see the log\n", status=500)


class _HttpConnection(asyncio.Protocol):
    """Reads the header of one request, responds, and closes the connection."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._received = bytearray()
        self._answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(self._server.timeout_s, self.abort)
        if len(self._server.connections) >= self._server.max_connections:
            self._reply("GET", HttpAnswer(b"too many connections\n", status=503))
        self._server.connections[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._server.connections.pop(self, None)

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._answered:
            return
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            end = self._received.find(b"\n\n")
        header_bytes = end if end >= 0 else len(self._received)
        if header_bytes > _MAX_HEADER_BYTES:
            self._reply("GET", HttpAnswer(b"the header is too large\n", status=431))
        elif end >= 0:
            self._serve(bytes(self._received[:end]))

    def _serve(self, header: bytes) -> None:
        words = header.split(b"\n", 1)[0].decode("latin-1").split()
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._reply("GET", HttpAnswer(b"not an HTTP/1 request\n", status=400))
            return
        self._reply(words[0], self._server.answer(words[0], words[1]))

    def _reply(self, method: str, answer: HttpAnswer) -> None:
        self._answered = True
        head = (
            f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Unknown')}\r\n"
            f"Content-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(answer.body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + (b"" if method == "HEAD" else answer.body))
        self._transport.close()
