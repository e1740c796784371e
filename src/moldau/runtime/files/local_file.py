"""An open file of the operating system, with memory maps for its readers."""

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from moldau.runtime import recycled_memory
from moldau.runtime.buffers import Buffer
from moldau.runtime.files import page_cache, residency
from moldau.runtime.files.descriptor_cache import NO_DESCRIPTOR, DescriptorCache
from moldau.runtime.files.disk import DiskError
from moldau.runtime.files.sendable import CAN_SEND, SENDABLE_SIZE_BYTES, map_sendable

T = TypeVar("T")

_FADVISE = getattr(os, "posix_fadvise", None)  # posix_fadvise does not exist on macOS

_O_DIRECT = getattr(os, "O_DIRECT", 0)  # O_DIRECT does not exist on macOS

UNCACHED_SIZE_BYTES: Final = 1024 * 1024
"""Minimum size, in bytes, of a write that bypasses the page cache. For smaller writes the system calls, or
the wait for the device, cost more than the bypass saves."""

WRITE_SIZE_BYTES_MAX: Final = 1024 * 1024
"""Maximum size of one write into the page cache. For larger writes Linux allocates blocks of 2 MiB. A virtual
machine may have returned its free memory to its host. It must then request these blocks from the host again,
which costs several times as much CPU time."""

UNCACHED_PIECE_SIZE_BYTES: Final = 2 * 1024 * 1024
"""Size of one read or write that bypasses the page cache. A sync of another file then waits only for one such
read or write, not for a whole file."""

UNCACHED_READ_SIZE_BYTES: Final = 128 * 1024
"""Minimum size, in bytes, of a read that bypasses the page cache. For smaller reads, the system's read-ahead
is sufficient."""

COPIED_VIEW_SIZE_BYTES: Final = 64 * 1024
"""Size in bytes. If a view ends beyond the end of the map and has at most this size, its content is copied.
Extending the map would cost more."""


def disk_error(error: OSError, path: str) -> DiskError:
    """The error of an operation on the file or folder ``path``."""
    return DiskError(error.errno or errno.EIO, error.strerror or str(error), path)


