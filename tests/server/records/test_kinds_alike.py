"""Classic and diskless topics give the same responses to the same requests."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from plain_requests import Requests, eventually, records, unpack, values

from moldau.coordinators.diskless.state import commit
from moldau.protocol.messages import describe_configs as configs
from moldau.protocol.messages import describe_producers as producers
from moldau.protocol.messages import offset_for_leader_epoch as epochs
from moldau.protocol.special_timestamps import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
)
from moldau.records import Compression, build_batch
from moldau.records.batch import TimestampType, iter_headers, parse_header
from moldau.runtime import ErrorCode, SystemClock
from moldau.testing import Node

Story = Callable[[Requests, str], Awaitable[None]]
LAST_SEQUENCE = 2**31 - 1
FOREVER_MS = 2**31 - 1
"""Maximum wait of a fetch that must be woken. The time limit of a test is much shorter."""


@pytest.fixture(scope="module", params=["classic", "diskless"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    properties = {"log.retention.check.interval.ms": "200", "log.retention.ms": "-1"}
    with Node(diskless=request.param == "diskless", properties=properties) as running:
        yield running


@pytest.fixture
def play(node: Node) -> Callable[[Story], None]:
    """Runs a test function with a client and the name of a topic that does not exist yet."""

    def run(story: Story) -> None:
        async def told() -> None:
            async with Requests(node.bootstrap_servers) as client:
                async with asyncio.timeout(200):
                    await story(client, f"t-{uuid.uuid4().hex[:12]}")

        asyncio.run(told())

    return run


def numbered(first: int, count: int, *, producer_id: int = 77, epoch: int = 0) -> bytes:
    """A batch of an idempotent producer. Sequence numbers wrap around."""
    batch = [b"%d" % ((first + n) % (LAST_SEQUENCE + 1)) for n in range(count)]
    return build_batch(records(*batch), producer_id=producer_id, producer_epoch=epoch, base_sequence=first)


def test_offsets_follow_each_other_over_requests(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic)
        for n in range(5):
            assert await client.produce_values(topic, *[b"%d-%d" % (n, i) for i in range(3)]) == 3 * n
        found = await client.read(topic, 0, 15)
        assert [record.offset for record in found] == list(range(15))
        assert values(found) == [b"%d-%d" % (n, i) for n in range(5) for i in range(3)]
        (middle,) = (await client.read(topic, 7, 1))[:1]
        assert (middle.offset, middle.value) == (7, b"2-1")

    play(story)


def test_requests_for_a_hundred_partitions(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, partitions=100)
        batches = {(topic, n): build_batch(records(b"%d" % n)) for n in range(100)}
        for turn in range(3):
            answers = await client.produce_all(batches)
            assert {row.error_code for row in answers.values()} == {ErrorCode.none}
            assert {row.base_offset for row in answers.values()} == {turn}
        size_bytes = 3 * sum(map(len, batches.values()))
        fetched = await client.fetch_all(dict.fromkeys(batches, 0), max_wait_ms=30_000, min_bytes=size_bytes)
        for n in range(100):
            assert values(unpack(fetched[topic, n].records)) == [b"%d" % n] * 3

    play(story)


def test_a_mixed_request_is_answered_whole(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, partitions=2)
        await client.create(f"{topic}-classic", diskless_enable="false")
        good = build_batch(records(b"v"))
        corrupt = good[:-1] + bytes([good[-1] ^ 1])
        rows = {
            (topic, 0): good,
            (f"{topic}-classic", 0): good,
            (topic, 1): corrupt,
            (topic, 2): good,
            ("nowhere", 0): good,
        }
        answers = await client.produce_all(rows)
        errors = [answers[key].error_code for key in rows]
        assert errors == [
            ErrorCode.none,
            ErrorCode.none,
            ErrorCode.corrupt_message,
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.unknown_topic_or_partition,
        ]
        for name in (topic, f"{topic}-classic"):
            assert values(await client.read(name, 0, 1)) == [b"v"]

    play(story)


GAPS = (ErrorCode.out_of_order_sequence_number, ErrorCode.not_leader_or_follower)
"""Errors if a batch is missing. A diskless coordinator waits for the missing batch, because this batch may
come through another broker."""


@pytest.fixture(autouse=True)
def _believing_coordinators(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sequence of an unknown producer is accepted immediately, as in Kafka. Normally a diskless
    coordinator accepts it only after 10 s."""
    monkeypatch.setattr(commit, "BELIEF_MS", 0)


