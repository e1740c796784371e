"""The state of the remote tier on a broker after a stop, after a kill, or after the loss of its
checkpoints."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from moody_storage import MOOD
from plain_requests import Requests, eventually
from tiered_stories import PROPERTIES, TIERED, fill, objects_of, read_from, until_tiers

from moldau.config import ConfigError
from moldau.protocol.messages import offset_for_leader_epoch as epochs
from moldau.runtime import ErrorCode
from moldau.testing import Node

TOPIC = "kept"
CHECKPOINTS = (
    "log-start-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    ".kafka_cleanshutdown",
)


async def _has_objects(data: Path, count: int) -> bool:
    return len(objects_of(str(data), TOPIC)) == count


def run(node: Node, story: Callable[[Requests], Awaitable[None]]) -> None:
    async def told() -> None:
        async with Requests(node.bootstrap_servers) as client, asyncio.timeout(200):
            await story(client)

    asyncio.run(told())


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a stopped node with a tiered topic: records 0 to 14 were copied, and records 15 to 17
    were not."""
    data = tmp_path_factory.mktemp("original")

    async def story(client: Requests) -> None:
        await client.create(TOPIC, **TIERED)
        await fill(client, TOPIC, 6)
        await until_tiers(client, TOPIC, 0, 15, 14)
        assert (await client.delete_records(TOPIC, 4)).low_watermark == 4
        await until_tiers(client, TOPIC, 4, 15, 14)
        await eventually(lambda: _has_objects(data, 8), "the first segment is gone")

    with Node(data=str(data), properties=PROPERTIES) as node:
        run(node, story)
    return data


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of the folder, which the test damages."""
    return Path(shutil.copytree(original, tmp_path / "data"))


def test_a_restart_continues_where_it_was(folder: Path) -> None:
    async def story(client: Requests) -> None:
        await until_tiers(client, TOPIC, 4, 15, 14)
        await read_from(client, TOPIC, 4)
        assert (await client.fetch(TOPIC, 3)).error_code is ErrorCode.offset_out_of_range
        await fill(client, TOPIC, 2)
        await until_tiers(client, TOPIC, 4, 21, 20)
        await read_from(client, TOPIC, 4)
        part = epochs.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
        rows = [epochs.OffsetForLeaderTopic(topic=TOPIC, partitions=[part])]
        answer = await client.ask(epochs.OffsetForLeaderEpochRequest(replica_id=-1, topics=rows))
        found = answer.topics[0].partitions[0]
        assert (found.leader_epoch, found.end_offset) == (0, 18), "the epoch before the restart is remote"

    with Node(data=str(folder), properties=PROPERTIES) as node:
        run(node, story)


def test_lost_checkpoints_lose_no_record(folder: Path) -> None:
    for name in CHECKPOINTS:
        (folder / name).unlink()

    async def story(client: Requests) -> None:
        await until_tiers(client, TOPIC, 4, 15, 14)
        await read_from(client, TOPIC, 4)

    with Node(data=str(folder), properties=PROPERTIES) as node:
        run(node, story)


@pytest.mark.parametrize("also", [(), CHECKPOINTS], ids=["epochs", "epochs and checkpoints"])
def test_a_lost_epoch_file_is_rebuilt_from_the_remote_tier(folder: Path, also: tuple[str, ...]) -> None:
    (folder / f"{TOPIC}-0" / "leader-epoch-checkpoint").unlink()
    for name in also:
        (folder / name).unlink()

    async def story(client: Requests) -> None:
        await eventually(lambda: _reads(client, 6), "the remote part is found again")
        await fill(client, TOPIC, 2)
        await until_tiers(client, TOPIC, 4 if not also else 3, 21, 20)
        await read_from(client, TOPIC, 6)

    with Node(data=str(folder), properties=PROPERTIES) as node:
        run(node, story)


async def _reads(client: Requests, offset: int) -> bool:
    return (await client.fetch(TOPIC, offset, max_wait_ms=1000)).error_code is ErrorCode.none


def test_a_deletion_continues_after_a_restart(tmp_path: Path) -> None:
    async def first(client: Requests) -> None:
        await client.create(TOPIC, **TIERED)
        await fill(client, TOPIC, 3)
        await until_tiers(client, TOPIC, 0, 6, 5)
        MOOD.is_down = True
        await client.delete(TOPIC)

    async def second(client: Requests) -> None:
        assert objects_of(str(tmp_path), TOPIC)
        MOOD.is_down = False
        await eventually(lambda: _has_objects(tmp_path, 0), "the objects are gone")

    try:
        for story in (first, second):
            with Node(data=str(tmp_path), properties=PROPERTIES) as node:
                run(node, story)
    finally:
        MOOD.is_down = False


def test_remote_segments_of_a_deleted_topic_are_deleted_after_a_restart_too(tmp_path: Path) -> None:
    async def first(client: Requests) -> None:
        await client.create(TOPIC, **TIERED)
        await fill(client, TOPIC, 3)
        await until_tiers(client, TOPIC, 0, 6, 5)
        MOOD.is_down = True
        disabled = {"remote_storage_enable": "false", "remote_log_delete_on_disable": "true"}
        assert await client.alter(TOPIC, **disabled) is ErrorCode.none
        await until_tiers(client, TOPIC, 6, 6, -1)

    async def second(client: Requests) -> None:
        assert objects_of(str(tmp_path), TOPIC)
        MOOD.is_down = False
        await eventually(lambda: _has_objects(tmp_path, 0), "the objects are gone")
        await client.alter(TOPIC, remote_storage_enable="true")
        await fill(client, TOPIC, 1)
        await until_tiers(client, TOPIC, 6, 9, 8)
        await read_from(client, TOPIC, 6)

    try:
        for story in (first, second):
            with Node(data=str(tmp_path), properties=PROPERTIES) as node:
                run(node, story)
    finally:
        MOOD.is_down = False


def test_a_broker_without_a_remote_tier_does_not_touch_tiered_topics(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    without = PROPERTIES | {"remote.log.storage.system.enable": "false"}

    async def story(client: Requests) -> None:
        assert (await client.fetch(TOPIC, 15)).error_code is ErrorCode.kafka_storage_error
        # Another change of the topic's metadata causes a new attempt, but no new log line.
        await client.alter(TOPIC, max_message_bytes="900000")
        await client.add_partitions(TOPIC, 2)
        await client.create("other")
        assert (await client.fetch(TOPIC, 15)).error_code is ErrorCode.kafka_storage_error

    with Node(data=str(folder), properties=without) as node:
        run(node, story)
    lines = [line for line in caplog.messages if "cannot be opened" in line]
    assert sum(int(line.split()[0]) for line in lines) == 2, lines
    for line in lines:
        assert f"topic {TOPIC} has remote.storage.enable=true, and this broker has" in line
        assert "remote.log.storage.system.enable=false" in line

    async def again(client: Requests) -> None:
        await until_tiers(client, TOPIC, 4, 15, 14)
        await read_from(client, TOPIC, 4)

    with Node(data=str(folder), properties=PROPERTIES) as node:
        run(node, again)


def test_several_log_dirs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Multiple log directories"):
        Node(
            properties={
                "log.dirs": f"{tmp_path}/a,{tmp_path}/b",
                "remote.log.storage.system.enable": "true",
            }
        ).start()
