"""The store of a sink's objects. There are two ways to write an object: ``put`` replaces an existing object,
and ``create`` succeeds only for the first writer."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError

from moldau.objects.factory import StorageSettings
from moldau.objects.obstore_errors import OBSTORE_ERRORS, translated
from moldau.objects.obstore_storage import open_obstore
from moldau.objects.storage import ObjectNotFoundError, StorageError
from moldau.runtime.buffers import Buffer
from moldau.runtime.entropy import SystemEntropy
from moldau.runtime.files.folders import DurableFolders
from moldau.runtime.files.local_disk import LocalDisk

T = TypeVar("T")

TRIES: Final = 5
BACKOFF_S: Final = 0.2


class SinkStore(Protocol):
    """The store of a sink. Each call may raise :class:`StorageError`."""

    async def put(self, key: str, content: Buffer) -> None:
        """Store an object, durably."""
        ...

    async def create(self, key: str, content: Buffer) -> bool:
        """Store an object unless it exists. Returns whether it was stored."""
        ...

    async def read(self, key: str) -> bytes | None:
        """The whole object; ``None`` if it does not exist."""
        ...

    async def delete(self, keys: Iterable[str]) -> None:
        """Remove objects. An object that does not exist counts as removed."""
        ...


def open_sink_store(settings: StorageSettings) -> SinkStore:
    """Open the store of a sink. Raises :class:`StorageError` if a sink cannot use the store."""
    parts = urlsplit(settings.url)
    if settings.class_name is not None:
        raise StorageError(f"a sink does not know {settings.class_name}", transient=False)
    if parts.scheme == "file":
        return FileSinkStore(unquote(parts.path))
    return ObstoreSinkStore(settings)


class FileSinkStore:
    """Objects as files of a folder that all tasks can access. A file appears only when its whole content was
    written."""

    def __init__(self, root: str) -> None:
        self._root = os.path.normpath(root)
        self._disk = LocalDisk()
        self._folders = DurableFolders(self._disk, self._root)

    async def put(self, key: str, content: Buffer) -> None:
        temporary = self._write(key, content)
        os.replace(temporary, self._path(key))
        self._sync_folder(key)

    async def create(self, key: str, content: Buffer) -> bool:
        temporary = self._write(key, content)
        try:
            os.link(temporary, self._path(key))
        except FileExistsError:
            return False
        finally:
            os.unlink(temporary)
        self._sync_folder(key)
        return True

    async def read(self, key: str) -> bytes | None:
        try:
            with open(self._path(key), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    async def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(key))

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _write(self, key: str, content: Buffer) -> str:
        temporary = f"{self._path(key)}.{SystemEntropy().uuid4().hex}.uploading"
        try:
            self._folders.make(os.path.dirname(temporary))
            with open(temporary, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise StorageError(f"{key}: {error.strerror}", transient=False) from error
        return temporary

    def _sync_folder(self, key: str) -> None:
        self._disk.sync_dir(os.path.dirname(self._path(key)))


class ObstoreSinkStore:
    """S3 and similar stores. ``create`` needs a store with conditional writes."""

    def __init__(self, settings: StorageSettings) -> None:
        self._store = open_obstore(settings.url, settings.options).store

    async def put(self, key: str, content: Buffer) -> None:
        await _again(
            key, lambda: obstore.put_async(self._store, key, memoryview(content), use_multipart=False)
        )

    async def create(self, key: str, content: Buffer) -> bool:
        first = True

        async def attempt() -> bool:
            nonlocal first
            is_first, first = first, False
            try:
                await obstore.put_async(
                    self._store, key, memoryview(content), mode="create", use_multipart=False
                )
            except AlreadyExistsError:
                # if the response to an earlier attempt was lost, this process created the existing object
                return not is_first and await self.read(key) == bytes(content)
            return True

        return await _again(key, attempt)

    async def read(self, key: str) -> bytes | None:
        async def attempt() -> bytes:
            return bytes(await (await obstore.get_async(self._store, key)).bytes_async())

        try:
            return await _again(key, attempt)
        except ObjectNotFoundError:
            return None

    async def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            with contextlib.suppress(ObjectNotFoundError):
                await _again(key, partial(obstore.delete_async, self._store, key))


async def _again(key: str, call: Callable[[], Awaitable[T]]) -> T:
    """Retry a call until it succeeds, fails permanently, or has failed :data:`TRIES` times."""
    for attempt in range(TRIES):
        try:
            return await call()
        except OBSTORE_ERRORS as error:
            failure = translated(error, key)
            if not failure.transient or attempt == TRIES - 1:
                raise failure from error
        await asyncio.sleep(BACKOFF_S * 2**attempt)
    raise AssertionError("the last try returns or raises")
