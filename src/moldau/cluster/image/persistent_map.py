"""An immutable sorted map. Different versions of the map share most of their content.

A change of metadata concerns only a few of many thousand topics, and readers keep old images while they work.
Therefore entries are in chunks of limited size, ordered by key. An update copies only the affected chunks and
the short list of chunks.

The sorted order is part of the contract. Snapshots, listings and elections must be the same on every node and
with every hash seed. Because of the order, a listing in pages can continue after the last key of the previous
page.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Any, Generic, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

CHUNK_ENTRIES_MAX = 128


class PersistentMap(Generic[K, V]):
    """An immutable map. The keys of one map must be hashable and comparable with each other."""

    __slots__ = ("_chunks", "_firsts", "_size")

    def __init__(self, entries: Mapping[K, V] | None = None) -> None:
        self._firsts: list[Any] = []
        self._chunks: list[dict[K, V]] = []
        self._size = 0
        if entries:
            for chunk in _split(dict(entries)):
                self._firsts.append(next(iter(chunk)))
                self._chunks.append(chunk)
            self._size = len(entries)

    def __len__(self) -> int:
        return self._size

    def __contains__(self, key: K) -> bool:
        chunks = self._chunks
        return bool(chunks) and key in chunks[max(0, bisect_right(self._firsts, key) - 1)]

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = None) -> Any:
        """The value of ``key``, or ``default``."""
        index = bisect_right(self._firsts, key) - 1
        return self._chunks[index].get(key, default) if index >= 0 else default

    def __getitem__(self, key: K) -> V:
        index = bisect_right(self._firsts, key) - 1
        if index < 0:
            raise KeyError(key)
        return self._chunks[index][key]

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._chunks)

    def keys(self) -> Iterator[K]:
        """Keys in ascending order."""
        return iter(self)

    def values(self) -> Iterator[V]:
        """Values in the order of their keys."""
        return chain.from_iterable(chunk.values() for chunk in self._chunks)

    def items(self) -> Iterator[tuple[K, V]]:
        """Entries in the order of their keys."""
        return chain.from_iterable(chunk.items() for chunk in self._chunks)

    def chunks(self) -> Iterator[Mapping[K, V]]:
        """The entries in groups. Versions of the map share unchanged groups, which are then the same
        objects."""
        return iter(self._chunks)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PersistentMap):
            return NotImplemented
        if self is other:
            return True
        return self._size == other._size and all(
            mine == theirs for mine, theirs in zip(self.items(), other.items(), strict=True)
        )

    def __hash__(self) -> int:
        raise TypeError("a PersistentMap is compared by value and has no hash")

    def __repr__(self) -> str:
        return f"PersistentMap({dict(self.items())!r})"

    def updated(self, changes: Mapping[K, V], removals: Collection[K] = ()) -> "PersistentMap[K, V]":
        """Return a copy of this map, with ``changes`` added and ``removals`` removed. Keys that do not exist
        are ignored."""
        if not changes and not removals:
            return self
        if not self._chunks:
            kept = {key: value for key, value in changes.items() if key not in removals}
            return PersistentMap(kept)
        puts, drops = self._by_chunk(changes), self._by_chunk(removals)
        result: PersistentMap[K, V] = PersistentMap()
        firsts, chunks = list(self._firsts), list(self._chunks)
        size = self._size
        # The loop goes from the last chunk to the first. If a chunk splits or becomes empty, the indexes of
        # the chunks before it stay valid.
        for index in sorted({*puts, *drops}, reverse=True):
            old = chunks[index]
            new = _changed(old, {key: changes[key] for key in puts.get(index, ())}, drops.get(index, ()))
            size += len(new) - len(old)
            pieces = list(_split(new)) if len(new) > CHUNK_ENTRIES_MAX else [new] if new else []
            chunks[index : index + 1] = pieces
            firsts[index : index + 1] = [next(iter(piece)) for piece in pieces]
        result._firsts, result._chunks, result._size = firsts, chunks, size
        return result

    def put(self, key: K, value: V) -> "PersistentMap[K, V]":
        """Return a copy of this map, with one entry added or replaced."""
        return self.updated({key: value})

    def without(self, key: K) -> "PersistentMap[K, V]":
        """Return a copy of this map without ``key``."""
        return self.updated({}, (key,)) if key in self else self

    def _by_chunk(self, keys: Collection[K] | Mapping[K, V]) -> dict[int, list[K]]:
        grouped: dict[int, list[K]] = {}
        for key in keys:
            grouped.setdefault(max(0, bisect_right(self._firsts, key) - 1), []).append(key)
        return grouped


def _changed(chunk: dict[K, V], changes: Mapping[K, V], removals: Collection[K]) -> dict[K, V]:
    new_keys = any(key not in chunk for key in changes)
    result = chunk.copy()
    result.update(changes)
    for key in removals:
        result.pop(key, None)
    return {key: result[key] for key in sorted(result)} if new_keys else result  # type: ignore[type-var]


def _split(entries: dict[K, V]) -> Iterator[dict[K, V]]:
    """Sort the entries and divide them into chunks. If there are several chunks, each of them is only half
    full, so that it has space for later entries.
    """
    keys = sorted(entries)  # type: ignore[type-var]
    step = CHUNK_ENTRIES_MAX // 2 if len(keys) > CHUNK_ENTRIES_MAX else CHUNK_ENTRIES_MAX
    for start in range(0, len(keys), step):
        yield {key: entries[key] for key in keys[start : start + step]}