def test_duplicates_are_answered_with_their_offsets_and_gaps_refused(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic)
        for first, count in ((0, 3), (3, 2), (5, 1)):
            assert (await client.produce(topic, numbered(first, count))).base_offset == first
        for first, count in ((0, 3), (3, 2), (5, 1)):
            again = await client.produce(topic, numbered(first, count))
            assert (again.error_code, again.base_offset) == (ErrorCode.none, first)
        gap = await client.produce(topic, numbered(8, 1))
        assert gap.error_code in GAPS
        assert (await client.produce(topic, numbered(0, 2, epoch=1))).base_offset == 6
        old = await client.produce(topic, numbered(6, 1))
        assert old.error_code is ErrorCode.invalid_producer_epoch
        # Sequences of a new epoch begin at 0. A batch of the new epoch is not a duplicate of an older batch.
        gap = await client.produce(topic, numbered(7, 1, epoch=2))
        assert gap.error_code in GAPS
        assert len(await client.read(topic, 0, 8)) == 8

    play(story)


def test_five_batches_in_flight_twice(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic)
        batches = [numbered(2 * n, 2) for n in range(5)]
        # The batches use separate connections, so they may be in one file. The producer repeats them before
        # the first responses arrive.
        first = [asyncio.create_task(client.produce(topic, batch)) for batch in batches[:1]]
        second = [asyncio.create_task(client.produce(topic, batch)) for batch in batches[:1]]
        answers = await asyncio.gather(*first, *second)
        assert [(row.error_code, row.base_offset) for row in answers] == [(ErrorCode.none, 0)] * 2
        for n, batch in enumerate(batches[1:], 1):
            twice = await asyncio.gather(client.produce(topic, batch), client.produce(topic, batch))
            assert [(row.error_code, row.base_offset) for row in twice] == [(ErrorCode.none, 2 * n)] * 2
        found = await client.read(topic, 0, 10)
        assert values(found) == [b"%d" % n for n in range(10)]
        assert (await client.offset_at(topic, LATEST_TIMESTAMP)).offset == 10

    play(story)


def test_sequences_wrap(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic)
        first = LAST_SEQUENCE - 2
        assert (await client.produce(topic, numbered(first, 2))).base_offset == 0
        answer = await client.produce(topic, numbered(first + 2, 3))
        assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 2)
        assert (await client.produce(topic, numbered(2, 1))).base_offset == 5
        again = await client.produce(topic, numbered(first + 2, 3))
        assert (again.error_code, again.base_offset) == (ErrorCode.none, 2)

    play(story)


def test_timestamps_over_many_batches(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic)
        # There are 10 ms between the timestamps of records and 100 ms between batches. The last batch has the
        # oldest timestamps.
        for n in range(5):
            compression = [Compression.NONE, Compression.ZSTD, Compression.LZ4][n % 3]
            batch = records(b"a", b"b", b"c", timestamp=10_000 + 100 * n, step_ms=10)
            await client.produce(topic, build_batch(batch, compression=compression))
        await client.produce_values(topic, b"late", timestamp=5_000)

        async def at(timestamp: int) -> tuple[int, int]:
            row = await client.offset_at(topic, timestamp)
            assert row.error_code is ErrorCode.none
            return row.offset, row.timestamp

        assert await at(0) == (0, 10_000)
        assert await at(10_000) == (0, 10_000)
        assert await at(10_001) == (1, 10_010)
        assert await at(10_020) == (2, 10_020)
        assert await at(10_021) == (3, 10_100)
        assert await at(10_415) == (14, 10_420)
        assert await at(10_421) == (-1, -1)
        assert (await at(EARLIEST_TIMESTAMP))[0] == 0
        assert (await at(EARLIEST_LOCAL_TIMESTAMP))[0] == 0
        assert (await at(LATEST_TIMESTAMP))[0] == 16
        assert await at(MAX_TIMESTAMP) == (14, 10_420)
        assert await at(LATEST_TIERED_TIMESTAMP) == (-1, -1)
        assert (await client.delete_records(topic, 1)).low_watermark == 1
        assert await at(0) == (1, 10_010)
        assert await at(EARLIEST_TIMESTAMP) == (1, -1)

    play(story)


