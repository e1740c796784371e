"""Object stores for benchmarks, for ``diskless.storage.class.name`` and for the remote tier."""

from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Final

from moldau.metrics import Meters
from moldau.objects import S3_LATENCY, FaultyStorage, ObjectInfo, ObjectNotFoundError, StorageWeather
from moldau.runtime import Machine
from moldau.runtime.buffers import Buffer
from moldau.tiered.storage.object_storage_manager import ObjectStorageManager

KEPT_OBJECTS: Final = 4


class ForgetfulStorage:
    """A store that costs little. It copies each object into recycled memory, and drops the object soon.

    A node does not read objects that it has just written, because the records of these objects are first in
    the node's memory and then in its local segments.
    """

    def __init__(self) -> None:
        self._objects: dict[str, memoryview] = {}
        self._buffers: deque[tuple[str, bytearray]] = deque()

    async def upload(self, key: str, data: Buffer, length: int) -> None:
        buffer = bytearray()
        if len(self._buffers) >= KEPT_OBJECTS:
            old, buffer = self._buffers.popleft()
            self._objects.pop(old, None)
        if len(buffer) < length:
            buffer = bytearray(length)
        memoryview(buffer)[:length] = data
        self._objects[key] = memoryview(buffer)[:length]
        self._buffers.append((key, buffer))

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        found = self._objects.get(key)
        if found is None:
            raise ObjectNotFoundError(key)
        return memoryview(bytes(found[offset : offset + size]))

    async def delete(self, keys: Collection[str]) -> None:
        for key in keys:
            self._objects.pop(key, None)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        yield ()

    async def check(self) -> None:
        pass

    async def close(self) -> None:
        pass


class BottomlessStorage(ForgetfulStorage):
    """Accepts all objects and stores nothing. It shows a node's cost without the cost of a disk or
    of memory."""

    async def upload(self, key: str, data: Buffer, length: int) -> None:
        pass


def open_bottomless_tier(
    configs: Mapping[str, str], machine: Machine, meters: Meters
) -> ObjectStorageManager:
    """A storage manager for ``remote.log.storage.manager.class.name``. Segments can be copied to it, but
    cannot be read."""
    return ObjectStorageManager(BottomlessStorage())


def open_forgetful(url: str, options: Mapping[str, str], machine: Machine) -> ForgetfulStorage:
    """Make a :class:`ForgetfulStorage`."""
    return ForgetfulStorage()


def open_like_s3(url: str, options: Mapping[str, str], machine: Machine) -> FaultyStorage:
    """Make a :class:`ForgetfulStorage` with S3's latency, without the latency of a disk."""
    weather = StorageWeather(put_latency=S3_LATENCY, get_latency=S3_LATENCY)
    return FaultyStorage(ForgetfulStorage(), machine.entropy, weather)
