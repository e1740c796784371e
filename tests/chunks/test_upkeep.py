"""The rounds of retention, and the cost of a change of the metadata."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from active_replica import KEY, active, machine
from registered_chunks import chunk, partition

from moldau.chunks.retention import retained_start
from moldau.replication.appending.freezing import AppendFreeze
from moldau.replication.classic_partition import ClassicPartition
from moldau.runtime import ErrorCode, KafkaError
from moldau.server.subsystems.chunks.upkeep import ChunkCopies, ChunkRetention
from moldau.storage.log.config import LogConfig

OLD = partition(chunk(0, 9, 1, max_timestamp_ms=1000), chunk(10, 19, 1, max_timestamp_ms=2000))


class Reports:
    """A fake that fails for the first partition."""

    def __init__(self) -> None:
        self.told: list[int] = []

    async def dropped(self, partition: ClassicPartition) -> None:
        self.told.append(partition.key.partition)
        if len(self.told) == 1:
            raise KafkaError(ErrorCode.not_controller)


async def leaders(folder: Path) -> list[ClassicPartition]:
    found = []
    for index in (0, 1):
        replica = await active(folder, key=KEY._replace(partition=index))
        replica.log.config = LogConfig(retention_ms=1000)
        replica.become_leader(0, (1,), (1,))
        part: Any = object()
        replica.remote.begin(part)
        found.append(replica)
    return found


def retention(replicas: Any, reports: Any) -> ChunkRetention:
    image: Any = SimpleNamespace(topics=SimpleNamespace(partition=lambda topic_id, index: OLD))
    return ChunkRetention(machine(), replicas, lambda: image, reports)


def test_an_error_of_one_partition_does_not_keep_the_others_from_retention(tmp_path: Path) -> None:
    async def run() -> None:
        reports, replicas = Reports(), await leaders(tmp_path)
        with pytest.raises(KafkaError):
            await retention(replicas, reports).run_once()
        assert reports.told == [0, 1]
        assert [each.log.log_start_offset for each in replicas] == [20, 20]

    asyncio.run(run())


def test_a_partition_whose_active_chunk_ends_waits_for_the_next_round(tmp_path: Path) -> None:
    async def run() -> None:
        reports, replicas = Reports(), await leaders(tmp_path)
        AppendFreeze(replicas[0], machine()).begin()
        with pytest.raises(KafkaError):
            await retention(replicas, reports).run_once()
        assert reports.told == [1]
        assert replicas[0].log.log_start_offset == 0

    asyncio.run(run())


@pytest.mark.parametrize(("now_ms", "start_offset"), [(5000, 0), (6001, 10), (7001, 20)])
def test_a_chunk_without_timestamps_is_as_old_as_its_end(now_ms: int, start_offset: int) -> None:
    found = retained_start(
        (chunk(0, 9, 1), chunk(10, 19, 1, start_timestamp_ms=5000)),
        LogConfig(retention_ms=1000),
        log_start_offset=0,
        active_size_bytes=0,
        active_since_ms=6000,
        now_ms=now_ms,
    )
    assert found == start_offset


def test_a_change_of_a_topic_without_chunks_looks_only_at_what_has_changed() -> None:
    context: Any = SimpleNamespace(view=None, logs=None)
    unused: Any = None
    copies = ChunkCopies(context, unused, unused, unused, unused)
    image: Any = SimpleNamespace(topics={})

    def change(**partitions: Any) -> Any:
        return SimpleNamespace(name="t", partitions=dict(enumerate(partitions.values())))

    none: Any = SimpleNamespace(topics=None)
    assert not copies.changed([change(a=partition())], none)
    image.topics["t"] = SimpleNamespace(partitions=[partition(), OLD])
    assert copies.changed([change(a=partition(), b=OLD)], image)
    assert copies.changed([change(a=partition())], image)
    image.topics["t"] = SimpleNamespace(partitions=[partition(), partition()])
    assert not copies.changed([change(a=partition())], image)
    assert not copies.changed([change(a=partition())], none)
