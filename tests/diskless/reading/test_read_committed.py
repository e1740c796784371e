"""Diskless partitions with open and aborted transactions, as read_committed consumers see them.

The tests write the transactions into a coordinator's state, because the coordinator in these tests refuses
transactional batches.
"""

import pytest
from reading_fakes import Known, ReadingBroker, key, read
from test_diskless_reading import run

from moldau.coordinators.diskless.calls import AbortedRange, BatchCoordinate
from moldau.diskless.partition.partition import DisklessPartition
from moldau.protocol.special_timestamps import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP
from moldau.records.batch import iter_headers
from moldau.replication.partition_interface import AbortedTransaction, ReadOutcome, ReadRequest

K = key()


async def committed(partition: DisklessPartition, offset: int, max_bytes: int = 1 << 20) -> ReadOutcome:
    answer = partition.read(ReadRequest(offset, max_bytes, read_committed=True))
    return answer if isinstance(answer, ReadOutcome) else await answer


async def six_records(broker: ReadingBroker) -> Known:
    """Offsets 0 to 5 with timestamps 0 to 500. Each record is in an object of its own."""
    for number in range(6):
        await broker.commit((K, [b"%d" % number]), timestamps=[100 * number])
    return broker.coordinator.partitions[K]


@pytest.mark.parametrize("is_cold", [False, True])
def test_a_reader_of_committed_records_stops_at_an_open_transaction(is_cold: bool) -> None:
    async def story(broker: ReadingBroker) -> None:
        known = await six_records(broker)
        known.open_from[7] = 4
        partition = broker.open(K)
        await broker.until_cached(partition, 6)
        if is_cold:
            await partition.cache.restart_at(6)
        outcome = await committed(partition, 0)
        assert (outcome.high_watermark, outcome.last_stable_offset) == (6, 4)
        assert end_of(outcome) == 4
        for offset in (4, 5):
            outcome = await committed(partition, offset)
            assert (outcome.size_bytes, outcome.last_stable_offset, outcome.aborted) == (0, 4, ())
        assert end_of(await read(partition, 4)) == 6, "others read on"

    run(story)


def test_readers_continue_after_the_end_of_a_transaction() -> None:
    async def story(broker: ReadingBroker) -> None:
        known = await six_records(broker)
        known.open_from[7] = 4
        partition = broker.open(K)
        await broker.until_cached(partition, 6)
        known.open_from.clear()
        known.aborted.append(AbortedRange(7, 4, 6))
        await broker.commit((K, [b"marker"]))
        await broker.until_cached(partition, 7)
        outcome = await committed(partition, 3)
        assert (outcome.last_stable_offset, end_of(outcome)) == (7, 7)
        assert outcome.aborted == [AbortedTransaction(7, 4)]

    run(story)


@pytest.mark.parametrize("is_cold", [False, True])
def test_aborted_transactions_are_returned_with_their_batches(is_cold: bool) -> None:
    async def story(broker: ReadingBroker) -> None:
        known = await six_records(broker)
        known.aborted += [AbortedRange(7, 0, 1), AbortedRange(8, 2, 4), AbortedRange(9, 5, 5)]
        partition = broker.open(K)
        await broker.until_cached(partition, 6)
        if is_cold:
            await partition.cache.restart_at(6)
        for offset, told in ((0, [7, 8, 9]), (2, [8, 9]), (5, [9])):
            outcome = await committed(partition, offset)
            assert outcome.aborted is not None
            assert [each.producer_id for each in outcome.aborted] == told
        one = await committed(partition, 2, max_bytes=1)
        assert one.aborted == [AbortedTransaction(8, 2)]
        assert (await read(partition, 0)).aborted is None

    run(story)


def test_lookups_of_committed_records_end_at_an_open_transaction() -> None:
    async def story(broker: ReadingBroker) -> None:
        known = await six_records(broker)
        known.open_from[7] = 4
        partition = broker.open(K)
        await broker.until_cached(partition, 6)

        async def find(timestamp_ms: int, *, read_committed: bool) -> int:
            found = await partition.find_offset(
                timestamp_ms, read_committed=read_committed, current_leader_epoch=-1
            )
            return found.offset

        for timestamp_ms, all_records, only_committed in (
            (LATEST_TIMESTAMP, 6, 4),
            (EARLIEST_TIMESTAMP, 0, 0),
            (300, 3, 3),
            (301, 4, -1),
            (MAX_TIMESTAMP, 5, -1),
        ):
            assert await find(timestamp_ms, read_committed=False) == all_records
            assert await find(timestamp_ms, read_committed=True) == only_committed

    run(story)


def test_own_commits_after_an_open_transaction_do_not_hide_it() -> None:
    async def story(broker: ReadingBroker) -> None:
        known = await six_records(broker)
        known.open_from[7] = 4
        partition = broker.open(K)
        await broker.until_cached(partition, 6)
        await broker.commit((K, [b"own"]), at_once=True)
        outcome = await committed(partition, 3)
        assert (outcome.high_watermark, outcome.last_stable_offset, end_of(outcome)) == (7, 4, 4)

    run(story)


def test_own_batches_open_a_transaction_before_they_are_cached() -> None:
    """The coordinator is not asked about batches that this broker commits."""

    def coordinate(first: int, last: int, *, is_transactional: bool) -> BatchCoordinate:
        return BatchCoordinate(
            K.topic_id, K.partition, first, last, "own", 0, 100, -1, 0, 0, is_transactional
        )

    async def story(broker: ReadingBroker) -> None:
        await six_records(broker)
        partition = broker.open(K)
        await broker.until_cached(partition, 6)
        cache = partition.cache
        cache.learn_promised(
            [coordinate(6, 6, is_transactional=False), coordinate(7, 8, is_transactional=True)]
        )
        assert (cache.high_watermark, cache.last_stable_offset) == (9, 7)
        outcome = await committed(partition, 7)
        assert (outcome.size_bytes, outcome.last_stable_offset) == (0, 6), "as far as the cache has records"
        cache.learn_promised([coordinate(9, 9, is_transactional=True)])
        cache.learn_promised([coordinate(10, 10, is_transactional=False)])
        assert (cache.high_watermark, cache.last_stable_offset) == (11, 7)
        cache.learn(log_start_offset=0, wal_start_offset=0, high_watermark=12, last_stable_offset=12)
        assert cache.last_stable_offset == 12
        cache.learn_promised([coordinate(12, 12, is_transactional=False)])
        assert (cache.high_watermark, cache.last_stable_offset) == (13, 13)

    run(story)


def end_of(outcome: ReadOutcome) -> int:
    """The offset after the last batch."""
    headers = [header for view in outcome.views for _, header in iter_headers(memoryview(view))]
    return headers[-1].last_offset + 1