def test_an_empty_partition_has_no_times(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic)
        for timestamp, offset in (
            (EARLIEST_TIMESTAMP, 0),
            (LATEST_TIMESTAMP, 0),
            (MAX_TIMESTAMP, -1),
            (0, -1),
        ):
            row = await client.offset_at(topic, timestamp)
            assert (row.error_code, row.offset) == (ErrorCode.none, offset)
        beyond = await client.fetch(topic, 1)
        assert beyond.error_code is ErrorCode.offset_out_of_range

    play(story)


def test_producer_consumer_and_lookup_get_the_same_append_time(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, message_timestamp_type="LogAppendTime")
        batch = numbered(0, 3)
        first = await client.produce(topic, batch)
        await asyncio.sleep(0.005)
        second = await client.produce(topic, numbered(3, 2))
        again = await client.produce(topic, batch)
        assert first.log_append_time_ms > 1_600_000_000_000
        assert second.log_append_time_ms > first.log_append_time_ms
        assert (again.base_offset, again.log_append_time_ms) == (0, first.log_append_time_ms)
        await client.read(topic, 0, 5)
        fetched = await client.fetch(topic, 0)
        headers = [header for _, header in iter_headers(fetched.records)]
        assert {header.timestamp_type for header in headers} == {TimestampType.LOG_APPEND_TIME}
        assert [header.max_timestamp for header in headers] == [
            first.log_append_time_ms,
            second.log_append_time_ms,
        ]
        row = await client.offset_at(topic, first.log_append_time_ms + 1)
        assert (row.offset, row.timestamp) == (3, second.log_append_time_ms)
        row = await client.offset_at(topic, first.log_append_time_ms)
        assert (row.offset, row.timestamp) == (0, first.log_append_time_ms)

    play(story)


def test_configs_of_a_live_topic_take_effect(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic)
        batch = build_batch(records(b"x" * 500, timestamp=5))
        assert (await client.produce(topic, batch)).log_append_time_ms == -1
        assert await client.alter(topic, message_timestamp_type="LogAppendTime") is ErrorCode.none
        stamped = (await client.produce(topic, batch)).log_append_time_ms
        assert stamped > 1_600_000_000_000
        found = await client.read(topic, 0, 2)
        assert [record.timestamp for record in found] == [5, stamped]
        assert await client.alter(topic, max_message_bytes="300") is ErrorCode.none
        assert (await client.produce(topic, batch)).error_code is ErrorCode.message_too_large
        # A request that sets the current kind of a topic has no effect. The kind cannot be changed.
        said = {await client.alter(topic, diskless_enable=value) for value in ("true", "false")}
        assert said == {ErrorCode.none, ErrorCode.invalid_config}

    play(story)


def test_records_are_deleted_inside_a_batch(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic)
        await client.produce_values(topic, b"0", b"1", b"2")
        await client.produce_values(topic, b"3", b"4", b"5")
        deleted = await client.delete_records(topic, 4)
        assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.none, 4)
        assert (await client.fetch(topic, 3)).error_code is ErrorCode.offset_out_of_range
        # The time-out limits only the wait for followers.
        assert (await client.delete_records(topic, 2, timeout_ms=0)).low_watermark == 4
        assert (await client.delete_records(topic, 7)).error_code is ErrorCode.offset_out_of_range
        fetched = await client.fetch(topic, 4)
        assert (fetched.log_start_offset, fetched.high_watermark) == (4, 6)
        assert values(await client.read(topic, 4, 2)) == [b"4", b"5"]
        assert (await client.delete_records(topic, -1)).low_watermark == 6
        assert (await client.offset_at(topic, EARLIEST_TIMESTAMP)).offset == 6
        assert (await client.fetch(topic, 5)).error_code is ErrorCode.offset_out_of_range
        assert (await client.fetch(topic, 6)).error_code is ErrorCode.none
        assert await client.produce_values(topic, b"6") == 6
        assert values(await client.read(topic, 6, 1)) == [b"6"]

    play(story)


