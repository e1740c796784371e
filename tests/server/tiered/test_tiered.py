"""Tiered topics (KIP-405) as clients see them, on one node."""

import asyncio
import re
import urllib.request
import uuid
from collections.abc import Awaitable, Callable, Iterator

import pytest
from moody_storage import MOOD
from plain_requests import Requests, eventually, unpack
from tiered_stories import (
    BATCH_RECORDS,
    PROPERTIES,
    STEP_MS,
    TIERED,
    end_of,
    fill,
    objects_of,
    read_from,
    tiers,
    until_tiers,
)

from moldau.protocol.messages import offset_for_leader_epoch as epochs
from moldau.protocol.special_timestamps import (
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    MAX_TIMESTAMP,
)
from moldau.runtime import ErrorCode
from moldau.server.subsystems.tiered.subsystem import TieredSubsystem
from moldau.testing import Node
from moldau.tiered.reading.reader import ReaderSettings

Story = Callable[[Requests, str], Awaitable[None]]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(properties=PROPERTIES | {"metrics.listener": "127.0.0.1:0"}) as running:
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


def test_offloaded_records_are_read_from_the_first_offset(play: Callable[[Story], None]) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, **TIERED)
        await fill(client, topic, 6)
        await until_tiers(client, topic, 0, 15, 14)
        await read_from(client, topic, 0)
        for offset in (1, 5, 6, 13, 14, 15, 17):
            await read_from(client, topic, offset)
        answer = await client.fetch(topic, 19)
        assert answer.error_code is ErrorCode.offset_out_of_range

    play(story)


def test_offsets_are_found_by_time_in_both_tiers(play: Callable[[Story], None]) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, **TIERED)
        start_ms = await fill(client, topic, 5)
        await until_tiers(client, topic, 0, 12, 11)
        for batch in range(5):
            for record in range(BATCH_RECORDS):
                wanted_ms = start_ms + batch * STEP_MS + record
                row = await client.offset_at(topic, wanted_ms)
                assert (row.offset, row.timestamp) == (batch * BATCH_RECORDS + record, wanted_ms)
                assert row.leader_epoch == 0
            row = await client.offset_at(topic, start_ms + batch * STEP_MS + BATCH_RECORDS)
            expected = (batch + 1) * BATCH_RECORDS if batch < 4 else -1
            assert row.offset == expected
        assert (await client.offset_at(topic, 0)).offset == 0
        assert (await client.offset_at(topic, MAX_TIMESTAMP)).offset == 14

    play(story)


def test_the_largest_timestamp_may_be_remote(play: Callable[[Story], None]) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, **TIERED)
        start_ms = await fill(client, topic, 3)
        await client.produce_values(topic, b"late", timestamp=start_ms + 500_000)
        await fill(client, topic, 2, start_ms=start_ms + 501_000 - STEP_MS)
        await client.produce_values(topic, b"early", timestamp=start_ms)
        await eventually(lambda: _is_local_from(client, topic, 13), "all but the last segment is remote")
        row = await client.offset_at(topic, MAX_TIMESTAMP)
        assert (row.offset, row.timestamp) == (15, start_ms + 501_002)

    play(story)


async def _is_local_from(client: Requests, topic: str, offset: int) -> bool:
    return (await tiers(client, topic))[1] >= offset


def test_a_remote_read_keeps_its_byte_limits(play: Callable[[Story], None]) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, 2, **TIERED)
        for partition in (0, 1):
            await fill(client, topic, 4, partition=partition)
        for partition in (0, 1):
            await until_tiers(client, topic, 0, 9, 8, partition=partition)
        answer = await client.fetch(topic, 1, partition_max_bytes=1, max_wait_ms=30_000)
        found = unpack(answer.records)
        assert [record.offset for record in found] == [0, 1, 2], (
            "the batch with the offset, though it is larger"
        )
        both = {(topic, 0): 0, (topic, 1): 0}
        answers = await client.fetch_all(both, max_bytes=1, max_wait_ms=30_000)
        assert len(unpack(answers[topic, 0].records)) == 3
        assert not unpack(answers[topic, 1].records), "one batch a request, whatever its size"
        answers = await client.fetch_all(both, max_wait_ms=30_000)
        assert all(unpack(answer.records) for answer in answers.values()), "several remote reads at once"

    play(story)


