"""A follower's fetch takes effect only after the leader has checked that the follower's log agrees with the
leader's log. Until the fetches have raised the watermark of a new leader, some lookups are refused."""

import asyncio
import pathlib
from collections.abc import Sequence
from uuid import UUID

import pytest

from moldau.metrics import Meters
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.protocol.special_timestamps import LATEST_TIMESTAMP, MAX_TIMESTAMP
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.classic_partition import ACKS_ALL, ClassicPartition
from moldau.replication.context import ReplicaContext
from moldau.replication.partition_interface import AppendOutcome, ReadOutcome, ReadRequest
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.storage.log.partition_log import PartitionLog

TIME_MS = 1_700_000_000_000
LEADER, FOLLOWER = 1, 2


def batch(time_ms: int = TIME_MS) -> memoryview:
    return memoryview(build_batch([Record(0, time_ms, b"k", b"v", ())]))


class LedPartition:
    """A partition of two in-sync replicas. It has ten records of epoch 3, and epoch 5 begins at offset 10."""

    def __init__(self, folder: pathlib.Path, times_ms: Sequence[int] = (TIME_MS,) * 20) -> None:
        batches = [batch(each) for each in times_ms]
        machine = Machine.real()
        self.log = PartitionLog.open(machine, str(folder / "t-0"), TopicPartition("t", 0))
        self.partition = ClassicPartition(
            ReplicaContext(
                machine, LEADER, WaitingRoom(), BrokerTopicMeters(Meters("kafka.server", "KafkaServer"))
            ),
            PartitionKey(UUID(int=1), 0),
            self.log,
            min_in_sync=2,
            high_watermark=0,
        )
        for epoch in (3, 5):
            self.partition.become_leader(epoch, (LEADER, FOLLOWER), (LEADER, FOLLOWER))
            for _ in range(10):
                self.partition.append(batches.pop(0), required_acks=1, timeout_ms=1000)

    def fetch(self, offset: int, last_fetched_epoch: int) -> ReadOutcome:
        outcome = self.partition.read(
            ReadRequest(
                offset,
                1 << 20,
                current_leader_epoch=5,
                last_fetched_epoch=last_fetched_epoch,
                replica_id=FOLLOWER,
            )
        )
        assert isinstance(outcome, ReadOutcome)
        return outcome


@pytest.fixture
def led(tmp_path: pathlib.Path) -> LedPartition:
    return LedPartition(tmp_path)


def test_a_diverged_follower_does_not_move_the_high_watermark(led: LedPartition) -> None:
    outcome = led.fetch(15, last_fetched_epoch=4)  # five records of a former leader
    assert outcome.diverging_epoch == (3, 10)
    assert led.partition.high_watermark == 0
    assert led.fetch(12, last_fetched_epoch=3).diverging_epoch == (3, 10)
    assert led.partition.high_watermark == 0
    assert led.fetch(10, last_fetched_epoch=3).diverging_epoch is None
    assert led.partition.high_watermark == 10


def test_a_follower_with_an_unknown_epoch_does_not_move_the_high_watermark(led: LedPartition) -> None:
    assert led.fetch(10, last_fetched_epoch=9).error is ErrorCode.offset_out_of_range
    assert led.partition.high_watermark == 0


def test_a_diverged_follower_does_not_acknowledge_a_write(led: LedPartition) -> None:
    async def write() -> AppendOutcome:
        answer = led.partition.append(batch(), required_acks=ACKS_ALL, timeout_ms=600_000)
        assert isinstance(answer, asyncio.Future)
        assert led.fetch(21, last_fetched_epoch=4).diverging_epoch == (3, 10)
        assert not answer.done()
        assert led.fetch(21, last_fetched_epoch=5).diverging_epoch is None
        return await answer

    assert asyncio.run(write()) == AppendOutcome(ErrorCode.none, 20, -1, 0)


def test_a_follower_below_the_log_start_is_not_counted(led: LedPartition) -> None:
    led.fetch(20, last_fetched_epoch=5)
    led.log.update_log_start_offset(12)
    assert led.fetch(11, last_fetched_epoch=5).error is ErrorCode.offset_out_of_range
    assert led.partition.high_watermark == 20


def test_lookups_by_time_wait_for_the_watermark_of_a_new_leader(tmp_path: pathlib.Path) -> None:
    """The previous leader may have shown all records of its term. Without an error, a consumer that looks for
    a time would begin at the end and skip these records."""
    led = LedPartition(tmp_path, [TIME_MS + number for number in range(20)])

    def look(timestamp_ms: int) -> int | ErrorCode:
        lookup = led.partition.find_offset(timestamp_ms, read_committed=False, current_leader_epoch=5)
        try:
            return asyncio.run(lookup).offset
        except KafkaError as error:
            return error.code

    refused = ErrorCode.offset_not_available
    led.fetch(4, last_fetched_epoch=3)
    assert (led.partition.high_watermark, look(TIME_MS + 3)) == (4, 3)
    assert [look(TIME_MS + 4), look(TIME_MS + 9), look(MAX_TIMESTAMP), look(LATEST_TIMESTAMP)] == [
        refused
    ] * 4
    # Clients have not seen the records of this term yet.
    assert look(TIME_MS + 10) == -1
    led.fetch(10, last_fetched_epoch=3)
    assert [look(TIME_MS + 9), look(MAX_TIMESTAMP), look(LATEST_TIMESTAMP), look(TIME_MS + 10)] == [
        9,
        9,
        10,
        -1,
    ]


def test_lookups_of_followers_consider_the_whole_log(tmp_path: pathlib.Path) -> None:
    led = LedPartition(tmp_path, [TIME_MS + number for number in range(20)])
    led.fetch(4, last_fetched_epoch=3)

    def look(timestamp_ms: int) -> int:
        lookup = led.partition.find_offset(
            timestamp_ms, read_committed=True, current_leader_epoch=5, is_replica=True
        )
        return asyncio.run(lookup).offset

    assert [look(LATEST_TIMESTAMP), look(MAX_TIMESTAMP), look(TIME_MS + 15)] == [20, 19, 15]
