"""The leader's tasks copy and remove segments. A failure at any step does no harm."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from remote_house import CONFIG, PARTITION, House, all_of

from moldau.cluster.image.log_generations import LogGenerations
from moldau.runtime import ErrorCode, KafkaError
from moldau.simulation.world.world import World as SimulatedWorld
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState, RemotePartitionDeleteState
from moldau.tiered.metadata.lineage import LogLineage
from moldau.tiered.metadata.segment_cache import SegmentCache
from moldau.tiered.metadata.segments import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from moldau.tiered.remote_log_manager import RemoteLogManager, RemoteLogManagerSettings
from moldau.tiered.removal.expired_segments import ExpiryPlan, is_of_lineage
from moldau.tiered.removal.remote_retention import Retention
from moldau.tiered.removal.remover import NoHostedPartitions, RemotePartitionRemover
from moldau.tiered.restoring import restore_start
from moldau.tiered.storage.storage_manager import IndexType, RemoteStorageError
from moldau.tiered.tasks.cleanup_task import ExpirationTask
from moldau.tiered.tasks.context import LATE_WRITE_GRACE_MS, EarlierPart, TaskPartition
from moldau.tiered.tasks.copy import CopyTask

Story = Callable[[House], Awaitable[None]]
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Story], None]:
    async def told(story: Story) -> None:
        async with asyncio.timeout(200):
            await story(House(tmp_path))

    return lambda story: asyncio.run(told(story))


def ranges(house: House) -> list[tuple[int, int]]:
    """Offset ranges of the finished segments."""
    found = house.metadata.cache.list()
    return [(each.start_offset, each.end_offset) for each in found if each.state is FINISHED]


# -- copying ----------------------------------------------------------------------------------


def test_closed_segments_below_the_stable_offset_are_copied(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.fill(2)
        house.append(b"in a transaction", producer=(7, 0))
        house.log.roll()
        house.fill(1)
        await house.copying.run()
        assert ranges(house) == [(0, 2), (3, 5)]
        assert house.log.highest_copied_offset == 5
        house.end_transaction(7, commit=True)
        house.log.roll()
        await house.copying.run()
        assert ranges(house) == [(0, 2), (3, 5), (6, 6), (7, 9), (10, 10)]

    play(story)


class Chunks(EarlierPart):
    """Inactive chunks before the log. None of their brokers runs."""

    async def copy(self, partition: TaskPartition) -> bool:
        raise KafkaError(ErrorCode.kafka_storage_error, "no broker with the chunk is alive")

    def uncopied_bytes(self, partition: TaskPartition) -> int:
        return 5_000


def test_the_bytes_of_chunks_that_cannot_be_copied_are_in_the_lag(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.fill(2)
        closed_bytes = sum(each.size_bytes for each in house.log.segments.segments[:2])
        copying = CopyTask(replace(house.context, earlier=Chunks()), house.partition)
        with pytest.raises(KafkaError):
            await copying.run()
        assert ranges(house) == [], "the tier has no gaps"
        gauges = house.meters.gauges(PARTITION.topic, PARTITION.partition)
        assert (gauges.copy_lag_segments, gauges.copy_lag_bytes) == (2, closed_bytes + 5_000)

    play(story)


def test_a_copy_has_all_files_and_its_metadata_have_the_epochs(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.append(b"a", epoch=3)
        house.append(b"b", epoch=5)
        house.log.roll()
        expected = house.log.segments.segments[0]
        await house.copying.run()
        (segment,) = house.metadata.cache.list()
        assert segment.leader_epochs == [EpochStart(3, 0), EpochStart(5, 1)]
        assert segment.segment_size_bytes == expected.size_bytes
        log = await house.storage.fetch_log_segment(segment, 0)
        assert bytes(log) == bytes(expected.file.view(0, expected.size_bytes))
        epochs = bytes(await house.storage.fetch_index(segment, IndexType.LEADER_EPOCH))
        assert epochs == b"0\n2\n3 0\n5 1\n"
        for kind, path in (
            (IndexType.OFFSET, expected.offset_index.path),
            (IndexType.TIMESTAMP, expected.time_index.path),
            (IndexType.PRODUCER_SNAPSHOT, house.log.producers.snapshots.path(2)),
        ):
            assert bytes(await house.storage.fetch_index(segment, kind)) == house.machine.disk.read(path)

    play(story)


def test_a_lost_producer_snapshot_is_created_again(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.append(b"a", producer=(7, 0))
        house.end_transaction(7, commit=True)
        house.log.roll()
        path = house.log.producers.snapshots.path(2)
        expected = house.machine.disk.read(path)
        house.machine.disk.remove(path)
        await house.copying.run()
        (segment,) = house.metadata.cache.list()
        assert bytes(await house.storage.fetch_index(segment, IndexType.PRODUCER_SNAPSHOT)) == expected

    play(story)


@pytest.mark.parametrize("after_effect", [False, True])
def test_a_failure_at_any_step_leaves_one_copy(tmp_path: Path, after_effect: bool) -> None:
    async def told(house: House, fail_at: int) -> bool:
        house.fill(2)
        house.faults.fail_at, house.faults.after_effect = fail_at, after_effect
        failed = False
        for _ in range(2):
            try:
                await house.copying.run()
            except RemoteStorageError:
                failed = True
        assert ranges(house) == [(0, 2), (3, 5)]
        assert len(house.metadata.cache) == 2
        assert len(await house.storage.keys()) == 4
        assert house.log.highest_copied_offset == 5
        assert not house.context.being_copied
        return failed

    for fail_at in range(1, 20):
        if not asyncio.run(told(House(tmp_path / str(fail_at)), fail_at)):
            break
    assert fail_at == 7, "two segments of three steps each"


def test_an_unfinished_copy_of_deleted_records_is_removed(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.fill(1)
        house.faults.fail_at = house.faults.count + 2
        with pytest.raises(RemoteStorageError):
            await house.copying.run()
        assert house.metadata.cache.list()
        house.log.update_log_start_offset(3)
        await house.log.delete_old_segments(house.clock.time_ms)
        await house.copying.run()
        house.clock.time_ms += LATE_WRITE_GRACE_MS
        await house.expiring.run()
        assert not house.metadata.cache.list()
        assert not await house.storage.keys()

    play(story)


def test_records_that_are_deleted_during_a_round_are_not_copied(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.fill(3)
        copy = house.storage.copy_log_segment_data

        async def copy_while_records_are_deleted(*arguments: Any) -> bytes | None:
            house.log.update_log_start_offset(6)
            return await copy(*arguments)

        house.storage.copy_log_segment_data = copy_while_records_are_deleted  # type: ignore[method-assign]
        await house.copying.run()
        assert ranges(house) == [(0, 2), (6, 8)]

    play(story)


def test_unfinished_copies_of_an_earlier_run_are_removed_after_a_while(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.fill(1)
        house.faults.fail_at, house.faults.after_effect = 2, True
        with pytest.raises(RemoteStorageError):
            await house.copying.run()
        house.context.being_copied.clear()  # the broker was killed
        house.copying = CopyTask(house.context, house.partition)
        await house.copying.run()
        await house.expiring.run()
        assert len(await house.storage.keys()) == 4, "a write may still be on its way"
        house.clock.time_ms += LATE_WRITE_GRACE_MS
        await house.expiring.run()
        assert len(await house.storage.keys()) == 2
        assert ranges(house) == [(0, 2)]

    play(story)


def test_a_new_leader_copies_what_is_missing(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.fill(3)
        await house.copying.run()
        house.log.highest_copied_offset = -1
        house.fill(1)
        await CopyTask(house.context, house.partition).run()
        assert ranges(house) == [(0, 2), (3, 5), (6, 8), (9, 11)]

    play(story)


def test_nothing_is_removed_while_deletions_are_held(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.fill(2)
        await house.copying.run()
        before = await house.storage.keys()
        held = [True]
        context = replace(house.context, deletions_are_held=lambda: held[0])
        remover = RemotePartitionRemover(RemoteLogManager(context, RemoteLogManagerSettings()), all_of)
        house.log.update_log_start_offset(house.log.log_end_offset)
        await remover.reconcile_deletions()
        await ExpirationTask(context, house.partition).run()
        await _idle(remover)
        assert await house.storage.keys() == before
        held[0] = False
        await ExpirationTask(context, house.partition).run()
        assert not await house.storage.keys()

    play(story)


def test_segments_that_were_deleted_remotely_do_not_count_as_copied(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.fill(2)
        await house.copying.run()
        manager = RemoteLogManager(house.context, RemoteLogManagerSettings())
        remover = RemotePartitionRemover(manager, all_of, NeverTiered())
        remover.empty_partition(PARTITION)
        await _idle(remover)
        assert not await house.storage.keys()
        house.log.highest_copied_offset = -1
        again = CopyTask(house.context, house.partition)
        house.faults.fail_at = house.faults.count + 1
        with pytest.raises(RemoteStorageError):
            await again.run()
        await house.free()
        assert house.log.local_log_start_offset == 0
        await again.run()
        assert ranges(house) == [(0, 2), (3, 5)]

    play(story)


# -- expiration -------------------------------------------------------------------------------


def segment(
    number: int, start: int, end: int, *, size: int = 100, at_ms: int = 0, epoch: int = 0
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId.of(PARTITION, UUID(int=number)),
        start,
        end,
        max_timestamp_ms=at_ms,
        broker_id=1,
        event_timestamp_ms=0,
        segment_size_bytes=size,
        leader_epochs=[EpochStart(epoch, start)],
        state=FINISHED,
    )


THREE = [segment(1, 0, 9, at_ms=100), segment(2, 10, 19, at_ms=200), segment(3, 20, 29, at_ms=300)]


@pytest.mark.parametrize(
    ("retention", "log_start", "local_only", "new_start", "due"),
    [
        (Retention(-1, -1), 0, 50, None, 0),
        (Retention(600, -1), 0, 50, None, 0),
        (Retention(500, -1), 0, 50, 10, 1),
        (Retention(400, -1), 0, 50, 20, 2),
        (Retention(0, -1), 0, 50, 30, 3),
        (Retention(-1, 350), 0, 50, None, 0),
        (Retention(-1, 349), 0, 149, 10, 1),
        (Retention(-1, 0), 0, 50, 30, 3),
        (Retention(450, 149), 0, 50, 20, 2),
        (Retention(-1, -1), 10, 50, None, 1),
        (Retention(-1, -1), 15, 50, None, 1),
        (Retention(-1, 249), 15, 149, 20, 2),
    ],
)
def test_segments_that_are_past_their_retention(
    retention: Retention, log_start: int, local_only: int, new_start: int | None, due: int
) -> None:
    plan = ExpiryPlan(
        LogGenerations(), retention, log_start_offset=log_start, local_only_bytes=local_only, now_ms=650
    )
    for each in THREE:
        plan.add([each])
    found = plan.decide()
    assert found.log_start_offset == new_start
    assert list(found.segments) == THREE[:due]


def test_a_round_over_very_many_segments_leaves_the_loop_to_others(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.log.config = replace(house.log.config, retention_ms=-1)
        for number in range(1, 2_001):
            house.metadata.cache.put(segment(number, number * 10, number * 10 + 9))
        looked_up, most, turns = 0, 0, 0
        find = house.metadata.remote_log_segment_metadata

        def counted(*arguments: Any) -> RemoteLogSegmentMetadata | None:
            nonlocal looked_up
            looked_up += 1
            return find(*arguments)

        house.metadata.remote_log_segment_metadata = counted  # type: ignore[method-assign]
        running = asyncio.create_task(house.expiring.run())
        while not running.done():
            looked_up = 0
            await asyncio.sleep(0)
            most, turns = max(most, looked_up), turns + 1
        await running
        assert most <= 200
        assert turns >= 2 * 2_000 // 200 - 2
        assert len(house.metadata.cache) == 2_000

    play(story)


def test_a_copy_that_finishes_during_a_round_is_not_removed_as_unneeded(
    play: Callable[[Story], None],
) -> None:
    async def story(house: House) -> None:
        for number in range(1, 1_001):
            house.metadata.cache.put(segment(number, number * 10, number * 10 + 9))
        slow = replace(segment(2_000, 20_000, 20_009), state=RemoteLogSegmentState.COPY_SEGMENT_STARTED)
        house.metadata.cache.put(slow)
        house.context.being_copied.add(slow.id.id)
        running = asyncio.create_task(house.expiring.run())
        await asyncio.sleep(0)
        house.metadata.cache.put(replace(slow, state=FINISHED))
        house.context.being_copied.discard(slow.id.id)
        await running
        found = house.metadata.cache.get(slow.id.id)
        assert found is not None
        assert found.state is FINISHED

    play(story)


def test_a_segment_of_an_old_leader_does_not_prevent_other_deletions(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        for epoch, count in ((0, 10), (2, 20)):
            for _ in range(count):
                house.append(b"x", epoch=epoch)
        lineage = LogLineage(house.log.leader_epochs)
        divergent = segment(4, 5, 15)
        assert not is_of_lineage(divergent, lineage, 0)
        assert is_of_lineage(segment(5, 0, 9), lineage, 0)
        assert is_of_lineage(segment(6, 10, 15, epoch=2), lineage, 0)
        assert is_of_lineage(divergent, LogGenerations(), 0)

    play(story)


def test_the_log_start_moves_before_its_segments_go(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.log.config = replace(CONFIG, retention_bytes=0)
        house.fill(3)
        await house.copying.run()
        await house.free()
        house.faults.fail_at = house.faults.count + 2
        with pytest.raises(RemoteStorageError):
            await house.expiring.run()
        assert house.log.log_start_offset == 9
        await house.expiring.run()
        assert not await house.storage.keys()
        assert not house.metadata.cache.list()

    play(story)


def test_segments_after_the_high_watermark_stay(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.log.config = replace(CONFIG, retention_bytes=0)
        house.fill(3)
        await house.copying.run()
        behind = SimpleNamespace(log=house.log, high_watermark=4)
        await ExpirationTask(house.context, TaskPartition(PARTITION, behind)).run()
        assert house.log.log_start_offset == 4
        assert ranges(house) == [(3, 5), (6, 8)]

    play(story)


def test_the_start_follows_what_an_earlier_leader_has_deleted_late(play: Callable[[Story], None]) -> None:
    """The last event of the earlier leader, which deletes a segment, may come after this broker has begun to
    lead."""

    async def story(house: House) -> None:
        house.fill(3)
        await house.copying.run()
        await house.free()
        assert house.log.local_log_start_offset == 9
        await house.expiring.run()
        assert house.log.log_start_offset == 0
        first = house.metadata.cache.list()[0]
        house.metadata.cache.put(replace(first, state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED))
        await house.expiring.run()
        assert house.log.log_start_offset == 3

    play(story)


def test_a_segment_that_ends_in_records_of_a_replaced_leader_keeps_the_start(
    play: Callable[[Story], None],
) -> None:
    """After an unclean election, the records of this segment that were written before the election are still
    part of the log."""

    async def story(house: House) -> None:
        house.fill(3)
        await house.copying.run()
        await house.free()
        first, *others = house.metadata.cache.list()
        for each in others:
            house.metadata.cache.put(replace(each, state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED))
        house.metadata.cache.put(replace(first, end_offset=11))
        house.log.leader_epochs.truncate_from_end(9)
        house.log.leader_epochs.assign(5, 9)
        assert not is_of_lineage(replace(first, end_offset=11), LogLineage(house.log.leader_epochs), 0)
        await restore_start(house.context, PARTITION, house.log, house.log.local_log_start_offset)
        assert house.log.log_start_offset == 0

    play(story)


def test_a_second_copy_that_is_never_read_is_removed(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.fill(1)
        await house.copying.run()
        first = house.metadata.cache.list()[0]
        house.log.highest_copied_offset = -1
        other = CopyTask(house.context, house.partition)
        house.metadata.cache.put(replace(first, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED))
        await other.run()
        house.metadata.cache.put(first)
        assert len(ranges(house)) == 2
        await ExpirationTask(house.context, house.partition).run()
        assert ranges(house) == [(0, 2)]
        assert len(await house.storage.keys()) == 2

    play(story)


class NeverTiered(NoHostedPartitions):
    """A broker that leads all partitions. No partition is tiered any more."""

    def untiered(self, partitions: Collection[TopicIdPartition]) -> Collection[TopicIdPartition]:
        return partitions


# -- removal ----------------------------------------------------------------------------------


async def _idle(remover: RemotePartitionRemover) -> None:
    await asyncio.gather(*remover.jobs)
    assert not remover.is_at_work_on(PARTITION)


@pytest.mark.parametrize("after_effect", [False, True])
def test_a_deletion_that_is_killed_at_any_step_is_finished_after_a_restart(
    tmp_path: Path, after_effect: bool
) -> None:
    class Killed(BaseException):
        pass

    async def told(house: House, fail_at: int) -> bool:
        house.fill(2)
        await house.copying.run()
        house.clock.time_ms += LATE_WRITE_GRACE_MS
        faults = house.faults
        faults.fail_at, faults.after_effect, faults.error = faults.count + fail_at, after_effect, Killed
        manager = RemoteLogManager(house.context, RemoteLogManagerSettings())
        first = RemotePartitionRemover(manager, all_of)
        died = False
        try:
            await first._delete_partition(PARTITION)
        except Killed:
            died = True
        second = RemotePartitionRemover(manager, all_of)
        await second.reconcile_deletions()
        await _idle(second)
        assert not await house.storage.keys()
        assert not house.metadata.remote_partition_deletions()
        assert (
            house.metadata.deletions[PARTITION].state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
        )
        return died

    for fail_at in range(1, 20):
        if not asyncio.run(told(House(tmp_path / str(fail_at)), fail_at)):
            break
    assert fail_at == 6, "three events and two segments"


def test_a_copy_that_finishes_while_its_topic_is_removed_leaves_nothing(tmp_path: Path) -> None:
    """The copy of the segment is still in progress at the first check of the remover, and has ended at the
    second check. The start of the copy was recorded long before the segment was stored, as in
    consolidation."""

    async def story(house: House) -> None:
        house.fill(1)
        await house.copying.run()
        (copied,) = house.metadata.cache.list()
        begun = replace(copied, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED)
        house.metadata.cache = SegmentCache()
        house.metadata.cache.put(begun)
        house.clock.time_ms += LATE_WRITE_GRACE_MS
        late = await house.storage.keys()
        delete = house.storage.delete_log_segment_data
        copies: list[asyncio.Task[None]] = []

        async def end_of_the_copy() -> None:
            await asyncio.sleep(LATE_WRITE_GRACE_MS / 2000)
            for key in late:
                await house.storage.objects.upload(key, b"late", 4)
            house.metadata.cache.put(copied)

        async def delete_before_the_copy_ends(metadata: RemoteLogSegmentMetadata) -> None:
            await delete(metadata)
            if not copies:
                copies.append(asyncio.ensure_future(end_of_the_copy()))

        house.storage.delete_log_segment_data = delete_before_the_copy_ends  # type: ignore[method-assign]
        remover = RemotePartitionRemover(RemoteLogManager(house.context, RemoteLogManagerSettings()), all_of)
        remover.delete_partition(PARTITION)
        await _idle(remover)
        await asyncio.gather(*copies)
        assert late
        assert not await house.storage.keys()

    with SimulatedWorld(1) as world:
        world.run(story(House(tmp_path)))


def test_a_deletion_whose_last_event_got_no_response_is_complete(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.fill(1)
        await house.copying.run()
        faults = house.faults
        faults.fail_at, faults.after_effect = faults.count + 4, True
        settings = RemoteLogManagerSettings(retry_backoff_ms=1)
        remover = RemotePartitionRemover(RemoteLogManager(house.context, settings), all_of)
        remover.delete_partition(PARTITION)
        await _idle(remover)
        assert not house.metadata.remote_partition_deletions()
        assert faults.count == faults.fail_at + 1

    play(story)
