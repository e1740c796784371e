"""Reading diskless partitions: records near the end come from the cache, older records from objects, and the
coordinator finds offsets."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest
from reading_fakes import ReadingBroker, consume, key, read, values_of
from writer_fakes import run_in_virtual_time

from moldau.coordinators.diskless.calls import FindBatchesCall, FoundPartition
from moldau.diskless.cache.cacher import CacherSettings
from moldau.diskless.partition.partition import DisklessPartition
from moldau.diskless.reading.cold_reads import ColdReadSettings, check_lifetimes
from moldau.diskless.writing.own_commits import OwnCommits
from moldau.objects import Latency
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.special_timestamps import LATEST_TIMESTAMP
from moldau.records import check_batch, iter_records
from moldau.replication.partition_interface import FoundOffset
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.runtime.workers import InlineWorkers
from moldau.simulation.world.disks.disk import MountedDisk

T = TypeVar("T")
K = key()
OTHERS = key(2)


def run(
    story: Callable[[ReadingBroker], Coroutine[Any, Any, T]],
    *,
    settings: CacherSettings | None = None,
    cold: ColdReadSettings | None = None,
) -> T:
    """Run a test of one broker in virtual time."""

    async def tell(machine: Machine) -> T:
        broker = ReadingBroker(machine, settings=settings, cold=cold)
        try:
            return await story(broker)
        finally:
            await broker.stop()

    return run_in_virtual_time(tell)


def test_a_reader_at_the_end_is_woken_by_a_commit_of_another_broker() -> None:
    async def story(broker: ReadingBroker) -> None:
        broker.coordinator.create(K)
        partition = broker.open(K)
        assert (await read(partition, 0)).size_bytes == 0
        await asyncio.sleep(1)
        waiter = broker.arrivals.wait([K], 10)
        begin = asyncio.get_running_loop().time()
        await broker.commit((K, [b"a", b"b"]))
        assert await waiter.future
        assert asyncio.get_running_loop().time() - begin < 0.05
        outcome = await read(partition, 0)
        assert values_of(outcome, 0) == [(0, b"a"), (1, b"b")]
        assert (outcome.high_watermark, outcome.last_stable_offset, outcome.log_start_offset) == (2, 2, 0)

    run(story)


def test_a_reader_at_the_end_is_woken_when_another_read_finds_new_records() -> None:
    """A broker without a replica has no cache to which the records are appended. Its request for new batches
    may get its answer later than a read of older records."""

    async def story(broker: ReadingBroker) -> None:
        await broker.commit((K, [b"a"]))
        partition = broker.open(K, has_log=False)
        await asyncio.sleep(1)
        find = broker.coordinator.find_batches

        async def slow_at_the_end(call: FindBatchesCall) -> Sequence[FoundPartition]:
            found = await find(call)
            await asyncio.sleep(10 if call.min_bytes else 0.01)
            return found

        broker.coordinator.find_batches = slow_at_the_end  # type: ignore[method-assign]
        await asyncio.sleep(1)
        waiter = broker.arrivals.wait([K], 5)
        await broker.commit((K, [b"b"]))
        assert values_of(await read(partition, 0), 0)[0] == (0, b"a")
        assert await waiter.future
        assert values_of(await read(partition, 1), 1) == [(1, b"b")]

    run(story)


def test_the_high_watermark_that_a_consumer_sees_can_be_read_up_to() -> None:
    async def story(broker: ReadingBroker) -> None:
        await broker.commit((K, [b"a"]))
        partition = broker.open(K)
        await broker.until_cached(partition, 1)
        broker.storage.weather.get_latency = Latency(1_000, 1_000)
        await broker.commit((K, [b"b"]))
        await asyncio.sleep(0.1)
        assert partition.cache.high_watermark == 2
        for offset in (0, 1):
            outcome = await read(partition, offset)
            assert (outcome.high_watermark, outcome.last_stable_offset) == (1, 1)
        await broker.until_cached(partition, 2)
        assert (await read(partition, 2)).high_watermark == 2

    run(story)


def test_objects_that_this_broker_wrote_need_no_request() -> None:
    async def story(broker: ReadingBroker) -> None:
        broker.coordinator.create(K)
        partition = broker.open(K)
        await asyncio.sleep(1)
        for number in range(5):
            await broker.commit((K, [b"%d" % number]), own=True)
        await broker.until_cached(partition, 5)
        assert await consume(partition, 0, 5) == {number: b"%d" % number for number in range(5)}
        assert broker.gets() == 0
        await broker.commit((K, [b"others"]))
        await broker.until_cached(partition, 6)
        assert broker.gets() == 1

    run(story)


def test_own_commits_are_cached_before_a_round_finds_them() -> None:
    async def story(broker: ReadingBroker) -> None:
        broker.coordinator.create(K)
        partition = broker.open(K)
        await asyncio.sleep(1)
        for number in range(5):
            stamped = number == 3  # with LogAppendTime, the bytes of the batch are changed in a copy
            await broker.commit((K, [b"%d" % number]), at_once=True, timestamp_type=stamped)
            assert (await read(partition, number + 1)).high_watermark == number + 1
            assert values_of(await read(partition, number), number) == [(number, b"%d" % number)]
        assert broker.rounds() == 0
        # A late response of the coordinator to an earlier request does not change the cache. Batches that
        # other brokers committed still arrive.
        directory = partition.cache.log.directory
        await broker.commit((K, [b"others"]))
        await broker.commit((K, [b"too early"]), at_once=True)
        await broker.until_cached(partition, 7)
        await broker.commit((K, [b"again"]), at_once=True)
        assert partition.cache.local_end_offset == 8
        await asyncio.sleep(5)
        assert partition.cache.log.directory == directory
        assert partition.cache.local_start_offset == 0
        assert len(await consume(partition, 0, 8)) == 8
        assert broker.gets() == 1

    run(story)


def test_a_read_waits_for_batches_that_are_being_cached() -> None:
    async def story(broker: ReadingBroker) -> None:
        broker.coordinator.create(K)
        partition = broker.open(K)
        await asyncio.sleep(1)
        for number in range(20):
            committing = asyncio.ensure_future(broker.commit((K, [b"%d" % number]), at_once=True))
            for _ in range(100):
                if not partition.cache.is_promised:
                    await asyncio.sleep(0)
            assert partition.cache.is_promised
            assert partition.cache.local_end_offset == number
            assert values_of(await read(partition, number), number) == [(number, b"%d" % number)]
            await committing
        assert broker.rounds() == 0
        assert broker.gets() == 0
        # A waiting reader gets its response when the partition is removed.
        partition.cache.promised_offset = 21
        reading = asyncio.ensure_future(read(partition, 20))
        await asyncio.sleep(0.01)
        partition.cache.close()
        assert (await reading).error is ErrorCode.not_leader_or_follower

    run(story)


async def beside(broker: ReadingBroker, other: PartitionKey) -> DisklessPartition:
    """Open ``K`` and a second partition, and return the second partition. The broker writes the batches of
    its own commits to the caches without a worker thread."""
    for each in (K, other):
        broker.coordinator.create(each)
    broker.open(K)
    partition = broker.open(other)
    await asyncio.sleep(1)
    broker.own_commits = OwnCommits(broker.recent, broker.cacher, InlineWorkers(), broker.machine.unexpected)
    return partition


def test_consecutive_own_commits_cause_no_searches_but_commits_of_others_are_found() -> None:
    async def story(broker: ReadingBroker) -> None:
        partition = await beside(broker, OTHERS)
        finds = broker.coordinator.finds
        for number in range(100):
            await broker.commit((K, [b"%d" % number]), at_once=True)
            if number == 50:
                await broker.commit((OTHERS, [b"others"]))
            await asyncio.sleep(0.002)
            if number == 70:
                assert partition.cache.local_end_offset == 1
        assert broker.coordinator.finds - finds < 20

    run(story)


def test_own_commits_do_not_hide_late_responses_of_a_distant_coordinator() -> None:
    async def story(broker: ReadingBroker) -> None:
        partition = await beside(broker, OTHERS)
        broker.coordinator.distance_s = 0.05
        for number in range(1_000):
            await broker.commit((K, [b"%d" % number]), at_once=True)
            if number == 500:
                await broker.commit((OTHERS, [b"others"]))
            await asyncio.sleep(0.002)
        assert partition.cache.local_end_offset == 1

    run(story)


def test_one_request_for_each_object_of_a_round() -> None:
    async def story(broker: ReadingBroker) -> None:
        keys = [key(1, index) for index in range(10)]
        for _ in range(3):
            await broker.commit(*((one, [b"x" * 100]) for one in keys))
        partitions = [broker.open(one) for one in keys]
        for partition in partitions:
            await broker.until_cached(partition, 3)
        assert broker.gets() == 3

    run(story)


def test_cold_reads_of_one_fetch_share_their_requests() -> None:
    async def story(broker: ReadingBroker) -> None:
        keys = [key(1, index) for index in range(10)]
        for _ in range(3):
            await broker.commit(*((one, [b"x" * 100]) for one in keys))
        partitions = [broker.open(one) for one in keys]
        await asyncio.sleep(1)
        for partition in partitions:
            await partition.cache.restart_at(3)
        before, finds = broker.gets(), broker.coordinator.finds
        outcomes = await asyncio.gather(*(read(partition, 1) for partition in partitions))
        assert all(len(values_of(outcome, 1)) == 2 for outcome in outcomes)
        assert broker.gets() - before == 2
        assert broker.coordinator.finds - finds == 1
        gets = broker.cold_meters.gets_per_fetch
        assert (gets.count, gets.total) == (1, 2)
        # The next read of each partition uses cached coordinates.
        outcomes = await asyncio.gather(*(read(partition, 0, 1) for partition in partitions))
        outcomes = await asyncio.gather(*(read(partition, 1, 1) for partition in partitions))
        assert [values_of(outcome, 1)[0] for outcome in outcomes] == [(1, b"x" * 100)] * 10
        assert broker.coordinator.finds - finds == 2

    run(story, settings=CacherSettings(tail_max_wait_ms=60_000))


def test_cached_coordinates_expire_before_their_objects_are_deleted() -> None:
    async def story(broker: ReadingBroker) -> None:
        for number in range(4):
            await broker.commit((K, [b"%d" % number]))
        partition = broker.open(K)
        await broker.until_cached(partition, 4)
        await partition.cache.restart_at(4)
        await read(partition, 0, 1)
        before = broker.coordinator.finds
        await asyncio.sleep(11)
        assert values_of(await read(partition, 1, 1), 1) == [(1, b"1")]
        assert broker.coordinator.finds > before

    run(story, settings=CacherSettings(tail_max_wait_ms=600_000))
    check_lifetimes(10_000, 20_000, 60_000)
    with pytest.raises(ValueError, match="grace of 30000 ms"):
        check_lifetimes(10_000, 20_000, 30_000)


def test_reads_do_not_extend_the_lifetime_of_cached_coordinates() -> None:
    async def story(broker: ReadingBroker) -> None:
        for number in range(4):
            await broker.commit((K, [b"%d" % number]))
        partition = broker.open(K)
        await broker.until_cached(partition, 4)
        await partition.cache.restart_at(4)
        await read(partition, 0, 1)
        before = broker.coordinator.finds
        await asyncio.sleep(6)
        assert values_of(await read(partition, 1, 1), 1) == [(1, b"1")]
        assert broker.coordinator.finds == before
        await asyncio.sleep(6)
        assert values_of(await read(partition, 2, 1), 2) == [(2, b"2")]
        assert broker.coordinator.finds > before

    run(story, settings=CacherSettings(tail_max_wait_ms=600_000))


def test_a_broker_that_lost_its_folder_begins_with_an_empty_cache() -> None:
    async def story(broker: ReadingBroker) -> None:
        for number in range(20):
            await broker.commit((K, [b"%d" % number]))
        await broker.until_cached(broker.open(K), 20)
        await broker.stop()
        broker.machine.disk.remove_tree(broker.folder)
        broker.start()
        partition = broker.open(K)
        await broker.until_cached(partition, 20)
        assert (await consume(partition, 0, 20))[19] == b"19"
        assert partition.cache.local_start_offset == 0

    run(story)


def test_a_cache_far_behind_is_not_filled_but_begins_at_the_end() -> None:
    async def story(broker: ReadingBroker) -> None:
        for number in range(20):
            await broker.commit((K, [b"%d" % number]))
        partition = broker.open(K)
        await broker.until_cached(partition, 20)
        assert partition.cache.local_start_offset == 20
        assert len(await consume(partition, 0, 20)) == 20
        assert await partition.find_offset(-4, read_committed=False, current_leader_epoch=-1) == FoundOffset(
            20, -1, 0
        )
        await broker.commit((K, [b"new"]))
        await broker.until_cached(partition, 21)
        assert partition.cache.local_start_offset == 20

    run(story, settings=CacherSettings(first_max_bytes=500))


def test_a_cache_that_is_ahead_of_its_coordinator_is_dropped() -> None:
    async def story(broker: ReadingBroker) -> None:
        for number in range(6):
            await broker.commit((K, [b"%d" % number]))
        await broker.until_cached(broker.open(K), 6)
        await broker.stop()
        known = broker.coordinator.partitions[K]
        del known.batches[3:], known.values[3:]
        known.next = 3
        broker.start()
        partition = broker.open(K)
        await asyncio.sleep(1)
        await broker.commit((K, [b"other"]))
        await broker.until_cached(partition, 4)
        assert await consume(partition, 0, 4) == {0: b"0", 1: b"1", 2: b"2", 3: b"other"}

    run(story)


def test_eviction_keeps_the_bound_and_old_offsets_stay_readable() -> None:
    async def story(broker: ReadingBroker) -> None:
        broker.coordinator.create(K)
        partition = broker.open(K)
        for number in range(60):
            await broker.commit((K, [b"%04d" % number * 256]))
            await broker.until_cached(partition, number + 1)
        await asyncio.sleep(1)
        assert partition.cache.log.size_bytes <= 20_000 + 10_000
        assert partition.cache.local_start_offset > 30
        assert await consume(partition, 0, 60, 4_000) == {
            number: b"%04d" % number * 256 for number in range(60)
        }
        assert broker.fetch_meters.cold_reads.value > 0
        assert broker.fetch_meters.cache_hits.value > 0
        names = broker.machine.disk.list(partition.cache.log.directory)
        assert not [name for name in names if name.endswith(".deleted")]

    run(story, settings=CacherSettings(cache_max_bytes=20_000))


def test_segments_are_evicted_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[str, bool]] = []
    rename, remove = MountedDisk.rename, MountedDisk.remove

    def watched_rename(disk: MountedDisk, source: str, target: str) -> None:
        if target.endswith(".deleted"):
            found.append(("rename", disk.process.working > 0))
        rename(disk, source, target)

    def watched_remove(disk: MountedDisk, path: str) -> None:
        if path.endswith(".deleted"):
            found.append(("remove", disk.process.working > 0))
        remove(disk, path)

    monkeypatch.setattr(MountedDisk, "rename", watched_rename)
    monkeypatch.setattr(MountedDisk, "remove", watched_remove)

    async def story(broker: ReadingBroker) -> None:
        broker.coordinator.create(K)
        partition = broker.open(K)
        for number in range(30):
            await broker.commit((K, [b"%04d" % number * 256]))
            await broker.until_cached(partition, number + 1)
        await asyncio.sleep(1)

    run(story, settings=CacherSettings(cache_max_bytes=10_000))
    assert {what for what, _ in found} == {"rename", "remove"}
    assert all(by_worker for _, by_worker in found)


def test_the_log_start_may_be_inside_a_batch() -> None:
    async def story(broker: ReadingBroker) -> None:
        await broker.commit((K, [b"a", b"b", b"c", b"d"]))
        await broker.commit((K, [b"e"]))
        partition = broker.open(K)
        await broker.until_cached(partition, 5)
        assert await partition.delete_records(2) == 2
        outcome = await read(partition, 1)
        assert outcome.error is ErrorCode.offset_out_of_range
        assert outcome.log_start_offset == 2
        assert values_of(await read(partition, 2), 2)[0] == (2, b"c")
        await partition.cache.restart_at(5)
        assert values_of(await read(partition, 2), 2)[0] == (2, b"c")
        await broker.stop()
        broker.machine.disk.remove_tree(broker.folder)
        broker.start()
        partition = broker.open(K)
        await broker.until_cached(partition, 5)
        assert await consume(partition, 2, 5) == {2: b"c", 3: b"d", 4: b"e"}
        with pytest.raises(KafkaError) as refused:
            await partition.delete_records(9)
        assert refused.value.code is ErrorCode.offset_out_of_range
        assert await partition.delete_records(-1) == 5
        assert (await read(partition, 4)).error is ErrorCode.offset_out_of_range

    run(story)


def test_lookups_by_time_are_exact_to_the_record() -> None:
    async def story(broker: ReadingBroker) -> None:
        await broker.commit((K, [b"a", b"b", b"c"]), timestamps=[100, 300, 200])
        await broker.commit((K, [b"d", b"e"]), timestamps=[250, 400])
        await broker.commit((K, [b"f"]), timestamps=[350])
        partition = broker.open(K)
        await asyncio.sleep(1)

        async def find(timestamp_ms: int) -> tuple[int, int]:
            found = await partition.find_offset(timestamp_ms, read_committed=False, current_leader_epoch=-1)
            return found.offset, found.timestamp_ms

        assert await find(0) == (0, 100)
        assert await find(101) == (1, 300)
        assert await find(301) == (4, 400)
        assert await find(401) == (-1, -1)
        assert await find(-1) == (6, -1)
        assert await find(-2) == (0, -1)
        assert await find(-3) == (4, 400)
        assert await find(-4) == (0, -1)
        assert await find(-5) == (-1, -1)
        assert await find(-6) == (-1, -1)
        with pytest.raises(KafkaError):
            await find(-7)
        await partition.delete_records(2)
        # The latest record of the first batch is deleted, so no remaining record has the timestamp in the
        # batch's header.
        assert await find(201) == (3, 250)
        assert await find(-2) == (2, -1)

    run(story)


def test_the_largest_timestamp_belongs_to_a_record_that_was_not_deleted() -> None:
    async def story(broker: ReadingBroker) -> None:
        await broker.commit((K, [b"a", b"b", b"c"]), timestamps=[100, 900, 200])
        partition = broker.open(K)

        async def latest() -> tuple[int, int]:
            found = await partition.find_offset(-3, read_committed=False, current_leader_epoch=-1)
            return found.offset, found.timestamp_ms

        assert await latest() == (1, 900)
        await partition.delete_records(2)
        assert await latest() == (2, 200)
        for timestamps in ([150], [250, 400], [400], [350]):
            await broker.commit((K, [b"-"] * len(timestamps)), timestamps=timestamps)
        assert await latest() == (5, 400)

    run(story)


def test_the_append_time_is_the_time_of_the_coordinator() -> None:
    async def story(broker: ReadingBroker) -> None:
        await broker.commit((K, [b"a", b"b"]), timestamp_type=1)
        partition = broker.open(K)
        await broker.until_cached(partition, 2)
        stamped = broker.coordinator.partitions[K].batches[0].log_append_time_ms
        for _ in range(2):
            outcome = await read(partition, 0)
            header = check_batch(outcome.views[0])
            assert header.max_timestamp == stamped
            assert {record.timestamp for record in iter_records(memoryview(outcome.views[0]))} == {stamped}
            await partition.cache.restart_at(2)
        found = await partition.find_offset(stamped, read_committed=False, current_leader_epoch=-1)
        assert found == FoundOffset(0, stamped, 0)

    run(story)


def test_batches_of_a_deleted_object_are_looked_up_again() -> None:
    async def story(broker: ReadingBroker) -> None:
        first = await broker.commit((K, [b"a"]))
        await broker.commit((K, [b"b"]))
        partition = broker.open(K)
        await broker.until_cached(partition, 2)
        await partition.cache.restart_at(2)
        await read(partition, 0, 1)
        # The same batches move to another object while the cache still has their old coordinates.
        known = broker.coordinator.partitions[K]
        second = known.batches[1]
        content = await broker.memory.fetch(second.object_key, second.byte_offset, second.size_bytes)
        await broker.memory.upload("wal/moved", content, len(content))
        known.batches[1] = second._replace(object_key="wal/moved", byte_offset=0)
        await broker.memory.delete([second.object_key, first])
        assert values_of(await read(partition, 1), 1) == [(1, b"b")]
        # If an object is permanently missing, clients get an error after which they retry. They never see a
        # gap in the records.
        assert (await read(partition, 0)).error is ErrorCode.kafka_storage_error

    run(story, settings=CacherSettings(tail_max_wait_ms=600_000))


def test_a_reader_of_a_lost_object_gets_an_error_and_other_readers_continue() -> None:
    async def story(broker: ReadingBroker) -> None:
        keys = [key(1, index) for index in range(2)]
        for one in keys:
            broker.coordinator.create(one)
        partition, other = (broker.open(one) for one in keys)
        await asyncio.sleep(1)
        broker.storage.weather.get_latency = Latency(100, 100)
        lost = await broker.commit((keys[0], [b"lost"]))
        content = await broker.memory.fetch(lost, 0, broker.coordinator.partitions[keys[0]].batches[0][6])
        await broker.memory.delete([lost])
        waiter = broker.arrivals.wait([keys[0]], 10)
        assert await waiter.future
        assert (await read(partition, 0)).error is ErrorCode.kafka_storage_error
        await broker.commit((keys[0], [b"later"]), (keys[1], [b"other"]))
        assert await consume(other, 0, 1) == {0: b"other"}
        assert values_of(await read(partition, 1), 1) == [(1, b"later")]
        # If the object exists again (because it was moved or restored), the next reads succeed.
        await broker.memory.upload(lost, content, len(content))
        await broker.until_cached(partition, 2)
        assert await consume(partition, 0, 2) == {0: b"lost", 1: b"later"}

    run(story)


def test_offsets_before_the_start_of_the_wal_are_not_skipped_and_not_out_of_range() -> None:
    async def story(broker: ReadingBroker) -> None:
        for number in range(4):
            await broker.commit((K, [b"%d" % number]))
        broker.coordinator.partitions[K].wal_start = 2
        partition = broker.open(K)
        await broker.until_cached(partition, 4)
        assert partition.cache.local_start_offset == 2
        assert await consume(partition, 2, 4) == {2: b"2", 3: b"3"}
        assert (await read(partition, 1)).error is ErrorCode.kafka_storage_error

    run(story)


def test_an_unavailable_store_does_not_stop_readers_of_the_cached_tail() -> None:
    async def story(broker: ReadingBroker) -> None:
        await broker.commit((K, [b"a"]))
        partition = broker.open(K)
        await broker.until_cached(partition, 1)
        broker.storage.weather.down = True
        await broker.commit((K, [b"b"]))
        await asyncio.sleep(5)
        assert values_of(await read(partition, 0), 0) == [(0, b"a")]
        assert (await read(partition, 1)).error is ErrorCode.none
        broker.storage.weather.down = False
        assert await consume(partition, 0, 2) == {0: b"a", 1: b"b"}

    run(story)


def test_an_unavailable_coordinator_does_not_stop_readers_of_the_cached_tail() -> None:
    async def story(broker: ReadingBroker) -> None:
        await broker.commit((K, [b"a"]))
        partition = broker.open(K)
        await broker.until_cached(partition, 1)
        broker.coordinator.is_away = True
        broker.coordinator.committed()
        await asyncio.sleep(5)
        assert values_of(await read(partition, 0), 0) == [(0, b"a")]
        await partition.cache.restart_at(1)
        assert (await read(partition, 0)).error is ErrorCode.kafka_storage_error
        broker.coordinator.is_away = False
        await broker.commit((K, [b"b"]))
        assert await consume(partition, 0, 2) == {0: b"a", 1: b"b"}

    run(story)


@pytest.mark.parametrize(("away_s", "code"), [(1.0, None), (60.0, ErrorCode.leader_not_available)])
def test_lookups_and_deletions_wait_while_a_coordinator_moves(away_s: float, code: ErrorCode | None) -> None:
    async def story(broker: ReadingBroker) -> None:
        await broker.commit((K, [b"a", b"b"]))
        partition = broker.open(K)
        await broker.until_cached(partition, 2)
        loop = asyncio.get_running_loop()

        async def list_end() -> int:
            found = await partition.find_offset(
                LATEST_TIMESTAMP, read_committed=False, current_leader_epoch=-1
            )
            return found.offset

        for request, expected in ((list_end, 2), (lambda: partition.delete_records(1), 1)):
            broker.coordinator.is_away = True
            loop.call_later(away_s, setattr, broker.coordinator, "is_away", False)
            began_s = loop.time()
            if code is None:
                assert await request() == expected
                continue
            with pytest.raises(KafkaError) as refused:
                await request()
            assert refused.value.code is code
            assert loop.time() - began_s < 4
            broker.coordinator.is_away = False

    run(story)


def test_requests_wait_once_for_a_coordinator_that_is_away_for_long() -> None:
    """The parts of a large request may be answered one after the other."""

    async def story(broker: ReadingBroker) -> None:
        broker.coordinator.create(K)
        partition = broker.open(K)
        await asyncio.sleep(1)
        loop = asyncio.get_running_loop()
        for pause_s in (0, 60):
            await asyncio.sleep(pause_s)
            broker.coordinator.is_away = True
            began_s = loop.time()
            for _ in range(20):
                with pytest.raises(KafkaError):
                    await partition.find_offset(-1, read_committed=False, current_leader_epoch=-1)
            assert 2 < loop.time() - began_s < 4
            broker.coordinator.is_away = False

    run(story)


def test_a_lookup_does_not_wait_longer_than_its_request() -> None:
    async def story(broker: ReadingBroker) -> None:
        broker.coordinator.create(K)
        partition = broker.open(K)
        await asyncio.sleep(1)
        broker.coordinator.is_away = True
        deadline_s = asyncio.get_running_loop().time() + 0.3
        with pytest.raises(KafkaError):
            await partition.find_offset(
                -1, read_committed=False, current_leader_epoch=-1, deadline_s=deadline_s
            )
        assert asyncio.get_running_loop().time() <= deadline_s

    run(story)


def test_a_deletion_does_not_wait_longer_than_its_timeout() -> None:
    async def story(broker: ReadingBroker) -> None:
        await broker.commit((K, [b"a"]))
        partition = broker.open(K)
        broker.coordinator.is_away = True
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(KafkaError):
            await partition.delete_records(1, 0.3)
        assert asyncio.get_running_loop().time() - began_s <= 0.3

    run(story)


def test_a_slow_object_delays_only_its_own_readers() -> None:
    async def story(broker: ReadingBroker) -> None:
        keys = [key(1, index) for index in range(2)]
        for one in keys:
            broker.coordinator.create(one)
        slow, quick = (broker.open(one) for one in keys)
        await asyncio.sleep(1)
        broker.storage.weather.get_latency = Latency(10_000, 10_000)
        await broker.commit((keys[0], [b"slow"]))
        await asyncio.sleep(0.5)
        broker.storage.weather.get_latency = Latency()
        await broker.commit((keys[1], [b"quick"]))
        await asyncio.sleep(0.5)
        assert quick.cache.local_end_offset == 1
        assert slow.cache.local_end_offset == 0
        await broker.until_cached(slow, 1)

    run(story)


def test_corrupt_bytes_are_never_served() -> None:
    async def story(broker: ReadingBroker) -> None:
        await broker.commit((K, [b"good"]))
        bad = await broker.commit((K, [b"bad"]))
        batch = broker.coordinator.partitions[K].batches[1]
        content = bytearray(await broker.memory.fetch(bad, 0, batch.size_bytes))
        content[-1] ^= 1
        await broker.memory.upload(bad, content, len(content))
        partition = broker.open(K)
        await asyncio.sleep(3)
        assert values_of(await read(partition, 0), 0) == [(0, b"good")]
        assert partition.cache.local_end_offset == 1
        assert (await read(partition, 1)).error is ErrorCode.corrupt_message
        await partition.cache.restart_at(2)
        assert (await read(partition, 1)).error is ErrorCode.corrupt_message

    run(story)
