"""A late copy of a marker does not end a later transaction (KIP-890, version 2). If no
transaction is open, a marker that is sent again is accepted."""

import asyncio
import pathlib
from types import SimpleNamespace
from typing import Any

import pytest
from test_transaction_guards import PRODUCER, GuardedPartition, batch

from moldau.coordinators.effects import BatchKind
from moldau.coordinators.log import PartitionCoordinatorLog
from moldau.protocol.partitions import TopicPartition
from moldau.replication.partition_interface import TransactionMarker
from moldau.runtime import ErrorCode, KafkaError
from moldau.server.subsystems.transactions.markers import LocalMarkers


class MarkedPartition(GuardedPartition):
    """Accepts markers like a broker that leads a partition, or like the broker of a group coordinator."""

    def mark(self, epoch: int, version: int) -> ErrorCode:
        registry: Any = SimpleNamespace(find=lambda *place: self.partition)
        groups: Any = None
        markers = LocalMarkers(registry, groups)
        marker = TransactionMarker(PRODUCER, epoch, False, 0, version)
        return asyncio.run(markers.write(marker, TopicPartition("t", 0)))

    @property
    def begins_at(self) -> int | None:
        entry = self.log.producer(PRODUCER)
        assert entry is not None
        return entry.current_txn_first_offset


@pytest.fixture
def house(tmp_path: pathlib.Path) -> MarkedPartition:
    return MarkedPartition(tmp_path)


def test_a_late_copy_leaves_the_next_transaction_open(house: MarkedPartition) -> None:
    assert house.append(batch(0, 0), house.guard(0)) is ErrorCode.none
    assert house.mark(1, version=2) is ErrorCode.none
    assert house.append(batch(0, 1), house.guard(1)) is ErrorCode.none
    assert house.mark(1, version=2) is ErrorCode.invalid_producer_epoch
    assert house.begins_at == 2
    assert house.mark(2, version=2) is ErrorCode.none
    assert house.begins_at is None


def test_a_repeated_marker_is_accepted_if_no_transaction_is_open(house: MarkedPartition) -> None:
    assert house.append(batch(0, 0), house.guard(0)) is ErrorCode.none
    assert house.mark(1, version=2) is ErrorCode.none
    assert house.mark(1, version=2) is ErrorCode.none


def test_a_marker_before_version_2_does_not_change_the_epoch(house: MarkedPartition) -> None:
    assert house.append(batch(0, 0), house.guard(0)) is ErrorCode.none
    assert house.mark(0, version=1) is ErrorCode.none
    assert house.append(batch(1, 0), house.guard(0)) is ErrorCode.none
    assert house.mark(0, version=1) is ErrorCode.none
    assert house.begins_at is None


def test_a_group_coordinator_checks_a_marker_before_the_append(house: MarkedPartition) -> None:
    log = PartitionCoordinatorLog(house.partition)
    producer = BatchKind(PRODUCER, 1, transactional=True)
    assert house.append(batch(0, 1), house.guard(1)) is ErrorCode.none
    log.check_marker(producer.producer_id, producer.producer_epoch, 1)
    with pytest.raises(KafkaError) as refused:
        log.check_marker(producer.producer_id, producer.producer_epoch, 2)
    assert refused.value.code is ErrorCode.invalid_producer_epoch
