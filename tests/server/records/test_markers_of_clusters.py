"""Markers for partitions that were deleted or are diskless, and markers of a coordinator that a newer one has
replaced."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.coordinators.transactions.transaction import TxnPartition
from moldau.replication.partition_interface import TransactionMarker
from moldau.runtime import ErrorCode, KafkaError, UnexpectedErrors
from moldau.server.subsystems.transactions.markers import ClusterMarkers

MARKER = TransactionMarker(7, 1, True, 3, 2)
CLASSIC, DISKLESS, GONE = (TxnPartition(name, 0) for name in ("classic", "diskless", "gone"))


def written(answers: dict[TxnPartition, ErrorCode]) -> tuple[set[TxnPartition], list[TxnPartition]]:
    """Write a marker to three partitions. Returns the partitions that still need the marker, and the
    partitions to which a marker was sent."""
    asked: list[TxnPartition] = []
    view: Any = SimpleNamespace(
        leader_of=lambda name, index: {"classic": 1, "diskless": -1}.get(name),
        local_id=1,
    )

    async def write(marker: TransactionMarker, partition: TxnPartition) -> ErrorCode:
        asked.append(partition)
        return answers[partition]

    peers: Any = None
    local: Any = SimpleNamespace(write=write, reaches=lambda place: place.topic == "diskless")
    markers = ClusterMarkers(view, peers, local, UnexpectedErrors())
    return asyncio.run(markers.write(MARKER, [CLASSIC, DISKLESS, GONE])), asked


def test_a_deleted_topic_has_its_marker_and_a_diskless_one_needs_no_leader() -> None:
    none, both = ErrorCode.none, [CLASSIC, DISKLESS]
    assert written({CLASSIC: none, DISKLESS: none}) == (set(), both)
    assert written({CLASSIC: none, DISKLESS: ErrorCode.coordinator_not_available}) == ({DISKLESS}, both)
    assert written({CLASSIC: ErrorCode.not_leader_or_follower, DISKLESS: none}) == ({CLASSIC}, both)
    assert written({CLASSIC: ErrorCode.invalid_producer_epoch, DISKLESS: none}) == (set(), both)


def test_a_replaced_coordinator_stops_sending() -> None:
    with pytest.raises(KafkaError) as refused:
        written({CLASSIC: ErrorCode.transaction_coordinator_fenced, DISKLESS: ErrorCode.none})
    assert refused.value.code is ErrorCode.transaction_coordinator_fenced
