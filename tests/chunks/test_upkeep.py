"""The rounds of retention, and the cost of a change of the metadata image."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from active_replica import KEY, active, machine
from registered_chunks import chunk, partition

from moldau.chunks.chunk_retention import retained_start
from moldau.chunks.holder import PIECE_MAX_BYTES
from moldau.chunks.meters import ChunkMeters
from moldau.cluster.image.chunks import ChunkRegistration
from moldau.metrics import Meters
from moldau.replication.appending.freezing import AppendFreeze
from moldau.replication.classic_partition import ClassicPartition
from moldau.runtime import ErrorCode, KafkaError
from moldau.server.subsystems.chunks import upkeep
from moldau.server.subsystems.chunks.upkeep import ChunkCopies, ChunkRetention, CopyPace
from moldau.simulation.world.world import World
from moldau.storage.chunks.chunk_store import ChunkId
from moldau.storage.log.config import LogConfig

OLD = partition(chunk(0, 9, 1, max_timestamp_ms=1000), chunk(10, 19, 1, max_timestamp_ms=2000))


class Reports:
    """A fake that raises an exception for the first partition."""

    def __init__(self) -> None:
        self.told: list[int] = []

    async def dropped(self, partition: ClassicPartition, start_offset: int) -> None:
        self.told.append(partition.key.partition)
        if len(self.told) == 1:
            raise KafkaError(ErrorCode.not_controller)


async def leaders(folder: Path) -> list[ClassicPartition]:
    found = []
    for index in (0, 1):
        replica = await active(folder, key=KEY._replace(partition=index))
        replica.log.config = LogConfig(retention_ms=1000)
        replica.become_leader(0, (1,), (1,))
        part: Any = object()
        replica.remote.begin(part)
        found.append(replica)
    return found


def retention(replicas: Any, reports: Any) -> ChunkRetention:
    image: Any = SimpleNamespace(topics=SimpleNamespace(partition=lambda topic_id, index: OLD))
    return ChunkRetention(machine(), replicas, lambda: image, reports)


def test_an_error_of_one_partition_does_not_keep_the_others_from_retention(tmp_path: Path) -> None:
    async def run() -> None:
        reports, replicas = Reports(), await leaders(tmp_path)
        with pytest.raises(KafkaError):
            await retention(replicas, reports).run_once()
        assert reports.told == [0, 1]
        assert [each.log.log_start_offset for each in replicas] == [20, 20]

    asyncio.run(run())


def test_a_partition_whose_active_chunk_ends_waits_for_the_next_round(tmp_path: Path) -> None:
    async def run() -> None:
        reports, replicas = Reports(), await leaders(tmp_path)
        AppendFreeze(replicas[0], machine()).begin()
        with pytest.raises(KafkaError):
            await retention(replicas, reports).run_once()
        assert reports.told == [1]
        assert replicas[0].log.log_start_offset == 0

    asyncio.run(run())


@pytest.mark.parametrize(("now_ms", "start_offset"), [(5000, 0), (6001, 10), (7001, 20)])
def test_a_chunk_without_timestamps_is_as_old_as_its_end(now_ms: int, start_offset: int) -> None:
    found = retained_start(
        (chunk(0, 9, 1), chunk(10, 19, 1, start_timestamp_ms=5000)),
        LogConfig(retention_ms=1000),
        log_start_offset=0,
        active_size_bytes=0,
        active_since_ms=6000,
        now_ms=now_ms,
    )
    assert found == start_offset


@pytest.mark.parametrize(
    ("retention_bytes", "start_offset"),
    [(-1, 0), (400, 0), (399, 0), (300, 10), (201, 10), (200, 20), (0, 30)],
)
def test_the_oldest_chunks_leave_a_partition_that_is_too_large(
    retention_bytes: int, start_offset: int
) -> None:
    """A chunk is removed as a whole, so the rest is never smaller than ``retention.bytes``."""
    found = retained_start(
        [replace(chunk(start, start + 9, 1), size_bytes=100) for start in (0, 10, 20)],
        LogConfig(retention_ms=-1, retention_bytes=retention_bytes),
        log_start_offset=0,
        active_size_bytes=100,
        active_since_ms=6000,
        now_ms=7000,
    )
    assert found == start_offset


FIRST = ChunkId(KEY.topic_id, 0, 0)


class Store:
    """The chunks of broker 1."""

    def __init__(self, *, is_here: bool) -> None:
        self.copied: list[Any] = []
        self.dropped: list[ChunkId] = []
        self.is_here = is_here
        self.pieces = 0
        """Number of pieces of a chunk."""

    def __contains__(self, chunk: ChunkId) -> bool:
        return self.is_here

    async def drop(self, name: Any, chunk: ChunkId) -> None:
        self.dropped.append(chunk)

    async def copy(self, name: Any, chunk: ChunkId, end_offset: int, source: Any) -> None:
        await source.files()
        for position in range(self.pieces):
            await source.read("f", position)
        self.copied.append((chunk, end_offset))

    def directory_of(self, chunk: ChunkId) -> None:
        return None


class Topics(dict[str, Any]):
    """The topics of an image."""

    def get_by_id(self, topic_id: Any) -> Any:
        return next((each for each in self.values() if each.topic_id == topic_id), None)


class Source:
    """Other brokers with a copy of a chunk. ``meanwhile`` is called while the chunk is copied."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.asked: list[tuple[int, ...]] = []
        self._meanwhile = meanwhile

    async def fetch_file(self, held: Any, wanted: Any) -> Any:
        self.asked.append(held.isr)
        self._meanwhile()
        return SimpleNamespace(files={}, content=b"piece" if wanted.name else b"")


