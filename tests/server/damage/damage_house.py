"""A small data folder that contains every kind of file, after a stop or a kill. A check reads all its
records."""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from plain_requests import Requests, values

from moldau.protocol.messages import offset_commit as committing
from moldau.protocol.messages import offset_fetch as fetching
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.testing import Node

CLASSIC, DISKLESS, TIERED = "classic", "diskless", "tiered"
TOPICS = (CLASSIC, DISKLESS, TIERED)
GROUP = "readers"
ROUNDS = 12
PROPERTIES = {
    "log.retention.ms": "-1",
    "log.roll.ms": "1000000000",
    "diskless.metadata.topic.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "100",
    "remote.log.metadata.topic.num.partitions": "1",
    "log.index.interval.bytes": "64",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "100",
    "log.flush.offset.checkpoint.interval.ms": "100",
    "replica.high.watermark.checkpoint.interval.ms": "100",
    "diskless.metadata.max.new.records.between.snapshots": "1000000",
}
Story = Callable[[Requests], Awaitable[None]]


def node(folder: Path, **properties: str) -> Node:
    """A node with this data folder. The names of ``properties`` have underscores in place of dots."""
    given = {key.replace("_", "."): value for key, value in properties.items()}
    return Node(data=str(folder), properties={**PROPERTIES, **given}, diskless=True)


def on_node(running: Node, story: Story) -> None:
    """Run a test function with a running node and a client."""

    async def told() -> None:
        async with Requests(running.bootstrap_servers) as client, asyncio.timeout(300):
            await story(client)

    asyncio.run(told())


async def fill(client: Requests) -> None:
    """Records in all topics, some of them in the remote tier, and an offset of a group."""
    await client.create(CLASSIC, diskless_enable="false", segment_ms="2500")
    await client.create(DISKLESS, diskless_enable="true")
    await client.create(
        TIERED,
        diskless_enable="false",
        remote_storage_enable="true",
        segment_ms="2500",
        local_retention_ms="1",
    )
    for number in range(ROUNDS):
        for topic in TOPICS:
            await client.produce_values(
                topic, b"%s %d" % (topic.encode(), number), bytes(300), timestamp=1_000 * (number + 1)
            )
    await _commit(client, 7)


async def _commit(client: Requests, offset: int) -> None:
    await client.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]), 4)
    partition = committing.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = committing.OffsetCommitRequestTopic(name=CLASSIC, partitions=[partition])
    request = committing.OffsetCommitRequest(group_id=GROUP, topics=[topic])
    while True:
        answer = await client.ask(request, 8)
        code = answer.topics[0].partitions[0].error_code
        if not code:
            return
        await asyncio.sleep(0.05)


async def committed(client: Requests) -> int:
    """The committed offset of the group, or -1 if no offset is committed."""
    topic = fetching.OffsetFetchRequestTopics(name=CLASSIC, partition_indexes=[0])
    group = fetching.OffsetFetchRequestGroup(group_id=GROUP, topics=[topic])
    while True:
        answer = await client.ask(fetching.OffsetFetchRequest(groups=[group]), 8)
        if not answer.groups[0].error_code:
            offset: int = answer.groups[0].topics[0].partitions[0].committed_offset
            return offset
        await asyncio.sleep(0.05)


async def check_everything(client: Requests) -> None:
    """Check that all acknowledged records can be read."""
    for topic in TOPICS:
        found = values(await client.read(topic, 0, 2 * ROUNDS))
        assert found[::2] == [b"%s %d" % (topic.encode(), number) for number in range(ROUNDS)], topic
    assert await committed(client) == 7


def objects(folder: Path) -> set[str]:
    """The names of all objects in the development node's store. The saved copies of the node's logs are not
    included."""
    names = (str(path.relative_to(folder)) for path in (folder / "objects").rglob("*") if path.is_file())
    return {name for name in names if not name.startswith("objects/.moldau/backup/")}


def make_folders(root: Path) -> dict[str, Path]:
    """Two data folders with the same content: one of a stopped node, and one of a killed node."""
    stopped, killed = root / "stopped", root / "killed"
    with node(stopped) as running:
        on_node(running, fill)
        _wait_for(lambda: len(list((stopped / f"{TIERED}-0").glob("*.log"))) <= 2)
        on_node(running, check_everything)
        _wait_for(lambda: "classic 0 24" in (stopped / "replication-offset-checkpoint").read_text())
        # The page cache survives when a process is killed. So a copy of the folder of a running node is the
        # same as the folder of a killed node.
        _wait_for(lambda: _is_copied(stopped, killed))
    return {"stopped": stopped, "killed": killed}


def _is_copied(source: Path, target: Path) -> bool:
    """Copy a folder while checkpoints in it are replaced. Returns False if a file disappeared during the
    copy."""
    try:
        shutil.copytree(source, target)
    except shutil.Error:
        shutil.rmtree(target)
        return False
    return True


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def flip(path: Path, position: int, count: int = 8) -> None:
    """Invert ``count`` bytes, beginning at ``position``."""
    content = bytearray(path.read_bytes())
    for at in range(position, min(position + count, len(content))):
        content[at] ^= 0xFF
    path.write_bytes(content)


def refusal(folder: Path, **properties: str) -> str | None:
    """The reason why a node does not start on the folder, or None if the node starts."""
    running: Any = node(folder, **properties)
    try:
        running.start()
    except Exception as error:
        return str(error)
    running.stop()
    return None
