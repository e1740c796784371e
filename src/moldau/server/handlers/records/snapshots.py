"""FetchSnapshot between brokers. In a log with snapshots, the leader deletes the records before a snapshot. A
follower that needs these records fetches the snapshot instead (KIP-630).

Brokers do not list the API in ApiVersions, because for clients it is an API of the controllers, as in Kafka.
"""

from collections.abc import Callable
from typing import Final

from moldau.network.authorization import Authorizer
from moldau.network.context import RequestContext
from moldau.network.own_serving import check_cluster_action
from moldau.network.served import Handler
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotRequestPartitionSnapshot,
    FetchSnapshotResponse,
    FetchSnapshotResponsePartitionSnapshot,
    FetchSnapshotResponseSnapshotId,
    FetchSnapshotResponseTopicSnapshot,
)
from moldau.replication.partition_interface import Partition
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.workers import Workers
from moldau.storage.snapshots.replicated_log import LogPosition

RANGE_BYTES_MAX: Final = 8 << 20


class SnapshotHandlers:
    """Serves the snapshots of partitions that this broker leads."""

    def __init__(
        self, find: Callable[[str, int], Partition | None], workers: Workers, authorizer: Authorizer
    ) -> None:
        """``find`` returns a partition that this broker serves."""
        self._find = find
        self._workers = workers
        self._authorizer = authorizer

    def table(self) -> dict[int, Handler]:
        return {ApiKey.FETCH_SNAPSHOT: self.fetch_snapshot}

    async def fetch_snapshot(
        self, context: RequestContext, request: FetchSnapshotRequest
    ) -> FetchSnapshotResponse:
        """Return a range of bytes of each snapshot that the request names."""
        check_cluster_action(self._authorizer, context)
        left_bytes = min(request.max_bytes, RANGE_BYTES_MAX)
        topics = []
        for topic in request.topics:
            rows = []
            for wanted in topic.partitions:
                row = await self._answer(topic.name, wanted, left_bytes)
                left_bytes = max(0, left_bytes - len(row.unaligned_records or b""))
                rows.append(row)
            topics.append(FetchSnapshotResponseTopicSnapshot(name=topic.name, partitions=rows))
        return FetchSnapshotResponse(topics=topics)

    async def _answer(
        self, topic: str, wanted: FetchSnapshotRequestPartitionSnapshot, max_bytes: int
    ) -> FetchSnapshotResponsePartitionSnapshot:
        try:
            return await self._range(topic, wanted, max_bytes)
        except KafkaError as error:
            return FetchSnapshotResponsePartitionSnapshot(index=wanted.partition, error_code=error.code)

    async def _range(
        self, topic: str, wanted: FetchSnapshotRequestPartitionSnapshot, max_bytes: int
    ) -> FetchSnapshotResponsePartitionSnapshot:
        partition = self._find(topic, wanted.partition)
        if partition is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        snapshot_id = LogPosition(wanted.snapshot_id.end_offset, wanted.snapshot_id.epoch)
        reader = partition.open_snapshot(snapshot_id, wanted.current_leader_epoch)
        if reader is None:
            raise KafkaError(ErrorCode.snapshot_not_found)
        try:
            if not 0 <= wanted.position < reader.size_bytes:
                raise KafkaError(ErrorCode.position_out_of_range)
            content = await self._workers.run(lambda: bytes(reader.read(wanted.position, max_bytes)))
            return FetchSnapshotResponsePartitionSnapshot(
                index=wanted.partition,
                snapshot_id=FetchSnapshotResponseSnapshotId(
                    end_offset=snapshot_id.offset, epoch=snapshot_id.epoch
                ),
                size=reader.size_bytes,
                position=wanted.position,
                unaligned_records=content,
            )
        finally:
            reader.close()
