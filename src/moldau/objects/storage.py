"""The protocol of an object store (KIP-1163's ``ObjectStorage``, with a listing).

Keys are relative paths of one or more names separated by ``/``. The content of a key never changes, because a
key is never used for two contents. Every call may raise :class:`StorageError`.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from moldau.runtime.buffers import Buffer

DELETE_CHUNK_KEYS = 1_000
"""Maximum number of keys in one delete request. It is the limit of S3's DeleteObjects."""

LIST_PAGE_KEYS = 1_000


class StorageError(Exception):
    """The store refused, failed or did not answer. The message is a line for the operator.

    ``transient`` means that the same request may succeed later without intervention.
    """

    def __init__(self, message: str, *, transient: bool = True) -> None:
        super().__init__(message)
        self.transient = transient


class ObjectNotFoundError(StorageError):
    """The object does not exist. (A missing bucket or folder of the whole store never raises this error.)"""

    def __init__(self, key: str) -> None:
        super().__init__(f"no object {key}", transient=False)
        self.key = key


class ThrottledError(StorageError):
    """The store asks for fewer requests (S3's SlowDown, HTTP 429)."""


class StorageTimeoutError(StorageError):
    """There was no answer in time. Therefore it is unknown whether the request took effect."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object as a listing shows it. The time comes from the store, in milliseconds since the epoch."""

    key: str
    size_bytes: int
    last_modified_ms: int


class Ranges(Protocol):
    """Reads of byte ranges of objects. Readers need only this part of ``ObjectStorage``."""

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        """Return exactly ``size`` bytes, beginning at ``offset``. Raises ``StorageError``."""
        ...


class ObjectStorage(Protocol):
    """A flat store of immutable objects."""

    async def upload(self, key: str, data: Buffer, length: int) -> None:
        """Store an object. When this returns, the object is durable and every reader sees the whole object.

        Stores exactly ``length`` bytes, or raises :class:`StorageError` and stores nothing. An upload may be
        repeated. ``data`` are not copied if the store allows that. Therefore ``data`` must not change before
        this call returns. After an error or a cancellation, ``data`` must not change while another object
        still refers to the buffer of ``data``.
        """
        ...

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        """Return exactly ``size`` bytes, beginning at ``offset``.

        Raises :class:`ObjectNotFoundError`, or :class:`StorageError` when the object is shorter.
        """
        ...

    async def delete(self, keys: Collection[str]) -> None:
        """Remove objects. Absent objects count as removed. After an error some objects may still exist."""
        ...

    def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages of the objects in a folder and its subfolders, in order of their keys. The folder is ``""``
        or ends in ``/``.

        Only keys greater than ``start_after`` are listed. The order in S3's directory buckets is undefined.
        """
        ...

    async def check(self) -> None:
        """Write, list and remove a small object.

        Raises a :class:`StorageError`. For the operator, its message names the problem: the bucket, the
        credentials or the address.
        """
        ...

    async def close(self) -> None:
        """Close the connections. No call may be in progress."""
        ...


@runtime_checkable
class FetchesOnce(Protocol):
    """A store with a read cache that can be bypassed."""

    async def fetch_once(self, key: str, offset: int, size: int) -> memoryview:
        """Like ``fetch``, for bytes that will not be read again soon. The returned view may keep more memory
        in use than its own size.
        """
        ...


async def fetch_once(storage: Ranges, key: str, offset: int, size: int) -> memoryview:
    """Call ``fetch_once`` of the store, or ``fetch`` if the store has no ``fetch_once``."""
    if isinstance(storage, FetchesOnce):
        return await storage.fetch_once(key, offset, size)
    return await storage.fetch(key, offset, size)


CHECK_KEY = ".moldau/check"


async def check_by_use(storage: ObjectStorage, name: str, key: str = CHECK_KEY) -> None:
    """:meth:`ObjectStorage.check` for stores that implement it with the other calls.

    ``name`` is the store's name in errors. ``key`` is the key of the object that is stored and deleted.
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
    """``data`` as a single view of bytes. Raises an error when the view's length differs from ``length``."""
    view = memoryview(data)
    if view.nbytes != length:
        raise StorageError(f"{key}: {view.nbytes} bytes came, {length} were announced", transient=False)
    return view


def check_key(key: str) -> None:
    """Refuse keys that would leave the store's folder, or that some stores do not support."""
    names = key.split("/")
    if not key or any(name in ("", ".", "..") for name in names) or "\\" in key or "\0" in key:
        raise StorageError(f"{key!r} is no object key", transient=False)


def check_folder(prefix: str) -> None:
    """Refuse a listing whose prefix does not end with a folder, because stores treat a partial name
    differently."""
    if prefix and not prefix.endswith("/"):
        raise StorageError(f"{prefix!r} is no folder: it does not end in '/'", transient=False)
