"""Sends parts of files from the page cache to a client, without a copy (``sendfile``).

The transport cannot do this, so the bytes go to a second descriptor of its socket. This is only possible
while the transport has no bytes of its own to send.
"""

import asyncio
import contextlib
import errno
import os
import socket
from collections import deque
from typing import Final, Protocol

from moldau.runtime.buffers import Buffer
from moldau.runtime.files.descriptor_shares import last_descriptor_for_clients
from moldau.runtime.files.sendable import SENDABLE_SIZE_BYTES, sendable_range

_MORE: Final = getattr(socket, "MSG_MORE", 0)  # macOS does not have this constant


class FlowControl(Protocol):
    """The methods of a connection's protocol that a transport calls, too."""

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class FileSender:
    """Sends parts of files on one connection."""

    __slots__ = ("_connection", "_is_usable", "_is_waiting", "_loop", "_socket", "_transport")

    def __init__(self, transport: asyncio.Transport, connection: FlowControl) -> None:
        self._transport = transport
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._is_usable = True
        self._is_waiting = False

    @classmethod
    def of(cls, transport: asyncio.Transport, connection: FlowControl) -> "FileSender | None":
        """Make a sender. The result is None if the transport is not a socket, or if it encrypts."""
        connected = transport.get_extra_info("socket")
        if not hasattr(connected, "fileno") or transport.get_extra_info("sslcontext") is not None:
            return None
        return cls(transport, connection)

    def send(self, parts: "deque[Buffer]", max_bytes: int) -> int | None:
        """Send the first parts, up to a part that is no range of a file, and up to ``max_bytes`` of files.
        Sent bytes are removed from ``parts``. Returns the number of sent bytes.

        If the socket has no more room, the connection is paused until it has. The result is None if the
        transport must send the first part.
        """
        before = _size_before_file(parts) if self._is_usable else None
        if before is None or self._transport.is_closing() or self._transport.get_write_buffer_size():
            return None
        connected = self._socket or self._open()
        if connected is None:
            return None
        sent = 0
        try:
            if before:
                sent = self._send_small(connected, parts, before)
                if sent < before:
                    self._wait(connected)
                    return sent
            left = max_bytes
            while left > 0 and parts and (wanted := sendable_range(parts[0])) is not None:
                source, position, size_bytes = wanted
                count = source.send_to(connected.fileno(), position, min(size_bytes, left))
                if not count:
                    raise OSError(errno.EIO, "the file has become shorter")
                sent += count
                left -= count
                _remove(parts, count)
        except BlockingIOError:
            self._wait(connected)
        except OSError:
            # The file was deleted and closed, or the connection has failed. From now on the transport sends
            # the mapped bytes. If the connection has failed, it handles the error.
            self._is_usable = False
            return sent or None
        return sent

    def _send_small(self, connected: socket.socket, parts: "deque[Buffer]", size_bytes: int) -> int:
        small: list[Buffer] = []
        while size_bytes:
            small.append(parts.popleft())
            size_bytes -= len(small[-1])
        joined = b"".join(small)
        parts.appendleft(joined)
        try:
            count = connected.send(joined, _MORE)
        except BlockingIOError:
            return 0
        _remove(parts, count)
        return count

    def _open(self) -> socket.socket | None:
        """Duplicate the descriptor of the transport's socket. The result is None if there are too many open
        files."""
        with contextlib.suppress(OSError):
            descriptor = os.dup(self._transport.get_extra_info("socket").fileno())
            connected = socket.socket(fileno=descriptor)
            last = last_descriptor_for_clients()
            if last is None or descriptor <= last:
                connected.setblocking(False)
                self._socket = connected
            else:
                connected.close()
        return self._socket

    def _wait(self, connected: socket.socket) -> None:
        """Pause the connection until the socket has room."""
        self._connection.pause_writing()
        self._is_waiting = True
        self._loop.add_writer(connected.fileno(), self._writable)

    def _writable(self) -> None:
        self._stop_waiting()
        if not self._transport.is_closing():
            self._connection.resume_writing()

    @property
    def is_waiting(self) -> bool:
        """Whether the connection is paused until the socket has room."""
        return self._is_waiting

    def stop(self) -> None:
        """Send nothing more. The transport sends the rest."""
        self._is_usable = False
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._is_waiting and self._socket is not None:
            self._is_waiting = False
            self._loop.remove_writer(self._socket.fileno())

    def close(self) -> None:
        """Release the descriptor, after the end of the connection."""
        self.stop()
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _size_before_file(parts: "deque[Buffer]") -> int | None:
    """Return the size of the small parts before the first range of a file. The result is None if larger parts
    are before it, or if there is none."""
    while parts and not len(parts[0]):
        parts.popleft()
    size_bytes = 0
    for part in parts:
        if sendable_range(part) is not None:
            return size_bytes
        size_bytes += len(part)
        if size_bytes >= SENDABLE_SIZE_BYTES:
            return None
    return None


def _remove(parts: "deque[Buffer]", size_bytes: int) -> None:
    """Remove bytes from the beginning of the first part."""
    first = parts.popleft()
    if size_bytes < len(first):
        parts.appendleft(memoryview(first)[size_bytes:])