@pytest.mark.parametrize("enable", ["true", "false"])
def test_a_fetch_of_old_records_does_not_wait_for_min_bytes(
    play: Callable[[Story], None], enable: str
) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, **TIERED | {"remote_storage_enable": enable})
        await fill(client, topic, 4)
        if enable == "true":
            await until_tiers(client, topic, 0, 9, 8)
        # The response to the fetch arrives long before the time limit of the test.
        answer = await client.fetch(topic, 0, max_wait_ms=2**31 - 1, min_bytes=1 << 20)
        assert [record.offset for record in unpack(answer.records)][:BATCH_RECORDS] == [0, 1, 2]

    play(story)


def test_an_idle_active_segment_is_rolled_and_offloaded(play: Callable[[Story], None]) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, **(TIERED | {"local_retention_ms": "1", "local_retention_bytes": "-2"}))
        await fill(client, topic, 2)
        await until_tiers(client, topic, 0, 6, 5)
        await read_from(client, topic, 0)
        await fill(client, topic, 1)
        await until_tiers(client, topic, 0, 9, 8)

    play(story)


def test_retention_by_size_counts_both_tiers(node: Node, play: Callable[[Story], None]) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, **TIERED)
        await fill(client, topic, 6)
        await until_tiers(client, topic, 0, 15, 14)
        logs = sorted(path for path in objects_of(node.data, topic) if path.suffix == ".log")
        sizes = [path.stat().st_size for path in logs]
        three_segments = sizes[3] + 2 * sizes[4]
        assert await client.alter(topic, retention_bytes=str(three_segments)) is ErrorCode.none
        await until_tiers(client, topic, 9, 15, 14)
        await eventually(lambda: _count(node, topic, 4), "the objects of three segments are gone")
        await read_from(client, topic, 9)
        assert (await client.fetch(topic, 8)).error_code is ErrorCode.offset_out_of_range

    play(story)


async def _count(node: Node, topic: str, count: int) -> bool:
    return len(objects_of(node.data, topic)) == count


def test_retention_by_time(node: Node, play: Callable[[Story], None]) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, **TIERED)
        start_ms = await fill(client, topic, 3)
        await fill(client, topic, 3, start_ms=start_ms + 300_000)
        await until_tiers(client, topic, 0, 15, 14)
        assert await client.alter(topic, retention_ms="450000") is ErrorCode.none
        await until_tiers(client, topic, 9, 15, 14)
        await eventually(lambda: _count(node, topic, 4), "the objects of three segments are gone")
        await read_from(client, topic, 9)

    play(story)


def test_deleted_records_leave_the_remote_tier(node: Node, play: Callable[[Story], None]) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, **TIERED)
        await fill(client, topic, 5)
        await until_tiers(client, topic, 0, 12, 11)
        answer = await client.delete_records(topic, 7)
        assert (answer.error_code, answer.low_watermark) == (ErrorCode.none, 7)
        await eventually(lambda: _count(node, topic, 4), "two segments are gone")
        assert (await client.fetch(topic, 6)).error_code is ErrorCode.offset_out_of_range
        await read_from(client, topic, 7)
        assert (await client.delete_records(topic, -1)).low_watermark == 15
        await eventually(lambda: _count(node, topic, 0), "all are gone")
        await fill(client, topic, 1)
        await read_from(client, topic, 15)

    play(story)


def test_a_deleted_topic_leaves_no_object(node: Node, play: Callable[[Story], None]) -> None:
    async def story(client: Requests, topic: str) -> None:
        for _ in range(2):
            await client.create(topic, **TIERED)
            await fill(client, topic, 3)
            await until_tiers(client, topic, 0, 6, 5)
            assert objects_of(node.data, topic)
            await client.delete(topic)
            await eventually(lambda: _count(node, topic, 0), "no object is left")

    play(story)


