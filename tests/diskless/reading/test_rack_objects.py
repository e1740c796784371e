"""Brokers of a rack read objects for each other. The tests check which broker reads an object, how often it
is read, and the effects of failures."""

import asyncio
import mmap
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from moldau.diskless.object_keys import new_object_key, parse_object_key
from moldau.diskless.racks import RackView
from moldau.diskless.reading.rack_call import ObjectRange
from moldau.diskless.reading.rack_objects import RackObjects, RackReadSettings, SharedColdObjects
from moldau.diskless.reading.read_meters import RackReadMeters
from moldau.diskless.reading.recent_objects import RecentObjects
from moldau.diskless.reading.spilled_objects import FILE_NAME, SpillSettings
from moldau.diskless.wal import write_tail
from moldau.diskless.writing.buffers.arenas import new_arena
from moldau.metrics import Meters
from moldau.objects.storage import ObjectNotFoundError, StorageError
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.runtime.entropy import SeededEntropy

CONTENT = bytes(range(256)) * 4
ENTROPY = SeededEntropy(3)
CREATED_MS = 1_700_000_000_000


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(test(*given, **named))

    return run


def key(writer: int, size_bytes: int | None = len(CONTENT)) -> str:
    return new_object_key(CREATED_MS, writer, ENTROPY, size_bytes=size_bytes)


@dataclass
class Store:
    """A store that counts the GETs of each object."""

    objects: dict[str, bytes] = field(default_factory=dict)
    gets: list[tuple[str, int, int]] = field(default_factory=list)
    error: StorageError | None = None

    async def fetch(self, name: str, offset: int, size: int) -> memoryview:
        self.gets.append((name, offset, size))
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        if name not in self.objects:
            raise ObjectNotFoundError(name)
        return memoryview(self.objects[name])[offset : offset + size]


class Rack:
    """Brokers 1 to 3 in one rack, which use one store. Broker 9 is in another rack."""

    def __init__(
        self,
        kept_bytes: int = 1 << 20,
        spill: SpillSettings | None = None,
        *,
        object_bytes: int = len(CONTENT),
    ) -> None:
        self.store = Store()
        self.has_peers = True
        self.meters = {broker: RackReadMeters(Meters()) for broker in (1, 2, 3)}
        self.recent = {broker: RecentObjects(1 << 20) for broker in (1, 2, 3)}
        self.failing: dict[int, Exception] = {}
        self.calls: list[int] = []
        self.reader_of: Callable[[str, int], int | None] = lambda name, writer: writer if writer < 4 else 2
        self.brokers = {
            broker: RackObjects(
                self.store,
                self.recent[broker],
                RackView(
                    reader_of=lambda name, writer: self.reader_of(name, writer),
                    has_peers=lambda: self.has_peers,
                    peers=self,
                ),
                broker,
                self.meters[broker],
                Machine.real(),
                RackReadSettings(kept_bytes=kept_bytes, spill=spill, object_max_bytes=2 * object_bytes),
            )
            for broker in (1, 2, 3)
        }

    async def read_object(self, broker_id: int, wanted: ObjectRange) -> memoryview:
        self.calls.append(broker_id)
        if broker_id in self.failing:
            raise self.failing[broker_id]
        return await self.brokers[broker_id].read_for_rack(wanted)

    def stored(self, writer: int) -> str:
        name = key(writer)
        self.store.objects[name] = CONTENT
        return name


@on_a_loop
async def test_an_object_is_read_once_for_all_brokers_of_the_rack() -> None:
    rack = Rack()
    name = rack.stored(9)
    parts = [(offset, 10) for offset in range(0, 1000, 50)]
    found = await asyncio.gather(
        *(each.fetch(name, *part) for part in parts for each in rack.brokers.values())
    )
    assert [bytes(view or b"") for view in found[::3]] == [CONTENT[at : at + size] for at, size in parts]
    assert found[::3] == found[1::3] == found[2::3]
    assert rack.store.gets == [(name, 0, len(CONTENT))]
    assert set(rack.calls) == {2}
    assert rack.meters[1].peer_reads.value == len(parts)
    assert rack.meters[2].served.value == 2 * len(parts)


