"""Stores for tests: the simulation's store as an object store, and functions that open each adapter."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Collection, Sequence
from typing import TypeVar

from moldau.objects import ObjectInfo, ObjectNotFoundError, ObjectStorage, StorageError
from moldau.objects.storage import check_folder, check_key, check_length
from moldau.runtime import InlineWorkers, LocalDisk, Machine, SeededEntropy, SystemClock
from moldau.runtime.buffers import Buffer
from moldau.simulation.world import object_store as simulated

T = TypeVar("T")


def machine(seed: int = 1) -> Machine:
    return Machine(SystemClock(), SeededEntropy(seed), LocalDisk(), InlineWorkers())


async def collect(storage: ObjectStorage, prefix: str, start_after: str = "") -> list[ObjectInfo]:
    return [info async for page in storage.list(prefix, start_after=start_after) for info in page]


class SimulatedStorage:
    """The simulation's object store with the methods of ``ObjectStorage``."""

    def __init__(self, store: simulated.SimulatedObjectStore) -> None:
        self.store = store

    async def upload(self, key: str, data: Buffer, length: int) -> None:
        check_key(key)
        view = check_length(key, data, length)
        await _translating(self.store.put(key, view))

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        content = await _translating(self.store.get_range(key, offset, size))
        if len(content) != size:
            raise StorageError(f"{key}: {len(content)} of {size} bytes came")
        return memoryview(content)

    async def delete(self, keys: Collection[str]) -> None:
        await _translating(self.store.delete(keys))

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        check_folder(prefix)
        found = await _translating(self.store.list(prefix))
        yield [ObjectInfo(*row) for row in found if row[0] > start_after]

    async def check(self) -> None:
        pass

    async def close(self) -> None:
        pass


async def _translating(call: Awaitable[T]) -> T:
    try:
        return await call
    except simulated.NoSuchObjectError as error:
        raise ObjectNotFoundError(str(error)) from error
    except simulated.ObjectStoreError as error:
        raise StorageError(str(error), transient=error.retriable) from error


def simulated_storage() -> SimulatedStorage:
    return SimulatedStorage(
        simulated.SimulatedObjectStore(random.Random(1), SystemClock().now_ms, latency_s=0.0)
    )


class Scripted:
    """A store whose calls follow a script. The script has one entry for each call: an error to raise, or None
    for success."""

    def __init__(self, storage: ObjectStorage, *script: Exception | float | None) -> None:
        self._storage = storage
        self._script = list(script)
        self.calls: list[str] = []

    async def _act(self, call: str) -> None:
        self.calls.append(call)
        step = self._script.pop(0) if self._script else None
        if isinstance(step, Exception):
            raise step
        if step is not None:
            await asyncio.sleep(step)

    async def upload(self, key: str, data: Buffer, length: int) -> None:
        await self._act("upload")
        await self._storage.upload(key, data, length)

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        await self._act("fetch")
        return await self._storage.fetch(key, offset, size)

    async def delete(self, keys: Collection[str]) -> None:
        await self._act("delete")
        await self._storage.delete(keys)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        async for page in self._storage.list(prefix, start_after=start_after):
            for info in page:
                await self._act(f"list {info.key}")
                yield [info]

    async def check(self) -> None:
        await self._act("check")

    async def close(self) -> None:
        pass