class Held:
    """The controller. It refuses the first ``refused`` reports, and remembers the other reports."""

    def __init__(self) -> None:
        self.told: list[tuple[ChunkId, bool]] = []
        self.refused = 0

    async def held(self, chunk: ChunkId, epoch: int, directory_id: Any, *, is_held: bool) -> None:
        if self.refused:
            self.refused -= 1
            raise KafkaError(ErrorCode.not_controller)
        if (chunk, is_held) not in self.told:
            self.told.append((chunk, is_held))


async def at_once() -> None: ...


def copies_of(topics: Topics, store: Any, source: Any, reports: Any = None) -> ChunkCopies:
    view = SimpleNamespace(local_id=1, image=SimpleNamespace(topics=topics))
    context: Any = SimpleNamespace(view=view, logs=SimpleNamespace(directories=[], get=lambda name: None))
    copies = ChunkCopies(context, store, source, reports, at_once, ChunkMeters(Meters()))
    copies._chunked.add("t")
    return copies


def topic_with(*chunks: ChunkRegistration) -> Any:
    return SimpleNamespace(topic_id=KEY.topic_id, name="t", partitions=[partition(*chunks)])


@pytest.mark.parametrize("holders", [(1, 2, 3), (1,)])
def test_a_chunk_that_cannot_be_read_is_copied_once_from_another_broker(
    holders: tuple[int, ...],
) -> None:
    async def run() -> None:
        store, source = Store(is_here=True), Source()
        copies = copies_of(Topics(t=topic_with(chunk(0, 9, *holders))), store, source)
        for _ in range(2):
            copies.unreadable(FIRST)
            assert await copies._round()
        assert store.copied == [(FIRST, 10)] * (len(holders) > 1)
        assert source.asked == [(2, 3)] * (len(holders) > 1)

    asyncio.run(run())


def test_a_copy_that_is_complete_after_the_chunk_was_moved_away_is_removed() -> None:
    async def run() -> None:
        wanted = replace(chunk(0, 9, 1, 2), isr=(2,))
        topics = Topics(t=topic_with(wanted))
        source = Source(lambda: topics.update(t=topic_with(replace(wanted, replicas=(2, 3)))))
        store = Store(is_here=False)
        assert await copies_of(topics, store, source)._round()
        assert (store.copied, store.dropped) == ([(FIRST, 10)], [FIRST])

    asyncio.run(run())


