"""A transactional producer for jobs. It sends batches that are already encoded.

The producer uses request versions that are older than KIP-890. Brokers with any ``transaction.version``
accept them.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from moldau.client.cluster import MAX_OFFSET_VERSION, PRODUCE_RETRIABLE, Client
from moldau.client.errors import ToolError
from moldau.protocol.coordinator_keys import CoordinatorKeyType
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from moldau.protocol.messages.end_txn import EndTxnRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import next_sequence, parse_header, with_producer
from moldau.runtime.errors import ErrorCode, KafkaError

T = TypeVar("T")

ACKS_ALL: Final = -1
INIT_VERSION: Final = 5
ADD_PARTITIONS_VERSION: Final = 3
ADD_OFFSETS_VERSION: Final = 3
PRODUCE_VERSION: Final = 11
OFFSETS_VERSION: Final = 4
END_VERSION: Final = 4
"""This constant and the five constants above it are the highest versions that the producer uses for its
requests. In these versions, the client itself adds partitions to the transaction, and the end of a
transaction does not change the producer's epoch.
"""
IN_FLIGHT: Final = 4
"""Number of batches of a partition that are sent at a time. Brokers recognise the last five batches of a
producer when these batches are sent again."""
_FENCED: Final = frozenset({ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch})
_BUSY: Final = frozenset({ErrorCode.concurrent_transactions, ErrorCode.unstable_offset_commit})
"""Transient errors of requests that arrive before all markers of the previous transaction are written."""
_AGAIN: Final = PRODUCE_RETRIABLE | _BUSY | {ErrorCode.out_of_order_sequence_number}


class CommittedText(NamedTuple):
    """An offset that was committed for a group, and its metadata."""

    offset: int
    text: str


class ProducerOfBatches:
    """One transaction of a transactional id: :meth:`start`, then any calls of :meth:`send` and
    :meth:`commit_offset`, then :meth:`commit` or :meth:`abort`.

    All calls raise ``KafkaError``. They raise :class:`ToolError` if a newer producer with this transactional
    id has started, or if the transaction was aborted after its time-out.
    """

    def __init__(self, client: Client, transactional_id: str, timeout_ms: int) -> None:
        self._client = client
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._producer_id = -1
        self._epoch = -1

    async def start(self) -> None:
        """Fence all earlier producers of this transactional id.

        When the call returns, the last transaction of these producers is either committed or aborted, and all
        of its markers are written.
        """
        request = InitProducerIdRequest(transactional_id=self._id, transaction_timeout_ms=self._timeout_ms)
        answer = await self._coordinated(request, INIT_VERSION)
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch

    async def send(self, batches: Mapping[TopicPartition, Sequence[bytes]]) -> None:
        """Send batches without a producer id as a part of the transaction. Call this at most once for each
        partition. Returns when all batches are acknowledged."""
        if not batches:
            return
        await self._add_partitions(sorted(batches))
        sent = (self._in_order(place, some) for place, some in batches.items())
        for result in await asyncio.gather(*sent, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def commit_offset(self, group: str, place: TopicPartition, committed: CommittedText) -> None:
        """Commit an offset of a group as a part of the transaction."""
        await self._coordinated(
            AddOffsetsToTxnRequest(
                transactional_id=self._id,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                group_id=group,
            ),
            ADD_OFFSETS_VERSION,
        )
        row = TxnOffsetCommitRequestPartition(
            partition_index=place.partition,
            committed_offset=committed.offset,
            committed_metadata=committed.text,
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=group,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            topics=[TxnOffsetCommitRequestTopic(name=place.topic, partitions=[row])],
        )

        async def ask() -> None:
            broker = await self._client.coordinator(group)
            response = await self._client.ask(request, broker=broker, version_max=OFFSETS_VERSION)
            self._check(response.topics[0].partitions[0].error_code, f"group {group}")

        await self._retried(ask)

    async def commit(self) -> None:
        """Commit the transaction. If this call raises an error, it is unknown whether the transaction was
        committed. When the next call of :meth:`start` returns, the transaction is either committed or
        aborted.
        """
        await self._end(committed=True)

    async def abort(self) -> None:
        await self._end(committed=False)

    # -- requests -------------------------------------------------------------------------------

    async def _end(self, *, committed: bool) -> None:
        await self._coordinated(
            EndTxnRequest(
                transactional_id=self._id,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                committed=committed,
            ),
            END_VERSION,
        )

    async def _coordinated(self, request: Any, version_max: int) -> Any:
        """Send a request to the transaction coordinator."""

        async def ask() -> Any:
            about = f"transactional id {self._id}"
            found = await self._client.find_coordinator(CoordinatorKeyType.TRANSACTION, self._id, about)
            response = await self._client.ask(request, broker=found.endpoint, version_max=version_max)
            self._check(response.error_code, about)
            return response

        return await self._retried(ask)

    async def _add_partitions(self, places: Sequence[TopicPartition]) -> None:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in places:
            by_topic.setdefault(topic, []).append(partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=rows) for topic, rows in by_topic.items()
            ],
        )

        async def ask() -> None:
            about = f"transactional id {self._id}"
            found = await self._client.find_coordinator(CoordinatorKeyType.TRANSACTION, self._id, about)
            response = await self._client.ask(
                request, broker=found.endpoint, version_max=ADD_PARTITIONS_VERSION
            )
            for topic in response.results_by_topic_v3_and_below:
                for row in topic.results_by_partition:
                    self._check(row.partition_error_code, f"{topic.name}-{row.partition_index}")

        await self._retried(ask)

    async def _in_order(self, place: TopicPartition, batches: Sequence[bytes]) -> None:
        """Send the batches of a partition. The first batch is sent alone, because a broker accepts any batch
        as the first batch of a producer that it does not know."""
        sequence = 0
        numbered: list[bytes] = []
        for batch in batches:
            numbered.append(with_producer(batch, self._producer_id, self._epoch, sequence))
            sequence = next_sequence(sequence, parse_header(batch).records_count)
        await self._sent_again(place, numbered[:1])
        for first in range(1, len(numbered), IN_FLIGHT):
            await self._together(place, numbered[first : first + IN_FLIGHT])

    async def _together(self, place: TopicPartition, batches: Sequence[bytes]) -> None:
        """Send batches at the same time. After an error they are sent again, one after the other. Batches
        that were already appended are not appended twice, because the broker recognizes their sequence
        numbers.
        """
        sent = [self._send(place, batch) for batch in batches]
        results = await asyncio.gather(*sent, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not (
                isinstance(result, KafkaError) and result.code in _AGAIN
            ):
                raise result
        if any(isinstance(result, KafkaError) for result in results):
            await self._sent_again(place, batches)

    async def _sent_again(self, place: TopicPartition, batches: Sequence[bytes]) -> None:
        for batch in batches:
            await self._retried(partial(self._send, place, batch))

    async def _send(self, place: TopicPartition, batch: bytes) -> None:
        topic, partition = place
        found = await self._client.topic(topic)
        if partition not in found.leaders:
            # The topic was deleted and created again with fewer partitions.
            self._check(ErrorCode.unknown_topic_or_partition, f"{topic}-{partition}")
        row = PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            transactional_id=self._id,
            acks=ACKS_ALL,
            timeout_ms=self._client.timeout_ms,
            topic_data=[TopicProduceData(name=topic, topic_id=found.topic_id, partition_data=[row])],
        )
        response = await self._client.ask(
            request, broker=found.leaders[partition], version_max=PRODUCE_VERSION
        )
        (answer,) = response.responses[0].partition_responses
        self._check(answer.error_code, f"{topic}-{partition}", answer.error_message)

    def _check(self, code: ErrorCode, about: str, message: str | None = None) -> None:
        if code in _FENCED:
            raise ToolError(
                f"another process uses the transactional id {self._id} and has fenced this one, or the"
                f" transaction took longer than its time-out of {self._timeout_ms} ms"
            )
        if code is not ErrorCode.none:
            raise KafkaError(code, f"{about}: {message or code.name.upper()}")

    async def _retried(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self._client.retrying(call, _BUSY)


async def committed_texts(client: Client, group: str) -> dict[TopicPartition, CommittedText]:
    """All offsets that were committed for a group. Waits for open transactions with offsets of the group."""
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=None)], require_stable=True
    )

    async def ask() -> dict[TopicPartition, CommittedText]:
        response = await client.ask(
            request, broker=await client.coordinator(group), version_max=MAX_OFFSET_VERSION
        )
        (found,) = response.groups
        rows = [(topic.name, row) for topic in found.topics for row in topic.partitions]
        for code in (found.error_code, *(row.error_code for _, row in rows)):
            if code is not ErrorCode.none:
                raise KafkaError(code, f"group {group}: {code.name.upper()}")
        return {
            TopicPartition(name, row.partition_index): CommittedText(row.committed_offset, row.metadata or "")
            for name, row in rows
            if row.committed_offset >= 0
        }

    return await client.retrying(ask, _BUSY)
