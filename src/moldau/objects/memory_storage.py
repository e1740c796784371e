"""Objects in this process's memory. They are for tests, and for nodes that must not store data on disk."""

import asyncio
import mmap
from bisect import bisect_right
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Final

from moldau.objects.storage import (
    LIST_PAGE_KEYS,
    ObjectInfo,
    ObjectNotFoundError,
    StorageError,
    check_folder,
    check_key,
    check_length,
)
from moldau.runtime import Clock
from moldau.runtime.buffers import Buffer

__all__ = ["MemoryStorage"]

PIECE_BYTES: Final = 512 * 1024
"""Number of bytes that are copied in an iteration of the event loop. Allocating a few megabytes takes a
millisecond."""


class MemoryStorage:
    """An object store that ends with its process. It never blocks, so it also runs in virtual time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._objects: dict[str, tuple[memoryview, int]] = {}

    @property
    def size_bytes(self) -> int:
        return sum(len(content) for content, _ in self._objects.values())

    async def upload(self, key: str, data: Buffer, length: int) -> None:
        check_key(key)
        view = check_length(key, data, length)
        content = memoryview(bytes(view)) if length <= PIECE_BYTES else await _copied(view.cast("B"))
        self._objects[key] = (content, self._clock.now_ms())

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        found = self._objects.get(key)
        if found is None:
            raise ObjectNotFoundError(key)
        content = found[0]
        if offset + size > len(content):
            raise StorageError(
                f"{key}: bytes {offset} to {offset + size} of {len(content)} were asked for", transient=False
            )
        return content[offset : offset + size]

    async def delete(self, keys: Collection[str]) -> None:
        for key in keys:
            self._objects.pop(key, None)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        check_folder(prefix)
        keys = sorted(key for key in self._objects if key.startswith(prefix))
        position = bisect_right(keys, start_after)
        while position < len(keys):
            page = keys[position : position + LIST_PAGE_KEYS]
            position += LIST_PAGE_KEYS
            yield [
                ObjectInfo(key, len(found[0]), found[1])
                for key in page
                if (found := self._objects.get(key)) is not None
            ]

    async def check(self) -> None:
        pass

    async def close(self) -> None:
        pass


async def _copied(view: memoryview) -> memoryview:
    """Copy a view piece by piece, with other tasks in between. The operating system provides new memory only
    when it is written to, so a large copy takes long."""
    copied = memoryview(mmap.mmap(-1, len(view)))
    for position in range(0, len(view), PIECE_BYTES):
        copied[position : position + PIECE_BYTES] = view[position : position + PIECE_BYTES]
        await asyncio.sleep(0)
    return copied.toreadonly()
