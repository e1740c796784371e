"""A log whose older part is in the remote tier: the local part, its start, and a restart."""

import asyncio
import random
import uuid
from dataclasses import replace
from typing import Any

import pytest

from created_logs import get_or_create
from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import validate_produce
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime import ErrorCode, KafkaError
from moldau.storage.log.auxiliary_state import AuxiliaryState
from moldau.storage.log.config import LogConfig
from moldau.storage.log.leader_epochs import EpochEntry
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.log_manager import LogManager

NAME = TopicPartition("t", 0)
TOPIC_ID = uuid.UUID(int=9)
TIERED = LogConfig(
    remote_storage_enable=True, local_retention_bytes=1, retention_bytes=10**9, file_delete_delay_ms=0
)


def append_segments(box: Any, log: PartitionLog, count: int, epoch: int = 0) -> None:
    """Append closed segments of one record each. The active segment after them is empty."""
    batch = build_batch([Record(0, box.clock.time_ms, None, b"v" * 100, ())])
    for _ in range(count):
        log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**6), epoch)
        log.high_watermark = log.log_end_offset
        log.roll()


def open_log(box: Any, config: LogConfig = TIERED) -> PartitionLog:
    return PartitionLog.open(box.machine, "/data/t-0", NAME, config)


def test_only_copied_segments_are_deleted_from_the_disk(box: Any) -> None:
    log = open_log(box)
    append_segments(box, log, 4)
    assert asyncio.run(log.delete_old_segments(box.clock.time_ms)) == []
    log.highest_copied_offset = 1
    asyncio.run(log.delete_old_segments(box.clock.time_ms))
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, 2, 4)
    with pytest.raises(KafkaError) as caught:
        log.read(1, 1000)
    assert caught.value.code is ErrorCode.offset_moved_to_tiered_storage
    assert log.read(2, 1000).next_offset == 3
    assert log.epoch_for_offset(0) == 0, "the epochs still reach down to the log's start"


def test_without_copying_the_whole_retention_decides_and_moves_the_start(box: Any) -> None:
    log = open_log(box, replace(TIERED, remote_log_copy_disable=True, retention_bytes=200))
    append_segments(box, log, 4)
    log.highest_copied_offset = 0
    asyncio.run(log.delete_old_segments(box.clock.time_ms))
    assert log.log_start_offset == log.local_log_start_offset > 1


def test_copied_segments_leave_the_disk_without_a_cleanup_policy(box: Any) -> None:
    """As in Kafka 4.2, an empty ``cleanup.policy`` keeps all records of the partition. But local retention
    still removes copied segments from the disk."""
    log = open_log(box, replace(TIERED, cleanup_delete=False))
    append_segments(box, log, 4)
    log.highest_copied_offset = 1
    asyncio.run(log.delete_old_segments(box.clock.time_ms))
    assert (log.log_start_offset, log.local_log_start_offset) == (0, 2)


def test_no_record_leaves_a_plain_log_without_a_cleanup_policy(box: Any) -> None:
    config = LogConfig(retention_bytes=1, retention_ms=1, cleanup_delete=False)
    log = open_log(box, config)
    append_segments(box, log, 4)
    assert asyncio.run(log.delete_old_segments(box.clock.time_ms + 10**9)) == []


def test_deleted_records_leave_the_log_whether_they_were_copied_or_not(box: Any) -> None:
    log = open_log(box, replace(TIERED, local_retention_bytes=-1))
    append_segments(box, log, 3)
    log.update_log_start_offset(2)
    asyncio.run(log.delete_old_segments(box.clock.time_ms))
    assert (log.log_start_offset, log.segments.segments[0].base_offset) == (2, 2)


def test_an_active_segment_past_its_local_time_is_rolled_so_that_it_can_be_copied(box: Any) -> None:
    log = open_log(box, replace(TIERED, local_retention_bytes=-1, local_retention_ms=1000))
    batch = build_batch([Record(0, box.clock.time_ms, None, b"v", ())])
    log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**6), 0)
    log.high_watermark = 1
    assert asyncio.run(log.delete_old_segments(box.clock.time_ms + 5000)) == []
    assert [segment.base_offset for segment in log.segments.segments] == [0, 1]
    assert log.log_start_offset == 0


def test_truncation_into_the_remote_part_keeps_what_is_before(box: Any) -> None:
    log = open_log(box)
    append_segments(box, log, 4)
    log.highest_copied_offset = 3
    asyncio.run(log.delete_old_segments(box.clock.time_ms))
    asyncio.run(log.truncate_to(2))
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, 2, 2)
    assert log.highest_copied_offset == 1