def test_a_long_poll_is_woken_by_a_commit(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, partitions=2)
        for turn in range(3):
            offsets = {(topic, 0): turn, (topic, 1): 0}
            polling = asyncio.create_task(client.fetch_all(offsets, max_wait_ms=FOREVER_MS))
            await asyncio.sleep(0.05)
            await client.produce_values(topic, b"%d" % turn)
            fetched = await polling
            assert values(unpack(fetched[topic, 0].records)) == [b"%d" % turn]

    play(story)


def test_a_poll_waits_for_min_bytes_or_its_time(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic)
        await client.produce_values(topic, b"x" * 500)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        fetched = await client.fetch(topic, 0, max_wait_ms=300, min_bytes=5000)
        assert loop.time() - begin > 0.25
        assert len(unpack(fetched.records)) == 1
        polling = asyncio.create_task(client.fetch(topic, 0, max_wait_ms=FOREVER_MS, min_bytes=1500))
        for _ in range(3):
            await asyncio.sleep(0.02)
            await client.produce_values(topic, b"x" * 500)
        assert len(unpack((await polling).records)) >= 3

    play(story)


def test_small_limits_still_bring_the_first_batch(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, partitions=2)
        for partition in (0, 1):
            for n in range(3):
                await client.produce_values(topic, b"%d" % n * 5_000, partition=partition)
        both = {(topic, 0): 0, (topic, 1): 0}
        fetched = await client.fetch_all(both, max_bytes=100, partition_max_bytes=100, max_wait_ms=30_000)
        assert sum(len(unpack(row.records)) for row in fetched.values()) == 1
        fetched = await client.fetch_all(both, partition_max_bytes=12_000, max_wait_ms=30_000)
        assert len(unpack(fetched[topic, 0].records)) == 2

    play(story)


def test_a_large_batch_in_every_compression(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, max_message_bytes="6000000")
        value = bytes(range(256)) * 20_000
        for offset, compression in enumerate(Compression):
            answer = await client.produce(topic, build_batch(records(value), compression=compression))
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, offset)
            (found,) = await client.read(topic, offset, 1)
            assert found.value == value

    play(story)


def test_without_acknowledgement_records_arrive_too(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic)
        batch = {(topic, 0): build_batch(records(b"v"))}
        # The requests get no response, so a reader shows when the records are stored.
        sending = [asyncio.create_task(client.produce_all(batch, acks=0)) for _ in range(10)]
        assert len(await client.read(topic, 0, 10)) == 10
        for task in sending:
            task.cancel()

    play(story)


