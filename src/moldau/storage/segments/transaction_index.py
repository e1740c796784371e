"""The transaction index of a segment. It contains the transactions whose abort markers are in the segment."""

import contextlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from struct import Struct

from crc32c import crc32c

from moldau.runtime.buffers import Buffer
from moldau.runtime.files.disk import Disk
from moldau.storage.log.append_info import AbortedEntry
from moldau.storage.segments.sparse_index import CorruptIndexError

_ENTRY = Struct(">hqqqq")
_VERSION = 0
_LAST_OFFSET = attrgetter("last_offset")


def encode_transactions(transactions: Iterable[AbortedEntry]) -> bytes:
    """Return the content of an index with these entries."""
    return b"".join(_ENTRY.pack(_VERSION, *transaction) for transaction in transactions)


def decode_transactions(content: Buffer, path: str) -> list[AbortedEntry]:
    """The entries of an index. ``path`` is the name of the index in the error. Raises
    :class:`CorruptIndexError` if the content is not valid."""
    if len(content) % _ENTRY.size:
        raise CorruptIndexError(f"{path}: {len(content)} bytes are not whole entries")
    entries: list[AbortedEntry] = []
    last_offset = -1
    for version, *fields in _ENTRY.iter_unpack(content):
        transaction = AbortedEntry(*fields)
        if version != _VERSION or transaction.last_offset <= last_offset:
            raise CorruptIndexError(f"{path}: entry {len(entries)} is out of place")
        last_offset = transaction.last_offset
        entries.append(transaction)
    return entries


def ended_from(entries: Sequence[AbortedEntry], offset: int) -> Iterator[AbortedEntry]:
    """Return the entries whose abort markers are at or after ``offset``, in order. Earlier entries are
    skipped without cost. This matters because a segment of 1 GiB may contain millions of aborted
    transactions, and each read_committed fetch searches the index.
    """
    first = bisect_left(entries, offset, key=_LAST_OFFSET)
    return map(entries.__getitem__, range(first, len(entries)))


class TransactionIndex:
    """Entries of 34 bytes: version, producer id, first offset, last offset, last stable offset.

    Entries are written immediately, because aborts are rare. The file exists only when there is an entry.
    When the segment is sealed or closed, a file beside the index stores the size and the checksum of the
    index. Without these values, an index that has lost its last entries would look complete, and readers of
    committed records would get aborted records.
    """

    __slots__ = ("_crc", "_disk", "_entries", "_has_sum", "_is_shortened", "_sum_path", "path")

    def __init__(self, disk: Disk, path: str, sum_path: str) -> None:
        self._disk = disk
        self.path = path
        self._sum_path = sum_path
        self._has_sum = False
        self._entries: list[AbortedEntry] = []
        self._crc = 0
        self._is_shortened = False
        """Whether entries were dropped since the last sync. A loss of power could bring them back."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[AbortedEntry]:
        return iter(self._entries)

    def ended_from(self, offset: int) -> Iterator[AbortedEntry]:
        """See the function :func:`ended_from`."""
        return ended_from(self._entries, offset)

    def load(self) -> None:
        """Read the file, if it exists.

        Raises :class:`CorruptIndexError`, also if the file differs from its checksum. A file without a
        checksum is accepted. An earlier version wrote no checksum, and a loss of power may remove it.
        """
        disk = self._disk
        content = disk.read(self.path) if disk.exists(self.path) else b""
        self._has_sum = disk.exists(self._sum_path)
        crc = crc32c(content)
        if self._has_sum and disk.read(self._sum_path) != _sum(len(content), crc):
            raise CorruptIndexError(f"{self.path}: {len(content)} bytes are not those of its checksum")
        self._entries, self._crc = decode_transactions(content, self.path), crc

    def clear(self) -> None:
        """Remove the files, because the segment has no aborted transactions or will be read again."""
        for path in (self._sum_path, self.path):
            self._disk.remove(path)
        self._entries, self._crc, self._has_sum = [], 0, False

    def append(self, transaction: AbortedEntry) -> None:
        """Add an aborted transaction. Transactions are added in the order of their abort markers. If a
        transaction is already in the index, it is not added again."""
        if self._entries and transaction.last_offset <= self._entries[-1].last_offset:
            return
        self._remove_sum()
        entry = _ENTRY.pack(_VERSION, *transaction)
        file = self._disk.open(self.path, create=True)
        try:
            file.write_at(len(self._entries) * _ENTRY.size, [entry])
        finally:
            file.close()
        self._entries.append(transaction)
        self._crc = crc32c(entry, self._crc)

    def truncate_to(self, offset: int) -> None:
        """Drop the transactions whose abort marker is at or after ``offset``."""
        kept = [transaction for transaction in self._entries if transaction.last_offset < offset]
        if len(kept) < len(self._entries):
            self._remove_sum()
            file = self._disk.open(self.path, create=True)
            try:
                file.truncate(len(kept) * _ENTRY.size)
            finally:
                file.close()
            self._entries, self._crc = kept, crc32c(encode_transactions(kept))
            self._is_shortened = True

    def seal(self) -> None:
        """Write the checksum. The next append or truncation removes it.

        The checksum is not synced, because an index without a checksum is accepted.
        """
        if not self._entries or self._has_sum:
            return
        content = _sum(len(self._entries) * _ENTRY.size, self._crc)
        file = self._disk.open(self._sum_path, create=True)
        try:
            file.write_at(0, [content])
            file.truncate(len(content))
        finally:
            file.close()
        self._has_sum = True

    @property
    def is_synced(self) -> bool:
        """Whether :meth:`sync` has nothing to do."""
        return not self._entries and not self._is_shortened

    def sync(self) -> None:
        """Make written and dropped entries durable. This call blocks."""
        if not self.is_synced:
            # The segment may have been deleted in the meantime.
            with contextlib.suppress(FileNotFoundError):
                file = self._disk.open(self.path)
                try:
                    # The event loop may drop entries during the sync.
                    self._is_shortened = False
                    file.sync()
                finally:
                    file.close()

    def _remove_sum(self) -> None:
        if self._has_sum:
            self._disk.remove(self._sum_path)
            self._has_sum = False


def _sum(size_bytes: int, crc: int) -> bytes:
    return b"%d %08x\n" % (size_bytes, crc)
