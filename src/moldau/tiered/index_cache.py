"""Indexes of remote segments, kept in memory once they were fetched."""

from collections.abc import Sequence
from struct import Struct
from uuid import UUID

from moldau.runtime import Machine
from moldau.storage.append_info import AbortedTransaction
from moldau.tiered.segments import RemoteLogSegmentMetadata
from moldau.tiered.storage_manager import IndexType, RemoteStorageManager

__all__ = ["RemoteIndexCache"]

_OFFSET = Struct(">II")
_TIME = Struct(">qI")
_TRANSACTION = Struct(">hqqqq")


class RemoteIndexCache:
    """A :class:`moldau.tiered.reading.RemoteIndexes`."""

    def __init__(
        self, machine: Machine, storage: RemoteStorageManager, folder: str, max_size_bytes: int
    ) -> None:
        self._storage = storage
        self._cache: dict[tuple[UUID, IndexType], bytes] = {}

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def resize(self, max_size_bytes: int) -> None: ...

    def remove(self, segment_id: UUID) -> None:
        self._cache = {key: content for key, content in self._cache.items() if key[0] != segment_id}

    async def _get(self, metadata: RemoteLogSegmentMetadata, kind: IndexType) -> bytes:
        key = (metadata.id.id, kind)
        if key not in self._cache:
            self._cache[key] = bytes(await self._storage.fetch_index(metadata, kind))
        return self._cache[key]

    async def lookup_offset(self, metadata: RemoteLogSegmentMetadata, offset: int) -> int:
        found = 0
        for relative, position in _OFFSET.iter_unpack(await self._get(metadata, IndexType.OFFSET)):
            if metadata.start_offset + relative > offset:
                break
            found = position
        return found

    async def lookup_timestamp(
        self, metadata: RemoteLogSegmentMetadata, timestamp_ms: int, starting_offset: int
    ) -> int:
        first = metadata.start_offset
        for found_ms, relative in _TIME.iter_unpack(await self._get(metadata, IndexType.TIMESTAMP)):
            if found_ms >= timestamp_ms:
                break
            first = metadata.start_offset + relative + 1
        return await self.lookup_offset(metadata, max(first, starting_offset))

    async def aborted_transactions(self, metadata: RemoteLogSegmentMetadata) -> Sequence[AbortedTransaction]:
        if metadata.txn_index_empty:
            return []
        content = await self._get(metadata, IndexType.TRANSACTION)
        return [AbortedTransaction(*fields) for _, *fields in _TRANSACTION.iter_unpack(content)]
