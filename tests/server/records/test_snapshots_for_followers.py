"""FetchSnapshot of a broker: a follower downloads a snapshot of its leader in ranges."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from moldau.network.authorization import AclOperation, AclResourceType, AllowEveryone
from moldau.network.context import ConnectionContext, RequestContext
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotRequestPartitionSnapshot,
    FetchSnapshotRequestSnapshotId,
    FetchSnapshotRequestTopicSnapshot,
)
from moldau.replication.partition_interface import Partition
from moldau.runtime import ErrorCode, InlineWorkers, KafkaError
from moldau.server.handlers.records.snapshots import SnapshotHandlers
from moldau.storage.snapshots.replicated_log import LogPosition

CONTENT = bytes(range(100))
SNAPSHOT = LogPosition(40, 3)
EPOCH = 5
CONTEXT = RequestContext(ApiKey.FETCH_SNAPSHOT, 1, 0, None, ConnectionContext("c", "PLAINTEXT"))


class Reader:
    size_bytes = len(CONTENT)

    def __init__(self) -> None:
        self.closed = False

    def read(self, position: int, max_bytes: int) -> memoryview:
        return memoryview(CONTENT)[position : position + max_bytes]

    def close(self) -> None:
        self.closed = True


class Led:
    def __init__(self) -> None:
        self.readers: list[Reader] = []

    def open_snapshot(self, snapshot_id: LogPosition, current_leader_epoch: int) -> Reader | None:
        if current_leader_epoch != EPOCH:
            raise KafkaError(ErrorCode.fenced_leader_epoch)
        if snapshot_id != SNAPSHOT:
            return None
        self.readers.append(Reader())
        return self.readers[-1]


class Nobody:
    def allows(
        self, context: RequestContext, operation: AclOperation, resource: AclResourceType, name: str
    ) -> bool:
        return False


def part(
    position: int = 0, *, partition: int = 0, epoch: int = EPOCH, snapshot_id: LogPosition = SNAPSHOT
) -> FetchSnapshotRequestPartitionSnapshot:
    return FetchSnapshotRequestPartitionSnapshot(
        partition=partition,
        current_leader_epoch=epoch,
        snapshot_id=FetchSnapshotRequestSnapshotId(end_offset=snapshot_id.offset, epoch=snapshot_id.epoch),
        position=position,
    )


def ask(led: Led, *parts: FetchSnapshotRequestPartitionSnapshot, max_bytes: int = 30) -> Sequence[Any]:
    """The rows of the response. The broker leads the partitions 0 and 1."""
    handlers = SnapshotHandlers(
        lambda topic, index: cast(Partition, led) if index < 2 else None, InlineWorkers(), AllowEveryone()
    )
    topics = [FetchSnapshotRequestTopicSnapshot(name="t", partitions=list(parts))]
    request = FetchSnapshotRequest(replica_id=2, max_bytes=max_bytes, topics=topics)
    return asyncio.run(handlers.fetch_snapshot(CONTEXT, request)).topics[0].partitions


def test_the_ranges_make_up_the_file() -> None:
    led, content = Led(), b""
    while len(content) < len(CONTENT):
        (row,) = ask(led, part(len(content)))
        assert (row.error_code, row.size, row.position) == (ErrorCode.none, len(CONTENT), len(content))
        assert (row.snapshot_id.end_offset, row.snapshot_id.epoch) == SNAPSHOT
        content += row.unaligned_records
    assert content == CONTENT
    assert len(led.readers) == 4
    assert all(reader.closed for reader in led.readers)


def test_the_partitions_of_a_request_share_the_limit() -> None:
    rows = ask(Led(), part(90), part(0, partition=1))
    assert [bytes(row.unaligned_records) for row in rows] == [CONTENT[90:], CONTENT[:20]]


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (part(partition=2), ErrorCode.unknown_topic_or_partition),
        (part(epoch=EPOCH - 1), ErrorCode.fenced_leader_epoch),
        (part(snapshot_id=LogPosition(39, 3)), ErrorCode.snapshot_not_found),
        (part(len(CONTENT)), ErrorCode.position_out_of_range),
        (part(-1), ErrorCode.position_out_of_range),
    ],
)
def test_wrong_requests_are_refused(wanted: FetchSnapshotRequestPartitionSnapshot, error: ErrorCode) -> None:
    led = Led()
    refused, served = ask(led, wanted, part())
    assert (refused.error_code, refused.unaligned_records or b"") == (error, b"")
    assert served.error_code is ErrorCode.none
    assert all(reader.closed for reader in led.readers)


def test_only_brokers_and_operators_get_snapshots() -> None:
    handlers = SnapshotHandlers(lambda topic, index: None, InlineWorkers(), Nobody())
    with pytest.raises(KafkaError) as refused:
        asyncio.run(handlers.fetch_snapshot(CONTEXT, FetchSnapshotRequest()))
    assert refused.value.code is ErrorCode.cluster_authorization_failed
