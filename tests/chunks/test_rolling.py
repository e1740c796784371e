"""Chunks that are created automatically, because the active chunk is large or old."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from active_replica import active, machine
from registered_chunks import chunk, partition

from moldau.cluster.image.image import CHUNK_FEATURE
from moldau.protocol.own.chunks.create_chunks import CreateChunksResult, CreateChunksTopicPartition
from moldau.replication.classic_partition import ClassicPartition
from moldau.runtime import ErrorCode
from moldau.server.subsystems.chunks import rolling
from moldau.server.subsystems.chunks.rolling import ChunkRolling
from moldau.storage.log.config import LogConfig

HOUR_MS = 3_600_000


class Broker:
    """Broker 1, which leads an active chunk from offset 20 on. Broker 3 has the fewest bytes."""

    def __init__(self, replica: ClassicPartition) -> None:
        self.replica = replica
        self.metadata = partition(chunk(0, 19, 1), replicas=(1,))
        self.level = 1
        self.code = ErrorCode.none
        self.created: list[tuple[int, ...]] = []
        self.load_count = 0
        registry: Any = [replica]
        self.rolling = ChunkRolling(machine(), registry, self._image, self._create, self._loads)

    def _image(self) -> Any:
        topic = SimpleNamespace(partitions=[self.metadata])
        brokers = {
            each: SimpleNamespace(broker_id=each, rack=None, is_active=each != 4) for each in (1, 2, 3, 4)
        }
        return SimpleNamespace(
            features={CHUNK_FEATURE: self.level},
            topics=SimpleNamespace(
                partition=lambda topic_id, index: self.metadata, get_by_id=lambda topic_id: topic
            ),
            brokers=brokers,
        )

    async def _create(self, wanted: CreateChunksTopicPartition) -> CreateChunksResult:
        self.created.append(tuple(wanted.broker_ids))
        return CreateChunksResult(topic_name="t", partition_id=0, error_code=self.code)

    async def _loads(self) -> dict[int, int]:
        self.load_count += 1
        return {1: 100, 2: 50, 3: 10}

    def configure(self, **fields: Any) -> None:
        self.replica.log.config = LogConfig(**fields)

    def begun(self, age_ms: int) -> None:
        since = machine().clock.now_ms() - age_ms
        self.metadata = replace(self.metadata, start_timestamp_ms=since)


def on_broker(folder: Path, story: Callable[[Broker], Coroutine[Any, Any, None]], count: int = 5) -> None:
    async def run() -> None:
        replica = await active(folder, count)
        replica.become_leader(3, (1,), (1,))
        await story(Broker(replica))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("config", "age_ms", "created"),
    [
        ({}, HOUR_MS, []),
        ({"chunk_roll_bytes": 10**6}, HOUR_MS, []),
        ({"chunk_roll_bytes": 100}, 0, [(3,)]),
        ({"chunk_roll_ms": HOUR_MS + 60_000}, HOUR_MS, []),
        ({"chunk_roll_ms": HOUR_MS}, HOUR_MS, [(3,)]),
    ],
)
def test_a_large_or_old_chunk_ends_and_the_next_one_begins_where_there_is_room(
    tmp_path: Path, config: dict[str, int], age_ms: int, created: list[tuple[int, ...]]
) -> None:
    async def story(broker: Broker) -> None:
        broker.configure(**config)
        broker.begun(age_ms)
        await broker.rolling.run_once()
        assert broker.created == created

    on_broker(tmp_path, story)


def test_an_empty_chunk_and_a_chunk_of_another_leader_do_not_end(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.configure(chunk_roll_ms=1)
        broker.begun(HOUR_MS)
        await broker.rolling.run_once()
        broker.replica.follow(4, 2)
        await broker.rolling.run_once()
        assert broker.created == []

    on_broker(tmp_path, story, count=0)


@pytest.mark.parametrize("change", [{"level": 0}, {"is_reassigning": True}])
def test_no_chunk_is_created_below_its_level_or_during_a_reassignment(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    async def story(broker: Broker) -> None:
        broker.configure(chunk_roll_bytes=1)
        if "level" in change:
            broker.level = 0
        else:
            broker.metadata = replace(broker.metadata, adding_replicas=(2,))
        await broker.rolling.run_once()
        assert broker.created == []

    on_broker(tmp_path, story)


def test_a_failed_creation_is_repeated_after_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(broker: Broker) -> None:
        broker.configure(chunk_roll_bytes=1)
        broker.code = ErrorCode.not_enough_replicas
        for _ in range(3):
            await broker.rolling.run_once()
        assert len(broker.created) == 1
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 1e12)
        broker.code = ErrorCode.none
        await broker.rolling.run_once()
        assert len(broker.created) == 2

    on_broker(tmp_path, story)


def test_new_chunks_count_until_the_sizes_are_requested_again(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.configure(chunk_roll_bytes=60)
        for _ in range(3):
            await broker.rolling.run_once()
        assert (broker.created, broker.load_count) == ([(3,), (2,), (3,)], 1)
        age_loads(broker)
        await broker.rolling.run_once()
        assert broker.load_count == 2

    on_broker(tmp_path, story)


def age_loads(broker: Broker) -> None:
    """Make the known sizes of the brokers so old that the broker requests them again."""
    broker.rolling._load_time_s -= rolling.LOAD_AGE_S
