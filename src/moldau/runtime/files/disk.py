"""The port for files and folders. The simulation implements this port with a simulated disk, which can lose
unsynced writes.

The durability rules that callers rely on, and that the simulated disk enforces:

* If the *process* ends, all bytes written to a file stay. If the *machine* crashes, only the bytes stay that
  were written before the last :meth:`File.sync`.
* A file may be created, renamed or removed. This change survives a crash of the machine only after
  :meth:`Disk.sync_dir` on the file's folder has returned.
* :meth:`Disk.write_atomically` does these syncs itself. After it returns the new content is durable. A crash
  at any moment leaves either the complete old content or the complete new content.

Every operation may raise :class:`DiskError`. The error has the path and the operating system's reason.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from moldau.runtime.buffers import Buffer


class DiskError(OSError):
    """An operation failed because the disk is full, gone or failing. ``filename`` names the file."""


class DiskSpace(NamedTuple):
    """Size of the file system of a folder, in bytes."""

    total_bytes: int
    usable_bytes: int
    """Number of bytes that this process may still write. If some free bytes are reserved, this is less than
    the free bytes."""


class File(Protocol):
    """An open file. It is read and written by position. It has one writer and any number of readers."""

    @property
    def path(self) -> str: ...

    def size(self) -> int:
        """Size of the file in bytes."""
        ...

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        """Write all buffers, one after the other. The first buffer begins at ``position``. Returns the number
        of written bytes, which is always the size of all buffers.
        """
        ...

    def read_at(self, position: int, size: int) -> bytes:
        """Copy up to ``size`` bytes from ``position`` (fewer at the end of the file)."""
        ...

    def read_once(self, position: int, size: int) -> memoryview:
        """Does the same as ``read_at``, for content that is not read again soon. The read bypasses the page
        cache if possible.

        The bytes are in recycled memory. This memory is reused when no view of it is left.
        """
        ...

    def view(self, position: int, size: int) -> memoryview:
        """Return bytes of the file that will not change or move. If possible, they are not copied.

        Use it only for ranges that are complete and are never truncated (committed bytes of a log).
        """
        ...

    def view_loaded(self, position: int, size: int) -> memoryview:
        """Does the same as ``view``, for content that was just read from the disk and is sent once. If
        possible, it is sent without a copy (:mod:`moldau.runtime.files.sendable`)."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes, or extend it with zeros."""
        ...

    def sync(self) -> None:
        """Wait until all written bytes are durable. This call blocks, so call it through ``Workers``."""
        ...

    def fill(self, content: Buffer) -> None:
        """Write the durable content of a new file that is not read again soon. This call blocks.

        Does the same as ``write_at``, ``sync`` and ``forget_pages``. It bypasses the page cache if the file
        system supports this and the content begins on a page boundary. The write then needs only a third of
        the CPU time.
        """
        ...

    def forget_pages(self, position: int = 0, size: int = 0) -> None:
        """Allow the system to reuse the memory of synced bytes. The range of ``size`` bytes begins at
        ``position``. With ``size`` 0, it ends at the end of the file.

        This is a hint for content that is not read again soon. It affects only the time of the next read.
        """
        ...

    def is_cached(self, position: int, size: int) -> bool:
        """Whether a read of this range, which the file has, probably does not wait for a device. The
        system may free the memory at any time. The result is True if the system cannot tell."""
        ...

    def load(self, position: int, size: int) -> None:
        """Read a range into the system's memory, for a reader that must not wait. The range is cut at the end
        of the file. This call blocks."""
        ...

    def close(self) -> None:
        """Release the handle. Existing views stay valid."""
        ...


class FileRange(NamedTuple):
    """A range of a file."""

    file: File
    position: int
    size_bytes: int

    def load(self) -> None:
        """Read the range into the system's memory; see :meth:`File.load`. This call blocks."""
        self.file.load(self.position, self.size_bytes)


class Lock(Protocol):
    """A lock. It is freed by ``close`` and at the end of the process."""

    def close(self) -> None: ...


class Disk(Protocol):
    """Folders and files by absolute path."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        """Open a file. Raises ``FileNotFoundError`` when the file does not exist and must not be created."""
        ...

    def read(self, path: str) -> bytes:
        """The whole content. Raises ``FileNotFoundError`` if the file does not exist."""
        ...

    def write_atomically(self, path: str, content: bytes) -> None:
        """Replace the file by ``content``, durably (temporary file, sync, rename, folder sync)."""
        ...

    def write_all_atomically(self, contents: Mapping[str, bytes]) -> None:
        """Does the same as :meth:`write_atomically`, for many files by path. Each file is replaced either
        completely or not at all.

        Each folder is synced once, and the syncs of the files run together. When the call raises an
        exception, some of the files may have been replaced.
        """
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """Size of a file in bytes. Raises ``FileNotFoundError`` if the file does not exist."""
        ...

    def modified_ms(self, path: str) -> int:
        """The time of the last write to the file, in milliseconds since the epoch."""
        ...

    def list(self, path: str) -> list[str]:
        """Names in a folder, sorted. Raises ``FileNotFoundError`` if the folder does not exist."""
        ...

    def is_dir(self, path: str) -> bool: ...

    def make_dirs(self, path: str) -> None:
        """Make a folder and its parents. Existing folders are kept."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Move a file or folder. A file at ``target`` is replaced."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file. Does nothing when it is absent."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a folder with its content. Does nothing when it is absent."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and removals in this folder durable."""
        ...

    def space(self, path: str) -> DiskSpace:
        """Return the size and free space of a folder's file system. Raises ``FileNotFoundError`` if the
        folder does not exist."""
        ...

    def lock(self, path: str) -> Lock:
        """Lock a file against every other process and every other lock of this process. If the file does not
        exist, it is created.

        Raises :class:`DiskError` with ``EAGAIN`` when the file is locked already.
        """
        ...
