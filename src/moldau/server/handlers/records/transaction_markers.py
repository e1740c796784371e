"""Two APIs of transactions: WriteTxnMarkers writes markers, and TxnOffsetCommit commits offsets. The leaders
of partitions answer WriteTxnMarkers, and the coordinators of groups answer TxnOffsetCommit."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC
from moldau.coordinators.effects import BatchKind
from moldau.coordinators.groups.offsets.transactional_requests import refused
from moldau.coordinators.groups.service import GroupService
from moldau.coordinators.transactions.transaction import ProducerIdentity
from moldau.network.authorization import AclOperation, AclResourceType, Authorizer
from moldau.network.context import RequestContext
from moldau.network.own_serving import check_cluster_action
from moldau.network.served import Handler, Served
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from moldau.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from moldau.protocol.partitions import TopicPartition
from moldau.protocol.rows import Cut
from moldau.replication.partition_interface import TransactionMarker
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.requests.large_requests import WHOLE_PARSED_BYTES

JOINING_VERSION: Final = 5
"""From this version of TxnOffsetCommit on, the commit adds the partition of ``__consumer_offsets`` to the
transaction, if it is not in the transaction yet (KIP-890).
"""
ABORTABLE_VERSION: Final = 4
"""From this version of TxnOffsetCommit on, clients can handle TRANSACTION_ABORTABLE."""

PRODUCERS_AT_ONCE: Final = 100
"""Number of producers of one request whose markers are written at the same time."""
MARKERS_AT_ONCE: Final = 1000
"""Number of markers of one producer that are written at the same time."""

MARKERS: Final = Cut(
    ("markers", "topics", "partition_indexes"), ("markers", "topics", "partitions"), rows=128
)
"""The paths to the rows of WriteTxnMarkers, in the request and in the response."""

WriteMarker = Callable[[TransactionMarker, TopicPartition], Awaitable[ErrorCode]]


class Participation(NamedTuple):
    """A partition to which a producer writes within its transaction."""

    transactional_id: str
    producer: ProducerIdentity
    partition: TopicPartition
    joins: bool
    """If True, the write adds the partition to the transaction. If False, the partition must already be in
    the transaction."""


VerifyParticipation = Callable[[Participation], Awaitable[None]]
"""Waits until it is certain that a partition belongs to the transaction. Raises ``KafkaError`` if it does not
belong to the transaction."""
IsConfirmed = Callable[[Participation], bool]
"""Returns whether it is known already that a partition belongs to the transaction."""


class TransactionalHandlers:
    """Handles WriteTxnMarkers and TxnOffsetCommit."""

    def __init__(
        self,
        groups: GroupService,
        write_marker: WriteMarker,
        verify: VerifyParticipation,
        authorizer: Authorizer,
    ) -> None:
        self._groups = groups
        self._write_marker = write_marker
        self._verify = verify
        self._authorizer = authorizer

    def table(self) -> dict[int, Handler]:
        return {
            ApiKey.WRITE_TXN_MARKERS: Served(
                self.write_markers,
                cuts=(MARKERS,),
                # Each entry of the request causes an append.
                parsed_bytes_max=WHOLE_PARSED_BYTES,
            ),
            ApiKey.TXN_OFFSET_COMMIT: Served(self.commit_offsets, parsed_bytes_max=1024 * 1024),
        }

    async def write_markers(
        self, context: RequestContext, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse:
        check_cluster_action(self._authorizer, context)
        results: list[WritableTxnMarkerResult] = []
        for step in range(0, len(request.markers), PRODUCERS_AT_ONCE):
            asked = request.markers[step : step + PRODUCERS_AT_ONCE]
            results += await asyncio.gather(*(self._write(each) for each in asked))
        return WriteTxnMarkersResponse(markers=results)

    async def _write(self, wanted: WritableTxnMarker) -> WritableTxnMarkerResult:
        marker = TransactionMarker(
            wanted.producer_id,
            wanted.producer_epoch,
            wanted.transaction_result,
            wanted.coordinator_epoch,
            wanted.transaction_version,
            wanted.decision_partition,
            wanted.decision_offset,
        )
        places = [
            TopicPartition(topic.name, each) for topic in wanted.topics for each in topic.partition_indexes
        ]
        # A request may name a partition several times, but each partition needs only one marker.
        places = list(dict.fromkeys(places))
        errors: dict[TopicPartition, ErrorCode] = {}
        for step in range(0, len(places), MARKERS_AT_ONCE):
            asked = places[step : step + MARKERS_AT_ONCE]
            codes = await asyncio.gather(*(self._write_marker(marker, each) for each in asked))
            errors.update(zip(asked, codes, strict=True))
        return WritableTxnMarkerResult(
            producer_id=wanted.producer_id,
            topics=[
                WritableTxnMarkerTopicResult(
                    name=topic.name,
                    partitions=[
                        WritableTxnMarkerPartitionResult(
                            partition_index=each, error_code=errors[TopicPartition(topic.name, each)]
                        )
                        for each in topic.partition_indexes
                    ],
                )
                for topic in wanted.topics
            ],
        )

    async def commit_offsets(
        self, context: RequestContext, request: TxnOffsetCommitRequest
    ) -> TxnOffsetCommitResponse:
        try:
            self._check(context, request)
            return await self._commit(context, request)
        except KafkaError as error:
            return refused(request, _known(error.code, context.api_version))

    async def _commit(
        self, context: RequestContext, request: TxnOffsetCommitRequest
    ) -> TxnOffsetCommitResponse:
        index = self._groups.partition_of(request.group_id)
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        runtime, kind = self._groups.runtime, BatchKind(*producer, transactional=True)
        guard = runtime.guard(index, kind)
        if guard is None:
            return await self._groups.offsets.commit_in_transaction(request, None)
        try:
            place = TopicPartition(CONSUMER_OFFSETS_TOPIC, index)
            joins = context.api_version >= JOINING_VERSION
            await self._verify(Participation(request.transactional_id, producer, place, joins))
            return await self._groups.offsets.commit_in_transaction(request, guard)
        finally:
            runtime.withdraw(index, kind, guard)

    def _check(self, context: RequestContext, request: TxnOffsetCommitRequest) -> None:
        if not request.group_id:
            raise KafkaError(ErrorCode.invalid_group_id)
        allows = self._authorizer.allows
        name = request.transactional_id
        if not allows(context, AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, name):
            raise KafkaError(ErrorCode.transactional_id_authorization_failed)
        if not allows(context, AclOperation.READ, AclResourceType.GROUP, request.group_id):
            raise KafkaError(ErrorCode.group_authorization_failed)
        for topic in request.topics:
            if not allows(context, AclOperation.READ, AclResourceType.TOPIC, topic.name):
                raise KafkaError(ErrorCode.topic_authorization_failed)


def _known(error: ErrorCode, api_version: int) -> ErrorCode:
    """Return the error code by which this version of the request reports the error."""
    match error:
        case ErrorCode.producer_fenced:
            return ErrorCode.invalid_producer_epoch
        case ErrorCode.transaction_abortable if api_version < ABORTABLE_VERSION:
            return ErrorCode.invalid_txn_state
        case ErrorCode.concurrent_transactions if api_version < JOINING_VERSION:
            return ErrorCode.coordinator_load_in_progress
        case ErrorCode.broker_not_available | ErrorCode.network_exception | ErrorCode.request_timed_out:
            return ErrorCode.coordinator_not_available
        case _:
            return error
