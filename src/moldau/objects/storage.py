"""The protocol of an object store (KIP-1163's ``ObjectStorage``, and a listing).

Keys are relative paths of one or more names separated by ``/``; what is stored under a key never changes,
because keys are never used for two contents. Every call may raise :class:`StorageError`.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

Buffer: TypeAlias = bytes | bytearray | memoryview

DELETE_CHUNK_KEYS = 1_000
"""Maximum number of keys in one delete request: the limit of S3's DeleteObjects."""

LIST_PAGE_KEYS = 1_000


class StorageError(Exception):
    """The store refused, failed or did not answer; one line for a person.

    ``transient`` says whether the same request may succeed later without intervention.
    """

    def __init__(self, message: str, *, transient: bool = True) -> None:
        super().__init__(message)
        self.transient = transient


class ObjectNotFoundError(StorageError):
    """There is no such object (never raised for a missing bucket or folder of the whole store)."""

    def __init__(self, key: str) -> None:
        super().__init__(f"no object {key}", transient=False)
        self.key = key


class ThrottledError(StorageError):
    """The store asks for fewer requests (S3's SlowDown, HTTP 429)."""


class StorageTimeoutError(StorageError):
    """No answer in time: whether the request took effect is not known."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object as a listing shows it; the time is the store's, in milliseconds since the epoch."""

    key: str
    size_bytes: int
    last_modified_ms: int


class Ranges(Protocol):
    """The byte ranges of objects: the part of ``ObjectStorage`` that reads need."""

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        """Exactly ``size`` bytes from ``offset``. Raises ``StorageError``."""
        ...


class ObjectStorage(Protocol):
    """A flat store of immutable objects."""

    async def upload(self, key: str, data: Buffer, length: int) -> None:
        """Store an object; when this returns it is durable and every reader sees it whole.

        Stores exactly ``length`` bytes, or raises :class:`StorageError` and stores nothing. Repeating an
        upload is harmless. ``data`` is not copied where the store allows that: it must not change before
        this returns, nor after an error or a cancellation while its buffer is exported.
        """
        ...

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        """Exactly ``size`` bytes from ``offset``.

        Raises :class:`ObjectNotFoundError`, and :class:`StorageError` when the object is shorter.
        """
        ...

    async def delete(self, keys: Collection[str]) -> None:
        """Remove objects; those that are absent count as removed. After an error some may be left."""
        ...

    def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages of the objects in a folder (``""`` or ending in ``/``) and below, in order of their keys.

        Only keys greater than ``start_after``. The order of S3's directory buckets is undefined.
        """
        ...

    async def check(self) -> None:
        """Write, list and remove a small object.

        Raises one :class:`StorageError` whose message tells an operator what is wrong with the bucket,
        the credentials or the address.
        """
        ...

    async def close(self) -> None:
        """Release connections; nothing may be under way."""
        ...


@runtime_checkable
class FetchesOnce(Protocol):
    """A store with a read cache that can be bypassed."""

    async def fetch_once(self, key: str, offset: int, size: int) -> memoryview:
        """Like ``fetch``, for bytes that are not read again soon. The view may hold much memory."""
        ...


async def fetch_once(storage: Ranges, key: str, offset: int, size: int) -> memoryview:
    """Like ``fetch``, for bytes that are not read again soon; for any store."""
    if isinstance(storage, FetchesOnce):
        return await storage.fetch_once(key, offset, size)
    return await storage.fetch(key, offset, size)


CHECK_KEY = ".moldau/check"


async def check_by_use(storage: ObjectStorage, name: str, key: str = CHECK_KEY) -> None:
    """:meth:`ObjectStorage.check` by means of the other calls. ``name`` is the store's name in errors.

    ``key``: of the object that is stored and deleted.
    """
    content = b"moldau"
    try:
        await storage.upload(key, content, len(content))
        async for _ in storage.list(".moldau/"):
            break
        await storage.delete([key])
    except StorageError as error:
        raise StorageError(f"cannot use object storage {name}: {error}", transient=error.transient) from error


def check_length(key: str, data: Buffer, length: int) -> memoryview:
    """``data`` as one view of bytes; raises when it has another length than was announced."""
    view = memoryview(data)
    if view.nbytes != length:
        raise StorageError(f"{key}: {view.nbytes} bytes came, {length} were announced", transient=False)
    return view


def check_key(key: str) -> None:
    """Refuse keys that would leave the store's folder, or that some store cannot hold."""
    names = key.split("/")
    if not key or any(name in ("", ".", "..") for name in names) or "\\" in key or "\0" in key:
        raise StorageError(f"{key!r} is no object key", transient=False)


def check_folder(prefix: str) -> None:
    """Refuse a listing's prefix that does not end with a folder: stores treat a partial name differently."""
    if prefix and not prefix.endswith("/"):
        raise StorageError(f"{prefix!r} is no folder: it does not end in '/'", transient=False)
