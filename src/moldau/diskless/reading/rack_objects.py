"""Objects that one broker reads from the store for all brokers of its rack.

For each object one live broker of the rack is its reader. If the object's writer is in the rack, the writer
is the reader, because it has the object in memory. Otherwise rendezvous hashing selects the reader. The
reader requests the whole object once, for all brokers that need it, and keeps it for a while. The other
brokers send the reader requests for the ranges that they need. When the reader fails or is slow, they read
from the store themselves.

Without failures, each rack sends one GET for an object, and the rack of the object's writer sends no GET.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from moldau.diskless.byte_budget import ByteBudget
from moldau.diskless.object_keys import parse_object_key
from moldau.diskless.racks import RackView
from moldau.diskless.reading.object_reads import WrittenObjects
from moldau.diskless.reading.rack_call import ObjectRange
from moldau.diskless.reading.read_meters import RackReadMeters
from moldau.diskless.reading.spilled_objects import SpilledObjects, SpillSettings
from moldau.diskless.wal import CorruptWalObjectError, data_size_of
from moldau.objects.storage import Ranges, StorageError
from moldau.runtime import ErrorCode, KafkaError, Machine

_AVOIDED_S: Final = 2.0
"""After a failure, a reader gets no further requests for this time."""
_NEW_MS: Final = 30_000
"""The age up to which an object is new."""
_COPIED_PART: Final = 4
"""A range is copied if it is smaller than its object divided by this number. A view would keep the whole
object in memory, although the budgets of readers count only the range."""


@dataclass(frozen=True, slots=True)
class RackReadSettings:
    """Limits for objects that are read for the rack, in bytes."""

    kept_bytes: int = 128 * 1024**2
    """Maximum bytes in memory of objects that were read for the rack. The newest objects are kept.

    Each coordinator commits its part of an object at its own time, and a broker reads each part when it is
    committed. Objects that are read again after they left the memory are kept on the disk; see
    :class:`SpilledObjects`.
    """
    reading_bytes: int = 64 * 1024**2
    """Maximum bytes of objects that are being read."""
    spill: SpillSettings | None = None
    object_max_bytes: int = 32 * 1024**2
    """Maximum size of an object that is read for the rack. If an object is larger, each broker reads it
    itself, range by range."""


@dataclass(slots=True)
class _KeptObject:
    whole: memoryview
    unread_bytes: int
    """Bytes of batches that this broker has not read yet."""


class RackObjects:
    """Implements :class:`moldau.diskless.reading.rack_call.RackReader`."""

    def __init__(
        self,
        storage: Ranges,
        recent: WrittenObjects,
        racks: RackView,
        broker_id: int,
        meters: RackReadMeters,
        machine: Machine,
        settings: RackReadSettings | None = None,
    ) -> None:
        """``recent`` contains the objects that this broker wrote itself."""
        self._storage = storage
        self._recent = recent
        self._racks = racks
        self._broker_id = broker_id
        self.meters = meters
        self._unexpected = machine.unexpected
        self._settings = settings or RackReadSettings()
        spill = self._settings.spill or SpillSettings("", 0)
        self._spilled = SpilledObjects(machine.disk, machine.workers, spill)
        self._budget = ByteBudget(self._settings.reading_bytes)
        self._kept: OrderedDict[str, _KeptObject] = OrderedDict()
        self._kept_bytes = 0
        self._finished: OrderedDict[str, None] = OrderedDict()
        """The objects in memory whose batches this broker has read. They are dropped first, and are not
        written to the disk, unless other brokers of the rack may need them."""
        self._reading: dict[str, asyncio.Task[memoryview]] = {}
        self._avoided: dict[int, float] = {}

    async def fetch(self, key: str, offset: int, size_bytes: int, batch_bytes: int = 0) -> memoryview | None:
        """A range of an object, from this broker's memory or from the broker that reads this object for the
        rack. ``None`` means that the caller must read from the store. ``batch_bytes`` is the size of the
        batches in the range that this broker will not need again.

        Raises ``StorageError`` when this broker is the reader and the store fails.
        """
        peers, parsed = self._racks.peers, parse_object_key(key)
        if peers is None or parsed is None or not 0 < parsed.size_bytes <= self._settings.object_max_bytes:
            return None
        reader_id = self._racks.reader_of(key, parsed.broker_id)
        if reader_id is None:
            return None
        if reader_id == self._broker_id:
            view = await self._read(key, parsed.size_bytes, offset, size_bytes)
            self._has_read(key, batch_bytes)
            return view
        now = asyncio.get_running_loop().time()
        if self._avoided.get(reader_id, 0.0) > now:
            self.meters.fallbacks.value += 1
            return None
        try:
            view = await peers.read_object(reader_id, ObjectRange(key, offset, size_bytes))
        except (KafkaError, OSError) as error:
            if not (isinstance(error, KafkaError) and error.code is ErrorCode.kafka_storage_error):
                self._avoided[reader_id] = asyncio.get_running_loop().time() + _AVOIDED_S
            self.meters.fallbacks.value += 1
            return None
        if len(view) != size_bytes:
            self.meters.fallbacks.value += 1
            return None
        self.meters.peer_reads.value += 1
        self.meters.peer_bytes.value += size_bytes
        return view

    def has(self, key: str) -> bool:
        """Whether the object is here, or is being read, so that no request to the store is needed."""
        return key in self._kept or key in self._reading or key in self._spilled

    async def read_for_rack(self, wanted: ObjectRange) -> memoryview:
        key, offset, size_bytes = wanted
        parsed = parse_object_key(key)
        if parsed is None or offset < 0 or size_bytes < 0 or offset + size_bytes > parsed.size_bytes:
            raise KafkaError(ErrorCode.invalid_request, f"{key} is no WAL object with these bytes")
        if parsed.size_bytes > self._settings.object_max_bytes:
            raise KafkaError(ErrorCode.invalid_request, f"{key} is too large to be read for others")
        view = self._recent.get(key, offset, size_bytes)
        if view is None:
            try:
                view = await self._read(key, parsed.size_bytes, offset, size_bytes)
            except StorageError as error:
                raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
        self.meters.served.value += 1
        self.meters.served_bytes.value += size_bytes
        return view

    def own_forgotten(self, key: str, whole: memoryview) -> None:
        """Called before the memory of an object that this broker wrote itself is used again."""
        is_shared = self._racks.reader_of(key, self._broker_id) == self._broker_id
        if is_shared and len(whole) <= self._settings.object_max_bytes:
            self._spilled.dropped(key, whole, is_own=True)

    async def close(self) -> None:
        """Cancel all reads in progress."""
        reading = list(self._reading.values())
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        self._kept.clear()
        self._finished.clear()
        self._kept_bytes = 0
        await self._spilled.close()

    async def _read(self, key: str, object_bytes: int, offset: int, size_bytes: int) -> memoryview:
        kept = self._kept.get(key)
        if kept is None:
            spilled = await self._spilled.read(key, offset, size_bytes)
            if spilled is not None:
                self.meters.spilled_reads.value += 1
                self.meters.spilled_bytes.value += size_bytes
                return spilled
            # In the meantime, another read may have brought the object.
            kept = self._kept.get(key)
        if kept is not None:
            whole = kept.whole
        else:
            task = self._reading.get(key)
            if task is None:
                task = self._reading[key] = asyncio.ensure_future(self._get(key, object_bytes))
                task.add_done_callback(lambda done: self._got(key, done))
            # The caller may be cancelled, because its broker stops waiting. The read must continue, because
            # other brokers may need the object.
            whole = await asyncio.shield(task)
        view = whole[offset : offset + size_bytes]
        return memoryview(bytes(view)) if _COPIED_PART * size_bytes < object_bytes else view

    async def _get(self, key: str, object_bytes: int) -> memoryview:
        async with self._budget.taking(object_bytes):
            if self._needs_the_disk_for(object_bytes):
                await self._spilled.until_written()
            loop = asyncio.get_running_loop()
            begin = loop.time()
            self.meters.gets.value += 1
            self._spilled.requested(key)
            try:
                whole = await self._storage.fetch(key, 0, object_bytes)
            except StorageError:
                self.meters.get_errors.value += 1
                raise
            except Exception as error:
                self.meters.get_errors.value += 1
                self._unexpected.report("reading an object for the rack", error)
                raise StorageError(f"{key}: {error!r}") from error
            self.meters.get_time_ms.update((loop.time() - begin) * 1000)
            self.meters.get_bytes.value += object_bytes
            return whole

    def _got(self, key: str, done: "asyncio.Task[memoryview]") -> None:
        del self._reading[key]
        if done.cancelled() or done.exception() is not None:
            return
        whole = done.result()
        self._kept[key] = _KeptObject(whole, _data_size_bytes(whole))
        self._kept_bytes += len(whole)
        while self._kept_bytes > self._settings.kept_bytes and len(self._kept) > 1:
            self._drop_one()

    def _needs_the_disk_for(self, object_bytes: int) -> bool:
        """Whether another object takes the memory of an object that is still needed. Requests of peers must
        not wait, because peers read from the store after a short time."""
        is_full = self._kept_bytes + object_bytes > self._settings.kept_bytes
        return is_full and not self._finished and not self._racks.has_peers()

    def _has_read(self, key: str, batch_bytes: int) -> None:
        """Note that this broker has read some batches. If it must read them again after a failure, the object
        may seem to be finished too early. Then another GET is sent."""
        kept = self._kept.get(key)
        if kept is not None and not self._racks.has_peers():
            kept.unread_bytes -= batch_bytes
            if kept.unread_bytes <= 0:
                self._finished[key] = None

    def _drop_one(self) -> None:
        """Drop an object that this broker does not need any more, or else the oldest one."""
        if self._finished:
            finished, _ = self._finished.popitem(last=False)
            self._kept_bytes -= len(self._kept.pop(finished).whole)
            return
        key, dropped = self._kept.popitem(last=False)
        self._kept_bytes -= len(dropped.whole)
        self._spilled.dropped(key, dropped.whole)


def _data_size_bytes(whole: memoryview) -> int:
    try:
        return data_size_of(whole)
    except CorruptWalObjectError:
        return len(whole)  # Readers find the damage when they verify their batches.


class SharedColdObjects:
    """The objects of the rack for reads of records that are not in the local segments: a
    :class:`moldau.diskless.reading.object_reads.SharedObjects`.

    A broker that is alone in its rack cannot share a whole object with another broker. At the end of
    partitions it still reads whole objects, because it soon needs most of their batches. For old records it
    needs only ranges. New objects are read as a whole by the first reader of a partition, too, because the
    partition's cache needs them next.
    """

    def __init__(
        self, objects: RackObjects, has_peers: Callable[[], bool], now_ms: Callable[[], int]
    ) -> None:
        """``now_ms`` returns the time with which creation times of objects are compared."""
        self._objects = objects
        self._has_peers = has_peers
        self._now_ms = now_ms

    async def fetch(self, key: str, offset: int, size_bytes: int, batch_bytes: int = 0) -> memoryview | None:
        # The caches need the batches again, so ``batch_bytes`` is not given on.
        if self._has_peers() or self._objects.has(key) or self._is_new(key):
            return await self._objects.fetch(key, offset, size_bytes)
        return None

    def _is_new(self, key: str) -> bool:
        parsed = parse_object_key(key)
        return parsed is not None and abs(self._now_ms() - parsed.created_ms) <= _NEW_MS