def test_a_live_topic_becomes_tiered_and_later_untiered(node: Node, play: Callable[[Story], None]) -> None:
    async def story(client: Requests, topic: str) -> None:
        plain = {name: text for name, text in TIERED.items() if not name.startswith(("remote", "local"))}
        await client.create(topic, **plain)
        await fill(client, topic, 3)
        assert (await client.offset_at(topic, LATEST_TIERED_TIMESTAMP)).offset == -1
        assert (await client.offset_at(topic, EARLIEST_PENDING_UPLOAD_TIMESTAMP)).offset == -1
        enabled = {"remote_storage_enable": "true", "local_retention_bytes": "1"}
        assert await client.alter(topic, **enabled) is ErrorCode.none
        await until_tiers(client, topic, 0, 6, 5)
        assert (await client.offset_at(topic, EARLIEST_PENDING_UPLOAD_TIMESTAMP)).offset == 6
        await read_from(client, topic, 0)
        assert await client.alter(topic, remote_storage_enable="false") is ErrorCode.invalid_config
        disabled = {"remote_storage_enable": "false", "remote_log_delete_on_disable": "true"}
        assert await client.alter(topic, **disabled) is ErrorCode.none
        await until_tiers(client, topic, 6, 6, -1)
        await eventually(lambda: _count(node, topic, 0), "no object is left")
        await read_from(client, topic, 6)
        await fill(client, topic, 2)
        assert await client.alter(topic, **enabled) is ErrorCode.none
        await until_tiers(client, topic, 6, 12, 11)
        await read_from(client, topic, 6)

    play(story)


def test_copying_may_stop_while_reading_continues(node: Node, play: Callable[[Story], None]) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, **TIERED)
        await fill(client, topic, 3)
        await until_tiers(client, topic, 0, 6, 5)
        refused = await client.alter(topic, remote_log_copy_disable="true")
        assert refused is ErrorCode.invalid_config, "the local retention differs"
        stopped = {"remote_log_copy_disable": "true", "local_retention_bytes": "-2"}
        assert await client.alter(topic, **stopped) is ErrorCode.none
        await fill(client, topic, 3)
        await read_from(client, topic, 0)
        assert (await tiers(client, topic)) == (0, 6, 5)
        assert (await client.delete_records(topic, 3)).low_watermark == 3
        await eventually(lambda: _count(node, topic, 2), "what is deleted still leaves the remote tier")
        again = {"remote_log_copy_disable": "false", "local_retention_bytes": "1"}
        assert await client.alter(topic, **again) is ErrorCode.none
        await until_tiers(client, topic, 3, 15, 14)
        await read_from(client, topic, 3)

    play(story)


def test_a_store_that_is_down_stops_nothing_but_remote_reads(play: Callable[[Story], None]) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, **TIERED)
        await fill(client, topic, 3)
        await until_tiers(client, topic, 0, 6, 5)
        with MOOD.down():
            answer = await client.fetch(topic, 0, max_wait_ms=30_000)
            assert answer.error_code is ErrorCode.unknown_server_error
            assert (await client.offset_at(topic, 1)).error_code is ErrorCode.unknown_server_error
            assert (await client.offset_at(topic, EARLIEST_TIMESTAMP)).offset == 0
            await fill(client, topic, 3)
            await read_from(client, topic, 6)
            assert (await tiers(client, topic)) == (0, 6, 5), "nothing leaves the disk that is not copied"
        await until_tiers(client, topic, 0, 15, 14)
        await read_from(client, topic, 0)

    play(story)


def test_a_read_that_takes_too_long_is_not_lost(
    node: Node, play: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert node._node is not None
    monkeypatch.setattr(
        node._node.get(TieredSubsystem).reader, "settings", ReaderSettings(fetch_max_wait_ms=100)
    )

    async def expired() -> int:
        name = "kafka_server_DelayedRemoteFetchMetrics_ExpiresPerSec_total"
        found = re.search(rf"{name} (\d+)", await scrape(node))
        assert found
        return int(found[1])

    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, **TIERED)
        await fill(client, topic, 3)
        await until_tiers(client, topic, 0, 6, 5)
        before = await expired()
        with MOOD.stalled():
            answer = await client.fetch(topic, 0, max_wait_ms=100)
            assert (answer.error_code, unpack(answer.records)) == (ErrorCode.none, [])
            assert await expired() > before
        await read_from(client, topic, 0)

    play(story)


