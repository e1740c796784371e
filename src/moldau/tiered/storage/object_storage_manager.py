"""The built-in storage manager: segments in the object store of a URL, in the layout of ``object_layout``.

Its keys begin with the value of ``remote.log.storage.manager.impl.prefix``, by default ``rsm.config.``:

- ``url``, by default the value of ``diskless.storage.url`` with its options;
- ``prefix``, by default ``tiered``;
- the options of the store.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from typing import Final, Self, TypeVar

from moldau.metrics import Meters
from moldau.objects import (
    HealthState,
    MeteredStorage,
    ObjectInfo,
    ObjectNotFoundError,
    ObjectStorage,
    RetryBudget,
    RetryingStorage,
    RetryPolicy,
    StorageError,
    StorageHealth,
    open_by_url,
)
from moldau.objects.fence import NoFence, StoreFence
from moldau.protocol.decoding_errors import ProtocolError
from moldau.runtime import Machine
from moldau.runtime.buffers import Buffer
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata
from moldau.tiered.storage.object_layout import (
    ObjectLocation,
    SegmentKeys,
    decode_location,
    encode_location,
    pack_indexes,
    partition_folder,
    segment_keys,
    segment_stem,
)
from moldau.tiered.storage.storage_manager import (
    IndexType,
    LogSegmentData,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)

__all__ = ["DEFAULT_PREFIX", "ObjectStorageManager", "open_object_storage_manager"]

T = TypeVar("T")

DEFAULT_PREFIX: Final = "tiered"
COPY_POLICY: Final = RetryPolicy(first_backoff_ms=200, attempt_timeout_ms=120_000, deadline_ms=300_000)
"""Timeout of an upload. By default a segment has a gigabyte, which takes a hundred seconds at 10 MB/s."""
_NOT_OPTIONS: Final = frozenset({"url", "prefix", "broker.id", "cluster.id", "log.dir"})


class ObjectStorageManager:
    """A ``HostedStorageManager`` over an object store. It has two views of the store: a view with long
    timeouts for copies, and a view for readers."""

    def __init__(
        self,
        storage: ObjectStorage,
        prefix: str = DEFAULT_PREFIX,
        *,
        copies_to: ObjectStorage | None = None,
        health: StorageHealth | None = None,
    ) -> None:
        """``copies_to`` is the same store, with timeouts that are long enough for the upload of a segment.

        ``health`` records the outcome of the store's requests.
        """
        self._health = health or StorageHealth()
        self._storage = storage
        self._uploads = storage if copies_to is None else copies_to
        self.prefix = prefix
        self.fence: StoreFence = NoFence()

    @property
    def problem(self) -> str | None:
        """The store's problem, in a sentence; ``None`` when the store works."""
        report = self._health.report
        if report.state is HealthState.WORKING:
            return None
        return f"the store of the remote tier is {report.state.value}: {report.last_error}"

    @property
    def listable(self) -> Self:
        return self

    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        return await self.copy_attempt(metadata, data, "")

    async def copy_attempt(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData, attempt: str
    ) -> bytes:
        """Copy a segment like ``copy_log_segment_data``. The objects have names that no other attempt to
        build the segment uses."""
        try:
            await self.fence.before_upload()
        except StorageError as error:
            raise _failed("copying", metadata, error) from error
        keys = segment_keys(self.prefix, metadata.id, metadata.start_offset, attempt)
        packed = pack_indexes(metadata, data)
        log = data.log_segment
        uploads = asyncio.gather(
            self._uploads.upload(keys.log, log, memoryview(log).nbytes),
            self._uploads.upload(keys.indexes, packed.content, len(packed.content)),
            return_exceptions=True,  # Both uploads end before a clean-up of their objects.
        )
        for result in await uploads:
            if isinstance(result, StorageError):
                raise _failed("copying", metadata, result) from result
            if result is not None:
                raise result
        return encode_location(attempt, packed.index_sizes)

    async def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> memoryview:
        size = metadata.segment_size_bytes
        end = size if end_position is None else min(end_position, size)
        if start_position < 0 or start_position > end:
            raise ValueError(f"{metadata.id}: there are no bytes between {start_position} and {end}")
        if start_position == end:
            return memoryview(b"")
        key = self._keys(metadata).log
        return await _told(
            "reading", metadata, self._storage.fetch(key, start_position, end - start_position)
        )

    async def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> Buffer:
        found = self._location(metadata).range_of(index_type)
        if found is None:
            raise RemoteResourceNotFoundError(f"{metadata.id} has no {index_type.value} index")
        position, size = found
        if not size:
            return b""
        key = self._keys(metadata).indexes
        return await _told("reading", metadata, self._storage.fetch(key, position, size))

    async def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        attempt = "" if metadata.custom_metadata is None else self._location(metadata).attempt
        keys = set(segment_keys(self.prefix, metadata.id, metadata.start_offset, attempt))
        try:
            if metadata.custom_metadata is None or attempt:
                keys.update(await self._find(metadata))
            await self.fence.before_delete()
            await self._storage.delete(sorted(keys))
        except StorageError as error:
            raise _failed("deleting", metadata, error) from error

    async def _find(self, metadata: RemoteLogSegmentMetadata) -> set[str]:
        """The objects of all attempts to build a segment. The metadata may name one of these attempts or no
        attempt."""
        stem = segment_stem(self.prefix, metadata.id, metadata.start_offset)
        found: set[str] = set()
        folder = partition_folder(self.prefix, metadata.topic_id_partition)
        async for page in self._storage.list(folder, start_after=stem):
            mine = [info.key for info in page if info.key.startswith(f"{stem}.")]
            found.update(mine)
            if not mine:
                break
        return found

    def list_objects(self, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """All objects of this manager in pages, in order of their keys. Raises ``StorageError`` if the store
        fails."""
        return self._storage.list(f"{self.prefix}/", start_after=start_after)

    async def delete_objects(self, keys: Collection[str]) -> None:
        """Remove objects of segments by their keys. Raises ``StorageError`` if the store fails."""
        await self.fence.before_delete()
        await self._storage.delete(keys)

    def attempt_of(self, metadata: RemoteLogSegmentMetadata) -> str:
        """The attempt whose objects form a finished segment. Raises ``RemoteStorageError`` if the segment
        names no valid attempt."""
        return self._location(metadata).attempt

    async def close(self) -> None:
        await self._storage.close()

    def _location(self, metadata: RemoteLogSegmentMetadata) -> ObjectLocation:
        if metadata.custom_metadata is None:
            raise RemoteResourceNotFoundError(f"{metadata.id} was never copied: it is {metadata.state.name}")
        try:
            return decode_location(metadata.custom_metadata)
        except ProtocolError as error:
            raise RemoteStorageError(f"{metadata.id}: {error}", transient=False) from error

    def _keys(self, metadata: RemoteLogSegmentMetadata) -> SegmentKeys:
        attempt = self._location(metadata).attempt
        return segment_keys(self.prefix, metadata.id, metadata.start_offset, attempt)


async def _told(doing: str, metadata: RemoteLogSegmentMetadata, reading: Awaitable[T]) -> T:
    try:
        return await reading
    except ObjectNotFoundError as error:
        raise RemoteResourceNotFoundError(f"{metadata.id} does not exist any more: {error}") from error
    except StorageError as error:
        raise _failed(doing, metadata, error) from error


def _failed(doing: str, metadata: RemoteLogSegmentMetadata, error: StorageError) -> RemoteStorageError:
    return RemoteStorageError(f"{doing} {metadata.id}: {error}", transient=error.transient)


def open_object_storage_manager(
    configs: Mapping[str, str], machine: Machine, meters: Meters
) -> ObjectStorageManager:
    """Make the built-in storage manager. This function is the default of
    ``remote.log.storage.manager.class.name``."""
    url = configs.get("url")
    if not url:
        raise RemoteStorageError(
            "rsm.config.url: remote.log.storage.system.enable=true needs an object store", transient=False
        )
    prefix = configs.get("prefix", DEFAULT_PREFIX).strip("/")
    if not prefix:
        raise RemoteStorageError("rsm.config.prefix must not be empty", transient=False)
    options = {name: value for name, value in configs.items() if name not in _NOT_OPTIONS}
    try:
        store = MeteredStorage(open_by_url(url, options, machine), meters)
    except StorageError as error:
        raise RemoteStorageError(f"rsm.config.url: {error}", transient=False) from error
    budget, health, name = RetryBudget(), StorageHealth(), url.split("?", 1)[0]
    reads = RetryingStorage(store, machine.entropy, budget=budget, health=health, name=name)
    copies = RetryingStorage(
        store, machine.entropy, policy=COPY_POLICY, budget=budget, health=health, name=name
    )
    return ObjectStorageManager(reads, prefix, copies_to=copies, health=health)