@on_a_loop
async def test_a_small_range_does_not_keep_a_whole_object_in_memory() -> None:
    """A cold read collects small ranges of many objects, and its budget counts only these ranges."""
    rack = Rack()
    small, large = [await rack.brokers[2].fetch(rack.stored(9), 5, size) for size in (10, 1000)]
    assert small is not None
    assert (bytes(small), len(small.obj)) == (CONTENT[5:15], 10)  # type: ignore[arg-type]
    assert large is not None
    assert len(large.obj) == len(CONTENT), "a large range is not copied"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("has_peers", "age_ms", "is_read", "is_shared"),
    [
        (False, 60_000, False, False),
        (True, 60_000, False, True),
        (False, 29_000, False, True),
        (False, -29_000, False, True),
        (False, 60_000, True, True),
    ],
)
@on_a_loop
async def test_which_objects_a_broker_without_peers_reads_as_a_whole(
    has_peers: bool, age_ms: int, is_read: bool, is_shared: bool
) -> None:
    """Old objects are read range by range, unless the broker has the whole object. The caches of partitions
    need new objects next."""
    rack, name = Rack(), key(9)
    rack.store.objects[name] = CONTENT
    if is_read:
        await rack.brokers[2].fetch(name, 0, 10)
    objects = SharedColdObjects(rack.brokers[2], lambda: has_peers, lambda: CREATED_MS + age_ms)
    view = await objects.fetch(name, 100, 50)
    assert (view is not None) == is_shared
    assert rack.store.gets == ([(name, 0, len(CONTENT))] if is_shared else [])


@on_a_loop
async def test_the_writer_serves_its_rack_from_memory() -> None:
    rack = Rack()
    name = rack.stored(3)
    rack.recent[3].put(name, bytearray(CONTENT), len(CONTENT))
    assert bytes(await rack.brokers[1].fetch(name, 7, 20) or b"") == CONTENT[7:27]
    assert rack.store.gets == []


@on_a_loop
async def test_a_broker_that_failed_to_read_an_object_is_not_asked_for_some_time() -> None:
    rack = Rack()
    name = rack.stored(9)
    rack.failing[2] = KafkaError(ErrorCode.request_timed_out)
    assert await rack.brokers[1].fetch(name, 0, 10) is None
    assert await rack.brokers[1].fetch(name, 0, 10) is None
    assert rack.calls == [2]
    assert rack.meters[1].fallbacks.value == 2


@on_a_loop
async def test_an_object_that_the_reader_cannot_have_does_not_make_it_suspect() -> None:
    rack = Rack()
    gone, there = key(9), rack.stored(9)
    assert await rack.brokers[1].fetch(gone, 0, 10) is None
    assert await rack.brokers[1].fetch(there, 0, 10) is not None


@on_a_loop
async def test_a_failure_of_the_store_is_reported_and_not_cached() -> None:
    rack = Rack()
    name = rack.stored(9)
    rack.store.error = StorageError("down")
    with pytest.raises(StorageError):
        await rack.brokers[2].fetch(name, 0, 10)
    rack.store.error = None
    assert await rack.brokers[2].fetch(name, 0, 10) is not None


@on_a_loop
async def test_a_cancelled_reader_does_not_end_the_read_of_other_readers() -> None:
    rack = Rack()
    name = rack.stored(9)
    first = asyncio.ensure_future(rack.brokers[2].fetch(name, 0, 10))
    second = asyncio.ensure_future(rack.brokers[2].fetch(name, 10, 10))
    await asyncio.sleep(0)
    first.cancel()
    assert bytes(await second or b"") == CONTENT[10:20]
    assert len(rack.store.gets) == 1


@on_a_loop
async def test_the_oldest_objects_go_when_there_is_no_room() -> None:
    rack = Rack(kept_bytes=2 * len(CONTENT))
    names = [rack.stored(9) for _ in range(3)]
    for name in (*names, names[2], names[0]):
        await rack.brokers[2].fetch(name, 0, 10)
    assert [name for name, _, _ in rack.store.gets] == [*names, names[0]]


@on_a_loop
async def test_objects_that_the_rack_cannot_share_are_read_by_each_broker_itself() -> None:
    rack = Rack()
    for name in (key(9, None), key(9, 3 * len(CONTENT)), "other/object"):
        assert await rack.brokers[1].fetch(name, 0, 10) is None
    rack.reader_of = lambda name, writer: None
    assert await rack.brokers[1].fetch(rack.stored(9), 0, 10) is None
    assert rack.calls == []