class LocalFile:
    """A file of the operating system. Reads of stable ranges use one memory map, which grows with the file.

    The file's descriptor may be closed while it is not used: see
    :mod:`moldau.runtime.files.descriptor_cache`.
    """

    __slots__ = (
        "_descriptor",
        "_descriptors",
        "_flags",
        "_inode",
        "_is_closed",
        "_map",
        "_map_view",
        "is_recent",
        "path",
        "pins",
        "users",
    )

    def __init__(self, path: str, descriptor: int, flags: int, descriptors: DescriptorCache) -> None:
        """``flags`` are the flags of the system call ``open``. From now on the descriptor belongs to this
        object."""
        self.path = path
        self.users: list[None] = []
        self.is_recent = True
        self.pins = 0
        self._flags = flags
        self._descriptors = descriptors
        self._descriptor = descriptor
        self._is_closed = False
        self._map: mmap.mmap | None = None
        self._map_view: memoryview | None = None
        found = os.fstat(descriptor)
        self._inode = (found.st_dev, found.st_ino)
        descriptors.enter(self)

    # -- the descriptor -----------------------------------------------------------------------

    def hide_descriptor(self) -> int:
        descriptor, self._descriptor = self._descriptor, NO_DESCRIPTOR
        return descriptor

    def show_descriptor(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def drop_map(self) -> None:
        """Schedule the removal of the map. It cannot be removed now, because a socket may still be sending
        views of it."""
        unused, self._map, self._map_view = self._map, None, None
        if unused is not None:
            residency.PROCESS.retire(unused)

    def ensure_descriptor(self) -> None:
        if self._descriptor == NO_DESCRIPTOR and not self._is_closed:
            self._reopen()

    def _reopen(self) -> int:
        """Return a new descriptor of the path, which still names this file."""
        if self._is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)
        descriptors = self._descriptors
        with descriptors.lock:
            # While this thread waited for the lock, another thread may have restored the descriptor instead
            # of closing it.
            if self._descriptor != NO_DESCRIPTOR:
                return self._descriptor
        path = self.path
        opened = descriptors.with_room(lambda: os.open(path, self._flags | os.O_CLOEXEC))
        found = os.fstat(opened)
        with descriptors.lock:
            if self._descriptor == NO_DESCRIPTOR and not self._is_closed:
                if (found.st_dev, found.st_ino) != self._inode:
                    os.close(opened)
                    raise OSError(errno.ESTALE, "another file has taken its place", path)
                self._descriptor = opened
                descriptors.opened(self)
            else:
                os.close(opened)
            if self._is_closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF), path)
            return self._descriptor

    @contextlib.contextmanager
    def _used(self) -> Iterator[int]:
        """A context with the descriptor, which stays open in the block. Errors name the path."""
        self.users.append(None)
        self.is_recent = True
        try:
            descriptor = self._descriptor
            yield descriptor if descriptor != NO_DESCRIPTOR else self._reopen()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise disk_error(error, self.path) from error
        finally:
            self.users.pop()

    def close(self) -> None:
        self.drop_map()
        with self._descriptors.lock:
            if not self._is_closed:
                self._is_closed = True
                self._descriptors.leave(self, self.hide_descriptor())

    # -- reading and writing ------------------------------------------------------------------

    def size(self) -> int:
        with self._used() as descriptor:
            return os.fstat(descriptor).st_size

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        total = sum(map(len, buffers)) if len(buffers) != 1 else len(buffers[0])
        if total <= WRITE_SIZE_BYTES_MAX:
            self._write_piece(position, buffers, total)
            return total
        end = position
        for piece in _pieces(buffers):
            size = sum(map(len, piece))
            self._write_piece(end, piece, size)
            end += size
        return total

    def _write_piece(self, position: int, buffers: Sequence[Buffer], size: int) -> None:
        # Does the same as _used, but without the cost of a context manager, because each append calls this
        # method.
        self.users.append(None)
        self.is_recent = True
        try:
            descriptor = self._descriptor
            if descriptor == NO_DESCRIPTOR:
                descriptor = self._reopen()
            written = os.pwritev(descriptor, buffers, position)
        except OSError as error:
            raise disk_error(error, self.path) from error
        finally:
            self.users.pop()
        if written != size:
            self._write_rest(position, buffers, written)

    def _write_rest(self, position: int, buffers: Sequence[Buffer], written: int) -> None:
        rest = memoryview(b"".join(buffers))[written:]
        position += written
        with self._used() as descriptor:
            while rest:
                count = os.pwrite(descriptor, rest, position)
                rest = rest[count:]
                position += count

    def read_at(self, position: int, size: int) -> bytes:
        with self._used() as descriptor:
            return os.pread(descriptor, size, position)

    def read_once(self, position: int, size: int) -> memoryview:
        before = position % mmap.PAGESIZE
        pages = recycled_memory.PROCESS.allocate(-(-(before + size) // mmap.PAGESIZE) * mmap.PAGESIZE)
        with self._used() as descriptor:
            found = self._read_uncached(descriptor, position - before, pages)
            while found < before + size:
                count = os.preadv(descriptor, [pages[found:]], position - before + found)
                if not count:
                    break
                found += count
        return pages[before : max(before, min(found, before + size))]

    def _read_uncached(self, descriptor: int, position: int, pages: memoryview) -> int:
        """Read whole pages, bypassing the page cache. Returns the number of bytes read, possibly 0."""
        if not _O_DIRECT or len(pages) < UNCACHED_READ_SIZE_BYTES:
            return 0
        found = 0
        with self._uncached(descriptor):
            while found < len(pages):
                piece = pages[found : found + UNCACHED_PIECE_SIZE_BYTES]
                count = os.preadv(descriptor, [piece], position + found)
                found += count
                if not count or count % mmap.PAGESIZE:
                    break
        return found

    @contextlib.contextmanager
    def _uncached(self, descriptor: int) -> Iterator[None]:
        """A context in which reads and writes bypass the page cache. If the file does not support this, the
        block ends early, and no exception is raised."""
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _O_DIRECT)
            yield
        except OSError as error:
            # EINVAL and EOPNOTSUPP mean that the content is not aligned, or that the file system does not
            # support direct reads and writes.
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
        finally:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)

    def view(self, position: int, size: int) -> memoryview:
        end = position + size
        view = self._map_view
        if view is None or end > len(view):
            if size <= COPIED_VIEW_SIZE_BYTES:
                return self._copied_view(position, size)
            view = self._remap(end)
        self.is_recent = True
        shown = self._map
        if shown is not None:
            residency.PROCESS.shown(shown, size)
        return view[position:end]

    def _copied_view(self, position: int, size: int) -> memoryview:
        self.users.append(None)
        self.is_recent = True
        try:
            descriptor = self._descriptor
            if descriptor == NO_DESCRIPTOR:
                descriptor = self._reopen()
            content = os.pread(descriptor, size, position)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise disk_error(error, self.path) from error
        finally:
            self.users.pop()
        if len(content) != size:
            raise DiskError(errno.EIO, f"read of {size} bytes at {position} past the end", self.path)
        return memoryview(content)

    def _remap(self, needed: int) -> memoryview:
        with self._used() as descriptor:
            length = os.fstat(descriptor).st_size
            if needed > length:
                raise DiskError(errno.EIO, f"read of {needed} bytes past the end ({length})", self.path)
            self.drop_map()
            # The memory map uses a second descriptor of the file.
            shown = self._descriptors.with_room(lambda: mmap.mmap(descriptor, length, prot=mmap.PROT_READ))
            view = memoryview(shown)
            self._map, self._map_view = shown, view
        return view

    def view_loaded(self, position: int, size: int) -> memoryview:
        if not CAN_SEND or size < SENDABLE_SIZE_BYTES:
            return self.view(position, size)
        with self._used() as descriptor:
            length = os.fstat(descriptor).st_size
            if position + size > length:
                raise DiskError(errno.EIO, f"read of {size} bytes past the end ({length})", self.path)
            shown = map_sendable(self, descriptor, position, size)
        return self.view(position, size) if shown is None else shown

    def send_to(self, socket_descriptor: int, position: int, size_bytes: int) -> int:
        """See :class:`moldau.runtime.files.sendable.Source`."""
        self.users.append(None)
        self.is_recent = True
        try:
            descriptor = self._descriptor
            if descriptor == NO_DESCRIPTOR:
                descriptor = self._reopen()
            return os.sendfile(socket_descriptor, descriptor, position, size_bytes)
        finally:
            self.users.pop()

    def is_cached(self, position: int, size: int) -> bool:
        try:
            with self._used() as descriptor:
                return page_cache.is_cached(descriptor, self._inode[0], position, size)
        except OSError:
            return True  # the file cannot be opened again, and the read will find the same error

    def load(self, position: int, size: int) -> None:
        with self._used() as descriptor:
            page_cache.load(descriptor, position, size)

    def truncate(self, size: int) -> None:
        self.drop_map()
        with self._used() as descriptor:
            os.ftruncate(descriptor, size)

    def sync(self) -> None:
        with self._used() as descriptor:
            os.fdatasync(descriptor)

    def with_descriptor(self, use: Callable[[int], T]) -> T:
        """Call a function with the file's descriptor, which stays open during the call."""
        with self._used() as descriptor:
            return use(descriptor)

    def fill(self, content: Buffer) -> None:
        view = memoryview(content)
        written = self._write_uncached(view)
        if written < len(view):
            self.write_at(written, [view[written:]])
        self.sync()
        # The system can now use the memory pages of this file for the next file. Pages that were used a
        # moment ago cost much less than new pages.
        self.forget_pages()

    def _write_uncached(self, view: memoryview) -> int:
        """Write whole pages from the beginning. Returns the number of bytes written, possibly 0."""
        whole = len(view) // mmap.PAGESIZE * mmap.PAGESIZE
        if not _O_DIRECT or whole < UNCACHED_SIZE_BYTES:
            return 0
        written = 0
        with self._used() as descriptor, self._uncached(descriptor):
            while written < whole:
                piece = view[written : min(whole, written + UNCACHED_PIECE_SIZE_BYTES)]
                count = os.pwrite(descriptor, piece, written)
                written += count // mmap.PAGESIZE * mmap.PAGESIZE
                if count % mmap.PAGESIZE:
                    break
        return written

    def forget_pages(self, position: int = 0, size: int = 0) -> None:
        if _FADVISE is not None:
            with self._used() as descriptor:
                _FADVISE(descriptor, position, size, os.POSIX_FADV_DONTNEED)


def _pieces(buffers: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    """Split the buffers that are larger than one write."""
    piece: list[Buffer] = []
    room = WRITE_SIZE_BYTES_MAX
    for buffer in buffers:
        rest = memoryview(buffer)
        while len(rest) > room:
            yield [*piece, rest[:room]]
            rest = rest[room:]
            piece, room = [], WRITE_SIZE_BYTES_MAX
        piece.append(rest)
        room -= len(rest)
    yield piece
