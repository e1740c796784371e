"""Counts the requests to a store. Each attempt is a request, and the store bills it."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import contextmanager

from moldau.metrics import Meters
from moldau.objects.storage import (
    DELETE_CHUNK_KEYS,
    ObjectInfo,
    ObjectNotFoundError,
    ObjectStorage,
    StorageError,
    StorageTimeoutError,
    ThrottledError,
    fetch_once,
)
from moldau.runtime.buffers import Buffer

__all__ = ["MeteredStorage"]


class _OperationMeters:
    """The meters of a kind of request."""

    def __init__(self, meters: Meters, operation: str) -> None:
        self._meters = meters
        self._operation = operation
        self.requests = meters.counter(
            "RequestsPerSec", "Requests sent to the object store.", operation=operation
        )
        self.bytes = meters.counter(
            "BytesPerSec", "Bytes uploaded to or fetched from the object store.", operation=operation
        )
        self.time_ms = meters.histogram(
            "RequestTimeMs", "Duration of successful requests.", operation=operation
        )

    @contextmanager
    def request(self) -> Iterator[None]:
        self.requests.value += 1
        loop = asyncio.get_running_loop()
        begin = loop.time()
        try:
            yield
        except asyncio.CancelledError:
            self._count_error("cancelled")
            raise
        except StorageError as error:
            self._count_error(_kind(error))
            raise
        self.time_ms.update((loop.time() - begin) * 1000)

    def _count_error(self, kind: str) -> None:
        self._meters.counter(
            "ErrorsPerSec",
            "Requests that failed, by kind.",
            operation=self._operation,
            kind=kind,
        ).mark()


class MeteredStorage:
    """An :class:`ObjectStorage` around another store, whose requests are counted by operation.

    The meters are ``moldau_objects_ObjectStorage_RequestsPerSec_total{operation="upload"}`` and so on.
    """

    def __init__(self, storage: ObjectStorage, meters: Meters) -> None:
        self._storage = storage
        scope = meters.scoped("moldau.objects", "ObjectStorage")
        self._upload = _OperationMeters(scope, "upload")
        self._fetch = _OperationMeters(scope, "fetch")
        self._delete = _OperationMeters(scope, "delete")
        self._list = _OperationMeters(scope, "list")
        self._deleted = scope.counter("ObjectsDeletedPerSec", "Objects whose deletion was requested.")

    async def upload(self, key: str, data: Buffer, length: int) -> None:
        with self._upload.request():
            await self._storage.upload(key, data, length)
        self._upload.bytes.value += length

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        with self._fetch.request():
            content = await self._storage.fetch(key, offset, size)
        self._fetch.bytes.value += size
        return content

    async def fetch_once(self, key: str, offset: int, size: int) -> memoryview:
        with self._fetch.request():
            content = await fetch_once(self._storage, key, offset, size)
        self._fetch.bytes.value += size
        return content

    async def delete(self, keys: Collection[str]) -> None:
        ordered = list(keys)
        for position in range(0, len(ordered), DELETE_CHUNK_KEYS):
            chunk = ordered[position : position + DELETE_CHUNK_KEYS]
            with self._delete.request():
                await self._storage.delete(chunk)
            self._deleted.value += len(chunk)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        pages = self._storage.list(prefix, start_after=start_after)
        while True:
            with self._list.request():
                page = await anext(pages, None)
            if page is None:
                return
            yield page

    async def check(self) -> None:
        await self._storage.check()

    async def close(self) -> None:
        await self._storage.close()


def _kind(error: StorageError) -> str:
    if isinstance(error, ObjectNotFoundError):
        return "not_found"
    if isinstance(error, ThrottledError):
        return "throttled"
    if isinstance(error, StorageTimeoutError):
        return "timeout"
    return "transient" if error.transient else "permanent"
