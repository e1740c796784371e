"""DescribeProducers."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from moldau.cluster.decisions.topic_names import check_name
from moldau.network.context import RequestContext
from moldau.network.served import Handler, Served
from moldau.protocol.api import ApiKey
from moldau.protocol.messages import describe_producers as description
from moldau.protocol.rows import Cut
from moldau.protocol.schema import ZERO_UUID
from moldau.runtime.errors import KafkaError
from moldau.server.topics.registry import PartitionRegistry

PRODUCERS_A_TURN: Final = 1_000


class ProducerHandlers:
    """Answers DescribeProducers from the state of producers that partitions store."""

    def __init__(self, partitions: PartitionRegistry) -> None:
        self._partitions = partitions

    def table(self) -> dict[int, Handler]:
        cut = Cut(("topics", "partition_indexes"), ("topics", "partitions"), distinct=distinct_partitions)
        return {
            ApiKey.DESCRIBE_PRODUCERS: Served(
                self.describe_producers,
                cuts=(cut,),
                # Four bytes of a request can cause an entry of several hundred bytes in the response.
                parsed_bytes_max=2 * 1024 * 1024,
                long_answers=(("topics", "partitions", "active_producers"),),
            )
        }

    async def describe_producers(
        self, context: RequestContext, request: description.DescribeProducersRequest
    ) -> description.DescribeProducersResponse:
        # If a partition is named several times, it is described once, because it may have very many
        # producers.
        wanted: dict[str, dict[int, None]] = {}
        for topic in request.topics:
            wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        return description.DescribeProducersResponse(
            topics=[
                description.TopicResponse(
                    name=name, partitions=[await self._describe(name, index) for index in indexes]
                )
                for name, indexes in wanted.items()
            ]
        )

    async def _describe(self, topic: str, index: int) -> description.PartitionResponse:
        try:
            check_name(topic)
            partition = self._partitions.find(topic, ZERO_UUID, index)
            producers = await partition.transactions.producers()
        except KafkaError as error:
            return description.PartitionResponse(partition_index=index, error_code=error.code)
        rows: list[description.ProducerState] = []
        if producers is None:
            producers = partition.state().active_producers
        for number, producer in enumerate(producers, 1):
            if number % PRODUCERS_A_TURN == 0:
                await asyncio.sleep(0)
            rows.append(
                description.ProducerState(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    last_sequence=producer.last_sequence,
                    last_timestamp=producer.last_timestamp_ms,
                    coordinator_epoch=producer.coordinator_epoch,
                    current_txn_start_offset=producer.current_transaction_start_offset,
                )
            )
        return description.PartitionResponse(partition_index=index, active_producers=rows)


def distinct_partitions(rows: Sequence[Any]) -> Iterator[Any]:
    """Return the topics of a request. Each topic appears once, and has each of its partition indexes once."""
    topics: dict[str, dict[int, None]] = {}
    for row in rows:
        topics.setdefault(row.name, {}).update(dict.fromkeys(row.partition_indexes))
    for row in rows:
        indexes = topics.pop(row.name, None)
        if indexes is not None:
            yield replace(row, partition_indexes=list(indexes))
