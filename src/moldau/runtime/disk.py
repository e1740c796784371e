"""Files and folders behind a narrow port, so that a simulated disk can lose unsynced writes.

The durability rules that callers rely on, and that the simulated disk enforces:

* Bytes written to a file survive the end of the *process* at once, and the end of the *machine*
  only after :meth:`File.sync`.
* A file that was created, renamed or removed is so after a crash of the machine only once
  :meth:`Disk.sync_dir` on its folder has returned.
* :meth:`Disk.write_atomically` does all of that: after it returns the new content is durable, and a
  crash at any moment leaves either the old content or the new, whole.

Every operation may raise :class:`DiskError`; it carries the path and the operating system's reason.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from moldau.runtime import recycled, residency

Buffer: TypeAlias = bytes | bytearray | memoryview

_FADVISE = getattr(os, "posix_fadvise", None)  # not on macOS

_O_DIRECT = getattr(os, "O_DIRECT", 0)  # nor is this

UNCACHED_SIZE_BYTES = 1024 * 1024
"""Less than this is not worth the system calls, nor waiting for the device."""

WRITE_SIZE_BYTES_MAX = 1024 * 1024
"""Of one write into the page cache. For larger ones Linux takes whole blocks of 2 MiB: in a virtual machine
that gives free memory back, just those that have to come from the host again, for several times the CPU."""

UNCACHED_PIECE_SIZE_BYTES = 2 * 1024 * 1024
"""Of a read or write: what others sync waits in the device behind a piece, not behind a file."""

UNCACHED_READ_SIZE_BYTES = 128 * 1024
"""Less than this is what the system would read ahead anyway."""

COPIED_VIEW_SIZE_BYTES = 64 * 1024
"""A view this small that lies past the map is copied: mapping again would cost more."""


class DiskError(OSError):
    """The disk refused: full, gone, or failing. ``filename`` names the file."""


class DiskSpace(NamedTuple):
    """Of the file system that a folder lies on, in bytes."""

    total_bytes: int
    usable_bytes: int
    """What this process may still write; less than what is free where some is kept for the system."""


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DiskError(error.errno or 5, error.strerror or str(error), path) from error


class File(Protocol):
    """An open file, addressed by position; one writer, any number of readers."""

    @property
    def path(self) -> str: ...

    def size(self) -> int:
        """Size in bytes."""
        ...

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        """Write all buffers in a row from ``position``; return the number of bytes (always all)."""
        ...

    def read_at(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position`` (fewer at the end of the file), copied."""
        ...

    def read_once(self, position: int, size: int) -> memoryview:
        """As ``read_at``, of what is not read again soon: past the system's page cache where it can be.

        The bytes lie in memory that was used before, and is used again when nobody holds a view of it.
        """
        ...

    def view(self, position: int, size: int) -> memoryview:
        """Bytes that will not change or move, without a copy where possible.

        Only for ranges that are complete and never truncated (committed log bytes).
        """
        ...

    def truncate(self, size: int) -> None:
        """Cut (or extend with zeros) to ``size`` bytes."""
        ...

    def sync(self) -> None:
        """Return when everything written is durable. Blocking: call through ``Workers``."""
        ...

    def fill(self, content: Buffer) -> None:
        """Make this the durable content of a new file that is not read again soon. Blocking.

        As ``write_at``, ``sync`` and ``forget_pages``, but past the system's page cache where the content
        begins on a page of memory and the file system knows how: that costs a third of the CPU time.
        """
        ...

    def forget_pages(self, position: int = 0, size: int = 0) -> None:
        """Let the system reuse the memory that holds synced bytes from ``position`` (0: to the end).

        A hint for what is not read again soon; nothing changes but the time that reading takes.
        """
        ...

    def close(self) -> None:
        """Release the handle; views that are still held stay valid."""
        ...


class Lock(Protocol):
    """A held lock; freed by ``close`` and by the end of the process."""

    def close(self) -> None: ...


