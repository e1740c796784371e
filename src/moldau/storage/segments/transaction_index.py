"""The transaction index of a segment: the transactions whose abort markers are in the segment."""

import contextlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from struct import Struct

from moldau.runtime.files.disk import Buffer, Disk
from moldau.storage.log.append_info import AbortedEntry
from moldau.storage.segments.sparse_index import CorruptIndexError

_ENTRY = Struct(">hqqqq")
_VERSION = 0
_LAST_OFFSET = attrgetter("last_offset")


def encode_transactions(transactions: Iterable[AbortedEntry]) -> bytes:
    """The content of an index with these entries."""
    return b"".join(_ENTRY.pack(_VERSION, *transaction) for transaction in transactions)


def decode_transactions(content: Buffer, path: str) -> list[AbortedEntry]:
    """The entries of an index; ``path`` is its name in the error. Raises :class:`CorruptIndexError`."""
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
    """The entries, in order, whose abort markers are at or after ``offset``. Earlier entries take no time.

    A segment of 1 GiB may contain millions of aborted transactions, and each read_committed fetch searches
    it.
    """
    first = bisect_left(entries, offset, key=_LAST_OFFSET)
    return map(entries.__getitem__, range(first, len(entries)))


class TransactionIndex:
    """Entries of 34 bytes: version, producer id, first offset, last offset, last stable offset.

    Entries are written immediately, because aborts are rare. The file exists when there is an entry.
    """

    __slots__ = ("_disk", "_entries", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._entries: list[AbortedEntry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[AbortedEntry]:
        return iter(self._entries)

    def ended_from(self, offset: int) -> Iterator[AbortedEntry]:
        """See the function :func:`ended_from`."""
        return ended_from(self._entries, offset)

    def load(self) -> None:
        """Read the file, if it exists. Raises :class:`CorruptIndexError`."""
        exists = self._disk.exists(self.path)
        self._entries = decode_transactions(self._disk.read(self.path), self.path) if exists else []

    def append(self, transaction: AbortedEntry) -> None:
        """Add an aborted transaction. The order is that of the abort markers."""
        file = self._disk.open(self.path, create=True)
        try:
            file.write_at(len(self._entries) * _ENTRY.size, [_ENTRY.pack(_VERSION, *transaction)])
        finally:
            file.close()
        self._entries.append(transaction)

    def truncate_to(self, offset: int) -> None:
        """Drop the transactions whose abort marker is at or after ``offset``."""
        kept = [transaction for transaction in self._entries if transaction.last_offset < offset]
        if len(kept) < len(self._entries):
            file = self._disk.open(self.path, create=True)
            try:
                file.truncate(len(kept) * _ENTRY.size)
            finally:
                file.close()
            self._entries = kept

    def sync(self) -> None:
        """Make written entries durable. Blocking."""
        if self._entries:
            # The segment may have been deleted in the meantime.
            with contextlib.suppress(FileNotFoundError):
                file = self._disk.open(self.path)
                try:
                    file.sync()
                finally:
                    file.close()
