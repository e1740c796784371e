"""A host's access to the world's object store: :class:`moldau.objects.ObjectStorage` in virtual time.

The class is configured as ``diskless.storage.class.name``. As with a real server, a request that was sent may
take effect after its sender was cancelled or killed, or lost power.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from moldau.metrics import Meters
from moldau.objects import ObjectInfo, ObjectNotFoundError, ObjectStorage, RetryingStorage, StorageError
from moldau.objects.storage import StorageTimeoutError, ThrottledError, check_by_use, check_length
from moldau.runtime import Machine
from moldau.runtime.buffers import Buffer
from moldau.simulation.world.defects import DefectPlace
from moldau.simulation.world.disks.disk import MountedDisk
from moldau.simulation.world.loop import SimulatedLoop
from moldau.simulation.world.object_store import (
    NoAnswerError,
    NoSuchObjectError,
    ObjectStoreError,
    SimulatedObjectStore,
    SlowDownError,
)
from moldau.simulation.world.process import Process
from moldau.tiered.storage.object_storage_manager import COPY_POLICY, ObjectStorageManager
from moldau.tiered.storage.storage_manager import RemoteStorageManager

CLASS_NAME = "moldau.simulation.world.object_storage.open_simulated"
TIER_CLASS_NAME = "moldau.simulation.world.object_storage.open_simulated_tier"
PAGE_SIZE = 10

T = TypeVar("T")


def open_simulated(url: str, options: Mapping[str, str], machine: Machine) -> ObjectStorage:
    """The function that the config ``diskless.storage.class.name`` names. A world has a single store for all
    URLs."""
    assert isinstance(machine.disk, MountedDisk)
    process = machine.disk.process
    return SimulatedObjectStorage(process.host.world.object_store, process, process.host.world.loop)


def open_simulated_tier(configs: Mapping[str, str], machine: Machine, meters: Meters) -> RemoteStorageManager:
    """The function that the config ``remote.log.storage.manager.class.name`` names. It makes the built-in
    manager, which uses the world's store."""
    store = open_simulated("", configs, machine)
    reads = RetryingStorage(store, machine.entropy, name="simulated")
    copies = RetryingStorage(store, machine.entropy, policy=COPY_POLICY, name="simulated")
    return ObjectStorageManager(reads, copies_to=copies)


class SimulatedObjectStorage:
    """The world's object store, as one process accesses it."""

    def __init__(self, store: SimulatedObjectStore, process: Process, loop: SimulatedLoop) -> None:
        self._store = store
        self._process = process
        self._loop = loop

    async def upload(self, key: str, data: Buffer, length: int) -> None:
        view = check_length(key, data, length)
        self._process.host.defects.meet(DefectPlace.UPLOAD)
        await self._send(lambda: self._store.put(key, view), view.release)

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        self._process.host.defects.meet(DefectPlace.FETCH)
        self._store.counts.gets_of[self._process.host.name, key] += 1
        found = await self._send(lambda: self._store.get_range(key, offset, size))
        if len(found) != size:
            raise StorageError(f"{key}: ends after {len(found)} of {size} bytes at {offset}", transient=False)
        return memoryview(found)

    async def delete(self, keys: Collection[str]) -> None:
        doomed = sorted(keys)
        await self._send(lambda: self._store.delete(doomed))

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        last_key = start_after
        while True:
            found = await self._send(partial(self._store.list, prefix, last_key, PAGE_SIZE))
            if not found:
                return
            last_key = found[-1][0]
            yield [ObjectInfo(*row) for row in found]

    async def check(self) -> None:
        await check_by_use(self, "simulated")

    async def close(self) -> None:
        """Do nothing, because the store uses no resources."""

    async def _send(
        self, request: Callable[[], Coroutine[Any, Any, T]], done: Callable[[], None] = lambda: None
    ) -> T:
        context = self._loop.world_process.context()
        under_way = context.run(self._loop.create_task, request(), context=context)

        def finish(task: "asyncio.Task[T]") -> None:
            done()
            if not task.cancelled():
                task.exception()  # the sender of the request may have ended

        under_way.add_done_callback(finish, context=context)
        try:
            return await asyncio.shield(under_way)
        except NoSuchObjectError as error:
            raise ObjectNotFoundError(error.key) from error
        except SlowDownError as error:
            raise ThrottledError(str(error)) from error
        except NoAnswerError as error:
            raise StorageTimeoutError(str(error)) from error
        except ObjectStoreError as error:
            raise StorageError(str(error)) from error
