"""A broker on which nobody reads a partition does not fetch the batches of other brokers for its cache."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from reading_fakes import ReadingBroker, consume, key, read, values_of
from writer_fakes import run_in_virtual_time

from moldau.coordinators.diskless.calls import FindBatchesCall, FoundPartition, ListedOffset, TimestampToList
from moldau.diskless.cache.cacher import CacherSettings
from moldau.diskless.partition.partition import DisklessPartition
from moldau.objects import Latency
from moldau.protocol.special_timestamps import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
)
from moldau.records import Record, build_batch
from moldau.replication.partition_interface import AppendOutcome, ReadRequest
from moldau.runtime import ErrorCode, KafkaError, Machine

K = key()
OTHERS = key(2)
SETTINGS = CacherSettings(unread_ms=60_000)


def run(
    story: Callable[[ReadingBroker], Coroutine[Any, Any, None]], settings: CacherSettings = SETTINGS
) -> None:
    """Run a test of one broker in virtual time."""

    async def tell(machine: Machine) -> None:
        broker = ReadingBroker(machine, settings=settings)
        try:
            await story(broker)
        finally:
            await broker.stop()

    run_in_virtual_time(tell)


def unread(broker: ReadingBroker) -> int:
    return int(broker.meters.scoped("moldau.diskless", "Cache").value("Unread") or 0)


async def opened(broker: ReadingBroker, *values: bytes) -> DisklessPartition:
    """A partition that no client has read, after another broker has committed a batch for each value."""
    broker.coordinator.create(K)
    partition = broker.open(K, is_read=False)
    await asyncio.sleep(1)
    for value in values:
        await broker.commit((K, [value]))
        await asyncio.sleep(1)
    return partition


async def opened_many(broker: ReadingBroker, count: int) -> list[DisklessPartition]:
    """Partitions that no client has read, each with a batch of another broker."""
    keys = [key(number) for number in range(count)]
    for each in keys:
        broker.coordinator.create(each)
    partitions = [broker.open(each, is_read=False) for each in keys]
    await asyncio.sleep(5)
    await broker.commit(*((each, [b"a"]) for each in keys))
    await asyncio.sleep(20)
    assert unread(broker) == count
    return partitions


def test_batches_of_other_brokers_are_not_fetched_before_a_read() -> None:
    async def story(broker: ReadingBroker) -> None:
        partition = await opened(broker)
        assert unread(broker) == 0
        for number in range(5):
            await broker.commit((K, [b"%d" % number]))
            await asyncio.sleep(1)
        assert (broker.gets(), unread(broker)) == (0, 1)
        assert await consume(partition, 0, 5) == {number: b"%d" % number for number in range(5)}
        assert unread(broker) == 0
        await broker.until_cached(partition, 5)
        gets = broker.gets()
        waiter = broker.arrivals.wait([K], 10)
        await broker.commit((K, [b"5"]))
        assert await waiter.future
        assert values_of(await read(partition, 5), 5) == [(5, b"5")]
        assert broker.gets() == gets + 1

    run(story)


def test_an_unread_partition_asks_its_coordinator_nothing() -> None:
    async def story(broker: ReadingBroker) -> None:
        await opened(broker, b"a")
        calls = broker.coordinator.finds
        for _ in range(10):
            await broker.commit((K, [b"more"]))
            await asyncio.sleep(10)
        assert broker.coordinator.finds == calls

    run(story)


def test_the_first_read_gets_the_present_high_watermark() -> None:
    async def story(broker: ReadingBroker) -> None:
        partition = await opened(broker, b"a")
        await broker.commit((K, [b"b", b"c"]))
        assert unread(broker) == 1
        outcome = await read(partition, 1)
        assert (outcome.high_watermark, values_of(outcome, 1)) == (3, [(1, b"b"), (2, b"c")])

    run(story)


def test_own_commits_are_cached_until_another_broker_commits() -> None:
    async def story(broker: ReadingBroker) -> None:
        partition = await opened(broker)
        for number in range(3):
            await broker.commit((K, [b"%d" % number]), at_once=True)
        assert partition.cache.log.log_end_offset == 3
        await broker.commit((K, [b"others"]))
        await asyncio.sleep(1)
        await broker.commit((K, [b"own"]), at_once=True)
        assert (partition.cache.log.log_end_offset, unread(broker), broker.gets()) == (3, 1, 0)
        assert len(await consume(partition, 0, 5)) == 5
        # The cache continues at its own end, because few batches are missing.
        await broker.until_cached(partition, 5)
        assert partition.cache.local_start_offset == 0
        await broker.commit((K, [b"own"]), at_once=True)
        assert partition.cache.local_end_offset == 6

    run(story)


def test_a_cache_that_lacks_much_starts_at_the_high_watermark() -> None:
    async def story(broker: ReadingBroker) -> None:
        partition = await opened(broker, *[bytes(1_000)] * 10)
        assert len(await consume(partition, 0, 10)) == 10
        await asyncio.sleep(1)
        assert (partition.cache.local_start_offset, partition.cache.local_end_offset) == (10, 10)

    run(story, CacherSettings(unread_ms=60_000, first_max_bytes=5_000))


def test_a_partition_is_unread_some_time_after_its_last_read() -> None:
    async def story(broker: ReadingBroker) -> None:
        broker.coordinator.create(K)
        partition = broker.open(K)
        await asyncio.sleep(59)
        await broker.commit((K, [b"a"]))
        await broker.until_cached(partition, 1)
        await asyncio.sleep(2)
        await broker.commit((K, [b"b"]))
        await asyncio.sleep(1)
        assert (unread(broker), broker.gets()) == (1, 1)
        assert values_of(await read(partition, 0), 0)[0] == (0, b"a")
        assert unread(broker) == 0

    run(story)


def test_caches_are_always_filled_if_the_operator_wants_it() -> None:
    async def story(broker: ReadingBroker) -> None:
        partition = await opened(broker)
        await broker.commit((K, [b"a"]))
        await broker.until_cached(partition, 1)
        assert (unread(broker), broker.gets()) == (0, 1)

    run(story, CacherSettings(unread_ms=-1))


def test_a_reader_that_has_waited_for_long_is_woken() -> None:
    async def story(broker: ReadingBroker) -> None:
        broker.coordinator.create(K)
        partition = broker.open(K)
        assert (await read(partition, 0)).size_bytes == 0
        waiter = broker.arrivals.wait([K], 600)
        await asyncio.sleep(300)
        await broker.commit((K, [b"a"]))
        assert await waiter.future
        assert values_of(await read(partition, 0), 0) == [(0, b"a")]

    run(story)


def test_an_unread_partition_accepts_appends() -> None:
    async def story(broker: ReadingBroker) -> None:
        partition = await opened(broker, b"a")
        assert unread(broker) == 1
        batch = build_batch([Record(0, 1_000, None, b"b", ())])
        answer = partition.append(memoryview(batch), required_acks=-1, timeout_ms=1_000)
        assert isinstance(answer, AppendOutcome)
        assert answer.error is ErrorCode.none

    run(story)


def test_lookups_are_not_reads() -> None:
    async def story(broker: ReadingBroker) -> None:
        partition = await opened(broker, b"a", b"b")
        offsets = [
            (await partition.find_offset(timestamp, read_committed=False, current_leader_epoch=-1)).offset
            for timestamp in (EARLIEST_LOCAL_TIMESTAMP, EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
        ]
        assert (offsets, unread(broker), broker.gets()) == ([0, 0, 2], 1, 0)

    run(story)


def test_a_lookup_does_not_make_old_offsets_valid() -> None:
    """A lookup learns the start of the log, but not its end."""

    async def story(broker: ReadingBroker) -> None:
        partition = await opened(broker, b"a")
        await broker.commit((K, [b"b"]))
        with pytest.raises(KafkaError):
            partition.end_offset_for_epoch(0, -1)
        await partition.find_offset(EARLIEST_TIMESTAMP, read_committed=False, current_leader_epoch=-1)
        with pytest.raises(KafkaError):
            partition.end_offset_for_epoch(0, -1)
        await broker.until_cached(partition, 2)
        await asyncio.sleep(1)
        assert partition.end_offset_for_epoch(0, -1) == (0, 2)

    run(story)


def test_first_reads_do_not_wait_for_the_cache() -> None:
    """Clients begin to read many partitions, one after the other, at a distant coordinator and a slow store.
    Each begins before the coordinator's response to the request before."""

    async def story(broker: ReadingBroker) -> None:
        partitions = await opened_many(broker, 300)
        broker.coordinator.distance_s = 0.05
        broker.storage.weather.get_latency = Latency(250, 250)
        loop = asyncio.get_running_loop()

        async def first(partition: DisklessPartition) -> float:
            began_s = loop.time()
            assert values_of(await read(partition, 0), 0) == [(0, b"a")]
            return loop.time() - began_s

        reads = []
        for partition in partitions:
            reads.append(asyncio.ensure_future(first(partition)))
            await asyncio.sleep(0.03)
        assert max(await asyncio.gather(*reads)) < 1
        for partition in partitions:
            await broker.until_cached(partition, 1)

    run(story)


