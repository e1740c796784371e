"""A follower of a metadata partition. The tests check when the remote segments of user partitions, whose
events are in the metadata partition, become available."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from segment_fakes import FINISHED, ORDERS, TopicInMemory, event, segment

from moldau.runtime import LocalDisk, Machine, SeededEntropy, SystemClock, ThreadWorkers
from moldau.tiered.metadata.lifecycle import RemotePartitionDeleteState
from moldau.tiered.metadata.records import encode_event
from moldau.tiered.metadata.segments import RemotePartitionDeleteMetadata, TopicIdPartition
from moldau.tiered.metadata.store import MetadataStore
from moldau.tiered.metadata.topic import TopicOffsets, metadata_partition_of
from moldau.tiered.metadata.topic_based_manager import TopicBasedRemoteLogMetadataManager
from moldau.tiered.storage.storage_manager import RemoteStorageError

HOME = metadata_partition_of(ORDERS, 4)
OTHER = next(
    partition
    for partition in (TopicIdPartition(UUID(int=number), "others", 0) for number in range(100, 200))
    if metadata_partition_of(partition, 4) == HOME
)


def test_a_deletion_that_is_known_and_not_loaded_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_load, load = threading.Event(), MetadataStore.load
    may_load.set()

    def load_later(store: MetadataStore, partition: TopicIdPartition) -> object:
        assert may_load.wait(60)
        return load(store, partition)

    monkeypatch.setattr(MetadataStore, "load", load_later)

    async def with_manager(topic: TopicInMemory, tell: Callable[..., object]) -> None:
        workers = ThreadWorkers(2)
        machine = Machine(SystemClock(), SeededEntropy(1), LocalDisk(), workers)
        manager = TopicBasedRemoteLogMetadataManager(machine, topic, f"{tmp_path}/metadata")
        try:
            manager.on_metadata_partition_leadership(HOME, leads=True)
            await tell(manager)  # type: ignore[misc]
        finally:
            may_load.set()
            await manager.close()
            workers.close()
            topic.restarted()

    async def begin(manager: TopicBasedRemoteLogMetadataManager) -> None:
        manager.on_partition_leadership_changes([ORDERS], ())
        await manager.wait_ready(ORDERS)
        await manager.add_remote_log_segment_metadata(segment(1, 0, 99))
        marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
        for partition in (ORDERS, OTHER):
            event = RemotePartitionDeleteMetadata(partition, marked, 7, 1)
            await manager.put_remote_partition_delete_metadata(event)

    async def go_on(manager: TopicBasedRemoteLogMetadataManager) -> None:
        may_load.clear()
        async with asyncio.timeout(60):
            while len(manager.remote_partition_deletions()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            waits = [asyncio.ensure_future(manager.wait_ready(each)) for each in (ORDERS, OTHER)]
            await asyncio.sleep(0)
            may_load.set()
            await asyncio.gather(*waits)
        assert len(manager.list_remote_log_segments(ORDERS)) == 1
        assert not manager.list_remote_log_segments(OTHER)

    async def main() -> None:
        topic = TopicInMemory()
        await with_manager(topic, begin)
        await with_manager(topic, go_on)

    asyncio.run(main())


def test_a_new_owner_of_deletions_is_notified_when_it_has_all_events(tmp_path: Path) -> None:
    """A broker becomes the owner of a metadata partition that it already follows. It must read all events
    before it continues the deletions of the previous owner."""

    async def main() -> None:
        topic, workers, told = TopicInMemory(), ThreadWorkers(2), asyncio.Event()
        machine = Machine(SystemClock(), SeededEntropy(1), LocalDisk(), workers)
        manager = TopicBasedRemoteLogMetadataManager(
            machine, topic, f"{tmp_path}/metadata", on_caught_up=told.set
        )
        try:
            manager.on_partition_leadership_changes((), [ORDERS])
            async with asyncio.timeout(60):
                await told.wait()
                told.clear()
                manager.on_metadata_partition_leadership(HOME, leads=True)
                await told.wait()
        finally:
            await manager.close()
            workers.close()

    asyncio.run(main())


def test_a_broker_that_leads_again_while_the_metadata_are_prepared_has_them_ready(tmp_path: Path) -> None:
    """A broker that becomes leader again waits until it has read all events that are in the metadata log when
    it becomes leader. It had loaded the partition earlier, but without the latest events."""

    async def main() -> None:
        topic, workers = TopicInMemory(), ThreadWorkers(2)
        machine = Machine(SystemClock(), SeededEntropy(1), LocalDisk(), workers)
        epoch, asked = 1, topic.offsets
        manager = TopicBasedRemoteLogMetadataManager(
            machine, topic, f"{tmp_path}/metadata", leader_epoch_of=lambda _: epoch
        )

        async def offsets(partition: int, wanted: int = -1) -> TopicOffsets:
            nonlocal epoch
            found = await asked(partition, wanted)
            if epoch == 1 and topic.read_failure is not None:
                epoch, topic.read_failure = 2, None
                topic.append_now(HOME, encode_event(segment(2, 100, 199)))
                manager.on_partition_leadership_changes([ORDERS], ())
                assert not manager.is_ready(ORDERS)
            return found

        try:
            manager.on_partition_leadership_changes([ORDERS], ())
            async with asyncio.timeout(60):
                await manager.wait_ready(ORDERS)
                topic.read_failure = RemoteStorageError("for a moment")
                topic.offsets = offsets  # type: ignore[method-assign]
                topic.append_now(HOME, encode_event(segment(1, 0, 99)))
                while epoch == 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                await manager.wait_ready(ORDERS)
            assert len(manager.list_remote_log_segments(ORDERS)) == 2
        finally:
            await manager.close()
            workers.close()

    asyncio.run(main())


def test_a_segment_of_very_many_epochs_leaves_others_their_turns(tmp_path: Path) -> None:
    last = 4_000

    async def main() -> None:
        topic, workers, turns = TopicInMemory(), ThreadWorkers(2), 0
        machine = Machine(SystemClock(), SeededEntropy(1), LocalDisk(), workers)
        manager = TopicBasedRemoteLogMetadataManager(machine, topic, f"{tmp_path}/metadata")
        large = segment(1, 0, last, *[(epoch, epoch) for epoch in range(last + 1)])

        async def count_turns() -> None:
            nonlocal turns
            while manager.highest_offset_for_epoch(ORDERS, last) is None:
                turns += manager.highest_offset_for_epoch(ORDERS, 0) is not None
                await asyncio.sleep(0)

        try:
            manager.on_partition_leadership_changes([ORDERS], ())
            async with asyncio.timeout(60):
                await manager.wait_ready(ORDERS)
                counting = asyncio.ensure_future(count_turns())
                await manager.add_remote_log_segment_metadata(large)
                await manager.update_remote_log_segment_metadata(event(large, FINISHED))
                await counting
            assert turns > 10
        finally:
            await manager.close()
            workers.close()

    asyncio.run(main())