class Disk(Protocol):
    """Folders and files by absolute path."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        """Open a file; raises ``FileNotFoundError`` when it is absent and not to be created."""
        ...

    def read(self, path: str) -> bytes:
        """The whole content; raises ``FileNotFoundError``."""
        ...

    def write_atomically(self, path: str, content: bytes) -> None:
        """Replace the file by ``content``, durably (temporary file, sync, rename, folder sync)."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """Size of a file in bytes; raises ``FileNotFoundError``."""
        ...

    def modified_ms(self, path: str) -> int:
        """When the file was last written, in milliseconds since the epoch."""
        ...

    def list(self, path: str) -> list[str]:
        """Names in a folder, sorted; raises ``FileNotFoundError``."""
        ...

    def is_dir(self, path: str) -> bool: ...

    def make_dirs(self, path: str) -> None:
        """Make a folder and its parents; fine when it exists."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Move a file or folder, replacing a file at ``target``."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; fine when it is absent."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a folder and all in it; fine when it is absent."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and removals in this folder durable."""
        ...

    def space(self, path: str) -> DiskSpace:
        """How large the file system of a folder is; raises ``FileNotFoundError``."""
        ...

    def lock(self, path: str) -> Lock:
        """Lock a file (made when absent) against every other holder, in this process or another.

        Raises :class:`DiskError` with ``EAGAIN`` when somebody holds it.
        """
        ...


class _LocalLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class LocalFile:
    """A file of the operating system; reads of stable ranges go through one growing memory map."""

    def __init__(self, path: str, descriptor: int, read_only: bool) -> None:
        self._path = path
        self._descriptor = descriptor
        self._read_only = read_only
        self._map: mmap.mmap | None = None
        self._map_view: memoryview | None = None

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        with _named(self._path):
            return os.fstat(self._descriptor).st_size

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
        try:
            written = os.pwritev(self._descriptor, buffers, position)
        except OSError as error:
            raise DiskError(error.errno or 5, error.strerror or str(error), self._path) from error
        if written != size:
            self._write_rest(position, buffers, written)

    def _write_rest(self, position: int, buffers: Sequence[Buffer], written: int) -> None:
        rest = memoryview(b"".join(buffers))[written:]
        position += written
        with _named(self._path):
            while rest:
                count = os.pwrite(self._descriptor, rest, position)
                rest = rest[count:]
                position += count

    def read_at(self, position: int, size: int) -> bytes:
        with _named(self._path):
            return os.pread(self._descriptor, size, position)

    def read_once(self, position: int, size: int) -> memoryview:
        before = position % mmap.PAGESIZE
        pages = recycled.PROCESS.take(-(-(before + size) // mmap.PAGESIZE) * mmap.PAGESIZE)
        with _named(self._path):
            found = self._read_uncached(position - before, pages)
            while found < before + size:
                count = os.preadv(self._descriptor, [pages[found:]], position - before + found)
                if not count:
                    break
                found += count
        return pages[before : max(before, min(found, before + size))]

    def _read_uncached(self, position: int, pages: memoryview) -> int:
        """Whole pages from a page of the file on; how many bytes were read, perhaps none."""
        if not _O_DIRECT or self._descriptor < 0 or len(pages) < UNCACHED_READ_SIZE_BYTES:
            return 0
        found = 0
        with self._uncached():
            while found < len(pages):
                piece = pages[found : found + UNCACHED_PIECE_SIZE_BYTES]
                count = os.preadv(self._descriptor, [piece], position + found)
                found += count
                if not count or count % mmap.PAGESIZE:
                    break
        return found

    @contextlib.contextmanager
    def _uncached(self) -> Iterator[None]:
        """Reads and writes in the block go past the page cache, or end it: not all files know how."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | _O_DIRECT)
            yield
        except OSError as error:
            # How content that is not aligned, and file systems without such writes, are told.
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise DiskError(error.errno or 5, error.strerror or str(error), self._path) from error
        finally:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags)

    def view(self, position: int, size: int) -> memoryview:
        end = position + size
        view = self._map_view
        if view is None or end > len(view):
            if size <= COPIED_VIEW_SIZE_BYTES:
                return self._copied_view(position, size)
            view = self._remap(end)
        if self._map is not None:
            residency.PROCESS.shown(self._map, size)
        return view[position:end]

    def _copied_view(self, position: int, size: int) -> memoryview:
        try:
            content = os.pread(self._descriptor, size, position)
        except OSError as error:
            raise DiskError(error.errno or 5, error.strerror or str(error), self._path) from error
        if len(content) != size:
            raise DiskError(5, f"read of {size} bytes at {position} past the end", self._path)
        return memoryview(content)

    def _remap(self, needed: int) -> memoryview:
        with _named(self._path):
            length = os.fstat(self._descriptor).st_size
            if needed > length:
                raise DiskError(5, f"read of {needed} bytes past the end ({length})", self._path)
            self._drop_map()
            self._map = mmap.mmap(self._descriptor, length, prot=mmap.PROT_READ)
            self._map_view = memoryview(self._map)
        return self._map_view

    def _drop_map(self) -> None:
        """Leave the map to be removed later: views of it may be on their way to a socket."""
        unused, self._map, self._map_view = self._map, None, None
        if unused is not None:
            residency.PROCESS.retire(unused)

    def truncate(self, size: int) -> None:
        self._drop_map()
        with _named(self._path):
            os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        with _named(self._path):
            os.fdatasync(self._descriptor)

    def fill(self, content: Buffer) -> None:
        view = memoryview(content)
        written = self._write_uncached(view)
        if written < len(view):
            self.write_at(written, [view[written:]])
        self.sync()
        # Pages that were used a moment ago cost a fraction of new ones: the next file gets these.
        self.forget_pages()

    def _write_uncached(self, view: memoryview) -> int:
        """Whole pages from the beginning on; how many bytes were written, perhaps none."""
        whole = len(view) // mmap.PAGESIZE * mmap.PAGESIZE
        if not _O_DIRECT or whole < UNCACHED_SIZE_BYTES:
            return 0
        written = 0
        with self._uncached():
            while written < whole:
                piece = view[written : min(whole, written + UNCACHED_PIECE_SIZE_BYTES)]
                count = os.pwrite(self._descriptor, piece, written)
                written += count // mmap.PAGESIZE * mmap.PAGESIZE
                if count % mmap.PAGESIZE:
                    break
        return written

    def forget_pages(self, position: int = 0, size: int = 0) -> None:
        if _FADVISE is not None:
            with _named(self._path):
                _FADVISE(self._descriptor, position, size, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        self._drop_map()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _pieces(buffers: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    """The buffers, cut where they are too much for one write."""
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


class LocalDisk:
    """The machine's file systems."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        flags = os.O_RDONLY if read_only else os.O_RDWR
        with _named(path):
            descriptor = os.open(path, flags | (os.O_CREAT if create else 0) | os.O_CLOEXEC, 0o644)
        return LocalFile(path, descriptor, read_only)

    def read(self, path: str) -> bytes:
        with _named(path), open(path, "rb") as file:
            return file.read()

    def write_atomically(self, path: str, content: bytes) -> None:
        temporary = path + ".tmp"
        with _named(path):
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                rest = memoryview(content)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
        self.sync_dir(os.path.dirname(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        with _named(path):
            return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        with _named(path):
            return os.stat(path).st_mtime_ns // 1_000_000

    def list(self, path: str) -> list[str]:
        with _named(path):
            return sorted(os.listdir(path))

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def make_dirs(self, path: str) -> None:
        with _named(path):
            os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        with _named(source):
            os.replace(source, target)

    def remove(self, path: str) -> None:
        with _named(path), contextlib.suppress(FileNotFoundError):
            os.remove(path)

    def remove_tree(self, path: str) -> None:
        with _named(path), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def sync_dir(self, path: str) -> None:
        with _named(path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def space(self, path: str) -> DiskSpace:
        with _named(path):
            found = os.statvfs(path)
        return DiskSpace(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def lock(self, path: str) -> Lock:
        with _named(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                # flock sees other holders in this process; lockf is the one that Java's FileLock sees.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise DiskError(errno.EAGAIN, "held by another process", path) from error
                raise
        return _LocalLock(descriptor)
