"""The leader copies inactive chunks to the remote tier through the brokers that have them."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from active_replica import KEY, active, machine
from registered_chunks import chunk, partition

from moldau.chunks.calls import ChunkSegment, SegmentCopy
from moldau.replication.classic_partition import ClassicPartition
from moldau.runtime.byte_quota import ByteRateQuota, QuotaSettings
from moldau.server.subsystems.chunks.tiering import ChunkTiering
from moldau.storage.log.leader_epochs import EpochEntry
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.storage.storage_manager import RemoteStorageError
from moldau.tiered.tasks.context import RemoteTaskContext, TaskPartition

NAME = TopicIdPartition(KEY.topic_id, "t", 0)
FIRST, SECOND = (replace(chunk(start, start + 9, 2), size_bytes=500) for start in (0, 10))


class Holder:
    """A broker that has both chunks. Each chunk has one segment."""

    def __init__(self, leader_epoch: int) -> None:
        self.stored: list[int] = []
        """The first offsets of the stored segments."""
        self._leader_epoch = leader_epoch

    def holders(self, chunk: Any, wanted: Any) -> list[int]:
        return [2]

    async def store_segment(self, broker_id: int, wanted: SegmentCopy) -> ChunkSegment:
        base = wanted.segment_offset
        if wanted.is_stored:
            self.stored.append(base)
        return ChunkSegment(base, base + 9, 1, 100, False, [(self._leader_epoch, base)])


class Metadata:
    """The metadata of the remote tier."""

    def __init__(self) -> None:
        self.segments: dict[Any, Any] = {}
        self.listings = 0
        """Number of times that all segments were listed."""

    def list_remote_log_segments(self, name: Any) -> list[Any]:
        self.listings += 1
        return list(self.segments.values())

    def remote_log_segment_metadata(self, name: Any, epoch: int, offset: int) -> Any:
        return next(
            (
                each
                for each in self.segments.values()
                if each.start_offset <= offset <= each.end_offset and each.leader_epochs[0].epoch == epoch
            ),
            None,
        )

    async def add_remote_log_segment_metadata(self, segment: Any) -> None:
        self.segments[segment.id] = segment

    async def update_remote_log_segment_metadata(self, update: Any) -> None:
        self.segments[update.id] = self.segments[update.id].with_update(update)


def tiering(metadata: Metadata, holder: Holder) -> ChunkTiering:
    unused: Any = SimpleNamespace(
        copy_request=lambda topic: None,
        copied=lambda topic, size_bytes: None,
        watch_tasks=lambda *pools: None,
    )
    context = RemoteTaskContext(
        machine=machine(),
        broker_id=1,
        metadata=metadata,  # type: ignore[arg-type]
        storage=unused,
        meters=unused,
        copy_quota=ByteRateQuota(QuotaSettings()),
        custom_metadata_max_bytes=100,
    )
    tiered: Any = SimpleNamespace(manager=SimpleNamespace(context=context))
    registered = partition(FIRST, SECOND)
    return ChunkTiering(tiered, holder, lambda key: lambda: registered)


async def leader(folder: Path, *epochs: EpochEntry) -> ClassicPartition:
    found = await active(folder)
    found.log.restore_epochs(epochs)
    return found


@pytest.mark.parametrize("epochs", [[], [EpochEntry(0, 0)]], ids=["no epochs", "another epoch"])
def test_a_segment_that_readers_would_not_find_is_not_copied(tmp_path: Path, epochs: list[Any]) -> None:
    async def run() -> None:
        holder, metadata = Holder(leader_epoch=7), Metadata()
        task = TaskPartition(NAME, await leader(tmp_path, *epochs))
        with pytest.raises(RemoteStorageError, match="the leader epoch at offset 0 is another on broker 2"):
            # The time limit fails the test if the copy is repeated forever.
            await asyncio.wait_for(tiering(metadata, holder).copy(task), 10)
        assert holder.stored == []

    asyncio.run(run())


class ShorterHolder(Holder):
    """Two brokers have the chunks. The copies of broker 3 begin later, because retention moved the start of
    its log before it became a follower again."""

    def holders(self, chunk: Any, wanted: Any) -> list[int]:
        return [3, 2]

    async def store_segment(self, broker_id: int, wanted: SegmentCopy) -> ChunkSegment:
        if broker_id == 3:
            return ChunkSegment(
                wanted.segment_offset + 5,
                wanted.segment_offset + 9,
                1,
                50,
                False,
                [(0, wanted.segment_offset + 5)],
            )
        return await super().store_segment(broker_id, wanted)


def test_a_segment_is_copied_by_a_broker_whose_copy_has_the_offset(tmp_path: Path) -> None:
    async def run() -> None:
        holder, metadata = ShorterHolder(leader_epoch=0), Metadata()
        task = TaskPartition(NAME, await leader(tmp_path, EpochEntry(0, 0)))
        assert await asyncio.wait_for(tiering(metadata, holder).copy(task), 10)
        assert holder.stored == [0, 10]

    asyncio.run(run())


def test_chunks_are_copied_in_order_and_their_bytes_are_counted(tmp_path: Path) -> None:
    async def run() -> None:
        holder, metadata = Holder(leader_epoch=0), Metadata()
        task = TaskPartition(NAME, await leader(tmp_path, EpochEntry(0, 0)))
        chunks = tiering(metadata, holder)
        assert chunks.uncopied_bytes(task) == 1000
        assert metadata.listings == 0, "a chunk of which nothing is copied needs no list of all segments"
        assert await chunks.copy(task)
        assert holder.stored == [0, 10]
        assert chunks.uncopied_bytes(task) == 0

    asyncio.run(run())