def test_cached_records_are_read_while_the_coordinator_is_away() -> None:
    async def story(broker: ReadingBroker) -> None:
        broker.coordinator.create(K)
        partition = broker.open(K)
        await broker.commit((K, [b"a"]))
        await broker.until_cached(partition, 1)
        await asyncio.sleep(100)
        await broker.commit((K, [b"b"]))
        await asyncio.sleep(1)
        assert unread(broker) == 1
        broker.coordinator.is_away = True
        assert values_of(await read(partition, 0), 0) == [(0, b"a")]

    run(story)


def test_a_cache_behind_the_start_of_the_log_begins_at_the_high_watermark() -> None:
    async def story(broker: ReadingBroker) -> None:
        partition = await opened(broker, *[bytes(1_000)] * 10)
        await partition.delete_records(1)
        assert len(await consume(partition, 1, 10)) == 9
        await asyncio.sleep(1)
        assert (partition.cache.local_start_offset, partition.cache.local_end_offset) == (10, 10)

    run(story, CacherSettings(unread_ms=60_000, first_max_bytes=5_000))


def test_a_coordinator_that_was_restored_to_lower_offsets_is_believed() -> None:
    async def story(broker: ReadingBroker) -> None:
        known = broker.coordinator.create(K)
        partition = broker.open(K, is_read=False)
        await asyncio.sleep(1)
        for number in range(10):
            await broker.commit((K, [b"%d" % number]))
        await asyncio.sleep(1)
        assert partition.cache.high_watermark > 5
        del known.batches[5:]
        known.next = 5
        assert len(await consume(partition, 0, 5)) == 5
        await broker.until_cached(partition, 5)
        await asyncio.sleep(5)
        assert (await read(partition, 5)).high_watermark == 5
        assert partition.cache.is_at_tail

    run(story)


