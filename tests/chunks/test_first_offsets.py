"""The first offset of a partition with chunks. It is never before the first remaining chunk."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from active_replica import KEY, active, machine
from registered_chunks import chunk, partition

from moldau.replication.appending.freezing import AppendFreeze
from moldau.replication.classic_partition import ClassicPartition
from moldau.runtime import ErrorCode, KafkaError
from moldau.server.subsystems.chunks.kind import ChunkedKind
from moldau.storage.log.config import LogConfig


class Classic:
    """A partition kind whose replicas are leaders, or follow broker 2."""

    def __init__(self, *, leads: bool) -> None:
        self._leads = leads

    def apply_role(self, replica: ClassicPartition, topic: Any, applied: Callable[[], None]) -> None:
        if self._leads:
            replica.become_leader(0, (1,), (1,))
        else:
            replica.follow(0, 2)
        applied()


BOTH = partition(chunk(0, 9, 1), chunk(10, 19, 1))


@pytest.mark.parametrize(
    ("chunks", "leads", "start_offset"),
    [(BOTH.chunks, True, 0), (BOTH.chunks[1:], True, 10), ((), True, 20), ((), False, 0)],
)
def test_a_leader_begins_at_the_first_chunk_that_is_left(
    tmp_path: Path, chunks: Any, leads: bool, start_offset: int
) -> None:
    async def run() -> None:
        replica = await active(tmp_path)
        inner: Any = Classic(leads=leads)
        other: Any = None
        topic: Any = SimpleNamespace(topic_id=KEY.topic_id, partitions=[replace(BOTH, chunks=chunks)])
        applied: list[int] = []
        kind = ChunkedKind(inner, other, other, other, other, other)
        kind.apply_role(replica, topic, lambda: applied.append(replica.log.log_start_offset))
        assert applied == [start_offset]

    asyncio.run(run())


def test_no_records_are_deleted_while_the_active_chunk_ends(tmp_path: Path) -> None:
    async def run() -> None:
        replica = await active(tmp_path)
        replica.become_leader(0, (1,), (1,))
        freeze = AppendFreeze(replica, machine())
        freeze.begin()
        with pytest.raises(KafkaError) as refusal:
            await replica.delete_records(22)
        assert refusal.value.code is ErrorCode.not_leader_or_follower
        freeze.end()
        assert await replica.delete_records(22) == 22

    asyncio.run(run())


def test_old_records_of_the_active_chunk_wait_for_the_chunks_before(tmp_path: Path) -> None:
    async def run() -> None:
        replica = await active(tmp_path, timestamp_ms=1000)
        log = replica.log
        log.config = LogConfig(retention_ms=1000)
        assert await log.delete_old_segments(10**12) == []
        assert log.log_start_offset == 0
        log.update_log_start_offset(20)
        assert await log.delete_old_segments(10**12)
        assert log.log_start_offset == 25

    asyncio.run(run())
