"""Markers for partitions that are gone, and markers of a coordinator that was replaced."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.coordinators.transactions.completion import TransactionMarker
from moldau.coordinators.transactions.transaction import TxnPartition
from moldau.runtime import ErrorCode, KafkaError, UnexpectedErrors
from moldau.server.subsystems.transactions.markers import ClusterMarkers

MARKER = TransactionMarker(7, 1, True, 3, 2)
CLASSIC, DISKLESS, GONE = (TxnPartition(name, 0) for name in ("classic", "diskless", "gone"))


def written(answers: dict[TxnPartition, ErrorCode]) -> tuple[set[TxnPartition], list[TxnPartition]]:
    """The remaining partitions, and the requested ones."""
    asked: list[TxnPartition] = []
    topics = {name: SimpleNamespace(is_diskless=name == "diskless") for name in ("classic", "diskless")}
    view: Any = SimpleNamespace(
        image=SimpleNamespace(topics=topics),
        leader_of=lambda name, index: 1 if name in topics else None,
        local_id=1,
    )

    async def write(marker: TransactionMarker, partition: TxnPartition) -> ErrorCode:
        asked.append(partition)
        return answers[partition]

    peers: Any = None
    local: Any = SimpleNamespace(write=write)
    markers = ClusterMarkers(view, peers, local, UnexpectedErrors())
    return asyncio.run(markers.write(MARKER, [CLASSIC, DISKLESS, GONE])), asked


def test_a_topic_that_has_become_diskless_counts_as_deleted() -> None:
    assert written({CLASSIC: ErrorCode.none, DISKLESS: ErrorCode.unsupported_version}) == (set(), [CLASSIC])
    assert written({CLASSIC: ErrorCode.not_leader_or_follower}) == ({CLASSIC}, [CLASSIC])
    assert written({CLASSIC: ErrorCode.invalid_producer_epoch}) == (set(), [CLASSIC])


def test_a_replaced_coordinator_stops_sending() -> None:
    with pytest.raises(KafkaError) as refused:
        written({CLASSIC: ErrorCode.transaction_coordinator_fenced})
    assert refused.value.code is ErrorCode.transaction_coordinator_fenced
