"""The topic-based metadata manager with a topic in memory and a real local cache."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from remote_house import House, all_of
from segment_fakes import (
    DELETED,
    DELETING,
    FINISHED,
    ORDERS,
    TopicInMemory,
    event,
    segment,
)

from moldau.runtime import LocalDisk, Machine, SeededEntropy, SystemClock, ThreadWorkers
from moldau.tiered.metadata.lifecycle import IllegalTransitionError, RemotePartitionDeleteState
from moldau.tiered.metadata.manager import (
    MetadataPosition,
    RemoteMetadataNotReadyError,
    RemoteMetadataUnknownOutcomeError,
)
from moldau.tiered.metadata.records import encode_event
from moldau.tiered.metadata.segments import RemotePartitionDeleteMetadata, TopicIdPartition
from moldau.tiered.metadata.topic import metadata_partition_of
from moldau.tiered.metadata.topic_based_manager import (
    STORE_FILE,
    MetadataManagerSettings,
    TopicBasedRemoteLogMetadataManager,
)
from moldau.tiered.remote_log_manager import RemoteLogManager, RemoteLogManagerSettings
from moldau.tiered.removal.remover import RemotePartitionRemover
from moldau.tiered.storage.storage_manager import RemoteResourceNotFoundError, RemoteStorageError

Manager = TopicBasedRemoteLogMetadataManager
MARKED, BEGUN, ENDED = RemotePartitionDeleteState
HOME = metadata_partition_of(ORDERS, 4)
PAYMENTS = TopicIdPartition(UUID(int=9), "payments", 0)


def deletion(
    state: RemotePartitionDeleteState, partition: TopicIdPartition = ORDERS
) -> RemotePartitionDeleteMetadata:
    return RemotePartitionDeleteMetadata(partition, state, 7, 1)


@contextlib.asynccontextmanager
async def managing(
    topic: TopicInMemory,
    folder: Path,
    *assigned: TopicIdPartition,
    ready: bool = True,
    settings: MetadataManagerSettings | None = None,
    on_caught_up: Callable[[], None] = lambda: None,
) -> AsyncIterator[Manager]:
    workers = ThreadWorkers(2)
    machine = Machine(SystemClock(), SeededEntropy(1), LocalDisk(), workers)
    settings = settings or MetadataManagerSettings(initialization_retry_interval_ms=1)
    manager = Manager(machine, topic, f"{folder}/metadata", settings, on_caught_up)
    try:
        manager.on_partition_leadership_changes(assigned, ())
        if ready:
            for partition in assigned:
                await manager.wait_ready(partition)
        yield manager
    finally:
        await manager.close()
        workers.close()
        topic.restarted()


def test_a_writer_reads_what_it_wrote(tmp_path: Path) -> None:
    async def main() -> None:
        topic = TopicInMemory()
        async with managing(topic, tmp_path, ORDERS) as manager:
            first = segment(1, 0, 99)
            position = await manager.add_remote_log_segment_metadata(first)
            assert position == MetadataPosition(HOME, 0)
            assert manager.list_remote_log_segments(ORDERS) == (first,)
            assert manager.remote_log_segment_metadata(ORDERS, 0, 50) is None
            await manager.update_remote_log_segment_metadata(event(first, FINISHED, custom_metadata=b"here"))
            found = manager.remote_log_segment_metadata(ORDERS, 0, 50)
            assert found == replace(first, state=FINISHED, custom_metadata=b"here", event_timestamp_ms=2)
            assert manager.highest_offset_for_epoch(ORDERS, 0) == 99
            assert manager.remote_log_size(ORDERS, 0) == 1000
            await manager.update_remote_log_segment_metadata(event(first, DELETING))
            assert manager.remote_log_segment_metadata(ORDERS, 0, 50) is None
            assert manager.list_remote_log_segments(ORDERS)[0].custom_metadata == b"here"
            await manager.update_remote_log_segment_metadata(event(first, DELETED))
            assert manager.list_remote_log_segments(ORDERS) == ()
            assert manager.highest_offset_for_epoch(ORDERS, 0) == 99

    asyncio.run(main())


def test_illegal_moves_are_refused_and_write_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        topic = TopicInMemory()
        async with managing(topic, tmp_path, ORDERS) as manager:
            first = segment(1, 0, 99)
            with pytest.raises(RemoteResourceNotFoundError):
                await manager.update_remote_log_segment_metadata(event(first, FINISHED))
            with pytest.raises(ValueError, match="begins in COPY_SEGMENT_STARTED"):
                await manager.add_remote_log_segment_metadata(replace(first, state=FINISHED))
            await manager.add_remote_log_segment_metadata(first)
            with pytest.raises(IllegalTransitionError):
                await manager.update_remote_log_segment_metadata(event(first, DELETED))
            await manager.update_remote_log_segment_metadata(event(first, DELETING))
            with pytest.raises(IllegalTransitionError):
                await manager.update_remote_log_segment_metadata(event(first, FINISHED))
            assert len(topic.logs[HOME]) == 2

    asyncio.run(main())


def test_the_writer_of_the_second_event_gets_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        topic = TopicInMemory()
        async with managing(topic, tmp_path, ORDERS) as manager:
            first = segment(1, 0, 99)
            await manager.add_remote_log_segment_metadata(first)
            # In the log, an event of another broker is before the FINISHED event of this broker. This broker
            # has not read the other event yet.
            topic.append_now(HOME, encode_event(event(first, DELETING)))
            with pytest.raises(IllegalTransitionError):
                await manager.update_remote_log_segment_metadata(event(first, FINISHED))
            assert [each.state for each in manager.list_remote_log_segments(ORDERS)] == [DELETING]

    asyncio.run(main())


def test_a_writer_learns_that_its_event_was_dropped_before_it_knew_the_offset(tmp_path: Path) -> None:
    """If the writer did not learn that its event was dropped, it would copy a segment without an event. No
    broker would ever delete the objects of such a segment."""

    async def main() -> None:
        topic = TopicInMemory()
        async with managing(topic, tmp_path, ORDERS) as manager:
            append = topic.append

            async def append_and_be_overtaken(partition: int, value: bytes, *more: object) -> int:
                offset = await append(partition, value)
                with contextlib.suppress(IllegalTransitionError):
                    await manager.wait_applied(MetadataPosition(partition, offset))
                return offset

            topic.append = append_and_be_overtaken  # type: ignore[method-assign]
            await manager.add_remote_log_segment_metadata(segment(1, 0, 9))
            topic.append_now(HOME, encode_event(deletion(MARKED)))
            with pytest.raises(IllegalTransitionError, match="of a deleted partition"):
                await manager.add_remote_log_segment_metadata(segment(2, 10, 19))
            await manager.put_remote_partition_delete_metadata(deletion(BEGUN))

    asyncio.run(main())


def test_a_restart_continues_where_the_cache_ends(tmp_path: Path) -> None:
    topic = TopicInMemory()

    async def fill() -> None:
        async with managing(topic, tmp_path, ORDERS) as manager:
            for number in range(10):
                each = segment(number, number * 10, number * 10 + 9)
                await manager.add_remote_log_segment_metadata(each)
                await manager.update_remote_log_segment_metadata(event(each, FINISHED))
            await manager.update_remote_log_segment_metadata(event(segment(0, 0, 9), DELETING))

    async def look() -> None:
        # While this manager was stopped, another broker completed the deletion of the segment.
        topic.append_now(HOME, encode_event(event(segment(0, 0, 9), DELETED)))
        async with managing(topic, tmp_path, ORDERS) as manager:
            assert topic.reads[0] == (HOME, 21)
            assert len(manager.list_remote_log_segments(ORDERS)) == 9
            assert manager.highest_offset_for_epoch(ORDERS, 0) == 99
            assert manager.remote_log_segment_metadata(ORDERS, 0, 5) is None
            found = manager.remote_log_segment_metadata(ORDERS, 0, 55)
            assert found is not None
            assert found.start_offset == 50

    asyncio.run(fill())
    asyncio.run(look())


def test_a_new_assignment_is_loaded_from_the_cache(tmp_path: Path) -> None:
    """The manager also keeps events of partitions that are not assigned to it, if they are in a metadata
    partition that it reads."""

    async def main() -> None:
        topic = TopicInMemory()
        other = next(
            partition
            for number in range(100)
            if metadata_partition_of(partition := ORDERS._replace(partition=number), 4) == HOME
            and partition != ORDERS
        )
        each = segment(7, 0, 9, partition=other)
        for record in (each, event(each, FINISHED)):
            topic.append_now(HOME, encode_event(record))
        async with managing(topic, tmp_path, ORDERS) as manager:
            with pytest.raises(RemoteMetadataNotReadyError, match="not assigned"):
                manager.list_remote_log_segments(other)
            topic.reads.clear()
            manager.on_partition_leadership_changes((), [other])
            await manager.wait_ready(other)
            assert manager.remote_log_segment_metadata(other, 0, 4) is not None
            assert all(offset == 2 for _, offset in topic.reads)
            manager.on_stop_partitions([other])
            assert not manager.is_ready(other)
            with pytest.raises(RemoteMetadataNotReadyError):
                await manager.wait_ready(other)

    asyncio.run(main())


@pytest.mark.parametrize("damage", ["garbage", "emptied", "of another topic"])
def test_a_cache_that_cannot_be_used_is_rebuilt(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = TopicInMemory()

    async def fill() -> None:
        async with managing(topic, tmp_path, ORDERS) as manager:
            await manager.add_remote_log_segment_metadata(segment(1, 0, 9))

    async def look() -> None:
        async with managing(topic, tmp_path, ORDERS) as manager:
            assert topic.reads[0] == (HOME, 0)
            known = 1 if topic.logs[HOME] else 0
            assert len(manager.list_remote_log_segments(ORDERS)) == known

    asyncio.run(fill())
    path = tmp_path / "metadata" / STORE_FILE
    if damage == "garbage":
        path.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 40)
    elif damage == "emptied":
        path.write_bytes(b"")
    else:
        topic.topic_id = UUID(int=6)
        topic.logs[HOME].clear()
        topic.epochs[HOME].clear()
    asyncio.run(look())
    assert f"{path} is rebuilt from the topic" in caplog.text


@pytest.mark.parametrize("change", ["shorter", "another history"])
def test_a_cache_that_contradicts_the_log_is_dropped(tmp_path: Path, change: str) -> None:
    """The cache contains events from the end of the metadata log. This end was lost, or another leader has
    written other records at its offsets."""
    topic = TopicInMemory()

    async def fill() -> None:
        async with managing(topic, tmp_path, ORDERS) as manager:
            for number in range(2):
                await manager.add_remote_log_segment_metadata(segment(number, number * 10, number * 10 + 9))

    async def look() -> None:
        async with managing(topic, tmp_path, ORDERS) as manager:
            found = [each.id.id.int for each in manager.list_remote_log_segments(ORDERS)]
            assert found == ([0] if change == "shorter" else [0, 8])

    asyncio.run(fill())
    topic.logs[HOME].pop()
    topic.epochs[HOME].pop()
    topic.epoch = 1
    if change == "another history":
        topic.append_now(HOME, encode_event(segment(8, 10, 29)))
    asyncio.run(look())


def test_a_cache_damaged_under_way_is_built_again_from_the_topic(tmp_path: Path) -> None:
    async def main() -> None:
        topic = TopicInMemory()
        async with managing(topic, tmp_path, ORDERS, PAYMENTS) as manager:
            await manager.add_remote_log_segment_metadata(segment(1, 0, 9))
            store = manager._store._store
            assert store is not None
            # Damage the row of a segment in the cache, so that it is not a valid record. The manager detects
            # the damage when it applies the next event of this segment.
            store._connection.execute("update segments set content = x'00'")
            await manager.update_remote_log_segment_metadata(event(segment(1, 0, 9), FINISHED))
            assert [each.state for each in manager.list_remote_log_segments(ORDERS)] == [FINISHED]
            await manager.add_remote_log_segment_metadata(segment(2, 0, 9, partition=PAYMENTS))
            await manager.wait_ready(PAYMENTS)
            assert len(manager.list_remote_log_segments(PAYMENTS)) == 1
        topic.restarted()
        async with managing(topic, tmp_path, ORDERS, PAYMENTS) as manager:
            assert [each.state for each in manager.list_remote_log_segments(ORDERS)] == [FINISHED]
            assert len(manager.list_remote_log_segments(PAYMENTS)) == 1

    asyncio.run(main())


def test_an_event_whose_outcome_is_not_known_may_be_written_again(tmp_path: Path) -> None:
    async def main() -> None:
        topic = TopicInMemory()
        async with managing(topic, tmp_path, ORDERS) as manager:
            first = segment(1, 0, 9)
            topic.lost_answers = 1
            with pytest.raises(RemoteMetadataUnknownOutcomeError):
                await manager.add_remote_log_segment_metadata(first)
            await manager.add_remote_log_segment_metadata(first)
            assert manager.list_remote_log_segments(ORDERS) == (first,)
            topic.lost_answers = 1
            with pytest.raises(RemoteMetadataUnknownOutcomeError):
                await manager.update_remote_log_segment_metadata(event(first, FINISHED))
            await manager.update_remote_log_segment_metadata(event(first, FINISHED))
            assert manager.remote_log_segment_metadata(ORDERS, 0, 9) is not None
            assert len(topic.logs[HOME]) == 4

    asyncio.run(main())


def test_deletions_are_resumed_and_their_segments_stay_listed(tmp_path: Path) -> None:
    topic = TopicInMemory()

    async def begin() -> None:
        async with managing(topic, tmp_path, ORDERS) as manager:
            await manager.add_remote_log_segment_metadata(segment(1, 0, 9))
            with pytest.raises(IllegalTransitionError):
                await manager.put_remote_partition_delete_metadata(deletion(BEGUN))
            await manager.put_remote_partition_delete_metadata(deletion(MARKED))
            manager.on_stop_partitions([ORDERS])
            assert [each.state for each in manager.remote_partition_deletions()] == [MARKED]
            assert len(manager.list_remote_log_segments(ORDERS)) == 1

    async def resume() -> None:
        async with managing(topic, tmp_path) as manager:
            manager.on_metadata_partition_leadership(HOME, leads=True)
            await manager.wait_applied(MetadataPosition(HOME, len(topic.logs[HOME]) - 1))
            assert manager.remote_partition_deletions() == [deletion(MARKED)]
            await manager.wait_ready(ORDERS)
            (left,) = manager.list_remote_log_segments(ORDERS)
            await manager.put_remote_partition_delete_metadata(deletion(BEGUN))
            await manager.update_remote_log_segment_metadata(event(left, DELETING))
            await manager.update_remote_log_segment_metadata(event(left, DELETED))
            await manager.put_remote_partition_delete_metadata(deletion(ENDED))
            assert manager.remote_partition_deletions() == []
            assert not manager.is_ready(ORDERS)

    async def afterwards() -> None:
        async with managing(topic, tmp_path, ORDERS) as manager:
            assert manager.remote_partition_deletions() == []
            with pytest.raises(IllegalTransitionError, match="of a deleted partition"):
                await manager.add_remote_log_segment_metadata(segment(5, 0, 9))
            assert manager.list_remote_log_segments(ORDERS) == ()

    asyncio.run(begin())
    asyncio.run(resume())
    asyncio.run(afterwards())


def test_a_deletion_that_the_lost_cache_does_not_know_continues_once_the_topic_is_read(
    tmp_path: Path,
) -> None:
    """A loss of power may also remove the cache. The remover then checks for deletions before any event was
    read."""
    topic = TopicInMemory()
    house = House(tmp_path)

    async def begin() -> None:
        async with managing(topic, tmp_path, ORDERS) as manager:
            await manager.add_remote_log_segment_metadata(segment(1, 0, 9))
            await manager.put_remote_partition_delete_metadata(deletion(MARKED))

    async def resume() -> None:
        news = asyncio.Event()
        async with managing(topic, tmp_path, on_caught_up=news.set) as manager:
            context = replace(house.context, metadata=manager)
            tasks = RemoteLogManager(context, RemoteLogManagerSettings())
            remover = RemotePartitionRemover(tasks, all_of, news=news)
            first_look_is_over = asyncio.Event()
            look = remover.reconcile_deletions

            async def looks() -> None:
                await look()
                first_look_is_over.set()

            remover.reconcile_deletions = looks  # type: ignore[method-assign]
            topic.read_failure = OSError(5, "not yet")
            manager.on_metadata_partition_leadership(HOME, leads=True)
            remover.start()
            try:
                async with asyncio.timeout(200):
                    await topic.failed.wait()
                    await first_look_is_over.wait()
                    assert not remover.jobs
                    topic.read_failure = None
                    while len(topic.logs[HOME]) < 4 or manager.remote_partition_deletions():
                        await topic.wait_beyond(HOME, len(topic.logs[HOME]))
                        await asyncio.gather(*remover.jobs)
            finally:
                await remover.close()

    asyncio.run(begin())
    (tmp_path / "metadata" / STORE_FILE).unlink()
    asyncio.run(resume())


def test_the_end_of_the_events_is_reported_once_for_each_loss_of_the_cache(tmp_path: Path) -> None:
    async def main() -> None:
        topic = TopicInMemory()
        told = asyncio.Queue[int]()

        def note() -> None:
            told.put_nowait(len(manager.list_remote_log_segments(ORDERS)))

        async with managing(topic, tmp_path, ready=False, on_caught_up=note) as manager:
            manager.on_partition_leadership_changes([ORDERS], ())
            async with asyncio.timeout(200):
                assert await told.get() == 0
                await manager.add_remote_log_segment_metadata(segment(1, 0, 9))
                topic.read_failure = OSError(5, "for a moment")
                topic.append_now(HOME, encode_event(segment(2, 10, 19)))
                await topic.failed.wait()
                topic.read_failure = None
                await manager.wait_applied(MetadataPosition(HOME, 1))
                assert told.empty()
                store = manager._store._store
                assert store is not None
                store._connection.execute("update segments set content = x'00'")
                await manager.update_remote_log_segment_metadata(event(segment(1, 0, 9), FINISHED))
                assert await told.get() == 2
            assert told.empty()

    asyncio.run(main())


def test_the_manager_waits_for_a_topic_that_is_created_late(tmp_path: Path) -> None:
    async def main() -> None:
        topic = TopicInMemory()
        topic.refusals = 5
        async with managing(topic, tmp_path, ORDERS, ready=False) as manager:
            with pytest.raises(RemoteMetadataNotReadyError, match="being loaded"):
                manager.list_remote_log_segments(ORDERS)
            await manager.wait_ready(ORDERS)
            await manager.add_remote_log_segment_metadata(segment(1, 0, 9))

    asyncio.run(main())


def test_the_problem_of_a_follower_ends_even_without_new_events(tmp_path: Path) -> None:
    async def main() -> None:
        topic = TopicInMemory()
        async with managing(topic, tmp_path, ORDERS) as manager:
            topic.read_failure = OSError(28, "No space left on device")
            topic.append_now(HOME, encode_event(segment(1, 0, 9)))
            waiting = asyncio.ensure_future(manager.wait_applied(MetadataPosition(HOME, 0)))
            async with asyncio.timeout(200):
                await topic.failed.wait()
            await asyncio.sleep(0)
            assert "No space left" in manager.problems[HOME]
            topic.read_failure = None
            await waiting
            assert manager.problems == {}

    asyncio.run(main())


def test_a_topic_that_cannot_be_used_is_an_error_of_every_call(tmp_path: Path) -> None:
    async def main() -> None:
        topic = TopicInMemory()
        topic.failure = RemoteStorageError("it has 3 partitions", transient=False)
        async with managing(topic, tmp_path, ORDERS, ready=False) as manager:
            for call in (
                manager.wait_ready(ORDERS),
                manager.put_remote_partition_delete_metadata(deletion(MARKED)),
            ):
                with pytest.raises(RemoteStorageError, match="3 partitions") as caught:
                    await call
                assert not caught.value.transient
            with pytest.raises(RemoteStorageError, match="3 partitions"):
                manager.list_remote_log_segments(ORDERS)
            assert manager.problems == {-1: "it has 3 partitions"}

    asyncio.run(main())


def test_records_that_cannot_be_read_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        topic = TopicInMemory()
        topic.append_now(HOME, b"\x01\x63\x00what a later version says")
        topic.append_now(HOME, b"")
        topic.append_now(HOME, encode_event(segment(1, 0, 9)))
        async with managing(topic, tmp_path, ORDERS) as manager:
            assert len(manager.list_remote_log_segments(ORDERS)) == 1
        assert caplog.text.count("is skipped") == 2

    asyncio.run(main())


def test_closing_answers_all_waiters(tmp_path: Path) -> None:
    async def main() -> None:
        topic = TopicInMemory()
        async with managing(topic, tmp_path, ORDERS) as manager:
            waiting = asyncio.ensure_future(manager.wait_applied(MetadataPosition(HOME, 0)))
            await asyncio.sleep(0)
            await manager.close()
            with pytest.raises(RemoteMetadataUnknownOutcomeError):
                await waiting
            with pytest.raises(RemoteMetadataNotReadyError):
                await manager.wait_ready(ORDERS)

    asyncio.run(main())


def test_an_event_that_is_never_read_back_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        topic = TopicInMemory()
        settings = MetadataManagerSettings(consume_wait_ms=1)
        async with managing(topic, tmp_path, ORDERS, settings=settings) as manager:
            with pytest.raises(RemoteStorageError, match=r"remote\.log\.metadata\.consume\.wait\.ms"):
                await manager.wait_applied(MetadataPosition(HOME, 10))

    asyncio.run(main())