def test_the_report_of_a_copy_has_the_epoch_at_its_end() -> None:
    async def run() -> None:
        wanted = replace(chunk(0, 9, 1, 2), isr=(2,))
        topics = Topics(t=topic_with(wanted))
        source = Source(lambda: topics.update(t=topic_with(replace(wanted, epoch=4))))
        copies, reported = copies_of(topics, Store(is_here=False), source), list[Any]()

        async def held(chunk: ChunkId, epoch: int, directory_id: Any, *, is_held: bool) -> None:
            reported.append((chunk, epoch, is_held))

        reports: Any = SimpleNamespace(held=held)
        copies._reports = reports
        assert await copies._round()
        assert reported == [(FIRST, 4, True)]

    asyncio.run(run())


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_chunk_is_reported_as_lost_only_after_the_logs_match_the_image(is_lost: bool) -> None:
    async def run() -> None:
        store, reported = Store(is_here=False), list[Any]()
        copies = copies_of(Topics(t=topic_with(chunk(0, 9, 1, 2))), store, Source())
        copies._logs.get = lambda name: None  # type: ignore[method-assign,assignment,misc]

        async def settled() -> None:
            store.is_here = not is_lost

        async def held(chunk: ChunkId, epoch: int, directory_id: Any, *, is_held: bool) -> None:
            reported.append((chunk, is_held))

        copies._settled = settled
        reports: Any = SimpleNamespace(held=held)
        copies._reports = reports
        assert await copies._round()
        assert reported == [(FIRST, False)] * is_lost

    asyncio.run(run())


class HeldSource(Source):
    """Other brokers whose answers wait until ``may_go_on`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = asyncio.Event()

    async def fetch_file(self, held: Any, wanted: Any) -> Any:
        await self.may_go_on.wait()
        return await super().fetch_file(held, wanted)


class PartlyHere(Store):
    """Some chunks of broker 1."""

    def __init__(self, *present: ChunkId) -> None:
        super().__init__(is_here=False)
        self.present = set(present)

    def __contains__(self, chunk: ChunkId) -> bool:
        return chunk in self.present


def missing_and_held() -> tuple[Topics, ChunkId]:
    """Broker 1 must copy the first chunk, and has the second chunk."""
    missing = replace(chunk(0, 9, 1, 2), isr=(2,))
    return Topics(t=topic_with(missing, chunk(10, 19, 1, 2))), FIRST._replace(start_offset=10)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_lost_chunk_is_reported_before_missing_chunks_are_copied() -> None:
    async def run() -> None:
        topics, second = missing_and_held()
        store, source, reports = PartlyHere(), HeldSource(), Held()
        copies = copies_of(topics, store, source, reports)
        copying = asyncio.create_task(copies._round())
        await turns()
        assert reports.told == [(second, False)]
        copying.cancel()

    asyncio.run(run())


def test_the_chunks_of_a_failed_directory_are_reported_while_other_chunks_are_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow copy may take hours. Until the report, readers would ask this broker for the chunk in vain."""
    monkeypatch.setattr(upkeep, "COPY_INTERVAL_S", 0.0)

    async def run() -> None:
        topics, second = missing_and_held()
        store, source, reports = PartlyHere(second), HeldSource(), Held()
        copies = copies_of(topics, store, source, reports)
        running = asyncio.create_task(copies.run())
        copies.wake.set()
        await turns()
        store.present.clear()
        reports.refused = 2
        copies.directory_failed()
        await turns()
        assert reports.told == [(second, False)]
        assert store.copied == []
        source.may_go_on.set()
        await turns()
        assert (FIRST, True) in reports.told
        running.cancel()

    asyncio.run(run())


def test_the_end_of_the_copies_ends_the_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "COPY_INTERVAL_S", 0.0)

    async def run() -> None:
        topics, _ = missing_and_held()
        reports = Held()
        copies = copies_of(topics, PartlyHere(), HeldSource(), reports)
        copies.directory_failed()  # The first round reports the chunks, so nothing else has to be done now.
        assert not copies._reporting
        running = asyncio.create_task(copies.run())
        await turns()
        reports.refused = 10**6
        copies.directory_failed()
        await turns()
        assert copies._reporting
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert not copies._reporting
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