@pytest.mark.parametrize(
    "wanted",
    [
        ObjectRange("../secret", 0, 1),
        ObjectRange(key(9), -1, 1),
        ObjectRange(key(9), 0, len(CONTENT) + 1),
        ObjectRange(key(9, None), 0, 1),
        ObjectRange(key(9, 1 << 40), 0, 1),
    ],
)
@on_a_loop
async def test_only_ranges_of_objects_of_the_wal_are_served(wanted: ObjectRange) -> None:
    rack = Rack()
    with pytest.raises(KafkaError) as refused:
        await rack.brokers[2].read_for_rack(wanted)
    assert refused.value.code is ErrorCode.invalid_request
    assert rack.store.gets == []


def test_the_key_of_a_shared_object_contains_its_size() -> None:
    assert parse_object_key(key(7, 0x1234)) == (1_700_000_000_000, 7, 0x1234)
    assert parse_object_key(key(7, None)) == (1_700_000_000_000, 7, -1)


@pytest.mark.parametrize(("spilled_bytes", "gets"), [(0, 40), (40 * len(CONTENT), 20)])
def test_parts_that_are_read_late_come_from_the_disk(tmp_path: Path, spilled_bytes: int, gets: int) -> None:
    """The second part of each object is read ten objects after its first part, and the memory has two
    objects."""

    async def read() -> None:
        rack = Rack(kept_bytes=2 * len(CONTENT), spill=SpillSettings(str(tmp_path), spilled_bytes))
        names = [rack.stored(9) for _ in range(20)]
        broker = rack.brokers[2]
        for number in range(30):
            for index, part in ((number, (0, 500)), (number - 10, (500, 500))):
                if 0 <= index < len(names):
                    view = await broker.fetch(names[index], *part)
                    assert bytes(view or b"") == CONTENT[part[0] : sum(part)]
        assert len(rack.store.gets) == gets
        await broker.close()
        assert not (tmp_path / FILE_NAME).exists()

    asyncio.run(read())


WHOLE = bytearray(2_000)
SIZE = write_tail(WHOLE, 1_000, (), created_ms=CREATED_MS, broker_id=9)
"""A WAL object with 1,000 bytes of batches."""


@pytest.mark.parametrize(("has_peers", "is_last_needed"), [(False, False), (True, False), (False, True)])
@on_a_loop
async def test_objects_whose_batches_were_read_are_dropped_first(
    has_peers: bool, is_last_needed: bool
) -> None:
    """The first object is still needed. The batches of the second one were read in two ranges, which also
    contain bytes of other batches. Its bytes are not needed any more, if the broker is alone in its rack."""
    rack = Rack(kept_bytes=2 * SIZE, object_bytes=SIZE)
    rack.has_peers = has_peers
    names = [key(9, SIZE) for _ in range(3)]
    rack.store.objects = dict.fromkeys(names, bytes(WHOLE[:SIZE]))
    broker = rack.brokers[2]
    await broker.fetch(names[0], 0, 1_000, 999)
    await broker.fetch(names[1], 0, 1_000, 400)
    await broker.fetch(names[1], 300, 700, 599 if is_last_needed else 600)
    await broker.fetch(names[2], 0, 1_000, 1_000)
    before = len(rack.store.gets)
    await broker.fetch(names[0], 999, 1, 1)
    assert len(rack.store.gets) - before == (has_peers or is_last_needed)


def test_own_objects_that_left_the_memory_come_from_the_disk(tmp_path: Path) -> None:
    """The parts of an object that this broker wrote are also read when their coordinators commit them."""

    async def read() -> None:
        rack = Rack(spill=SpillSettings(str(tmp_path), 1 << 20))
        broker = rack.brokers[1]
        recent = RecentObjects(2 * mmap.PAGESIZE, on_evicted=lambda arena: arena.write(bytes(len(CONTENT))))
        recent.on_forgotten = broker.own_forgotten
        names = [key(1) for _ in range(10)]
        for name in names:
            arena = new_arena(mmap.PAGESIZE)
            arena[: len(CONTENT)] = CONTENT
            recent.put(name, arena, len(CONTENT))
        found = [await broker.fetch(name, 100, 500) for name in names[:8]]
        assert [bytes(view or b"") for view in found] == 8 * [CONTENT[100:600]]
        assert rack.store.gets == []
        await broker.close()

    asyncio.run(read())
