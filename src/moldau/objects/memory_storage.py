"""Objects in this process's memory: for tests, and for nodes that shall leave nothing behind."""

from bisect import bisect_right
from collections.abc import AsyncIterator, Collection, Sequence

from moldau.objects.storage import (
    LIST_PAGE_KEYS,
    Buffer,
    ObjectInfo,
    ObjectNotFoundError,
    StorageError,
    check_folder,
    check_key,
    check_length,
)
from moldau.runtime import Clock

__all__ = ["MemoryStorage"]


class MemoryStorage:
    """An object store that ends with its process. It never suspends, so it also runs in virtual time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._objects: dict[str, tuple[bytes, int]] = {}

    @property
    def size_bytes(self) -> int:
        return sum(len(content) for content, _ in self._objects.values())

    async def upload(self, key: str, data: Buffer, length: int) -> None:
        check_key(key)
        view = check_length(key, data, length)
        self._objects[key] = (bytes(view), self._clock.now_ms())

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        found = self._objects.get(key)
        if found is None:
            raise ObjectNotFoundError(key)
        content = found[0]
        if offset + size > len(content):
            raise StorageError(
                f"{key}: bytes {offset} to {offset + size} of {len(content)} were asked for", transient=False
            )
        return memoryview(content)[offset : offset + size]

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
