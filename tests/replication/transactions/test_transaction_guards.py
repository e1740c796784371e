"""A late batch never opens a transaction, because the first batch of a transaction needs a valid guard."""

import asyncio
import pathlib
from uuid import UUID

import pytest

from moldau.metrics import Meters
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.records.batch import parse_header
from moldau.records.builder import build_batch
from moldau.records.control import build_end_transaction_marker
from moldau.records.record import Record
from moldau.replication.appending.append_turn import AppendTurn
from moldau.replication.appending.transactions import TransactionGuard
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.context import ReplicaContext
from moldau.replication.partition_interface import AppendOutcome
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.storage.log.append_info import AppendOrigin
from moldau.storage.log.partition_log import PartitionLog

PRODUCER = 77


def batch(sequence: int, epoch: int = 0) -> memoryview:
    records = [Record(0, 1_700_000_000_000, b"k", b"v", ())]
    return memoryview(
        build_batch(
            records,
            producer_id=PRODUCER,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
    )


class GuardedPartition:
    """A partition on the real disk, which this test leads."""

    def __init__(self, folder: pathlib.Path) -> None:
        machine = Machine.real()
        self.log = PartitionLog.open(machine, str(folder / "t-0"), TopicPartition("t", 0))
        self.partition = ClassicPartition(
            ReplicaContext(
                machine, 1, WaitingRoom(), BrokerTopicMeters(Meters("kafka.server", "KafkaServer"))
            ),
            PartitionKey(UUID(int=1), 0),
            self.log,
            min_in_sync=1,
            high_watermark=0,
        )
        self.partition.become_leader(3, (1,), (1,))

    def guard(self, epoch: int = 0) -> TransactionGuard | None:
        return self.partition.guards.guard(PRODUCER, epoch)

    def append(self, content: memoryview, guard: TransactionGuard | None) -> ErrorCode:
        outcome = self.partition.append(content, required_acks=1, timeout_ms=1000, guard=guard)
        assert isinstance(outcome, AppendOutcome)
        return outcome.error

    def end(self, epoch: int = 0) -> None:
        marker = build_end_transaction_marker(
            PRODUCER, epoch, committed=False, coordinator_epoch=0, timestamp=1
        )

        async def append() -> None:
            self.partition.append_own(marker, [parse_header(marker)], AppendOrigin.COORDINATOR)
            await asyncio.sleep(0)

        asyncio.run(append())


@pytest.fixture
def house(tmp_path: pathlib.Path) -> GuardedPartition:
    return GuardedPartition(tmp_path)


def test_the_first_batch_needs_a_guard_and_the_next_ones_none(house: GuardedPartition) -> None:
    assert house.append(batch(0), None) is ErrorCode.invalid_txn_state
    guard = house.guard()
    assert guard is not None
    assert house.append(batch(0), guard) is ErrorCode.none
    assert house.guard() is None
    assert house.append(batch(1), None) is ErrorCode.none
    assert house.log.last_stable_offset(2) == 0


def test_a_marker_makes_the_guard_of_a_late_batch_void(house: GuardedPartition) -> None:
    late = house.guard()
    # The coordinator has confirmed the transaction. Before the batch is appended, the transaction is aborted.
    assert late is not None
    house.end()
    assert house.append(batch(0), late) is ErrorCode.invalid_txn_state
    assert house.log.last_stable_offset(1) == 1
    again = house.guard()
    assert again is not None
    assert again is not late
    assert house.append(batch(0), again) is ErrorCode.none


def test_a_withdrawn_guard_and_one_of_an_earlier_term_are_void(house: GuardedPartition) -> None:
    refused = house.guard()
    assert refused is not None
    house.partition.guards.withdraw(PRODUCER, refused)
    assert house.append(batch(0), refused) is ErrorCode.invalid_txn_state
    earlier = house.guard()
    house.partition.resign(4)
    house.partition.become_leader(5, (1,), (1,))
    assert house.append(batch(0), earlier) is ErrorCode.invalid_txn_state


def test_a_fenced_epoch_gets_no_guard(house: GuardedPartition) -> None:
    house.end(epoch=1)
    with pytest.raises(KafkaError) as refused:
        house.guard(epoch=0)
    assert refused.value.code is ErrorCode.invalid_producer_epoch
    assert house.append(batch(0), TransactionGuard()) is ErrorCode.invalid_producer_epoch


def test_a_transactional_batch_is_never_staged(house: GuardedPartition) -> None:
    house.log.begin_epoch(3)
    outcome = AppendTurn().append(house.partition, batch(0), -1, 1000)
    assert isinstance(outcome, AppendOutcome)
    assert outcome.error is ErrorCode.invalid_txn_state


def test_the_last_stable_offset_is_never_below_the_start_of_the_log(house: GuardedPartition) -> None:
    assert house.append(batch(0), house.guard()) is ErrorCode.none
    for sequence in (1, 2, 3):
        assert house.append(batch(sequence), None) is ErrorCode.none
    house.log.update_log_start_offset(2)
    assert house.log.last_stable_offset(house.log.log_end_offset) == 2
