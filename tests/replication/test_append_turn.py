"""All appends of one iteration of the event loop become one write. If the write fails, none of these
appends is acknowledged."""

import pathlib
from uuid import UUID

import pytest

from moldau.metrics import Meters
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.appending.append_turn import AppendTurn
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.context import ReplicaContext
from moldau.replication.partition_interface import AppendOutcome, ReadOutcome, ReadRequest
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.storage.log.partition_log import PartitionLog

BATCH = memoryview(build_batch([Record(0, 1_700_000_000_000, b"k", b"v", ())]))


class House:
    """A partition that this test leads, with its log on the real disk, and the turn that collects its
    appends."""

    def __init__(self, folder: pathlib.Path) -> None:
        machine = Machine.real()
        self.log = PartitionLog.open(machine, str(folder / "t-0"), TopicPartition("t", 0))
        self.meters = BrokerTopicMeters(Meters("kafka.server", "KafkaServer"))
        self.partition = ClassicPartition(
            ReplicaContext(machine, 1, WaitingRoom(), self.meters),
            PartitionKey(UUID(int=1), 0),
            self.log,
            min_in_sync=1,
            high_watermark=0,
        )
        self.lead((1,), (1,))
        self.log.begin_epoch(3)  # the first batch of a leader epoch is not staged
        self.turn = AppendTurn()

    def lead(self, replicas: tuple[int, ...], in_sync: tuple[int, ...]) -> None:
        self.partition.become_leader(3, replicas, in_sync)

    def append(self, batch: memoryview = BATCH, acks: int = -1) -> AppendOutcome:
        outcome = self.turn.append(self.partition, batch, acks, 1000)
        assert isinstance(outcome, AppendOutcome)
        return outcome

    def readable(self) -> int:
        outcome = self.partition.read(ReadRequest(0, 1 << 20))
        assert isinstance(outcome, ReadOutcome)
        return outcome.size_bytes // len(BATCH)


@pytest.fixture
def house(tmp_path: pathlib.Path) -> House:
    return House(tmp_path)


def test_appends_of_a_turn_are_in_the_log_when_it_has_ended(house: House) -> None:
    assert [house.append().base_offset for _ in range(3)] == [0, 1, 2]
    assert (house.readable(), house.partition.high_watermark) == (0, 0)
    house.turn.end()
    assert (house.readable(), house.partition.high_watermark) == (3, 3)
    assert house.meters.topic("t").messages_in.value == 3
    assert house.meters.all.bytes_in.value == 3 * len(BATCH)
    assert house.append().base_offset == 3
    house.turn.settle()
    assert house.readable() == 4
    house.turn.end()
    assert house.readable() == 4


def test_a_refusal_has_the_error_of_a_single_append_and_keeps_the_order(house: House) -> None:
    bad = memoryview(bytes(BATCH[:-1]) + b"\xff")
    assert house.append().base_offset == 0
    assert house.append(bad).error is ErrorCode.corrupt_message
    assert house.append().base_offset == 1
    house.turn.end()
    assert house.readable() == 2
    house.partition.resign(4)
    assert house.append().error is ErrorCode.not_leader_or_follower


def test_no_append_is_staged_if_other_replicas_must_acknowledge_it(house: House) -> None:
    house.lead((1, 2), (1,))
    house.partition.min_in_sync = 2
    assert house.append().error is ErrorCode.not_enough_replicas
    assert house.append(acks=1).base_offset == 0
    house.turn.end()
    assert (house.log.log_end_offset, house.readable()) == (1, 0)


def test_a_lone_replica_acknowledges_alone_with_any_minimum(house: House) -> None:
    house.partition.min_in_sync = 2
    assert house.append().base_offset == 0
    house.turn.end()
    assert house.readable() == 1


def test_a_turn_whose_write_fails_sends_no_responses_and_the_next_turn_reports_the_error(
    house: House,
) -> None:
    house.append()
    house.turn.end()
    house.append()
    house.log.segments.active.file.close()  # from now on the disk refuses operations
    for _ in range(2):
        with pytest.raises(KafkaError):
            house.turn.settle()
    with pytest.raises(KafkaError):
        house.turn.end()
    assert (house.log.log_end_offset, house.partition.high_watermark) == (1, 1)
    house.turn.end()
    assert house.append().error is ErrorCode.kafka_storage_error
