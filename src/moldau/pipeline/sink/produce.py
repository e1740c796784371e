"""Produces batches, at least once, through the brokers that lead the partitions."""

import asyncio
from collections.abc import Mapping, Sequence

from moldau.client.cluster import PRODUCE_RETRIABLE, Client
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.protocol.partitions import TopicPartition
from moldau.runtime.errors import ErrorCode, KafkaError

ACKS_ALL = -1


async def produce(client: Client, batches: Mapping[TopicPartition, Sequence[bytes]]) -> None:
    """Produce batches. Returns when all batches are acknowledged. The batches of a partition are sent one
    after the other. Raises ``KafkaError``."""
    results = await asyncio.gather(
        *(_in_order(client, topic, partition, some) for (topic, partition), some in batches.items()),
        return_exceptions=True,
    )
    for result in results:
        if isinstance(result, BaseException):
            raise result


async def _in_order(client: Client, topic: str, partition: int, batches: Sequence[bytes]) -> None:
    for batch in batches:
        await _send(client, topic, partition, batch)


async def _send(client: Client, topic: str, partition: int, batch: bytes) -> None:
    async def send() -> None:
        found = await client.topic(topic)
        row = PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            acks=ACKS_ALL,
            timeout_ms=client.timeout_ms,
            topic_data=[TopicProduceData(name=topic, topic_id=found.topic_id, partition_data=[row])],
        )
        response = await client.ask(request, broker=found.leaders[partition])
        (answer,) = response.responses[0].partition_responses
        code: ErrorCode = answer.error_code
        if code is not ErrorCode.none:
            about = f"{topic}-{partition}: {answer.error_message or code.name.upper()}"
            raise KafkaError(code, about)

    # If a response is lost, the batch is sent again.
    assert ErrorCode.network_exception in PRODUCE_RETRIABLE
    await client.retrying(send, PRODUCE_RETRIABLE)
