"""The system's page cache of a file: whether bytes are in it, and how they get there.

Linux tells both. Other systems do not, and then all bytes count as cached.
"""

import ctypes
import errno
import mmap
import os
import struct
import sys
from typing import Final

_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)  # only Linux has RWF_NOWAIT

_CACHESTAT: Final = 451
"""The number of the system call on every architecture, since Linux 6.5."""
_RANGE: Final = struct.Struct("=QQ")
"""``struct cachestat_range``: position and size in bytes."""
_COUNTS: Final = struct.Struct("=QQQQQ")
"""``struct cachestat``: the number of cached, changed, currently written, freed, and recently freed pages."""

CHECK_STRIDE_BYTES: Final = 256 * 1024
"""Distance, in bytes, between the bytes that are checked if the system cannot count cached pages. A check
takes a microsecond. The system reads and frees neighboring pages together."""

LOADED_PIECE_SIZE_BYTES: Final = 1024 * 1024
"""Maximum number of bytes in one system call of :func:`load`, if the file system does not support
``sendfile``."""

_NO_SENDFILE: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


class _PageCounter:
    """Counts the cached pages of a range, until the system refuses it."""

    def __init__(self) -> None:
        self._range = ctypes.create_string_buffer(_RANGE.size)
        self._counts = ctypes.create_string_buffer(_COUNTS.size)
        self._call = ctypes.PyDLL(None).syscall if sys.platform == "linux" else None
        self._is_right: dict[int, bool] = {}
        """Whether the counts are right, by device. They are wrong if the pages belong to another file, which
        is so on the layers of containers (overlayfs)."""

    def has_all(self, descriptor: int, device: int, position: int, size_bytes: int) -> bool | None:
        """Whether all pages of a file on this device are cached or are just being read. The result is None if
        the system cannot tell."""
        is_right = self._is_right.get(device)
        if self._call is None or is_right is False:
            return None
        found = self._count(descriptor, position, size_bytes)
        if found is False and is_right is None:
            found = self._first_missing(descriptor, device, position)
        return found

    def _first_missing(self, descriptor: int, device: int, position: int) -> bool | None:
        """Decide whether the counts are right, when pages of a device are missing for the first time. A page
        that was just read must be counted. This waits for the device."""
        os.pread(descriptor, 1, position)
        is_right = self._count(descriptor, position, 1)
        if is_right is not None:
            self._is_right[device] = is_right
        return False if is_right else None

    def _count(self, descriptor: int, position: int, size_bytes: int) -> bool | None:
        if self._call is None:
            return None
        _RANGE.pack_into(self._range, 0, position, size_bytes)
        if self._call(_CACHESTAT, descriptor, self._range, self._counts, 0):
            self._call = None
            return None
        first, last = position // mmap.PAGESIZE, (position + size_bytes - 1) // mmap.PAGESIZE
        cached: int = _COUNTS.unpack(self._counts)[0]
        return cached > last - first


_counter: Final = _PageCounter()


def is_cached(descriptor: int, device: int, position: int, size_bytes: int) -> bool:
    """Whether a read of a range that the file has probably waits for no device. ``device`` is the number of
    the file's device (``st_dev``). Only the thread of the event loop may call this function."""
    if not _NOWAIT or size_bytes <= 0:
        return True
    has_all = _counter.has_all(descriptor, device, position, size_bytes)
    if has_all is False:
        return False
    last = position + size_bytes - 1
    checked = [bytearray(1)]
    try:
        if has_all is None:
            for at in range(position, last, CHECK_STRIDE_BYTES):
                os.preadv(descriptor, checked, at, _NOWAIT)
        # A page counts as cached while the device still reads it.
        os.preadv(descriptor, checked, last, _NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        # The file system does not support the flag, or the disk fails. In that case, the read will fail, too.
        return True
    return True


def load(descriptor: int, position: int, size_bytes: int) -> None:
    """Read a range of a file into the page cache. The range is cut at the end of the file. This call
    blocks."""
    end = position + size_bytes
    position = _load_without_copy(descriptor, position, end)
    while position < end:
        piece = os.pread(descriptor, min(LOADED_PIECE_SIZE_BYTES, end - position), position)
        if not piece:
            break
        position += len(piece)


def _load_without_copy(descriptor: int, position: int, end: int) -> int:
    """Returns the position up to which the range could be read."""
    if not _NOWAIT:
        return position
    # Linux passes pages to /dev/null without a copy.
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        while position < end:
            count = os.sendfile(nowhere, descriptor, position, end - position)
            if not count:
                break
            position += count
    except OSError as error:
        if error.errno not in _NO_SENDFILE:
            raise
    finally:
        os.close(nowhere)
    return position
