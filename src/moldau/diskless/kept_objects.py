"""Objects of the WAL that must be kept, although no coordinator has a record of them.

Topics and partitions that were created after the state was saved are missing in a restored cluster. Only the
objects contain their records. Therefore the restore writes a list of these objects into a separate object.
The orphan scan and the deletion of unused objects do not remove the listed objects. When an operator has
deleted the list, the objects are deleted like other objects.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from moldau.objects.storage import ObjectStorage, StorageError

__all__ = ["KEPT_FOLDER", "KeptObjects", "kept_topics", "store_kept"]

KEPT_FOLDER: Final = ".moldau/kept/"


async def store_kept(storage: ObjectStorage, name: str, topics: Mapping[str, Sequence[UUID]]) -> None:
    """Store a list: the unknown topics of each object, by key. Raises ``StorageError``."""
    document = {key: [str(topic_id) for topic_id in sorted(found)] for key, found in sorted(topics.items())}
    content = json.dumps(document, indent=0).encode()
    await storage.upload(f"{KEPT_FOLDER}{name}", content, len(content))


async def kept_topics(storage: ObjectStorage) -> dict[str, list[UUID]]:
    """The objects of all lists, with their unknown topics. Raises ``StorageError``."""
    kept: dict[str, list[UUID]] = {}
    async for page in storage.list(KEPT_FOLDER):
        for info in page:
            content = bytes(await storage.fetch(info.key, 0, info.size_bytes))
            try:
                found = json.loads(content)
                kept |= {key: [UUID(topic_id) for topic_id in topics] for key, topics in found.items()}
            except (ValueError, AttributeError, TypeError, RecursionError) as error:
                # The list cannot be read, so it is unknown which objects it contains. Because of this error,
                # the caller deletes no object.
                raise StorageError(f"{info.key} is damaged: {error}", transient=False) from error
    return kept


class KeptObjects:
    """The kept objects of a store. Each list of kept objects is read once, because only a restore adds a
    list."""

    def __init__(self, storage: ObjectStorage) -> None:
        self._storage = storage
        self._keys: frozenset[str] | None = None

    async def among(self, keys: Sequence[str]) -> list[str]:
        """Return the keys in ``keys`` whose objects must be kept. Raises ``StorageError``."""
        if not keys:
            return []
        if self._keys is None:
            self._keys = frozenset(await kept_topics(self._storage))
        return [key for key in keys if key in self._keys]
