"""Files and folders behind a narrow port, so that a simulated disk can lose unsynced writes.

The durability rules that callers rely on, and that the simulated disk enforces:

* Bytes written to a file survive the end of the *process* at once, and the end of the *machine*
  only after :meth:`File.sync`.
* The creation, renaming or removal of a file survives a crash of the machine only once :meth:`Disk.sync_dir`
  on its folder has returned.
* :meth:`Disk.write_atomically` does all of that: after it returns the new content is durable, and a
  crash at any moment leaves either the old content or the new, whole.

Every operation may raise :class:`DiskError`; it carries the path and the operating system's reason.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


class DiskError(OSError):
    """An operation failed because the disk is full, gone or failing. ``filename`` names the file."""


class DiskSpace(NamedTuple):
    """Size of the file system of a folder, in bytes."""

    total_bytes: int
    usable_bytes: int
    """Bytes that this process may still write; less than the free bytes where some are reserved."""


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
        """Like ``read_at``, for content that is not read again soon: bypasses the page cache where
        possible.

        The bytes are in recycled memory, which is reused when no view of it is left.
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
        """Write the durable content of a new file that is not read again soon. Blocking.

        Like ``write_at``, ``sync`` and ``forget_pages``, but bypasses the page cache where the file system
        supports it and the content begins on a page boundary. That costs a third of the CPU time.
        """
        ...

    def forget_pages(self, position: int = 0, size: int = 0) -> None:
        """Let the system reuse the memory that holds synced bytes from ``position`` (0: to the end).

        A hint for content that is not read again soon; only the time of the next read changes.
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

    def write_all_atomically(self, contents: Mapping[str, bytes]) -> None:
        """Like :meth:`write_atomically` for many files by path; each is replaced as a whole or not at all.

        Each folder is synced once, and a disk waits for many files together. When it raises, some of them
        may have been replaced.
        """
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
        """The size and free space of a folder's file system; raises ``FileNotFoundError``."""
        ...

    def lock(self, path: str) -> Lock:
        """Lock a file (made when absent) against every other holder, in this process or another.

        Raises :class:`DiskError` with ``EAGAIN`` when the lock is held.
        """
        ...
