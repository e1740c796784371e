"""Maps of file ranges that are sent once, if possible without a copy.

Bytes that the disk has delivered a moment ago are in no cache of a processor, so a copy of them is expensive.
The system can send them from its page cache instead (``sendfile``). Bytes that were written a short time ago
are in these caches, and a copy of them costs less than many small fragments.
"""

import mmap
import os
from typing import Final, NamedTuple, Protocol

from moldau.runtime.buffers import Buffer
from moldau.runtime.files.descriptor_shares import descriptors_for_maps

SENDABLE_SIZE_BYTES: Final = 64 * 1024
"""Minimum size, in bytes, of a range that is sent without a copy."""


MAPS_MAX: Final = 256
"""Maximum number of maps at the same time. With more readers that are slow, their bytes are copied."""


class SendableFile(Protocol):
    """A file whose descriptor can be used for a system call."""

    def send_to(self, socket_descriptor: int, position: int, size_bytes: int) -> int:
        """Send bytes of the file from ``position`` to a socket that does not block, and return their number,
        which may be smaller than ``size_bytes``.

        Raises ``BlockingIOError`` if the socket has no room, and another ``OSError`` if the socket or the
        file fails.
        """
        ...


class SendableMap(mmap.mmap):
    """A map of one range of a file. A view of it can be used as any other view."""

    source: SendableFile
    end: int
    """The position in the file at which the map ends."""
    alive = 0
    """Number of maps that are in use."""

    def __del__(self) -> None:
        SendableMap.alive -= 1


class SendableRange(NamedTuple):
    """The range of a file that a view shows."""

    source: SendableFile
    position: int
    size_bytes: int


def sendable_range(part: Buffer) -> SendableRange | None:
    """Return the range of a file that a view shows. The result is None for any other buffer, and for a small
    view.

    Only bytes at the beginning of the view of a :class:`SendableMap` may have been cut off.
    """
    size_bytes = len(part)
    if size_bytes < SENDABLE_SIZE_BYTES or not isinstance(part, memoryview):
        return None
    shown = part.obj
    if not isinstance(shown, SendableMap):
        return None
    return SendableRange(shown.source, shown.end - size_bytes, size_bytes)


def map_sendable(source: SendableFile, descriptor: int, position: int, size_bytes: int) -> memoryview | None:
    """Map a range of a file. The map uses a second descriptor of the file, until the last view is gone. The
    result is None if there are too many maps or open files."""
    if SendableMap.alive >= min(MAPS_MAX, descriptors_for_maps()):
        return None
    before = position % mmap.ALLOCATIONGRANULARITY
    SendableMap.alive += 1
    try:
        shown = SendableMap(descriptor, before + size_bytes, prot=mmap.PROT_READ, offset=position - before)
    except (OSError, ValueError):
        SendableMap.alive -= 1
        return None
    shown.source, shown.end = source, position + size_bytes
    return memoryview(shown)[before:]


CAN_SEND: Final = hasattr(os, "sendfile") and hasattr(mmap, "MAP_POPULATE")
"""Whether this system is Linux, whose ``sendfile`` sends parts of files to sockets that do not block."""
