"""Diskless topics and restarts. No acknowledged record is lost or duplicated, even if the disk has lost
files."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

import pytest
from plain_requests import Requests, records, unpack, values

from moldau.protocol.special_timestamps import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP
from moldau.records import Compression, build_batch
from moldau.runtime import ErrorCode
from moldau.testing import Node

PROPERTIES = {"log.retention.ms": "-1", "log.retention.check.interval.ms": "200"}
Story = Callable[[Requests], Awaitable[None]]


@pytest.fixture(autouse=True)
def _patient_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long time limits for waits. A wait usually takes milliseconds, but it takes longer on a busy
    machine."""
    for name in (
        "partition.partition._KNOWN_TIMEOUT_S",
        "partition.partition._KEPT_TIMEOUT_S",
        "reading.list_offsets._KNOWN_TIMEOUT_S",
    ):
        monkeypatch.setattr(f"moldau.diskless.{name}", 60.0)


def on_a_node(data: Path, story: Story, **properties: str) -> None:
    """Start a node on the folder, run a test function, and stop the node."""

    async def told(bootstrap_servers: str) -> None:
        async with Requests(bootstrap_servers) as client, asyncio.timeout(200):
            await story(client)

    with Node(data=str(data), properties={**PROPERTIES, **properties}, diskless=True) as node:
        asyncio.run(told(node.bootstrap_servers))


def numbered(first: int, count: int, epoch: int = 0) -> bytes:
    batch = records(*[b"%d" % (first + n) for n in range(count)])
    return build_batch(batch, producer_id=77, producer_epoch=epoch, base_sequence=first)


def lose(data: Path, what: str) -> None:
    found = list(data.glob(what))
    assert found, f"no {what} in {sorted(path.name for path in data.iterdir())}"
    for path in found:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("lost", [None, "t-*", "*/*.sqlite*"])
def test_an_idempotent_producer_continues_after_a_restart(tmp_path: Path, lost: str | None) -> None:
    async def before(client: Requests) -> None:
        await client.create("t")
        for n in range(7):
            assert (await client.produce("t", numbered(2 * n, 2))).base_offset == 2 * n

    async def after(client: Requests) -> None:
        for n in range(2, 7):
            again = await client.produce("t", numbered(2 * n, 2))
            assert (again.error_code, again.base_offset) == (ErrorCode.none, 2 * n)
        gap = await client.produce("t", numbered(20, 1))
        # records 14 to 19 may be in other requests in flight
        assert gap.error_code is ErrorCode.not_leader_or_follower
        assert (await client.produce("t", numbered(14, 2))).base_offset == 14
        assert values(await client.read("t", 0, 16)) == [b"%d" % n for n in range(16)]

    on_a_node(tmp_path, before)
    if lost is not None:
        lose(tmp_path, lost)
    on_a_node(tmp_path, after)
    on_a_node(tmp_path, lambda client: _ends_at(client, 16))


async def _ends_at(client: Requests, offset: int) -> None:
    assert (await client.offset_at("t", LATEST_TIMESTAMP)).offset == offset


def test_acknowledged_records_can_be_read_immediately(tmp_path: Path) -> None:
    async def story(client: Requests) -> None:
        await client.create("t")
        assert await client.produce_values("t", b"0") == 0
        assert values(await client.read("t", 0, 1)) == [b"0"]
        for n in range(1, 12):
            assert await client.produce_values("t", b"%d" % n) == n
            fetched = await client.fetch("t", n, max_wait_ms=0)
            assert (values(unpack(fetched.records)), fetched.high_watermark) == ([b"%d" % n], n + 1)

    on_a_node(tmp_path, story)


