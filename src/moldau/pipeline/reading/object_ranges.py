"""Reads byte ranges of objects in a task. Stores are created in the worker, from the configuration."""

import mmap
import os
from functools import lru_cache
from typing import NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from moldau.metrics import Meters
from moldau.objects.factory import StorageSettings, open_storage
from moldau.objects.retrying import RetryPolicy
from moldau.objects.storage import ObjectNotFoundError, ObjectStorage, StorageError, check_key
from moldau.runtime.buffers import Buffer
from moldau.runtime.machine import Machine

RETRIES: RetryPolicy = RetryPolicy(deadline_ms=20_000)
"""Few retries are enough, because a task that cannot read an object can still read through a broker."""


class RangeReader(Protocol):
    """Reads byte ranges of objects."""

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        """Return exactly ``size`` bytes. Raises :class:`StorageError`, for example if the object does not
        exist any more."""
        ...


def open_ranges(settings: StorageSettings) -> RangeReader:
    """Open the store of a job. Raises :class:`StorageError` for a store that this worker cannot open."""
    parts = urlsplit(settings.url)
    if parts.scheme == "file" and settings.class_name is None:
        return MappedFiles(unquote(parts.path))
    return _storage(settings.url, settings.class_name, tuple(sorted(settings.options.items())))


@lru_cache(maxsize=8)
def _storage(url: str, class_name: str | None, options: tuple[tuple[str, str], ...]) -> ObjectStorage:
    """The store. Each worker opens it once, because the store has threads and connections, and Spark uses a
    worker for many tasks."""
    settings = StorageSettings(url, class_name, dict(options))
    return open_storage(settings, Machine.real(), Meters(), policy=RETRIES)


class MappedFiles:
    """Objects that are local files. The files are mapped into memory, so no page is copied before it is
    decoded."""

    def __init__(self, root: str) -> None:
        self._root = root

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        check_key(key)
        if size <= 0:
            return memoryview(b"")
        before = offset % mmap.ALLOCATIONGRANULARITY
        path = f"{self._root}/{key}"
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise ObjectNotFoundError(key) from None
        except OSError as error:
            raise StorageError(f"{key}: {error.strerror}", transient=False) from error
        try:
            if os.fstat(descriptor).st_size < offset + size:
                raise StorageError(f"{key} ends before byte {offset + size}", transient=False)
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            mapped = _MappedRange(
                descriptor, before + size, flags=flags, prot=mmap.PROT_READ, offset=offset - before
            )
        finally:
            os.close(descriptor)
        mapped.path, mapped.position = path, offset - before
        return memoryview(mapped)[before:]


class _MappedRange(mmap.mmap):
    """A mapped range of a file, with its path and the position of its first byte."""

    path: str
    position: int


class FilePlace(NamedTuple):
    """The place of some bytes: a local file, and the position of the first byte in it."""

    path: str
    position: int


def place_of(data: Buffer) -> FilePlace | None:
    """The place of bytes that :class:`MappedFiles` has returned, or of a part of them; ``None`` for other
    bytes."""
    mapped = data.obj if isinstance(data, memoryview) else None
    if not isinstance(mapped, _MappedRange) or not data:
        return None
    distance = pa.py_buffer(data).address - pa.py_buffer(mapped).address
    return FilePlace(mapped.path, mapped.position + distance)
