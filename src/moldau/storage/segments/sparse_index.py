"""Common base of the offset index and the time index. An index has sorted entries of a fixed size, and new
entries are added at the end.

The entries of the active segment are in memory and are written to the file in groups. The entries of a sealed
segment are only in the file and are searched there, so that old segments need no memory. The file is opened
at the first lookup, and all files share a limited number of descriptors, so many idle segments need few
descriptors. An index can always be rebuilt from the log.
"""

import contextlib
from array import array
from bisect import bisect_right
from struct import Struct
from typing import ClassVar

from moldau.runtime.files.disk import Disk, File, FileRange

CHUNK_ENTRIES = 512
"""Number of new entries that are written together. The number is small, so the append that begins a new
segment takes only a short time."""


class CorruptIndexError(Exception):
    """The file is not an index of this segment, so the index must be rebuilt."""


class SparseIndex:
    """Entries (key, value). Keys and values are in ascending order. Subclasses define their meaning."""

    entry: ClassVar[Struct]
    key_typecode: ClassVar[str]

    __slots__ = (
        "_dirty",
        "_disk",
        "_file",
        "_keys",
        "_sealed_size",
        "_values",
        "_written",
        "max_entries",
        "path",
    )

    def __init__(self, disk: Disk, path: str, max_size_bytes: int) -> None:
        self._disk = disk
        self.path = path
        self.max_entries = max_size_bytes // self.entry.size
        self._keys = array(self.key_typecode)
        self._values = array("I")
        self._written = 0
        self._dirty = False
        self._file: File | None = None
        self._sealed_size: int | None = None
        """Size in bytes of the file with the entries; ``None`` while the entries are in memory."""

    def __len__(self) -> int:
        sealed_size = self._sealed_size
        return len(self._keys) if sealed_size is None else sealed_size // self.entry.size

    @property
    def is_full(self) -> bool:
        return len(self._keys) >= self.max_entries

    def at(self, index: int) -> tuple[int, int]:
        """Return the entry with this ``index``, as (key, value)."""
        if self._sealed_size is None:
            return self._keys[index], self._values[index]
        size = self.entry.size
        key, value = self.entry.unpack(self._open_file().read_at(index * size, size))
        return key, value

    def floor(self, key: int) -> int:
        """Return the index of the last entry whose key is at most ``key``; -1 when there is no such entry."""
        if self._sealed_size is None:
            return bisect_right(self._keys, key) - 1
        return self._floor_sealed(key, 0)

    def floor_value(self, value: int) -> int:
        """Return the index of the last entry whose value is at most ``value``; -1 when there is no such
        entry."""
        if self._sealed_size is None:
            return bisect_right(self._values, value) - 1
        return self._floor_sealed(value, 1)

    def cold_range(self) -> FileRange | None:
        """Return the content of the index if it must be read from the disk. The result is None if the entries
        are in memory."""
        size_bytes = self._sealed_size
        if not size_bytes:
            return None
        file = self._open_file()
        return None if file.is_cached(0, size_bytes) else FileRange(file, 0, size_bytes)

    def _floor_sealed(self, wanted: int, field: int) -> int:
        size_bytes = self._sealed_size
        if not size_bytes:
            return -1
        content, entry = self._open_file().view(0, size_bytes), self.entry
        found = bisect_right(
            range(len(self)),
            wanted,
            key=lambda index: int(entry.unpack_from(content, index * entry.size)[field]),
        )
        return found - 1

    def add(self, key: int, value: int) -> None:
        """Append an entry. The caller must append entries in ascending order."""
        self._keys.append(key)
        self._values.append(value)
        if len(self._keys) - self._written >= CHUNK_ENTRIES:
            self.write_out()

    def keep(self, count: int) -> None:
        """Drop all entries after the first ``count``."""
        del self._keys[count:]
        del self._values[count:]
        if self._written > count:
            self._open_file().truncate(count * self.entry.size)
            self._written = count
            # Without a sync, a loss of power could bring the dropped entries back.
            self._dirty = True

    # -- the file -----------------------------------------------------------------------------

    def create(self) -> None:
        """Begin an empty index. It replaces the content of the file."""
        self._release()
        self._keys = array(self.key_typecode)
        self._values = array("I")
        self._written = 0
        file = self._disk.open(self.path, create=True)
        try:
            if file.size():
                file.truncate(0)
                self._dirty = True
        finally:
            file.close()

    def load(self) -> None:
        """Load the entries into memory, because entries will be appended. Raises :class:`CorruptIndexError`
        if the file cannot be an index of this segment."""
        content = self._disk.read(self.path)
        self._check_size(len(content))
        self._release()
        keys, values = array(self.key_typecode), array("I")
        for key, value in self.entry.iter_unpack(content):
            keys.append(key)
            values.append(value)
        if any(map(int.__gt__, keys[:-1], keys[1:])) or any(map(int.__gt__, values[:-1], values[1:])):
            raise CorruptIndexError(f"{self.path}: entries are out of order")
        self._keys, self._values = keys, values
        self._written = len(keys)

    def open_sealed(self) -> None:
        """Use the entries in the file, without loading them. Raises :class:`CorruptIndexError` if the file
        cannot be an index of this segment."""
        self._release()
        size_bytes = self._disk.size(self.path)
        self._check_size(size_bytes)
        self._sealed_size = size_bytes

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes % self.entry.size:
            raise CorruptIndexError(f"{self.path}: {size_bytes} bytes are not whole entries")

    def write_out(self) -> None:
        """Write the entries that are not in the file yet."""
        start = self._written
        if self._sealed_size is None and start < len(self._keys):
            content = b"".join(map(self.entry.pack, self._keys[start:], self._values[start:]))
            self._open_file().write_at(start * self.entry.size, [content])
            self._written = len(self._keys)
            self._dirty = True

    @property
    def is_synced(self) -> bool:
        """Whether all written entries are durable."""
        return not self._dirty

    def sync(self) -> None:
        """Make written entries durable. This call blocks. An append that seals the index may run at the same
        time."""
        if self._dirty:
            self._dirty = False
            with contextlib.suppress(FileNotFoundError):
                file = self._disk.open(self.path)
                try:
                    file.sync()
                finally:
                    file.close()

    def seal(self) -> None:
        """Write all entries and free the memory. No more entries can be added."""
        if self._sealed_size is None:
            self.write_out()
            self.open_sealed()

    def close(self) -> None:
        """Write all entries and release the file. Lookups still work."""
        self.write_out()
        self._close_file()

    def abandon(self) -> None:
        """Release the file without writing, because the disk has failed or the file is deleted."""
        self._close_file()

    def hold_file(self) -> None:
        """Open the file of a sealed index, so that lookups can continue after its name is removed."""
        if self._sealed_size:
            self._open_file()

    def _open_file(self) -> File:
        if self._file is None:
            sealed = self._sealed_size is not None
            self._file = self._disk.open(self.path, create=not sealed, read_only=sealed)
        return self._file

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _release(self) -> None:
        self._close_file()
        self._sealed_size = None
        self._keys = array(self.key_typecode)
        self._values = array("I")
        self._written = 0
