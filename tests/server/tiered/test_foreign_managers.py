"""A plug-in storage manager violates its contract. The broker detects the violation, counts it, and
continues."""

import asyncio
import re
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from memory_metadata_manager import CLASS_NAME as MEMORY_METADATA
from moody_storage import MOOD
from plain_requests import Requests, eventually
from tiered_stories import PROPERTIES, TIERED, fill, objects_of, read_from, until_tiers

from moldau.runtime import ErrorCode
from moldau.testing import Node
from moldau.tiered.metadata.segments import EpochStart, RemoteLogSegmentId, RemoteLogSegmentMetadata
from moldau.tiered.storage.foreign_storage_manager import ForeignStorageManager
from moldau.tiered.storage.storage_manager import IndexType, RemoteStorageError, RemoteStorageManager

CONSOLIDATION = {
    "metrics.listener": "127.0.0.1:0",
    "diskless.append.commit.interval.ms": "5",
    "diskless.consolidation.interval.ms": "50",
    "diskless.consolidation.segment.bytes": "200",
    "diskless.consolidation.max.age.ms": "0",
}
METERS = "kafka_server_BrokerTopicMetrics_"


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(properties=PROPERTIES | CONSOLIDATION, diskless=True) as running:
        yield running


def play(node: Node, story: Callable[[Requests], Awaitable[None]]) -> None:
    async def told() -> None:
        async with Requests(node.bootstrap_servers) as client, asyncio.timeout(200):
            await story(client)

    asyncio.run(told())


async def meters_of(node: Node, topic: str) -> dict[str, float]:
    page = await asyncio.to_thread(urllib.request.urlopen, f"{node.monitoring_url}/metrics")
    with page:
        found = re.findall(rf'{METERS}(\w+){{topic="{topic}"}} (\S+)', page.read().decode())
    return {name: float(value) for name, value in found}


def test_an_exception_of_a_manager_counts_as_a_failure_of_the_store(node: Node) -> None:
    async def has_failed(name: str) -> bool:
        return (await meters_of(node, "broken")).get(name, 0) > 0

    async def story(client: Requests) -> None:
        await client.create("broken", diskless_enable="false", **TIERED)
        with MOOD.broken():
            await fill(client, "broken", 3)
            await eventually(lambda: has_failed("RemoteCopyErrorsPerSec_total"), "the failed copy is counted")
        await until_tiers(client, "broken", 0, 6, 5)
        with MOOD.broken():
            answer = await client.fetch("broken", 0, max_wait_ms=30_000)
            assert answer.error_code is ErrorCode.unknown_server_error
            assert await has_failed("RemoteFetchErrorsPerSec_total")
        await read_from(client, "broken", 0)

    play(node, story)


def test_too_large_custom_metadata_keep_diskless_records_in_the_wal(node: Node) -> None:
    """While the custom metadata are too large, consolidation fails. When they are small again, the meters of
    the remote tier have their usual values."""
    seen: dict[str, float] = {}

    async def has(*wanted: tuple[str, Callable[[float], bool]]) -> bool:
        seen.clear()
        seen.update(await meters_of(node, "fat"))
        return all(name in seen and test(seen[name]) for name, test in wanted)

    def is_positive(value: float) -> bool:
        return value > 0

    def is_zero(value: float) -> bool:
        return value == 0

    async def story(client: Requests) -> None:
        MOOD.custom_metadata = b"x" * 129
        try:
            await client.create("fat", retention_ms="-1")
            for number in range(6):
                await client.produce_values("fat", b"%300d" % number)
            lags = (("RemoteCopyLagBytes", is_positive), ("RemoteCopyLagSegments", is_positive))
            failed = ("RemoteCopyErrorsPerSec_total", is_positive)
            await eventually(lambda: has(failed, *lags), "what cannot be copied is counted")
            assert seen["RemoteLogSizeBytes"] == 0
        finally:
            MOOD.custom_metadata = None
        copied = ("RemoteLogSizeBytes", is_positive), ("RemoteLogMetadataCount", is_positive)
        rest = [
            (f"Remote{what}Lag{unit}", is_zero)
            for what in ("Copy", "Delete")
            for unit in ("Bytes", "Segments")
        ]
        await eventually(lambda: has(*copied, *rest), "all is copied")
        assert len(await client.read("fat", 0, 6)) == 6
        await client.delete("fat")

        async def is_gone() -> bool:
            return not objects_of(str(node.data), "fat") and not await meters_of(node, "fat")

        await eventually(is_gone, "neither objects nor series are left")

    play(node, story)


