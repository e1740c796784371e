"""The task of a consolidation: it builds the segments of a unit, and copies them to remote storage.

The task does not depend on Spark. Each attempt uses unique object names. Objects become part of the log only
when a leader publishes them.
"""

import asyncio
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit
from uuid import UUID

from moldau.metrics import Meters
from moldau.objects.factory import StorageSettings
from moldau.objects.storage import Ranges, StorageError
from moldau.pipeline.consolidation.wal_files import WalFiles
from moldau.pipeline.reading.object_ranges import open_ranges
from moldau.records.errors import CorruptRecordError
from moldau.runtime.entropy import SystemEntropy
from moldau.runtime.machine import Machine
from moldau.tiered.consolidation.building import build_and_copy, memory_bytes
from moldau.tiered.consolidation.plan import Unit
from moldau.tiered.storage.object_storage_manager import open_object_storage_manager
from moldau.tiered.storage.storage_manager import RemoteStorageError


class CopiedSegment(NamedTuple):
    """A segment that was copied. Its metadata contain the id of the attempt."""

    segment_id: UUID
    custom_metadata: bytes | None


@dataclass(frozen=True, slots=True)
class CopiedUnit:
    """The result of a unit. Spark transports only this object, not the segments."""

    segments: tuple[CopiedSegment, ...]
    size_bytes: int = 0
    failure: str | None = None
    """The reason why no segments were built. The unit is then planned again."""


_MEMORY: Final[list[memoryview]] = []
"""Memory that the tasks of this process use one after the other. Reusing memory avoids the cost of new pages.
"""


@dataclass(frozen=True, slots=True)
class BuildUnits:
    """Builds units from the WAL's store into remote storage. It is sent to the workers."""

    wal: StorageSettings
    remote: Mapping[str, str]
    """Configs of the built-in storage manager."""

    def __call__(self, unit: Unit) -> CopiedUnit:
        """Build and copy a unit. An error of a store, and damaged records, are returned and not raised,
        because a later plan may succeed."""
        try:
            return asyncio.run(self._build(unit))
        except (StorageError, RemoteStorageError, CorruptRecordError) as error:
            return CopiedUnit((), failure=str(error))

    async def _build(self, unit: Unit) -> CopiedUnit:
        machine = Machine.real()
        remote = open_object_storage_manager(self.remote, machine, Meters())
        memory = _take_memory(memory_bytes(unit.segments))
        attempt = SystemEntropy().uuid4().hex
        try:
            metadata = await build_and_copy(
                unit.segments, _wal_ranges(self.wal), machine.workers, remote, into=memory, attempt=attempt
            )
        finally:
            await remote.close()
            machine.workers.close()
        _MEMORY.append(memory)
        names = (segment.segment_id for segment in unit.segments)
        return CopiedUnit(tuple(map(CopiedSegment, names, metadata)), unit.size_bytes)


def _take_memory(size_bytes: int) -> memoryview:
    kept = _MEMORY.pop() if _MEMORY else memoryview(b"")
    return kept if len(kept) >= size_bytes else memoryview(mmap.mmap(-1, size_bytes))


def _wal_ranges(settings: StorageSettings) -> Ranges:
    parts = urlsplit(settings.url)
    if parts.scheme == "file" and settings.class_name is None:
        return WalFiles(unquote(parts.path))
    return open_ranges(settings)
