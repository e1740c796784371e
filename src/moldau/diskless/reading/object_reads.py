"""Computes the byte ranges of objects for a set of batches, and fetches these ranges within a budget."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from moldau.coordinators.diskless.calls import BatchCoordinate
from moldau.diskless.byte_budget import ByteBudget
from moldau.diskless.reading.read_meters import ReadMeters
from moldau.objects.storage import ObjectStorage, StorageError
from moldau.runtime import UnexpectedErrors

DEFAULT_GAP_BYTES = 8 * 1024 * 1024
"""Two ranges are read by one request if at most this number of unneeded bytes is between them, because a
second request costs more than reading these bytes. The number is the usual size of an object."""


class WrittenObjects(Protocol):
    """Objects that this broker has just written and still has in memory."""

    def __contains__(self, key: str) -> bool: ...

    def get(self, key: str, offset: int, size_bytes: int) -> memoryview | None:
        """Bytes of an object that this broker wrote, read-only; ``None`` when the object is not in memory."""
        ...


class SharedObjects(Protocol):
    """Objects that one broker of a rack reads for the other brokers of the rack."""

    async def fetch(self, key: str, offset: int, size_bytes: int, batch_bytes: int = 0) -> memoryview | None:
        """A range of bytes of an object; ``None`` when the caller must read from the store. Raises
        ``StorageError``.

        ``batch_bytes`` is the size of the batches in the range that this broker will not need again."""
        ...


class ObjectSource(NamedTuple):
    """The sources from which bytes of objects are read."""

    storage: ObjectStorage
    recent: WrittenObjects
    """Objects that this broker wrote itself."""
    rack: SharedObjects | None = None
    """Objects that one broker of the rack reads for the other brokers."""


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """A ranged request for a part of an object. ``members`` are the indexes of its batches in the list of
    coordinates for which the requests were planned."""

    object_key: str
    start: int
    size_bytes: int
    batch_bytes: int
    """Size of its batches, without the bytes between them."""
    members: tuple[int, ...]


def plan_reads(
    coordinates: Sequence[BatchCoordinate], max_gap_bytes: int = DEFAULT_GAP_BYTES
) -> list[PlannedRead]:
    """Plan requests that read the batches of all ``coordinates``, in the order in which their objects first
    appear.

    Markers need no request. Ranges of the same object become a single request. If more than ``max_gap_bytes``
    lie between two ranges, they become two requests.
    """
    by_object: dict[str, list[int]] = {}
    for position, coordinate in enumerate(coordinates):
        if coordinate.marker is not None:
            continue
        by_object.setdefault(coordinate.object_key, []).append(position)
    reads: list[PlannedRead] = []
    for object_key, positions in by_object.items():
        positions.sort(key=lambda position: coordinates[position].byte_offset)
        members: list[int] = []
        start = end = coordinates[positions[0]].byte_offset
        batch_bytes = 0
        for position in positions:
            coordinate = coordinates[position]
            if coordinate.byte_offset - end > max_gap_bytes:
                reads.append(PlannedRead(object_key, start, end - start, batch_bytes, tuple(members)))
                members, start, batch_bytes = [], coordinate.byte_offset, 0
            members.append(position)
            batch_bytes += coordinate.size_bytes
            end = max(end, coordinate.byte_offset + coordinate.size_bytes)
        reads.append(PlannedRead(object_key, start, end - start, batch_bytes, tuple(members)))
    return reads


class ObjectReads:
    """Fetches ranges of objects within the budget. Bytes that are in memory are not fetched."""

    def __init__(
        self,
        source: ObjectSource,
        budget: ByteBudget,
        meters: ReadMeters,
        unexpected: UnexpectedErrors,
    ) -> None:
        self._storage, self._recent, self._rack = source
        self._budget = budget
        self._meters = meters
        self._unexpected = unexpected

    @property
    def taken_bytes(self) -> int:
        """Number of bytes of the budget that are in use."""
        return self._budget.taken_bytes

    def in_memory(self, read: PlannedRead) -> memoryview | None:
        """The bytes of a range of an object that this broker has just written."""
        view = self._recent.get(read.object_key, read.start, read.size_bytes)
        if view is not None:
            self._meters.memory_reads.value += 1
            self._meters.memory_bytes.value += read.size_bytes
        return view

    async def fetch(self, read: PlannedRead) -> memoryview:
        """The bytes of a range, from another broker of the rack or from the store.

        Raises :class:`StorageError` if the store fails or if the object does not exist any more.
        """
        async with self._budget.taking(read.size_bytes):
            if self._rack is not None:
                shared = await self._rack.fetch(
                    read.object_key, read.start, read.size_bytes, read.batch_bytes
                )
                if shared is not None:
                    return shared
            loop = asyncio.get_running_loop()
            begin = loop.time()
            self._meters.gets.value += 1
            try:
                view = await self._storage.fetch(read.object_key, read.start, read.size_bytes)
            except StorageError:
                self._meters.get_errors.value += 1
                raise
            except Exception as error:
                # Any other exception becomes a ``StorageError``, so the caller handles it like a failure of
                # the store.
                self._meters.get_errors.value += 1
                self._unexpected.report("reading an object", error)
                raise StorageError(f"{read.object_key}: {error!r}") from error
            self._meters.get_time_ms.update((loop.time() - begin) * 1000)
            self._meters.get_bytes.value += read.size_bytes
            return view
