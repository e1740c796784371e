"""Produce: hand each partition's bytes to its partition, and answer when all of them are done."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from moldau.network.context import RequestContext
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from moldau.protocol.produce import appended_response
from moldau.replication.partition import AppendAnswer, AppendOutcome
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.authorization import Authorizer, Operation, ResourceType
from moldau.server.cluster_view import INTERNAL_TOPICS
from moldau.server.dispatch import Handler, Outcome
from moldau.server.registry import PartitionRegistry

ADMIN_CLIENT_ID: Final = "__admin_client"
"""The one client id that Kafka lets write to internal topics."""

CONGESTED_PAUSE_S: Final = 0.05
"""How long a producer is not read when too much of what was read waits; then one request, and so on."""

VALID_ACKS: Final = (-1, 0, 1)


class ProduceHandlers:
    """The Produce API."""

    def __init__(
        self, partitions: PartitionRegistry, authorizer: Authorizer, is_congested: Callable[[], bool] | None
    ) -> None:
        """``is_congested``: whether what was taken from producers waits in too large a heap."""
        self._partitions = partitions
        self._authorizer = authorizer
        self._is_congested = is_congested

    def table(self) -> dict[int, Handler]:
        return {ApiKey.PRODUCE: self.produce}

    def produce(self, context: RequestContext, request: ProduceRequest) -> Outcome:
        if request.acks not in VALID_ACKS:
            return self._refuse_all(request, ErrorCode.invalid_required_acks)
        topics = request.topic_data
        if len(topics) == 1 and len(topics[0].partition_data) == 1 and request.acks:
            return self._produce_one(context, request, topics[0])
        waiting = 0
        answers: list[tuple[str, UUID, list[tuple[int, AppendAnswer]]]] = []
        for topic in topics:
            rows: list[tuple[int, AppendAnswer]] = []
            allowed = self._authorizer.allows(context, Operation.WRITE, ResourceType.TOPIC, topic.name)
            for data in topic.partition_data:
                if allowed:
                    answer = self._append(context, topic.name, topic.topic_id, data, request)
                else:
                    answer = AppendOutcome(ErrorCode.topic_authorization_failed)
                waiting += type(answer) is not AppendOutcome
                rows.append((data.index, answer))
            answers.append((topic.name, topic.topic_id, rows))
        if waiting:
            self._slow_down(context)
            return self._answer_later(context, request.acks, answers)
        return self._answer(context, request.acks, answers)

    def _produce_one(
        self, context: RequestContext, request: ProduceRequest, topic: TopicProduceData
    ) -> Outcome:
        """One partition, as librdkafka sends it: without the lists that several of them need."""
        name, topic_id, data = topic.name, topic.topic_id, topic.partition_data[0]
        answer: AppendAnswer
        if self._authorizer.allows(context, Operation.WRITE, ResourceType.TOPIC, name):
            answer = self._append(context, name, topic_id, data, request)
        else:
            answer = AppendOutcome(ErrorCode.topic_authorization_failed)
        if type(answer) is not AppendOutcome:
            self._slow_down(context)
            return self._answer_later(context, request.acks, [(name, topic_id, [(data.index, answer)])])
        if answer.error is ErrorCode.none:
            return appended_response(
                name,
                topic_id,
                data.index,
                answer.base_offset,
                answer.log_append_time_ms,
                answer.log_start_offset,
            )
        row = self._row(name, topic_id, data.index, answer)
        return ProduceResponse(
            responses=(TopicProduceResponse(topic_id=topic_id, name=name, partition_responses=(row,)),)
        )

    def _append(
        self,
        context: RequestContext,
        name: str,
        topic_id: UUID,
        data: PartitionProduceData,
        request: ProduceRequest,
    ) -> AppendAnswer:
        try:
            partition = self._partitions.find(name, topic_id, data.index)
        except KafkaError as error:
            return AppendOutcome(error.code, message=error.message)
        if partition.topic in INTERNAL_TOPICS and context.client_id != ADMIN_CLIENT_ID:
            return AppendOutcome(
                ErrorCode.invalid_topic_exception,
                message=f"{partition.topic} is written by the cluster itself",
            )
        records = data.records
        if records is None:
            return AppendOutcome(ErrorCode.invalid_record, message="the partition has no records")
        view = records if isinstance(records, memoryview) else memoryview(b"".join(_parts(records)))
        return partition.append(view, required_acks=request.acks, timeout_ms=request.timeout_ms)

    def _slow_down(self, context: RequestContext) -> None:
        """Back-pressure: while too much waits for its upload, read this producer in small sips."""
        control = context.connection.control
        if self._is_congested is not None and control is not None and self._is_congested():
            control.mute(CONGESTED_PAUSE_S)

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
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    topic_id=topic_id,
                    name=name,
                    partition_responses=[self._row(name, topic_id, index, answer) for index, answer in rows],
                )
                for name, topic_id, rows in answers
            ]
        )

    def _row(self, name: str, topic_id: UUID, index: int, answer: AppendAnswer) -> PartitionProduceResponse:
        assert isinstance(answer, AppendOutcome)
        error, base_offset, log_append_time_ms, log_start_offset, message, record_errors = answer
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

    @staticmethod
    def _close_if_refused(
        context: RequestContext, answers: list[tuple[str, UUID, list[tuple[int, AppendAnswer]]]]
    ) -> None:
        """With acks=0 the closed connection is the only way to tell the producer that something failed."""
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


def _parts(
    records: bytes | bytearray | Sequence[bytes | bytearray | memoryview],
) -> list[bytes | bytearray | memoryview]:
    return [records] if isinstance(records, bytes | bytearray) else list(records)
