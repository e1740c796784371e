"""Consumers read exactly the committed records, without gaps. This is true under any faults and after any
loss of the cache."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from reading_fakes import ReadingBroker, consume, key
from writer_fakes import run_in_virtual_time

from moldau.coordinators.diskless.calls import BatchCoordinate
from moldau.diskless.cache.cacher import CacherSettings
from moldau.diskless.reading.cold_reads import ColdReadSettings
from moldau.diskless.reading.object_reads import plan_reads
from moldau.objects import Latency
from moldau.runtime import KafkaError, Machine

PARTITIONS = 3
SMALL = CacherSettings(
    cache_max_bytes=20_000,
    tail_round_bytes=2_000,
    tail_partition_bytes=800,
    tail_budget_bytes=3_000,
    catch_up_round_bytes=1_000,
    catch_up_partition_bytes=600,
    catch_up_budget_bytes=1_000,
    first_max_bytes=5_000,
)
COLD = ColdReadSettings(budget_bytes=2_000, look_ahead_bytes=1_500)

step = st.one_of(
    st.tuples(
        st.just("commit"),
        st.lists(st.tuples(st.integers(0, PARTITIONS - 1), st.integers(1, 5)), min_size=1, max_size=6),
        st.sampled_from(["others", "own", "at once"]),
    ),
    st.tuples(st.just("wait"), st.sampled_from([0.001, 0.1, 3.0])),
    st.tuples(st.just("delete"), st.integers(0, PARTITIONS - 1), st.floats(0, 1)),
    st.tuples(st.just("restart"), st.booleans()),
    st.tuples(st.just("drop"), st.integers(0, PARTITIONS - 1)),
    st.tuples(
        st.just("weather"),
        st.sampled_from([0.0, 0.2, 0.6]),
        st.sampled_from([0.0, 50.0, 500.0]),
    ),
    st.tuples(st.just("away"), st.booleans()),
    st.tuples(
        st.just("read"), st.integers(0, PARTITIONS - 1), st.floats(0, 1), st.sampled_from([1, 200, 4_000])
    ),
)


class Story:
    """Runs steps on one broker, and consumes everything at the end."""

    def __init__(self, broker: ReadingBroker) -> None:
        self.broker = broker
        self.keys = [key(1, index) for index in range(PARTITIONS)]
        self.readers: list[asyncio.Task[None]] = []
        for one in self.keys:
            broker.coordinator.create(one)
            broker.open(one)

    async def play(self, steps: list[tuple[object, ...]]) -> None:
        for name, *details in steps:
            await getattr(self, f"on_{name}")(*details)
        await self.settle()

    async def on_commit(self, rows: list[tuple[int, int]], how: str) -> None:
        names = [(self.keys[index], [b"%d" % index * 60] * count) for index, count in rows]
        await self.broker.commit(*names, own=how == "own", at_once=how == "at once")

    async def on_wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def on_delete(self, index: int, part: float) -> None:
        known = self.broker.coordinator.create(self.keys[index])
        try:
            await self.broker.partitions[self.keys[index]].delete_records(int(known.next * part))
        except KafkaError:
            assert self.broker.coordinator.is_away

    async def on_restart(self, with_disk: bool) -> None:
        await self.quiet_readers()
        await self.broker.stop()
        if not with_disk:
            self.broker.machine.disk.remove_tree(self.broker.folder)
        self.broker.start()
        for one in self.keys:
            self.broker.open(one)

    async def on_drop(self, index: int) -> None:
        """The cache loses its content while it is in use."""
        cache = self.broker.partitions[self.keys[index]].cache
        await cache.restart_at(max(0, cache.high_watermark))

    async def on_weather(self, failed: float, latency_ms: float) -> None:
        weather = self.broker.storage.weather
        weather.failed_chance, weather.partial_read_chance = failed, failed / 2
        weather.get_latency = Latency(latency_ms, 3 * latency_ms)

    async def on_away(self, away: bool) -> None:
        self.broker.coordinator.is_away = away
        self.broker.coordinator.committed()

    async def on_read(self, index: int, part: float, max_bytes: int) -> None:
        known = self.broker.coordinator.create(self.keys[index])
        self.readers.append(
            asyncio.ensure_future(self.check(index, int(known.next * part), known.next, max_bytes))
        )

    async def check(self, index: int, start: int, end: int, max_bytes: int = 1 << 20) -> None:
        known = self.broker.coordinator.create(self.keys[index])
        got = await consume(self.broker.partitions[self.keys[index]], start, end, max_bytes)
        assert got == {offset: known.values[offset] for offset in got}
        assert set(got) >= set(range(max(start, known.log_start), end))

    async def quiet_readers(self) -> None:
        await self.on_weather(0.0, 0.0)
        await self.on_away(False)
        readers, self.readers = self.readers, []
        for reader in readers:
            await reader

    async def settle(self) -> None:
        await self.quiet_readers()
        for index, one in enumerate(self.keys):
            known = self.broker.coordinator.create(one)
            await self.check(index, 0, known.next)
            await self.broker.until_cached(self.broker.partitions[one], known.next)
            cache = self.broker.partitions[one].cache
            assert await cache.until_known(5)
            assert cache.high_watermark == cache.local_end_offset == known.next
        assert sum(self.broker.partitions[one].cache.log.size_bytes for one in self.keys) <= 30_000


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(step, max_size=40), seed=st.integers(0, 2**32))
def test_consumers_read_what_was_committed(steps: list[tuple[object, ...]], seed: int) -> None:
    async def tell(machine: Machine) -> None:
        broker = ReadingBroker(machine, settings=SMALL, cold=COLD)
        try:
            await Story(broker).play(steps)
        finally:
            await broker.stop()

    run_in_virtual_time(tell, seed)


@given(
    rows=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 500), st.integers(1, 50)), min_size=1, max_size=30
    ),
    gap=st.sampled_from([0, 10, 1_000]),
)
def test_planned_reads_cover_every_batch_once(rows: list[tuple[str, int, int]], gap: int) -> None:
    coordinates = [
        BatchCoordinate(key().topic_id, 0, number, number, name, start, size, 0, 0, 0)
        for number, (name, start, size) in enumerate(rows)
    ]
    plan = plan_reads(coordinates, gap)
    assert sorted(member for read in plan for member in read.members) == list(range(len(rows)))
    for read in plan:
        for member in read.members:
            coordinate = coordinates[member]
            assert read.object_key == coordinate.object_key
            assert read.start <= coordinate.byte_offset
            assert coordinate.byte_offset + coordinate.size_bytes <= read.start + read.size_bytes
    if gap == 1_000:
        assert len(plan) == len({coordinate.object_key for coordinate in coordinates})