def test_custom_metadata_that_are_too_large_stop_the_copying(
    node: Node, play: Callable[[Story], None]
) -> None:
    async def story(client: Requests, topic: str) -> None:
        MOOD.custom_metadata = b"x" * 129
        try:
            await client.create(topic, **TIERED)
            await fill(client, topic, 3)
            await eventually(lambda: _count(node, topic, 0), "what was copied is removed")
            await read_from(client, topic, 0)
            assert (await client.offset_at(topic, LATEST_TIERED_TIMESTAMP)).offset == -1
        finally:
            MOOD.custom_metadata = None

    play(story)


def test_leader_epochs_of_both_tiers_are_known(play: Callable[[Story], None]) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, **TIERED)
        await fill(client, topic, 3)
        await until_tiers(client, topic, 0, 6, 5)
        part = epochs.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
        rows = [epochs.OffsetForLeaderTopic(topic=topic, partitions=[part])]
        answer = await client.ask(epochs.OffsetForLeaderEpochRequest(replica_id=-1, topics=rows))
        found = answer.topics[0].partitions[0]
        assert (found.leader_epoch, found.end_offset) == (0, await end_of(client, topic))

    play(story)


def test_compacted_topics_are_refused(play: Callable[[Story], None]) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, cleanup_policy="compact")
        assert await client.alter(topic, remote_storage_enable="true") is ErrorCode.invalid_config

    play(story)


def test_remote_operations_are_measured_under_kafkas_names(node: Node, play: Callable[[Story], None]) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, **TIERED)
        await fill(client, topic, 3)
        await until_tiers(client, topic, 0, 6, 5)
        await read_from(client, topic, 0)

        prefix = "kafka_server_BrokerTopicMetrics_"

        pool = "org_apache_kafka_storage_internals_log_RemoteStorageThreadPool_"
        at_rest = [
            f'{prefix}RemoteLogMetadataCount{{topic="{topic}"}} 2',
            f"{pool}RemoteLogReaderTaskQueueSize 0",
        ]
        for name in ("RemoteCopyLagBytes", "RemoteCopyLagSegments", "RemoteDeleteLagSegments"):
            at_rest.append(f'{prefix}{name}{{topic="{topic}"}} 0')

        async def is_at_rest() -> bool:
            page = await scrape(node)
            return all(line in page for line in at_rest)

        await eventually(is_at_rest, f"the rounds of copying and of cleaning up tell of {at_rest}")
        text = await scrape(node)
        for name in ("RemoteCopyBytesPerSec", "RemoteCopyRequestsPerSec", "RemoteFetchBytesPerSec"):
            found = re.search(rf'{prefix}{name}_total{{topic="{topic}"}} (\d+)', text)
            assert found, name
            assert int(found[1]) >= 2
            assert re.search(rf"{prefix}{name}_total \d+", text), "and of all topics"
        for what in ("Copy", "Delete", "Fetch"):
            name = f"{prefix}Remote{what}ErrorsPerSec_total"
            assert f'{name}{{topic="{topic}"}} 0' in text, "it is there before anything has failed"
            assert re.search(rf"{name} \d+", text)
        assert "kafka_server_DelayedRemoteListOffsetsMetrics_ExpiresPerSec_total" in text
        assert "kafka_log_remote_RemoteLogManager_RemoteLogManagerTasksAvgIdlePercent" in text
        assert f"{pool}RemoteLogReaderAvgIdlePercent" in text
        await client.delete(topic)
        await eventually(lambda: _count(node, topic, 0), "no object is left")
        await eventually(lambda: _is_silent(node, topic), "the topic's series are gone")

    play(story)


async def scrape(node: Node) -> str:
    page = await asyncio.to_thread(urllib.request.urlopen, f"{node.monitoring_url}/metrics")
    with page:
        return str(page.read().decode())


async def _is_silent(node: Node, topic: str) -> bool:
    return f'topic="{topic}"' not in await scrape(node)