def restart(box: Any, config: LogConfig, damage: Any = None) -> tuple[int, int, int]:
    """Copy segments, remove them from the disk, move the log start to 1, stop, and load the log again.
    Returns (log start, local start, epoch of the start)."""

    async def scenario() -> tuple[int, int, int]:
        manager = LogManager(box.machine, ["/data"])
        await manager.start(lambda _: LogConfig())
        log = await get_or_create(manager, NAME, TIERED, TOPIC_ID)
        append_segments(box, log, 2, epoch=3)
        append_segments(box, log, 2, epoch=4)
        log.highest_copied_offset = 2
        await log.delete_old_segments(box.clock.time_ms)
        log.update_log_start_offset(1)
        await manager.stop()
        if damage is not None:
            damage()
        again = LogManager(box.machine, ["/data"])
        await again.start(lambda _: LogConfig(retention_ms=0))
        loaded = again.get(NAME)
        assert loaded is not None
        box.clock.time_ms += 10**9
        await again.clean_up()
        assert loaded.awaits_config
        assert len(loaded.segments.segments) == 2, "nothing goes before its retention is known"
        loaded = await get_or_create(again, NAME, config, TOPIC_ID)
        found = loaded.log_start_offset, loaded.local_log_start_offset, loaded.epoch_for_offset(1)
        await again.stop()
        return found

    return asyncio.run(scenario())


def test_a_restarted_log_has_its_start_and_its_local_start(box: Any) -> None:
    assert restart(box, TIERED) == (1, 3, 3)


def test_leader_epochs_replace_a_lost_checkpoint_of_log_starts(box: Any) -> None:
    assert restart(box, TIERED, lambda: box.disk.remove("/data/log-start-offset-checkpoint")) == (1, 3, 3)


def test_a_topic_that_is_not_tiered_any_more_begins_with_what_is_local(box: Any) -> None:
    assert restart(box, LogConfig()) == (3, 3, -1)


def test_a_persisted_log_start_without_a_checkpoint_does_not_move_back(box: Any) -> None:
    log = open_log(box)
    append_segments(box, log, 4)
    log.highest_copied_offset = 1
    asyncio.run(log.delete_old_segments(box.clock.time_ms))
    log.update_log_start_offset(3)
    asyncio.run(log.persist_start())
    killed = open_log(box)
    assert (killed.log_start_offset, killed.local_log_start_offset) == (3, 3)
    killed.update_log_start_offset(4)
    asyncio.run(killed.persist_start())
    killed = open_log(box)
    assert (killed.log_start_offset, killed.log_end_offset) == (4, 4)


@pytest.mark.parametrize("seed", range(6))
def test_a_log_start_at_the_end_survives_crashes_without_a_checkpoint(new_box: Any, seed: int) -> None:
    box = new_box()
    log = open_log(box)
    append_segments(box, log, 3)
    asyncio.run(log.flush())
    log.update_log_start_offset(3)
    asyncio.run(log.delete_old_segments(box.clock.time_ms))
    for life in range(3):
        box.disk.crash(random.Random(10 * seed + life))
        log = open_log(box)
        assert (log.log_start_offset, log.log_end_offset) == (3, 3)
    append_segments(box, log, 1, epoch=1)
    assert log.epoch_for_offset(3) == 1


def test_lost_epochs_begin_where_the_log_does(box: Any) -> None:
    log = open_log(box, LogConfig())
    append_segments(box, log, 2, epoch=3)
    append_segments(box, log, 2, epoch=4)
    log.close()
    box.disk.remove("/data/t-0/leader-epoch-checkpoint")
    for _ in range(2):
        log = PartitionLog.open(box.machine, "/data/t-0", NAME, LogConfig(), clean_shutdown=True)
        assert log.log_start_offset == 0
        assert log.epoch_for_offset(0) == 3
        log.close()


def test_a_closed_segment_becomes_durable_without_the_active_one(box: Any) -> None:
    log = open_log(box)
    append_segments(box, log, 2)
    batch = build_batch([Record(0, box.clock.time_ms, None, b"v", ())])
    log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**6), 0)
    assert asyncio.run(log.flush(2)) == 2
    assert log.flushed_offset == 2
    assert asyncio.run(log.flush()) == 3


