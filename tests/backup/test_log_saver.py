"""Saves of a compacted log. If a saved record is deleted later, its tombstone is saved, too."""

import asyncio
import pathlib
import uuid

import pytest

from moldau.backup.calls import LogsToSave, LogToSave, SavedLog
from moldau.backup.cut_format import DATA_FOLDER
from moldau.backup.log_saver import LogSaver
from moldau.backup.saved_ends import SavedEnds
from moldau.backup.saved_rounds import SavedRounds
from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC
from moldau.metrics import BrokerTopicMeters, Meters
from moldau.objects import MemoryStorage
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.context import ReplicaContext
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import KafkaError, Machine
from moldau.storage.log.partition_log import PartitionLog

TOPIC = CONSUMER_OFFSETS_TOPIC
LOG = PartitionKey(uuid.UUID(int=1), 0)
BROKER, EPOCH, END = 1, 3, 10


@pytest.fixture
def partition(tmp_path: pathlib.Path) -> ClassicPartition:
    """A partition with ten records."""
    machine = Machine.real()
    meters = BrokerTopicMeters(Meters("kafka.server", "KafkaServer"))
    partition = ClassicPartition(
        ReplicaContext(machine, BROKER, WaitingRoom(), meters),
        PartitionKey(LOG.topic_id, 0),
        PartitionLog.open(machine, str(tmp_path / f"{TOPIC}-0"), TopicPartition(TOPIC, 0)),
        min_in_sync=1,
        high_watermark=0,
    )
    partition.become_leader(EPOCH, (BROKER,), (BROKER,))
    for number in range(END):
        batch = build_batch([Record(0, 1_000, b"key %d" % number, b"value")])
        partition.append(batch, required_acks=1, timeout_ms=1_000)
    return partition


def test_a_new_leader_saves_nothing_before_it_knows_all_committed_records(
    partition: ClassicPartition,
) -> None:
    async def save() -> SavedLog:
        saver = LogSaver(
            MemoryStorage(Machine.real().clock), lambda _: partition, SavedEnds(), SavedRounds(lambda: 0.0)
        )
        wanted = LogToSave(LOG, partition.leader_epoch)
        (found,) = await saver.save_logs(LogsToSave(f"{DATA_FOLDER}x", 1, [wanted]))
        return found

    replicas = (BROKER, BROKER + 1)
    partition.become_leader(EPOCH + 1, replicas, replicas)
    partition.append(build_batch([Record(0, 1_000, b"new", b"value")]), required_acks=1, timeout_ms=1_000)
    # The other replica has all records of the earlier epoch, which may have been committed.
    assert partition.high_watermark == END
    assert [piece.end_offset for piece in asyncio.run(save()).pieces] == [END]
    partition.become_leader(EPOCH + 2, replicas, replicas)
    with pytest.raises(KafkaError, match="high watermark is not known"):
        asyncio.run(save())


@pytest.mark.parametrize(
    ("compacted_end", "saved_end", "from_offset", "begins_anew"),
    [
        (None, 8, 8, False),
        (8, 8, 8, False),
        (6, 8, 4, True),  # a tombstone may be missing among the records that are read again
        (9, 8, 8, True),  # a tombstone may be missing among the new records
        (END, END, END, False),  # no record is read
    ],
)
def test_records_that_compaction_has_seen_are_not_added_to_earlier_ones(
    partition: ClassicPartition,
    compacted_end: int | None,
    saved_end: int,
    from_offset: int,
    begins_anew: bool,
) -> None:
    async def saved() -> SavedLog:
        storage = MemoryStorage(Machine.real().clock)
        saver = LogSaver(
            storage, lambda _: partition, SavedEnds(), SavedRounds(lambda: 0.0), lambda _: compacted_end
        )
        wanted = LogToSave(LOG, EPOCH, saved_end, EPOCH, from_offset)
        (found,) = await saver.save_logs(LogsToSave(f"{DATA_FOLDER}x", 1, [wanted]))
        return found

    found = asyncio.run(saved())
    assert found.begins_anew is begins_anew
    first_offset = 0 if begins_anew else from_offset
    assert [piece.base_offset for piece in found.pieces] == ([first_offset] if first_offset < END else [])


def test_the_lag_is_the_bytes_after_the_newest_cut(partition: ClassicPartition) -> None:
    saver = LogSaver(
        MemoryStorage(Machine.real().clock), lambda _: partition, SavedEnds(), SavedRounds(lambda: 0.0)
    )

    def lag_after(saved_end: int, rounds: int) -> int:
        wanted = LogToSave(LOG, EPOCH, saved_end, EPOCH, max(0, saved_end))
        asyncio.run(saver.save_logs(LogsToSave(f"{DATA_FOLDER}{rounds}", rounds, [wanted])))
        return saver.lag_bytes

    size_bytes = partition.log.size_bytes
    assert [lag_after(-1, 0), lag_after(4, 1), lag_after(END, 2)] == [size_bytes, size_bytes * 6 // 10, 0]
    partition.follow(EPOCH + 1, BROKER + 1)
    assert saver.lag_bytes == 0  # the partition's new leader reports this lag
