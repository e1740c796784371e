"""The markers that end transactions. This broker writes markers to its own partitions, and sends markers to
other brokers.

The group coordinator writes the markers of a partition of ``__consumer_offsets``, and applies them to the
offsets that wait for these markers. For every other partition, the object of the partition writes its
markers, as its kind requires. A marker takes effect when it is committed.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC
from moldau.coordinators.effects import BatchKind
from moldau.coordinators.groups.service import GroupService
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from moldau.protocol.partitions import TopicPartition
from moldau.protocol.schema import ZERO_UUID
from moldau.records.control import EndTransactionMarker
from moldau.replication.partition_interface import Partition, TransactionMarker
from moldau.runtime import UnexpectedErrors
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.metadata.cluster_view import ClusterView
from moldau.server.subsystems.transactions.peers import BrokerPeers
from moldau.server.topics.registry import PartitionRegistry

T = TypeVar("T")

_DONE: Final = frozenset(
    {
        ErrorCode.none,
        # The partition already has a later epoch of the producer, or records of the producer's next
        # transaction. So the transaction of this marker has already ended in this partition.
        ErrorCode.invalid_producer_epoch,
    }
)


class LocalMarkers:
    """Writes markers to the partitions that this broker leads."""

    def __init__(self, partitions: PartitionRegistry, groups: GroupService) -> None:
        self._partitions = partitions
        self._groups = groups

    async def write(self, marker: TransactionMarker, partition: TopicPartition) -> ErrorCode:
        """Write a marker, and wait until it is committed. Returns the error code that a coordinator expects;
        ``none`` after a success."""
        end = EndTransactionMarker(marker.committed, marker.coordinator_epoch)
        try:
            if partition.topic == CONSUMER_OFFSETS_TOPIC:
                producer = BatchKind(marker.producer_id, marker.producer_epoch, transactional=True)
                await self._groups.runtime.end_transaction(
                    partition.partition, producer, end, marker.transaction_version
                )
            else:
                await self._find(partition).transactions.write_marker(marker)
        except KafkaError as error:
            return error.code
        return ErrorCode.none

    def reaches(self, place: TopicPartition) -> bool:
        """Whether this broker can write a marker to the partition even if another broker leads the partition.
        This is true for diskless partitions."""
        try:
            return self._find(place).transactions.any_broker_marks
        except KafkaError:
            return False

    def _find(self, place: TopicPartition) -> Partition:
        return self._partitions.find(place.topic, ZERO_UUID, place.partition)


class ClusterMarkers:
    """The ``MarkerWriter`` of the coordinators. The partition's leader writes the marker. If every broker can
    write the marker, this broker writes it."""

    def __init__(
        self, view: ClusterView, peers: BrokerPeers, local: LocalMarkers, unexpected: UnexpectedErrors
    ) -> None:
        self._view = view
        self._peers = peers
        self._local = local
        self._unexpected = unexpected

    async def write(
        self, marker: TransactionMarker, partitions: Iterable[TopicPartition]
    ) -> set[TopicPartition]:
        """Write a marker. Returns the partitions that must be tried again. Raises
        TRANSACTION_COORDINATOR_FENCED if a newer coordinator has fenced this coordinator."""
        left: set[TopicPartition] = set()
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in sorted(partitions):
            leader = self._view.leader_of(*partition)
            # The coordinator's metadata had the topic when the partition joined the transaction, and later
            # coordinators have newer metadata. Therefore a missing topic was deleted.
            if leader is None:
                continue
            if self._local.reaches(partition):
                leader = self._view.local_id
            if leader < 0:
                left.add(partition)
            else:
                by_leader.setdefault(leader, []).append(partition)
        writes = [self._write_to(leader, marker, each) for leader, each in by_leader.items()]
        return left.union(*await _all_of(writes))

    async def _write_to(
        self, leader: int, marker: TransactionMarker, partitions: list[TopicPartition]
    ) -> set[TopicPartition]:
        errors: dict[TopicPartition, ErrorCode] = {}
        with self._unexpected.contained(f"writing markers to broker {leader}"):
            if leader == self._view.local_id:
                codes = await _all_of([self._local.write(marker, each) for each in partitions])
                errors = dict(zip(partitions, codes, strict=True))
            else:
                errors = await self._send(leader, marker, partitions)
        if ErrorCode.transaction_coordinator_fenced in errors.values():
            raise KafkaError(
                ErrorCode.transaction_coordinator_fenced, f"broker {leader} knows a newer coordinator"
            )
        return {each for each in partitions if errors.get(each) not in _DONE}

    async def _send(
        self, leader: int, marker: TransactionMarker, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        try:
            response: WriteTxnMarkersResponse = await self._peers.send(
                leader, ApiKey.WRITE_TXN_MARKERS, _request(marker, partitions)
            )
        except KafkaError:
            return {}
        return {
            TopicPartition(topic.name, each.partition_index): each.error_code
            for result in response.markers
            if result.producer_id == marker.producer_id
            for topic in result.topics
            for each in topic.partitions
        }


async def _all_of(works: list[Coroutine[Any, Any, T]]) -> Sequence[T]:
    """Run coroutines concurrently. A single coroutine, which is the most frequent case, needs no new task."""
    return [await works[0]] if len(works) == 1 else await asyncio.gather(*works)


def _request(marker: TransactionMarker, partitions: list[TopicPartition]) -> WriteTxnMarkersRequest:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_result=marker.committed,
                topics=[
                    WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                    for topic, indexes in topics.items()
                ],
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
                decision_partition=marker.decision_partition,
                decision_offset=marker.decision_offset,
            )
        ]
    )
