"""The APIs of transaction coordinators. A handler checks the rights of the client. Then the
:class:`TransactionService` decides on the request."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC
from moldau.coordinators.groups.service import GroupService
from moldau.coordinators.transactions.end_requests import Ending
from moldau.coordinators.transactions.id_patterns import matcher
from moldau.coordinators.transactions.init_requests import Initialization
from moldau.coordinators.transactions.producer_ids import ProducerIds
from moldau.coordinators.transactions.service import TransactionService
from moldau.coordinators.transactions.shard import TransactionFilter
from moldau.coordinators.transactions.states import STATE_BY_NAME
from moldau.coordinators.transactions.transaction import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    VERSION_WITH_BUMPS,
    ProducerIdentity,
)
from moldau.network.authorization import AclOperation, AclResourceType, Authorizer
from moldau.network.context import RequestContext
from moldau.network.own_serving import check_cluster_action
from moldau.network.served import Handler, Served
from moldau.protocol.api import ApiKey
from moldau.protocol.messages import describe_transactions as description
from moldau.protocol.messages import list_transactions as listing
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from moldau.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from moldau.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.protocol.partitions import TopicPartition
from moldau.protocol.rows import Cut
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.metadata.cluster_view import ClusterView

FENCED_VERSIONS: Final = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""For each API, the version from which on clients can handle PRODUCER_FENCED. In older versions they get
INVALID_PRODUCER_EPOCH."""
LISTED_A_TURN: Final = 1_000
MATCHED_A_TURN: Final = 10_000
"""Number of characters of ids that are compared with a pattern in one turn of the event loop."""

BATCHED_VERSION: Final = 4
"""From this version on, only brokers send AddPartitionsToTxn, and a request can contain several transactions
(KIP-890)."""
BUMPING_VERSION: Final = 5
"""From this version on EndTxn returns the next epoch (KIP-890)."""

Results = dict[TopicPartition, ErrorCode]


