"""Collects the changes of one part of the metadata image, from which the next image is made."""

from typing import Generic, Protocol, TypeVar

from moldau.cluster.image.persistent_map import PersistentMap

K = TypeVar("K")
V = TypeVar("V")


class PartChanges(Protocol[V]):
    """The changes of one part of the metadata image. A delta has one such object for each changed part. ``V``
    is the type of the part's value."""

    def apply(self) -> V:
        """The value with all changes applied; the old object if nothing has changed."""
        ...

    def move_to(self, target: V, /) -> None:
        """Set the changes to the difference between the original value and ``target``."""
        ...


class Changes(Generic[K, V]):
    """Entries that were added to or removed from one persistent map. The value ``None`` means that the entry
    was removed."""

    __slots__ = ("_base", "entries")

    def __init__(self, base: PersistentMap[K, V]) -> None:
        self._base = base
        self.entries: dict[K, V | None] = {}

    def get(self, key: K) -> V | None:
        return self.entries[key] if key in self.entries else self._base.get(key)

    def put(self, key: K, value: V) -> None:
        self.entries[key] = value

    def remove(self, key: K) -> None:
        self.entries[key] = None

    def move_to(self, target: PersistentMap[K, V]) -> None:
        """Set these changes to the difference between the original map and ``target``."""
        self.entries = {key: None for key in self._base if key not in target}
        for key, value in target.items():
            if self._base.get(key) != value:
                self.entries[key] = value

    def apply(self) -> PersistentMap[K, V]:
        if not self.entries:
            return self._base
        return self._base.updated(
            {key: value for key, value in self.entries.items() if value is not None},
            [key for key, value in self.entries.items() if value is None],
        )


class ChangedValue(Generic[V]):
    """The changes of a part that is a single value. Records replace this value."""

    __slots__ = ("value",)

    def __init__(self, value: V) -> None:
        self.value = value

    def move_to(self, target: V) -> None:
        self.value = target

    def apply(self) -> V:
        return self.value
