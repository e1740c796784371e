"""Indexes of remote segments on the local disk, within a size limit. The least recently used indexes are
removed first.

Each segment has a file ``<base offset>_<segment id>.indexes`` in the folder that Kafka uses for such indexes.
The file has the container form of ``object_layout``. It contains the indexes that a reader needs: offset,
time and transaction index. Nothing is synced, because each index has a checksum. A damaged or incomplete file
is removed and fetched again. When the broker starts, the existing files are used, in the order of their age.
"""

import asyncio
import contextlib
import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final
from uuid import UUID

from moldau.protocol.decoding_errors import ProtocolError
from moldau.runtime import DiskError, Machine
from moldau.runtime.buffers import Buffer
from moldau.storage.log.append_info import AbortedEntry
from moldau.storage.segments.offset_index import OffsetIndex
from moldau.storage.segments.sparse_index import CorruptIndexError
from moldau.storage.segments.time_index import TimeIndex
from moldau.storage.segments.transaction_index import decode_transactions
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata
from moldau.tiered.storage.object_layout import pack_container, unpack_indexes
from moldau.tiered.storage.storage_manager import (
    IndexType,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStorageManager,
)

__all__ = ["RemoteIndexCache", "SegmentIndexes"]

logger = logging.getLogger(__name__)

SUFFIX: Final = ".indexes"
TEMPORARY_SUFFIX: Final = ".tmp"
OPEN_MAX: Final = 1_000
"""Number of segments whose indexes stay mapped into memory. Other indexes are mapped and checked again at
their next use."""


@dataclass(frozen=True, slots=True)
class SegmentIndexes:
    """The indexes of a segment, as views of bytes that do not change."""

    base_offset: int
    offsets: memoryview
    times: memoryview
    aborted: Sequence[AbortedEntry]

    def position_of(self, offset: int) -> int:
        """A position at or shortly before the batch that contains ``offset``."""
        found = _floor(OffsetIndex.entry, self.offsets, offset - self.base_offset)
        return 0 if found is None else found[1]

    def offset_at(self, timestamp_ms: int) -> int:
        """An offset before which all records are earlier than ``timestamp_ms``."""
        found = _floor(TimeIndex.entry, self.times, timestamp_ms - 1)
        return self.base_offset if found is None else self.base_offset + found[1] + 1