class TransactionHandlers:
    """The APIs that use transactional ids, and InitProducerId for every kind of producer."""

    def __init__(
        self,
        service: TransactionService,
        producer_ids: ProducerIds,
        groups: GroupService,
        view: ClusterView,
        authorizer: Authorizer,
    ) -> None:
        self._service = service
        self._producer_ids = producer_ids
        self._groups = groups
        self._view = view
        self._authorizer = authorizer

    def table(self) -> dict[int, Handler]:
        return {
            ApiKey.INIT_PRODUCER_ID: self.init_producer_id,
            ApiKey.ADD_PARTITIONS_TO_TXN: Served(self.add_partitions, parsed_bytes_max=1024 * 1024),
            ApiKey.ADD_OFFSETS_TO_TXN: self.add_offsets,
            ApiKey.END_TXN: self.end,
            # A transaction may have thousands of partitions.
            ApiKey.DESCRIBE_TRANSACTIONS: Served(
                self.describe,
                cuts=(Cut(("transactional_ids",), ("transaction_states",), rows=16, distinct=dict.fromkeys),),
                long_answers=(("transaction_states", "topics", "partitions"),),
            ),
            ApiKey.LIST_TRANSACTIONS: Served(self.list_transactions, long_answers=(("transaction_states",),)),
        }

    async def init_producer_id(
        self, context: RequestContext, request: InitProducerIdRequest
    ) -> InitProducerIdResponse:
        try:
            if request.transactional_id is None:
                return InitProducerIdResponse(
                    producer_id=await self._producer_ids.next_id(), producer_epoch=0
                )
            self._check_writes(context, request.transactional_id)
            answer = await self._service.init_producer(
                Initialization(request.transactional_id, request.transaction_timeout_ms, _expected(request))
            )
        except KafkaError as error:
            return InitProducerIdResponse(error_code=_code(context, error.code), producer_epoch=NO_EPOCH)
        return InitProducerIdResponse(
            error_code=_code(context, answer.error),
            producer_id=answer.producer_id,
            producer_epoch=answer.producer_epoch,
        )

    # -- partitions of transactions -----------------------------------------------------------

    async def add_partitions(
        self, context: RequestContext, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse:
        if context.api_version >= BATCHED_VERSION:
            try:
                check_cluster_action(self._authorizer, context)
            except KafkaError as error:
                return AddPartitionsToTxnResponse(error_code=error.code)
            return AddPartitionsToTxnResponse(
                results_by_transaction=[await self._add_for_broker(each) for each in request.transactions]
            )
        name, topics = request.v3_and_below_transactional_id, request.v3_and_below_topics
        producer = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        results = await self._add_for_client(context, name, producer, topics)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_rows(topics, results))

    async def _add_for_client(
        self,
        context: RequestContext,
        transactional_id: str,
        producer: ProducerIdentity,
        topics: Sequence[AddPartitionsToTxnTopic],
    ) -> Results:
        wanted = _places(topics)
        try:
            self._check_writes(context, transactional_id)
            refused = self._refused(topics, context)
            if refused:
                # The request adds either all partitions or no partition, as in Kafka.
                return {each: refused.get(each, ErrorCode.operation_not_attempted) for each in wanted}
            await self._service.add_partitions(transactional_id, producer, wanted, 0)
        except KafkaError as error:
            return dict.fromkeys(wanted, _code(context, error.code))
        return dict.fromkeys(wanted, ErrorCode.none)

    async def _add_for_broker(self, request: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult:
        wanted = _places(request.topics)
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        name = request.transactional_id
        try:
            if request.verify_only:
                results = await self._service.verify(name, producer, wanted)
            else:
                results = self._refused(request.topics)
                if not results:
                    # Other requests of the broker would have to wait, too.
                    await self._service.add_partitions(
                        name, producer, wanted, VERSION_WITH_BUMPS, may_wait=False
                    )
                    results = dict.fromkeys(wanted, ErrorCode.none)
        except KafkaError as error:
            results = dict.fromkeys(wanted, error.code)
        return AddPartitionsToTxnResult(transactional_id=name, topic_results=_rows(request.topics, results))

    def _refused(
        self, topics: Iterable[AddPartitionsToTxnTopic], context: RequestContext | None = None
    ) -> Results:
        """Return the partitions that cannot join a transaction, each with its error. If ``context`` is given,
        partitions to which its client is not allowed to write are refused, too.

        Rights and topics are looked up once for each topic, because a request may have thousands of
        partitions of one topic.
        """
        refused: Results = {}
        for topic in topics:
            name = topic.name
            found = self._view.image.topics.get(name)
            count = 0 if found is None else len(found.partitions)
            code = ErrorCode.none
            if context is not None and not self._may_write(context, name):
                code = ErrorCode.topic_authorization_failed
            for partition in topic.partitions:
                if code is ErrorCode.topic_authorization_failed:
                    refused[TopicPartition(name, partition)] = code
                elif not 0 <= partition < count:
                    refused[TopicPartition(name, partition)] = ErrorCode.unknown_topic_or_partition
        return refused

    def _may_write(self, context: RequestContext, topic: str) -> bool:
        return self._authorizer.allows(context, AclOperation.WRITE, AclResourceType.TOPIC, topic)

    async def add_offsets(
        self, context: RequestContext, request: AddOffsetsToTxnRequest
    ) -> AddOffsetsToTxnResponse:
        try:
            self._check_writes(context, request.transactional_id)
            self._check_group(context, request.group_id)
            if not request.group_id:
                raise KafkaError(ErrorCode.invalid_group_id)
            place = TopicPartition(CONSUMER_OFFSETS_TOPIC, self._groups.partition_of(request.group_id))
            producer = ProducerIdentity(request.producer_id, request.producer_epoch)
            await self._service.add_partitions(request.transactional_id, producer, [place], 0)
        except KafkaError as error:
            return AddOffsetsToTxnResponse(error_code=_code(context, error.code))
        return AddOffsetsToTxnResponse()

    async def end(self, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
        bumps = context.api_version >= BUMPING_VERSION
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        version = VERSION_WITH_BUMPS if bumps else 0
        try:
            self._check_writes(context, request.transactional_id)
            answer = await self._service.end(
                Ending(request.transactional_id, producer, request.committed, version)
            )
        except KafkaError as error:
            return EndTxnResponse(error_code=_code(context, error.code))
        if not bumps:
            return EndTxnResponse()
        return EndTxnResponse(producer_id=answer.producer_id, producer_epoch=answer.producer_epoch)

    # -- descriptions and lists ---------------------------------------------------------------

    async def describe(
        self, context: RequestContext, request: description.DescribeTransactionsRequest
    ) -> description.DescribeTransactionsResponse:
        names = dict.fromkeys(request.transactional_ids)  # A transaction may have thousands of partitions.
        return description.DescribeTransactionsResponse(
            transaction_states=[await self._describe(context, name) for name in names]
        )

    async def _describe(self, context: RequestContext, name: str) -> description.TransactionState:
        try:
            if not self._may(context, AclOperation.DESCRIBE, name):
                raise KafkaError(ErrorCode.transactional_id_authorization_failed)
            found = await self._service.describe(name)
        except KafkaError as error:
            return description.TransactionState(transactional_id=name, error_code=error.code)
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(found.partitions):
            if self._authorizer.allows(context, AclOperation.DESCRIBE, AclResourceType.TOPIC, topic):
                topics.setdefault(topic, []).append(partition)
        return description.TransactionState(
            transactional_id=name,
            transaction_state=found.state.value,
            transaction_timeout_ms=found.timeout_ms,
            transaction_start_time_ms=found.start_ms,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            topics=[description.TopicData(topic=topic, partitions=each) for topic, each in topics.items()],
        )

    async def list_transactions(
        self, context: RequestContext, request: listing.ListTransactionsRequest
    ) -> listing.ListTransactionsResponse:
        states = {STATE_BY_NAME[name] for name in request.state_filters if name in STATE_BY_NAME}
        unknown = [name for name in request.state_filters if name not in STATE_BY_NAME]
        if request.state_filters and not states:
            return listing.ListTransactionsResponse(unknown_state_filters=unknown)
        try:
            matches = matcher(request.transactional_id_pattern)
            found = await self._service.list_transactions(
                TransactionFilter(states, frozenset(request.producer_id_filters), request.duration_filter)
            )
        except KafkaError as error:
            return listing.ListTransactionsResponse(error_code=error.code)
        rows: list[listing.TransactionState] = []
        listed = matched = 0
        for name, each in found:
            listed += 1
            matched += len(name)
            if listed >= LISTED_A_TURN or matched >= MATCHED_A_TURN:
                listed = matched = 0
                await asyncio.sleep(0)
            if matches(name) and self._may(context, AclOperation.DESCRIBE, name):
                rows.append(
                    listing.TransactionState(
                        transactional_id=name,
                        producer_id=each.producer_id,
                        transaction_state=each.state.value,
                    )
                )
        return listing.ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=rows)

    # -- rights and identities ----------------------------------------------------------------

    def _may(self, context: RequestContext, operation: AclOperation, name: str) -> bool:
        return self._authorizer.allows(context, operation, AclResourceType.TRANSACTIONAL_ID, name)

    def _check_writes(self, context: RequestContext, name: str) -> None:
        if not self._may(context, AclOperation.WRITE, name):
            raise KafkaError(ErrorCode.transactional_id_authorization_failed)

    def _check_group(self, context: RequestContext, group_id: str) -> None:
        if not self._authorizer.allows(context, AclOperation.READ, AclResourceType.GROUP, group_id):
            raise KafkaError(ErrorCode.group_authorization_failed)


def _expected(request: InitProducerIdRequest) -> ProducerIdentity | None:
    """Return the producer id and epoch that a producer sent, or ``None`` if it sent neither of them. Raises
    INVALID_REQUEST when it sent only one of them."""
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        raise KafkaError(ErrorCode.invalid_request)
    if request.producer_id == NO_PRODUCER_ID:
        return None
    return ProducerIdentity(request.producer_id, request.producer_epoch)


def _code(context: RequestContext, error: ErrorCode) -> ErrorCode:
    """Return the error code by which this version of the request reports the error."""
    known_from = FENCED_VERSIONS.get(ApiKey(context.api_key), 0)
    if error is ErrorCode.producer_fenced and context.api_version < known_from:
        return ErrorCode.invalid_producer_epoch
    return error


def _places(topics: Iterable[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, partition) for topic in topics for partition in topic.partitions]


def _rows(topics: Iterable[AddPartitionsToTxnTopic], results: Results) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=each,
                    partition_error_code=results.get(
                        TopicPartition(topic.name, each), ErrorCode.operation_not_attempted
                    ),
                )
                for each in topic.partitions
            ],
        )
        for topic in topics
    ]