SEGMENT = RemoteLogSegmentMetadata(
    id=RemoteLogSegmentId(UUID(int=1), "t", 0, UUID(int=2)),
    start_offset=0,
    end_offset=0,
    max_timestamp_ms=0,
    broker_id=0,
    event_timestamp_ms=0,
    segment_size_bytes=1,
    leader_epochs=(EpochStart(0, 0),),
)


class Careless:
    """A manager whose methods return or raise arbitrary values."""

    def __init__(self) -> None:
        self.answer: Any = None

    async def _answer(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def copy_log_segment_data(self, *_: object) -> Any:
        return await self._answer()

    async def fetch_log_segment(self, *_: object) -> Any:
        return await self._answer()

    async def fetch_index(self, *_: object) -> Any:
        return await self._answer()

    async def delete_log_segment_data(self, *_: object) -> Any:
        return await self._answer()

    async def close(self) -> Any:
        return await self._answer()


class Hasty:
    """A manager whose methods raise an exception when they are called, before their result is awaited."""

    def __getattr__(self, name: str) -> Any:
        def called(*_: object) -> Any:
            raise OSError("no route")

        return called


def test_an_exception_before_the_await_is_a_failure_too() -> None:
    manager = ForeignStorageManager(cast(RemoteStorageManager, Hasty()), "my.Manager")

    async def main() -> None:
        for call in (
            lambda: manager.copy_log_segment_data(SEGMENT, cast(Any, None)),
            lambda: manager.fetch_log_segment(SEGMENT, 0),
            lambda: manager.fetch_index(SEGMENT, IndexType.OFFSET),
            lambda: manager.delete_log_segment_data(SEGMENT),
        ):
            with pytest.raises(RemoteStorageError, match=r"my\.Manager: OSError: no route"):
                await call()  # type: ignore[operator]
        await manager.close()

    asyncio.run(main())


def test_a_result_that_violates_the_protocol_is_an_error_that_names_the_manager() -> None:
    careless = Careless()
    manager = ForeignStorageManager(cast(RemoteStorageManager, careless), "my.Manager")
    data: Any = None

    async def main() -> None:
        careless.answer = bytearray(b"abc")
        assert await manager.copy_log_segment_data(SEGMENT, data) == b"abc"
        assert await manager.fetch_log_segment(SEGMENT, 0) == b"abc"
        assert await manager.fetch_index(SEGMENT, IndexType.OFFSET) == b"abc"
        careless.answer = None
        assert await manager.copy_log_segment_data(SEGMENT, data) is None
        for wrong, said in (
            ("text", "my.Manager gave .*str"),
            (OSError("no route"), "my.Manager: OSError: no"),
        ):
            careless.answer = wrong
            for call in (
                manager.copy_log_segment_data(SEGMENT, data),
                manager.fetch_log_segment(SEGMENT, 0),
                manager.fetch_index(SEGMENT, IndexType.OFFSET),
            ):
                with pytest.raises(RemoteStorageError, match=said):
                    await call
        with pytest.raises(RemoteStorageError, match="deleting t-0"):
            await manager.delete_log_segment_data(SEGMENT)
        careless.answer = RemoteStorageError("as it is", transient=False)
        with pytest.raises(RemoteStorageError, match=r"^as it is$") as caught:
            await manager.delete_log_segment_data(SEGMENT)
        assert not caught.value.transient
        await manager.close()

    asyncio.run(main())


@pytest.mark.parametrize("diskless", [False, True], ids=["classic", "diskless"])
def test_another_metadata_manager_serves_both_kinds_and_continues_with_deletions(
    tmp_path: Path, *, diskless: bool
) -> None:
    properties = PROPERTIES | CONSOLIDATION | {"remote.log.metadata.manager.class.name": MEMORY_METADATA}

    async def first(client: Requests) -> None:
        await client.create("other", **TIERED, diskless_enable=str(diskless).lower())
        await fill(client, "other", 3)

        async def is_copied() -> bool:
            return len(objects_of(str(tmp_path), "other")) >= 4

        await eventually(is_copied, "segments are copied")
        await read_from(client, "other", 0)
        MOOD.is_down = True
        await client.delete("other")

    async def second(client: Requests) -> None:
        assert objects_of(str(tmp_path), "other")
        MOOD.is_down = False

        async def is_gone() -> bool:
            return not objects_of(str(tmp_path), "other")

        await eventually(is_gone, "the objects are gone")

    try:
        for story in (first, second):
            with Node(data=str(tmp_path), properties=properties, diskless=True) as node:
                play(node, story)
    finally:
        MOOD.is_down = False
