"""A faulty remote storage manager. Tests name it in ``remote.log.storage.manager.class.name``."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from moldau.metrics import Meters
from moldau.runtime import Machine
from moldau.tiered.storage.object_storage_manager import open_object_storage_manager
from moldau.tiered.storage.storage_manager import RemoteStorageError, RemoteStorageManager

CLASS_NAME = "moody_storage.open_moody"


class Mood:
    """State of the store, which all nodes of this process share. Nodes access it from their own threads."""

    def __init__(self) -> None:
        self.is_down = False
        self.is_broken = False
        self.custom_metadata: bytes | None = None
        self.answers = threading.Event()
        """While it is not set, the store does not answer."""
        self.answers.set()

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        self.is_down = True
        try:
            yield
        finally:
            self.is_down = False

    @contextlib.contextmanager
    def broken(self) -> Iterator[None]:
        """The store has a defect: it raises exceptions that are not errors of a store."""
        self.is_broken = True
        try:
            yield
        finally:
            self.is_broken = False

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        self.answers.clear()
        try:
            yield
        finally:
            self.answers.set()


MOOD = Mood()


class MoodyStorageManager:
    def __init__(self, storage: RemoteStorageManager) -> None:
        self._storage = storage

    async def _check(self) -> None:
        if MOOD.is_down:
            raise RemoteStorageError("the store is down")
        if MOOD.is_broken:
            raise KeyError("colour")
        if not MOOD.answers.is_set():
            await asyncio.to_thread(MOOD.answers.wait)

    async def copy_log_segment_data(self, *copied: Any) -> bytes | None:
        await self._check()
        stored = await self._storage.copy_log_segment_data(*copied)
        return stored if MOOD.custom_metadata is None else MOOD.custom_metadata

    async def fetch_log_segment(self, *wanted: Any) -> memoryview:
        await self._check()
        return await self._storage.fetch_log_segment(*wanted)

    async def fetch_index(self, *wanted: Any) -> Any:
        await self._check()
        return await self._storage.fetch_index(*wanted)

    async def delete_log_segment_data(self, metadata: Any) -> None:
        await self._check()
        await self._storage.delete_log_segment_data(metadata)

    async def close(self) -> None:
        await self._storage.close()


def open_moody(configs: Mapping[str, str], machine: Machine, meters: Meters) -> MoodyStorageManager:
    return MoodyStorageManager(open_object_storage_manager(configs, machine, meters))