def test_a_loss_of_power_between_removals_brings_back_one_segment_at_most(box: Any) -> None:
    """If only one of several removed segments were restored, the log would have a gap after it. All records
    after the gap would then be removed."""

    async def scenario() -> None:
        manager = LogManager(box.machine, ["/data"])
        await manager.start(lambda _: LogConfig())
        log = await get_or_create(manager, NAME, TIERED, TOPIC_ID)
        append_segments(box, log, 5)
        await log.flush()
        await log.flush()
        log.highest_copied_offset = 4
        rename = box.disk.rename
        removed: list[str] = []

        def rename_and_look(source: str, target: str) -> None:
            rename(source, target)
            if source.endswith(".log"):
                removed.append(source)
                back = [name for name in box.disk.durable if name in removed]
                assert back == [source]

        box.disk.rename = rename_and_look
        await manager.clean_up()
        assert len(removed) == 4
        assert log.local_log_start_offset == 4
        box.disk.rename = rename
        await manager.stop()

    asyncio.run(scenario())


def append_of(box: Any, log: PartitionLog, sequence: int) -> int:
    """Append a record of the idempotent producer 7. Returns its offset. If the record is a duplicate, the
    offset is the offset of the first append."""
    batch = build_batch(
        [Record(0, box.clock.time_ms, None, b"v", ())],
        producer_id=7,
        producer_epoch=0,
        base_sequence=sequence,
    )
    epoch = log.leader_epochs.latest_epoch or 0
    return log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**6), epoch).first_offset


def test_a_log_that_begins_after_the_remote_tier_begins_there_after_a_crash_too(box: Any) -> None:
    source = open_log(box, replace(TIERED, local_retention_bytes=-1))
    append_segments(box, source, 2, epoch=1)
    for sequence in range(3):
        append_of(box, source, sequence)
    producers = list(source.producers.state)
    log = PartitionLog.open(box.machine, "/data/u-0", TopicPartition("u", 0), TIERED)
    append_segments(box, log, 1)
    epochs = [EpochEntry(1, 0), EpochEntry(3, 10)]
    asyncio.run(log.begin_behind_remote(AuxiliaryState(20, 4, epochs, producers)))
    assert log.highest_copied_offset == 19
    check_begun_behind(box, log)
    box.disk.crash(random.Random(1))
    check_begun_behind(box, PartitionLog.open(box.machine, "/data/u-0", TopicPartition("u", 0), TIERED))


def test_a_log_killed_while_it_begins_after_the_remote_tier_does_not_lose_the_state_there(box: Any) -> None:
    """After a kill at any step, the log either begins there with its producers and epochs, or does not end
    there. In the latter case the log begins there again later."""
    source = open_log(box, replace(TIERED, local_retention_bytes=-1))
    append_segments(box, source, 2, epoch=1)
    for sequence in range(3):
        append_of(box, source, sequence)
    state = AuxiliaryState(20, 4, [EpochEntry(1, 0), EpochEntry(3, 10)], list(source.producers.state))
    ends = []
    for number in range(9):
        name = TopicPartition("u", number)
        log = PartitionLog.open(box.machine, f"/data/u-{number}", name, TIERED)
        append_segments(box, log, 1)
        steps = log.truncation._beginning_behind(state)
        # Each step is a job for a worker. The code after the last job has also run when the kill comes.
        for _, job in zip(range(number), steps, strict=False):
            job()
        next(steps, None)
        killed = PartitionLog.open(box.machine, f"/data/u-{number}", name, TIERED)
        ends.append(killed.log_end_offset)
        if killed.log_end_offset == 20:
            check_begun_behind(box, killed)
    assert (min(ends), ends[-1]) == (0, 20)


def check_begun_behind(box: Any, log: PartitionLog) -> None:
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (4, 20, 20)
    assert log.leader_epochs.entries == (EpochEntry(1, 4), EpochEntry(3, 10))
    assert append_of(box, log, 2) == 4, "the producer's last record is known"
    with pytest.raises(KafkaError) as caught:
        append_of(box, log, 7)
    assert caught.value.code is ErrorCode.out_of_order_sequence_number


def test_producers_stay_known_when_a_log_is_cut_to_its_first_local_offset(box: Any) -> None:
    """The log of a new leader can begin at the first local offset, so it lacks the earlier records. These
    records are committed, but their producers may send them again."""
    log = open_log(box)
    append_of(box, log, 0)
    log.roll()
    append_of(box, log, 1)
    log.high_watermark, log.highest_copied_offset = 1, 0
    asyncio.run(log.delete_old_segments(box.clock.time_ms))
    assert log.local_log_start_offset == 1
    asyncio.run(log.truncate_to(1))
    assert log.log_end_offset == 1
    assert append_of(box, log, 0) == 0