def test_a_chunk_that_was_unreadable_before_it_left_is_copied_once_when_it_returns() -> None:
    async def run() -> None:
        topics = Topics(t=topic_with(chunk(0, 9, 1, 2)))
        store, source, reports = Store(is_here=True), Source(), Held()
        copies = copies_of(topics, store, source, reports)
        copies.unreadable(FIRST)
        store.is_here = False
        topics.update(t=topic_with(replace(chunk(0, 9, 1, 2), isr=(2,))))
        assert await copies._round()
        store.is_here = True
        topics.update(t=topic_with(chunk(0, 9, 1, 2)))
        assert await copies._round()
        assert store.copied == [(FIRST, 10)]

    asyncio.run(run())


def test_a_chunk_of_a_topic_that_this_broker_cannot_tier_is_not_copied() -> None:
    def refuse(topic: str) -> None:
        raise KafkaError(ErrorCode.invalid_config, f"{topic} is tiered, and this broker has no remote tier")

    async def run() -> None:
        store = Store(is_here=False)
        copies = copies_of(Topics(t=topic_with(replace(chunk(0, 9, 1, 2), isr=(2,)))), store, Source())
        copies.check_topic = refuse
        assert not await copies._round()
        assert store.copied == []

    asyncio.run(run())


def test_a_change_of_a_topic_without_chunks_looks_only_at_what_has_changed() -> None:
    context: Any = SimpleNamespace(view=None, logs=None)
    unused: Any = None
    copies = ChunkCopies(context, unused, unused, unused, unused, ChunkMeters(Meters()))
    image: Any = SimpleNamespace(topics={})

    def change(**partitions: Any) -> Any:
        return SimpleNamespace(name="t", partitions=dict(enumerate(partitions.values())))

    none: Any = SimpleNamespace(topics=None)
    assert not copies.changed([change(a=partition())], none)
    image.topics["t"] = SimpleNamespace(partitions=[partition(), OLD])
    assert copies.changed([change(a=partition(), b=OLD)], image)
    assert copies.changed([change(a=partition())], image)
    image.topics["t"] = SimpleNamespace(partitions=[partition(), partition()])
    assert not copies.changed([change(a=partition())], image)
    assert not copies.changed([change(a=partition())], none)


def test_the_copy_of_a_move_that_is_cancelled_ends() -> None:
    async def run() -> None:
        wanted = replace(chunk(0, 9, 1, 2), isr=(2,))
        topics = Topics(t=topic_with(wanted))
        source = Source(lambda: topics.update(t=topic_with(replace(wanted, replicas=(2, 3)))))
        store = Store(is_here=False)
        store.pieces = 3
        assert not await copies_of(topics, store, source)._round()
        assert (store.copied, len(source.asked)) == ([], 1)

    asyncio.run(run())


def test_copies_wait_for_their_rate_and_continue_when_it_is_raised() -> None:
    async def run() -> None:
        meters = ChunkMeters(Meters())
        pace = CopyPace(meters)
        pace.limit(1)
        await pace.wait()
        pace.copied(1000)
        waiting = asyncio.create_task(pace.wait())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        pace.limit(10**9)
        await waiting
        assert (meters.copied_bytes.value, pace.copied_bytes) == (1000, 1000)

    asyncio.run(run())


def test_a_small_piece_uses_only_its_own_bytes_of_the_rate() -> None:
    async def run() -> None:
        loop, pace = asyncio.get_running_loop(), CopyPace(ChunkMeters(Meters()))
        pace.limit(PIECE_MAX_BYTES)
        started_s = loop.time()
        for _ in range(8):
            await pace.wait()
            pace.copied(PIECE_MAX_BYTES // 4)
        await pace.wait()
        assert loop.time() - started_s == pytest.approx(2, abs=0.1)

    with World(1) as world:
        world.run(run())


def test_the_gauges_count_chunks_and_bytes_of_this_broker() -> None:
    async def run() -> None:
        here = replace(chunk(0, 9, 1, 2), size_bytes=100)
        missing = replace(chunk(10, 19, 2), size_bytes=30)
        others = replace(chunk(20, 29, 2), replicas=(2, 3), size_bytes=7)
        copies = copies_of(Topics(t=topic_with(here, missing, others)), Store(is_here=True), Source())
        assert (copies.size_bytes(), len(copies.missing()), copies.missing_bytes()) == (100, 1, 30)
        copies.pace.copied_bytes = 10
        assert copies.missing_bytes() == 20

    asyncio.run(run())