def _floor(entry: Struct, content: memoryview, key: int) -> tuple[int, int] | None:
    """The last entry whose key is at most ``key``."""
    size, unpack = entry.size, entry.unpack_from
    index = bisect_right(range(len(content) // size), key, key=lambda at: unpack(content, at * size)[0]) - 1
    if index < 0:
        return None
    found_key, value = unpack(content, index * size)
    return found_key, value


class RemoteIndexCache:
    """The cache of indexes. Every call is made on the event loop; worker threads access the files.

    A lookup raises :class:`RemoteStorageError` when the indexes are not available.
    """

    def __init__(
        self, machine: Machine, storage: RemoteStorageManager, folder: str, max_size_bytes: int
    ) -> None:
        """``folder`` (absolute) is created if it does not exist. ``max_size_bytes`` limits the total size of
        its files."""
        self._disk = machine.disk
        self._workers = machine.workers
        self._storage = storage
        self._folder = folder
        self._max_size_bytes = max_size_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """Sizes of the files in bytes, by file name. The least recently used file is the first."""
        self._open: OrderedDict[str, SegmentIndexes] = OrderedDict()
        """Mapped files by file name. A removed file that is still mapped still uses disk space."""
        self._loading: dict[UUID, asyncio.Task[SegmentIndexes]] = {}
        self._removing: dict[str, asyncio.Task[None]] = {}
        """Removals in progress, by file name. A new write of the file waits for the removal, which would
        otherwise remove the new file.
        """
        self.size_bytes = 0
        """Total size of the files."""

    def __len__(self) -> int:
        return len(self._sizes)

    async def start(self) -> None:
        """Begin to use the existing files."""
        try:
            found = await self._workers.run(self._list)
        except DiskError as error:
            logger.warning("the cache of remote indexes in %s cannot be used: %s", self._folder, error)
            return
        for _, name, size_bytes in sorted(found):
            self._sizes[name] = size_bytes
            self.size_bytes += size_bytes
        self._shrink()

    async def close(self) -> None:
        """Cancel the loads in progress, and wait for the removals in progress. The other files are kept."""
        for task in self._loading.values():
            task.cancel()
        await asyncio.gather(*self._loading.values(), *self._removing.values(), return_exceptions=True)
        self._open.clear()

    def resize(self, max_size_bytes: int) -> None:
        """Apply a change of ``remote.log.index.file.cache.total.size.bytes``."""
        self._max_size_bytes = max_size_bytes
        self._shrink()

    def remove(self, segment_id: UUID) -> None:
        """Remove the indexes of a deleted segment."""
        ending = f"_{segment_id}{SUFFIX}"
        for name in [name for name in self._sizes if name.endswith(ending)]:
            self._drop(name)

    # Lookups ------------------------------------------------------------------------------------

    async def lookup_offset(self, metadata: RemoteLogSegmentMetadata, offset: int) -> int:
        """A position at or shortly before the batch that contains ``offset``."""
        return (await self.indexes_of(metadata)).position_of(offset)

    async def lookup_timestamp(
        self, metadata: RemoteLogSegmentMetadata, timestamp_ms: int, starting_offset: int
    ) -> int:
        """Return a position. All records from ``starting_offset`` up to this position are earlier than
        ``timestamp_ms``."""
        indexes = await self.indexes_of(metadata)
        return indexes.position_of(max(starting_offset, indexes.offset_at(timestamp_ms)))

    async def aborted_transactions(self, metadata: RemoteLogSegmentMetadata) -> Sequence[AbortedEntry]:
        """The transactions whose abort markers are in the segment, in order."""
        if metadata.txn_index_empty:
            return ()
        return (await self.indexes_of(metadata)).aborted

    async def indexes_of(self, metadata: RemoteLogSegmentMetadata) -> SegmentIndexes:
        """A segment's indexes. They come from memory, from the disk, or from the remote tier. Concurrent
        requests share one fetch."""
        id, name = metadata.id.id, _file_name(metadata)
        found = self._open.get(name)
        if found is not None:
            self._open.move_to_end(name)
            self._sizes.move_to_end(name)
            return found
        task = self._loading.get(id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._load(metadata))
            self._loading[id] = task
            task.add_done_callback(lambda _: self._loading.pop(id, None))
        return await asyncio.shield(task)

    async def _load(self, metadata: RemoteLogSegmentMetadata) -> SegmentIndexes:
        found = await self._from_disk(metadata)
        if found is None:
            found = await self._from_storage(metadata)
        name = _file_name(metadata)
        if name in self._sizes:
            self._open[name] = found
        while len(self._open) > OPEN_MAX:
            self._open.popitem(last=False)
        return found

    async def _from_disk(self, metadata: RemoteLogSegmentMetadata) -> SegmentIndexes | None:
        name = _file_name(metadata)
        if name not in self._sizes:
            return None
        try:
            found = await self._workers.run(self._read, name, metadata)
        except (OSError, ProtocolError, CorruptIndexError) as error:
            logger.warning("fetching the indexes of %s again: %s: %s", metadata.id, name, error)
            self._drop(name)
            return None
        if name in self._sizes:
            self._sizes.move_to_end(name)
        return found

    async def _from_storage(self, metadata: RemoteLogSegmentMetadata) -> SegmentIndexes:
        offsets, times, aborted = await asyncio.gather(
            self._storage.fetch_index(metadata, IndexType.OFFSET),
            self._storage.fetch_index(metadata, IndexType.TIMESTAMP),
            self._fetch_aborted(metadata),
        )
        contents = {
            IndexType.OFFSET: offsets,
            IndexType.TIMESTAMP: times,
            IndexType.TRANSACTION: aborted,
        }
        try:
            # The check of the indexes runs on a worker thread, because decoding the entries of a million
            # aborted transactions takes a second.
            indexes = await self._workers.run(
                _checked, metadata, {kind: memoryview(content) for kind, content in contents.items()}
            )
        except CorruptIndexError as error:
            raise RemoteStorageError(f"{metadata.id}: {error}", transient=False) from error
        packed = pack_container(metadata, contents)
        if len(packed) > self._max_size_bytes:
            return indexes
        name = _file_name(metadata)
        if name in self._removing:
            await self._removing[name]
        try:
            found = await self._workers.run(self._write_and_read, name, packed, metadata)
        except (OSError, ProtocolError, CorruptIndexError) as error:
            # A full disk only makes reads slower. Therefore the indexes are used as if they were stored.
            logger.warning("the indexes of %s cannot be kept on the disk: %s", metadata.id, error)
            found = indexes
        self._drop_size(name)
        self._sizes[name] = len(packed)
        self.size_bytes += len(packed)
        self._shrink()
        return found

    async def _fetch_aborted(self, metadata: RemoteLogSegmentMetadata) -> Buffer:
        if metadata.txn_index_empty:
            return b""
        with contextlib.suppress(RemoteResourceNotFoundError):
            return await self._storage.fetch_index(metadata, IndexType.TRANSACTION)
        return b""

    # Files --------------------------------------------------------------------------------------

    def _shrink(self) -> None:
        while self.size_bytes > self._max_size_bytes and self._sizes:
            self._drop(next(iter(self._sizes)))

    def _drop(self, name: str) -> None:
        self._drop_size(name)
        self._removing[name] = task = asyncio.get_running_loop().create_task(self._remove(name))
        task.add_done_callback(lambda _: self._removing.pop(name, None))

    def _drop_size(self, name: str) -> None:
        self.size_bytes -= self._sizes.pop(name, 0)
        self._open.pop(name, None)

    async def _remove(self, name: str) -> None:
        try:
            await self._workers.run(self._disk.remove, f"{self._folder}/{name}")
        except OSError as error:
            logger.warning("%s/%s cannot be removed: %s", self._folder, name, error)

    def _list(self) -> list[tuple[int, str, int]]:
        """(time, name, size) of the existing files. Unfinished files of an earlier process are removed."""
        disk, folder = self._disk, self._folder
        disk.make_dirs(folder)
        found = []
        for name in disk.list(folder):
            path = f"{folder}/{name}"
            if name.endswith(SUFFIX):
                found.append((disk.modified_ms(path), name, disk.size(path)))
            elif name.endswith(TEMPORARY_SUFFIX):
                disk.remove(path)
        return found

    def _read(self, name: str, metadata: RemoteLogSegmentMetadata) -> SegmentIndexes:
        file = self._disk.open(f"{self._folder}/{name}", read_only=True)
        try:
            content = file.view(0, file.size())
        finally:
            file.close()
        of, indexes = unpack_indexes(content)
        if of.id != metadata.id:
            raise ProtocolError(f"it is of {of.id}")
        return _checked(metadata, dict(indexes))

    def _write_and_read(
        self, name: str, content: bytes, metadata: RemoteLogSegmentMetadata
    ) -> SegmentIndexes:
        disk, path = self._disk, f"{self._folder}/{name}"
        disk.make_dirs(self._folder)
        file = disk.open(path + TEMPORARY_SUFFIX, create=True)
        try:
            file.truncate(0)
            file.write_at(0, [content])
        finally:
            file.close()
        disk.rename(path + TEMPORARY_SUFFIX, path)
        return self._read(name, metadata)


def _file_name(metadata: RemoteLogSegmentMetadata) -> str:
    return f"{metadata.start_offset}_{metadata.id.id}{SUFFIX}"


def _checked(metadata: RemoteLogSegmentMetadata, indexes: dict[IndexType, memoryview]) -> SegmentIndexes:
    """Raises :class:`CorruptIndexError` for bytes that are not the indexes of a segment."""
    offsets, times = indexes.get(IndexType.OFFSET), indexes.get(IndexType.TIMESTAMP)
    if offsets is None or times is None:
        raise CorruptIndexError("an index is missing")
    for content, entry in ((offsets, OffsetIndex.entry), (times, TimeIndex.entry)):
        if len(content) % entry.size:
            raise CorruptIndexError(f"{len(content)} bytes are no whole entries of an index")
    aborted = decode_transactions(indexes.get(IndexType.TRANSACTION, b""), str(metadata.id))
    return SegmentIndexes(metadata.start_offset, offsets, times, aborted)