def test_all_records_are_read_from_objects_when_the_cache_is_lost(tmp_path: Path) -> None:
    codecs = list(Compression)

    async def before(client: Requests) -> None:
        await client.create("t", partitions=20, max_message_bytes="6000000")
        for n in range(10):
            batches = {
                ("t", p): build_batch(
                    records(b"%d-%d" % (p, n), bytes(100 * p), timestamp=1_000 * (n + 1), step_ms=10),
                    compression=codecs[(n + p) % len(codecs)],
                )
                for p in range(20)
            }
            await client.produce_all(batches)
        await client.produce_values("t", bytes(range(256)) * 19_000, timestamp=20_000)
        assert (await client.delete_records("t", 3, partition=1)).low_watermark == 3

    async def after(client: Requests) -> None:
        offsets = {("t", p): 0 for p in range(20) if p != 1}
        fetched = await client.fetch_all(offsets, max_wait_ms=30_000, min_bytes=1)
        for (_, p), row in fetched.items():
            assert row.error_code is ErrorCode.none
            assert (row.high_watermark, row.log_start_offset) == (21 if p == 0 else 20, 0)
        for p in range(20):
            start = 3 if p == 1 else 0
            found = await client.read("t", start, 20 - start, partition=p)
            assert [record.offset for record in found][: 20 - start] == list(range(start, 20))
            assert [record.value for record in found[start % 2 :: 2]][:8] == [
                b"%d-%d" % (p, n) for n in range((start + 1) // 2, 10)
            ][:8]
        assert len((await client.read("t", 20, 1))[0].value or b"") == 256 * 19_000
        assert (await client.fetch("t", 2, partition=1)).error_code is ErrorCode.offset_out_of_range
        middle = await client.offset_at("t", 5_005, partition=7)
        assert (middle.offset, middle.timestamp) == (9, 5_010)
        latest = await client.offset_at("t", MAX_TIMESTAMP, partition=7)
        assert (latest.offset, latest.timestamp) == (19, 10_010)
        assert (await client.offset_at("t", 0, partition=1)).offset == 3
        limited = await client.fetch("t", 6, partition=7, partition_max_bytes=1, max_wait_ms=30_000)
        assert [record.offset for record in unpack(limited.records)] == [6, 7]
        assert await client.produce_values("t", b"after", partition=7) == 20
        assert values(await client.read("t", 20, 1, partition=7)) == [b"after"]

    on_a_node(tmp_path, before)
    lose(tmp_path, "t-*")
    on_a_node(tmp_path, after)


def test_deletions_outlive_a_restart(tmp_path: Path) -> None:
    ids: list[UUID] = []

    async def before(client: Requests) -> None:
        ids.append(await client.create("t"))
        await client.create("gone")
        for topic in ("t", "gone"):
            for n in range(4):
                await client.produce_values(topic, b"%d" % (2 * n), b"%d" % (2 * n + 1))
        await client.delete_records("t", 5)
        await client.delete("gone")

    async def after(client: Requests) -> None:
        assert (await client.offset_at("t", EARLIEST_TIMESTAMP)).offset == 5
        assert (await client.fetch("t", 4)).error_code is ErrorCode.offset_out_of_range
        assert values(await client.read("t", 5, 3)) == [b"5", b"6", b"7"]
        assert (await client.describe("gone")).error_code is ErrorCode.unknown_topic_or_partition
        await client.create("gone")
        assert await client.produce_values("gone", b"new") == 0
        await client.delete("t")
        assert await client.create("t") not in ids
        assert await client.produce_values("t", b"new") == 0
        assert values(await client.read("t", 0, 1)) == [b"new"]

    on_a_node(tmp_path, before)
    on_a_node(tmp_path, after)
    on_a_node(tmp_path, lambda client: _ends_at(client, 1))


@pytest.mark.parametrize("configured", ["1", "5"])
def test_new_partitions_are_assigned_to_existing_coordinators_with_any_config(
    tmp_path: Path, configured: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def before(client: Requests) -> None:
        await client.create("t")

    async def after(client: Requests) -> None:
        await client.create("u", partitions=6)
        for index in range(6):
            answer = await client.produce("u", build_batch(records(b"x")), partition=index)
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 0)

    on_a_node(tmp_path, before, **{"diskless.metadata.topic.num.partitions": "2"})
    assert "and these count" not in caplog.text
    on_a_node(tmp_path, after, **{"diskless.metadata.topic.num.partitions": configured})
    warning = (
        f"diskless.metadata.topic.num.partitions is {configured}, but __diskless_metadata has 2 partitions"
    )
    assert caplog.text.count(warning) == 1
