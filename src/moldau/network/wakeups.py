"""Wakes the reader of a large frame less often.

A frame of a megabyte arrives in many small parts, and each part would wake the event loop. With
``SO_RCVLOWAT``, the kernel reports a socket as readable only when many bytes are waiting. The kernel also
reports the socket as readable when the socket's buffer is full or the connection has ended, so a frame is
never stuck. ``SO_RCVLOWAT`` is used on Linux only.
"""

import asyncio
import socket
import sys
from contextlib import suppress
from typing import Final

LARGE_FRAME_BYTES: Final = 512 * 1024
"""If at least this number of bytes of a frame is missing, fewer wake-ups save more than the system calls
cost."""

WAKEUP_BYTES: Final = 1024 * 1024
"""Maximum number of received bytes before the reader of a large frame is woken."""


class WakeupThreshold:
    """The number of received bytes that makes a socket readable: 1 between frames, and more in a large
    frame."""

    __slots__ = ("_socket", "_threshold")

    def __init__(self, transport_socket: socket.socket) -> None:
        self._socket = transport_socket
        self._threshold = 1

    @classmethod
    def of(cls, transport: asyncio.BaseTransport) -> "WakeupThreshold | None":
        """The threshold of a transport. The result is ``None`` if it has no TCP socket, or is encrypted: then
        the bytes of the socket are not the bytes of the frames."""
        found = transport.get_extra_info("socket")
        if found is None or transport.get_extra_info("sslcontext") is not None:
            return None
        if sys.platform != "linux" or found.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        return cls(found)

    def begin_frame(self, missing_bytes: int) -> None:
        """Call this when a frame has begun. ``missing_bytes`` is the number of its bytes that were not
        received yet.
        """
        if missing_bytes >= LARGE_FRAME_BYTES:
            # A uvloop socket needs a free file descriptor for this call.
            with suppress(OSError):
                self._set(min(missing_bytes, WAKEUP_BYTES))

    def received(self, missing_bytes: int) -> None:
        """A part of the frame was received. The threshold must never be more than the missing bytes, because
        the peer may send nothing after them. Raises ``OSError``, which ends the connection."""
        if 1 < self._threshold > missing_bytes:
            self._set(max(missing_bytes, 1))

    def _set(self, size_bytes: int) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)
        self._threshold = size_bytes
