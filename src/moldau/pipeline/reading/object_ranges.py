"""Reads byte ranges of objects in a task. Stores are created in the worker, from the configuration."""

import mmap
import os
from functools import lru_cache
from typing import Protocol
from urllib.parse import unquote, urlsplit

from moldau.metrics import Meters
from moldau.objects.factory import StorageSettings, open_storage
from moldau.objects.retrying import RetryPolicy
from moldau.objects.storage import ObjectNotFoundError, ObjectStorage, StorageError, check_key
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
        try:
            descriptor = os.open(f"{self._root}/{key}", os.O_RDONLY)
        except FileNotFoundError:
            raise ObjectNotFoundError(key) from None
        except OSError as error:
            raise StorageError(f"{key}: {error.strerror}", transient=False) from error
        try:
            if os.fstat(descriptor).st_size < offset + size:
                raise StorageError(f"{key} ends before byte {offset + size}", transient=False)
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            mapped = mmap.mmap(
                descriptor, before + size, flags=flags, prot=mmap.PROT_READ, offset=offset - before
            )
        finally:
            os.close(descriptor)
        return memoryview(mapped)[before:]
