"""Produce: pass the bytes of each partition to the partition, and respond when all partitions are done."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from moldau.cluster.internal_topics import INTERNAL_TOPICS, MARKED_INTERNAL_TOPICS
from moldau.network.authorization import AclOperation, AclResourceType, AllowEveryone, Authorizer
from moldau.network.context import RequestContext
from moldau.network.served import Handler, HandlerResult, Served
from moldau.protocol.api import ApiKey
from moldau.protocol.fast_paths.produce import TOPIC_ID_VERSION
from moldau.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from moldau.protocol.rows import Cut
from moldau.records.batch import claims_zstd, is_transactional
from moldau.replication.appending.append_turn import AppendTurn
from moldau.replication.partition_interface import AppendAnswer, AppendOutcome, Partition
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.handlers.records.lone_produce import lone_produce
from moldau.server.handlers.records.transactional_appends import TransactionalAppends, TransactionalProduce
from moldau.server.metadata.current_leaders import PRODUCE_VERSION, CurrentLeaders
from moldau.server.requests.dispatch import DirectHandler
from moldau.server.requests.throttles import Throttles
from moldau.server.topics.registry import PartitionRegistry

ADMIN_CLIENT_ID: Final = "__admin_client"
"""The only client id that may write to internal topics in Kafka."""

VALID_ACKS: Final = (-1, 0, 1)
ZSTD_VERSION: Final = 7
"""The first version whose clients support zstd (KIP-110)."""


class ProduceHandlers:
    """The Produce API."""

    def __init__(
        self,
        partitions: PartitionRegistry,
        authorizer: Authorizer,
        turn: AppendTurn,
        throttles: Throttles,
        transactional: TransactionalAppends,
        leaders: CurrentLeaders | None = None,
    ) -> None:
        """``turn`` collects the appends of requests that arrive in the same iteration of the event loop. A
        caller of the handlers that :meth:`direct` returns calls ``turn.end()`` at the end of the iteration.
        ``leaders`` finds the leaders of partitions that other brokers lead."""
        self._transactional = transactional
        self._leaders = leaders
        self._turn = turn
        self._partitions = partitions
        self._authorizer = authorizer
        self._throttles = throttles

    def table(self) -> dict[int, Handler]:
        cut = Cut(("topic_data", "partition_data"), ("responses", "partition_responses"))
        return {ApiKey.PRODUCE: Served(self.produce, cuts=(cut,), is_usually_large=True)}

    def direct(self, version: int) -> DirectHandler | None:
        """The fast path for requests to one partition."""
        hold = self._throttles.of(ApiKey.PRODUCE)
        return lone_produce(
            version,
            self._partitions,
            self._turn,
            self._may_write,
            self._append_alone_in_transaction,
            row_of,
            self._with_leaders,
            hold,
        )

    def _append_alone_in_transaction(
        self,
        context: RequestContext,
        partition: Partition,
        records: memoryview,
        transactional_id: str | None,
        acks: int,
        timeout_ms: int,
    ) -> "AppendAnswer | None":
        """Append the batch of a request to one partition. Returns None if the general handler must refuse
        the batch."""
        if transactional_id is None or not self._may_take_part(context, transactional_id):
            return None
        self._turn.settle()  # earlier batches of the producer may be staged
        produce = TransactionalProduce(
            transactional_id, context.api_version, acks, timeout_ms, context.connection
        )
        return self._transactional.append(partition, records, produce)

    def produce(self, context: RequestContext, request: ProduceRequest) -> HandlerResult:
        if request.acks not in VALID_ACKS:
            return self._refuse_all(request, ErrorCode.invalid_required_acks)
        waiting = 0
        answers: list[tuple[str, UUID, list[tuple[int, AppendAnswer]]]] = []
        for topic in request.topic_data:
            rows: list[tuple[int, AppendAnswer]] = []
            refusal = self._refusal(context, topic)
            for data in topic.partition_data:
                answer = refusal or self._append(context, topic, data, request)
                waiting += type(answer) is not AppendOutcome
                rows.append((data.index, answer))
            answers.append((topic.name, topic.topic_id, rows))
        if waiting:
            return self._answer_later(context, request.acks, answers)
        return self._answer(context, request.acks, answers)

    def _may_write(self, context: RequestContext, partition: Partition) -> bool:
        topic = partition.topic
        return self._authorizer.allows(context, AclOperation.WRITE, AclResourceType.TOPIC, topic) and (
            topic not in INTERNAL_TOPICS or self._may_write_for_brokers(context, topic)
        )

    def _may_write_for_brokers(self, context: RequestContext, topic: str) -> bool:
        """Whether a client may write to a topic in which brokers store their state.

        Kafka allows this for a client with the id ``__admin_client``, if its principal passes the access
        control lists. Without an authorizer every client could use that id, and a single record could make a
        coordinator unavailable.
        """
        if isinstance(self._authorizer, AllowEveryone):
            return False
        return topic not in MARKED_INTERNAL_TOPICS or context.client_id == ADMIN_CLIENT_ID

    def _refusal(self, context: RequestContext, topic: TopicProduceData) -> AppendOutcome | None:
        """Return the error with which the records of a topic are refused, or None if the client may write to
        the topic. The check uses the topic's name, because the principal's rights are defined for topic
        names."""
        by_id = context.api_version >= TOPIC_ID_VERSION
        name = self._partitions.name_of(topic.topic_id) if by_id else topic.name
        if name is None:
            return AppendOutcome(ErrorCode.unknown_topic_id)
        if not self._authorizer.allows(context, AclOperation.WRITE, AclResourceType.TOPIC, name):
            return AppendOutcome(ErrorCode.topic_authorization_failed)
        if name in INTERNAL_TOPICS and not self._may_write_for_brokers(context, name):
            return AppendOutcome(
                ErrorCode.invalid_topic_exception, message=f"{name} is written by the cluster itself"
            )
        return None

    def _append(
        self,
        context: RequestContext,
        topic: TopicProduceData,
        data: PartitionProduceData,
        request: ProduceRequest,
    ) -> AppendAnswer:
        try:
            partition = self._partitions.find(topic.name, topic.topic_id, data.index)
        except KafkaError as error:
            return AppendOutcome(error.code, message=error.message)
        records = data.records
        if records is None:
            return AppendOutcome(ErrorCode.invalid_record, message="the partition has no records")
        view = records if isinstance(records, memoryview) else memoryview(b"".join(_parts(records)))
        if context.api_version < ZSTD_VERSION and claims_zstd(view):
            return AppendOutcome(
                ErrorCode.unsupported_compression_type,
                message=f"zstd needs a produce request of version {ZSTD_VERSION} or newer",
            )
        if is_transactional(view):
            name = request.transactional_id
            if name is None or not self._may_take_part(context, name):
                return AppendOutcome(ErrorCode.transactional_id_authorization_failed)
            produce = TransactionalProduce(
                name, context.api_version, request.acks, request.timeout_ms, context.connection
            )
            return self._transactional.append(partition, view, produce)
        return partition.append(
            view,
            required_acks=request.acks,
            timeout_ms=request.timeout_ms,
            client=context.connection,
        )

    def _may_take_part(self, context: RequestContext, transactional_id: str) -> bool:
        resource = AclResourceType.TRANSACTIONAL_ID
        return self._authorizer.allows(context, AclOperation.WRITE, resource, transactional_id)

    async def _answer_later(
        self,
        context: RequestContext,
        acks: int,
        answers: list[tuple[str, UUID, list[tuple[int, AppendAnswer]]]],
    ) -> ProduceResponse | None:
        for _, _, rows in answers:
            for position, (index, answer) in enumerate(rows):
                if isinstance(answer, asyncio.Future):
                    rows[position] = (index, await answer)
        return self._answer(context, acks, answers)

    def _answer(
        self,
        context: RequestContext,
        acks: int,
        answers: list[tuple[str, UUID, list[tuple[int, AppendAnswer]]]],
    ) -> ProduceResponse | None:
        if acks == 0:
            self._close_if_refused(context, answers)
            return None
        response = ProduceResponse(
            responses=[
                TopicProduceResponse(
                    topic_id=topic_id,
                    name=name,
                    partition_responses=[
                        row_of(index, outcome)
                        for index, outcome in rows
                        if isinstance(outcome, AppendOutcome)
                    ],
                )
                for name, topic_id, rows in answers
            ]
        )
        return self._with_leaders(context, response)

    def _with_leaders(self, context: RequestContext, response: ProduceResponse) -> ProduceResponse:
        """Add the leaders of partitions that other brokers lead, with their addresses (KIP-951)."""
        leaders = self._leaders
        if leaders is None or context.api_version < PRODUCE_VERSION:
            return response
        moved = ErrorCode.not_leader_or_follower
        if not any(
            row.error_code is moved for topic in response.responses for row in topic.partition_responses
        ):
            return response
        endpoints: dict[int, NodeEndpoint] = {}

        def with_leader(
            topic: TopicProduceResponse, row: PartitionProduceResponse
        ) -> PartitionProduceResponse:
            found = None
            if row.error_code is moved:
                found = leaders.find(topic.name, topic.topic_id, row.index, context.listener_name)
            if found is None:
                return row
            epoch, broker = found
            endpoints[broker.node_id] = NodeEndpoint(
                node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack
            )
            current = LeaderIdAndEpoch(leader_id=broker.node_id, leader_epoch=epoch)
            return replace(row, current_leader=current)

        topics = [
            replace(topic, partition_responses=[with_leader(topic, row) for row in topic.partition_responses])
            for topic in response.responses
        ]
        return replace(response, responses=topics, node_endpoints=tuple(endpoints.values()))

    @staticmethod
    def _close_if_refused(
        context: RequestContext, answers: list[tuple[str, UUID, list[tuple[int, AppendAnswer]]]]
    ) -> None:
        """With acks=0 the producer gets no response, so the broker can report a failure only by closing the
        connection."""
        refused = any(
            isinstance(answer, AppendOutcome) and answer.error is not ErrorCode.none
            for _, _, rows in answers
            for _, answer in rows
        )
        if refused and context.connection.control is not None:
            context.connection.control.close_when_answered()

    @staticmethod
    def _refuse_all(request: ProduceRequest, error: ErrorCode) -> ProduceResponse:
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    topic_id=topic.topic_id,
                    name=topic.name,
                    partition_responses=[
                        PartitionProduceResponse(index=data.index, error_code=error, base_offset=-1)
                        for data in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )


def row_of(index: int, outcome: AppendOutcome) -> PartitionProduceResponse:
    """Make the response's entry for the outcome of one partition's records."""
    error, base_offset, log_append_time_ms, log_start_offset, message, record_errors = outcome
    if error is ErrorCode.none:
        return PartitionProduceResponse(
            index=index,
            base_offset=base_offset,
            log_append_time_ms=log_append_time_ms,
            log_start_offset=log_start_offset,
        )
    return PartitionProduceResponse(
        index=index,
        error_code=error,
        base_offset=-1,
        log_start_offset=log_start_offset,
        error_message=message,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=bad.batch_index, batch_index_error_message=bad.message)
            for bad in record_errors
        ],
    )


def _parts(
    records: bytes | bytearray | Sequence[bytes | bytearray | memoryview],
) -> list[bytes | bytearray | memoryview]:
    return [records] if isinstance(records, bytes | bytearray) else list(records)
