"""Objects that this broker wrote recently. The broker reads them from memory and does not use the store."""

from collections.abc import Callable

from moldau.diskless.writing.buffers.arenas import Arena

__all__ = ["RecentObjects"]


class RecentObjects:
    """The bytes of objects, by key. All objects together have at most ``max_bytes``. The oldest objects are
    removed first, whether they were read or not.

    The cacher reads objects in this order, so the objects that it still needs are kept longest. Uncommitted
    objects are kept even above the limit. They are not readable yet, and the writer limits their number.
    """

    def __init__(self, max_bytes: int, on_evicted: Callable[[Arena], None] = lambda arena: None) -> None:
        """``on_evicted`` is called with the memory of each object that is dropped."""
        self._max_bytes = max_bytes
        self._on_evicted = on_evicted
        self._objects: dict[str, tuple[Arena, int]] = {}
        self._uncommitted: set[str] = set()
        self.on_forgotten: Callable[[str, memoryview], None] = lambda key, whole: None
        """Called before an object is dropped because others need its memory."""
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0

    def put(self, key: str, arena: Arena, size_bytes: int, *, is_committed: bool = True) -> None:
        """Keep the first ``size_bytes`` bytes of ``arena`` as an object. The whole arena stays in memory."""
        self.discard(key)
        self._objects[key] = (arena, size_bytes)
        self.size_bytes += len(arena)
        if not is_committed:
            self._uncommitted.add(key)
        self._make_room()

    def committed(self, key: str) -> None:
        """Allow the removal of the object, because the outcome of its commit is now known."""
        self._uncommitted.discard(key)
        self._make_room()

    def _make_room(self) -> None:
        while self.size_bytes > self._max_bytes:
            oldest = next((key for key in self._objects if key not in self._uncommitted), None)
            if oldest is None:
                return
            arena, size_bytes = self._objects[oldest]
            self.on_forgotten(oldest, memoryview(arena)[:size_bytes].toreadonly())
            self._drop(oldest)

    def get(self, key: str, offset: int, size_bytes: int) -> memoryview | None:
        """A range of an object; ``None`` when the object is not in memory."""
        found = self._objects.get(key)
        if found is None or offset + size_bytes > found[1]:
            self.misses += 1
            return None
        self.hits += 1
        return memoryview(found[0])[offset : offset + size_bytes].toreadonly()

    def writable(self, key: str) -> memoryview | None:
        """A writable view of an object. Offsets and epochs are written directly into the object's batches.
        Readers in this broker ignore the old values of these fields."""
        found = self._objects.get(key)
        return None if found is None else memoryview(found[0])[: found[1]]

    def discard(self, key: str) -> None:
        """Drop an object, if it is in memory."""
        if key in self._objects:
            self._drop(key)

    def clear(self) -> None:
        while self._objects:
            self._drop(next(iter(self._objects)))

    def __contains__(self, key: str) -> bool:
        return key in self._objects

    def __len__(self) -> int:
        return len(self._objects)

    def _drop(self, key: str) -> None:
        arena, _ = self._objects.pop(key)
        self._uncommitted.discard(key)
        self.size_bytes -= len(arena)
        self._on_evicted(arena)
