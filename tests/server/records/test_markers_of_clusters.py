"""Markers of transactions in special cases. The partition was deleted or is diskless, another broker writes
the marker, or a newer coordinator has replaced the sender."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.network.authorization import AllowEveryone
from moldau.protocol.api import ApiKey
from moldau.protocol.codec import decode_request, encode_request
from moldau.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from moldau.protocol.partitions import TopicPartition
from moldau.replication.partition_interface import TransactionMarker
from moldau.runtime import ErrorCode, KafkaError, UnexpectedErrors
from moldau.server.handlers.records.transaction_markers import TransactionalHandlers
from moldau.server.subsystems.transactions.markers import ClusterMarkers

MARKER = TransactionMarker(7, 1, True, 3, 2)
CLASSIC, DISKLESS, GONE = (TopicPartition(name, 0) for name in ("classic", "diskless", "gone"))


def written(answers: dict[TopicPartition, ErrorCode]) -> tuple[set[TopicPartition], list[TopicPartition]]:
    """Write a marker to three partitions. Returns the partitions that still need the marker, and the
    partitions to which a marker was sent."""
    asked: list[TopicPartition] = []
    view: Any = SimpleNamespace(
        leader_of=lambda name, index: {"classic": 1, "diskless": -1}.get(name),
        local_id=1,
    )

    async def write(marker: TransactionMarker, partition: TopicPartition) -> ErrorCode:
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


def test_another_broker_gets_the_position_of_the_decision() -> None:
    """If the replica of a diskless partition is offline on this broker, the broker sends the marker to the
    partition's leader. The request contains the position of the decision (the commit or abort in
    ``__transaction_state``), because a restore needs this position."""
    marker = MARKER._replace(decision_partition=4, decision_offset=1 << 40)
    written: list[TransactionMarker] = []

    async def write(marker: TransactionMarker, partition: TopicPartition) -> ErrorCode:
        written.append(marker)
        return ErrorCode.none

    unused: Any = None
    handlers = TransactionalHandlers(unused, write, unused, AllowEveryone())

    class Peers:
        async def send(
            self, node_id: int, api_key: ApiKey, request: WriteTxnMarkersRequest
        ) -> WriteTxnMarkersResponse:
            context: Any = SimpleNamespace(api_version=2, connection=None)
            body = b"".join(encode_request(api_key, 2, request))
            sent = decode_request(api_key, 2, body)
            return await handlers.write_markers(context, sent)

    peers: Any = Peers()
    view: Any = SimpleNamespace(leader_of=lambda name, index: 2, local_id=1)
    local: Any = SimpleNamespace(reaches=lambda place: False)
    markers = ClusterMarkers(view, peers, local, UnexpectedErrors())
    assert asyncio.run(markers.write(marker, [DISKLESS])) == set()
    assert written == [marker]