def test_a_new_topic_of_the_same_name_begins_at_offset_0(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        ids = set()
        for turn in range(3):
            ids.add(await client.create(topic, partitions=2))
            assert await client.produce_values(topic, b"%d" % turn) == 0
            assert (await client.produce(topic, numbered(5, 1))).base_offset == 1
            found = await client.read(topic, 0, 2)
            assert values(found) == [b"%d" % turn, b"5"]
            polling = asyncio.create_task(client.fetch(topic, 2, max_wait_ms=FOREVER_MS))
            await asyncio.sleep(0.02)
            await client.delete(topic)
            # A waiting reader gets its response immediately.
            assert (await polling).error_code is not ErrorCode.none
            gone = await client.produce(topic, numbered(6, 1))
            assert gone.error_code is ErrorCode.unknown_topic_or_partition
        assert len(ids) == 3

    play(story)


def test_partitions_are_added_to_a_live_topic(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic)
        await client.produce_values(topic, b"old")
        await client.add_partitions(topic, 4)
        for partition in range(1, 4):
            assert await client.produce_values(topic, b"new", partition=partition) == 0
            assert values(await client.read(topic, 0, 1, partition)) == [b"new"]
        assert await client.produce_values(topic, b"old") == 1

    play(story)


def test_retention_by_time(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, retention_ms="3600000", segment_ms="100")
        await client.produce_values(topic, b"from long ago", timestamp=1_000)
        await asyncio.sleep(0.15)
        await client.produce_values(topic, b"new", timestamp=SystemClock().now_ms())

        async def moved() -> bool:
            return bool((await client.offset_at(topic, EARLIEST_TIMESTAMP)).offset == 1)

        async def refused() -> bool:
            return (await client.fetch(topic, 0)).error_code is ErrorCode.offset_out_of_range

        await eventually(moved, "the old record goes")
        # For a diskless topic, the coordinator moves the log start first. The broker that serves the reads
        # gets the new log start a moment later.
        await eventually(refused, "the old record is out of range")
        assert values(await client.read(topic, 1, 1)) == [b"new"]

    play(story)


def test_retention_by_size(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, retention_bytes="2500000", segment_bytes=str(1 << 20), retention_ms="-1")
        for _ in range(10):
            await client.produce_values(topic, bytes(500_000))

        async def moved() -> bool:
            return bool((await client.offset_at(topic, EARLIEST_TIMESTAMP)).offset >= 3)

        await eventually(moved, "old records go")
        start = (await client.offset_at(topic, EARLIEST_TIMESTAMP)).offset
        assert start <= 6
        assert len(await client.read(topic, start, 10 - start)) == 10 - start

    play(story)


def test_a_transactional_batch_is_refused_and_holds_no_reader_up(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic)
        batch = build_batch(
            records(b"never"), producer_id=77, producer_epoch=0, base_sequence=0, transactional=True
        )
        refused = await client.produce(topic, batch)
        assert refused.error_code is ErrorCode.transactional_id_authorization_failed
        answer = await client.produce_all({(topic, 0): batch}, transactional_id="nobody's")
        refused = answer[topic, 0]
        # The coordinator of the partition does not have the producer's state, or is not loaded yet.
        assert refused.error_code in (
            ErrorCode.invalid_producer_id_mapping,
            ErrorCode.not_enough_replicas,
        )
        assert await client.produce_values(topic, b"first") == 0
        await client.read(topic, 0, 1)
        found = await client.fetch(topic, 1)
        assert (found.high_watermark, found.last_stable_offset) == (1, 1)

    play(story)


def test_epochs_and_producers_are_shown(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic)
        await client.produce(topic, numbered(0, 3))
        await client.read(topic, 0, 3)
        row = epochs.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
        question = epochs.OffsetForLeaderTopic(topic=topic, partitions=[row])
        answer = await client.ask(epochs.OffsetForLeaderEpochRequest(replica_id=-1, topics=[question]))
        end = answer.topics[0].partitions[0]
        assert (end.error_code, end.leader_epoch, end.end_offset) == (ErrorCode.none, 0, 3)
        asked = producers.TopicRequest(name=topic, partition_indexes=[0])
        answer = await client.ask(producers.DescribeProducersRequest(topics=[asked]))
        (producer,) = answer.topics[0].partitions[0].active_producers
        assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (77, 0, 2)

    play(story)


def test_read_committed_sees_plain_records(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic)
        await client.produce_values(topic, b"v")
        fetched = await client.fetch(topic, 0, isolation_level=1, max_wait_ms=30_000)
        assert (fetched.last_stable_offset, fetched.aborted_transactions) == (1, ())
        assert parse_header(fetched.records).records_count == 1

    play(story)


def test_the_config_of_a_topic_names_its_kind(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        async def said_of(name: str) -> str:
            resource = configs.DescribeConfigsResource(
                resource_type=2, resource_name=name, configuration_keys=["diskless.enable"]
            )
            answer = await client.ask(configs.DescribeConfigsRequest(resources=[resource]))
            return str(answer.results[0].configs[0].value)

        await client.create(topic)
        await client.create(f"{topic}-compacted", cleanup_policy="compact")
        can_be_diskless = await client.alter(topic, diskless_enable="true") is ErrorCode.none
        assert await said_of(topic) == str(can_be_diskless).lower()
        assert await said_of(f"{topic}-compacted") == "false"

    play(story)