def test_a_partition_that_is_read_begins_although_its_answers_are_late() -> None:
    """Reads learn newer ends before the answer to the lane arrives. Such an answer is not the answer of a
    coordinator that was restored to lower offsets."""

    async def story(broker: ReadingBroker) -> None:
        partitions = await opened_many(broker, 40)
        find = broker.coordinator.find_batches

        async def slow(call: FindBatchesCall) -> Sequence[FoundPartition]:
            found = await find(call)
            is_of_the_lane = call.partitions[0].max_bytes == SETTINGS.first_max_bytes
            await asyncio.sleep(0.2 if is_of_the_lane else 0.01)
            return found

        broker.coordinator.find_batches = slow  # type: ignore[method-assign]
        lists: list[object] = []
        list_offsets = broker.coordinator.list_offsets

        async def counted(asked: Sequence[TimestampToList]) -> Sequence[ListedOffset]:
            lists.append(asked)
            return await list_offsets(asked)

        broker.coordinator.list_offsets = counted  # type: ignore[method-assign]
        for number in range(60):
            await broker.commit(*((each.key, [b"b"]) for each in partitions))
            for partition in partitions:
                outcome = partition.read(ReadRequest(offset=number, max_bytes=100))
                if isinstance(outcome, asyncio.Future):
                    outcome.add_done_callback(lambda done: done.exception())
            await asyncio.sleep(0.05)
        await asyncio.sleep(2)
        assert not lists
        assert not any(partition.cache.must_begin for partition in partitions)

    run(story)


def test_a_partition_that_cannot_be_followed_does_not_hold_up_the_others() -> None:
    async def story(broker: ReadingBroker) -> None:
        for each in (K, OTHERS):
            broker.coordinator.create(each)
            await broker.commit((each, [b"a"]))
        restored, followed = broker.open(K), broker.open(OTHERS)
        for partition in (restored, followed):
            await broker.until_cached(partition, 1)

        async def fail(asked: object) -> Sequence[ListedOffset]:
            raise KafkaError(ErrorCode.coordinator_not_available, "away")

        broker.coordinator.list_offsets = fail  # type: ignore[method-assign]
        known = broker.coordinator.partitions[K]
        known.batches.clear()
        known.next = 0
        for _ in range(20):
            await broker.commit((OTHERS, [b"b"]))
        await broker.until_cached(followed, 21)
        assert len(await consume(followed, 0, 21)) == 21

    run(story)


def test_own_batches_that_are_not_cached_do_not_end_the_following() -> None:
    """The process ended before it cached its last batches. They are read from the store again."""

    async def story(broker: ReadingBroker) -> None:
        partition = await opened(broker)
        await broker.commit((K, [b"a"]), written_by=1)
        await broker.until_cached(partition, 1)
        await broker.commit((K, [b"b"]), at_once=True)
        assert (partition.cache.local_end_offset, unread(broker), broker.gets()) == (2, 0, 1)

    run(story)


def test_unread_partitions_leave_the_others_alone() -> None:
    async def story(broker: ReadingBroker) -> None:
        broker.coordinator.create(K)
        broker.coordinator.create(OTHERS)
        broker.open(K, is_read=False)
        followed = broker.open(OTHERS)
        await asyncio.sleep(1)
        for _ in range(3):
            await broker.commit((K, [bytes(100_000)]), (OTHERS, [b"a"]))
        await broker.until_cached(followed, 3)
        assert unread(broker) == 1
        assert len(await consume(followed, 0, 3)) == 3

    run(story)
