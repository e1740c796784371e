"""Sends records in batches by partition, in order, with retries. By default the producer is idempotent."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from moldau.cli.errors import CommandError
from moldau.cli.records.input import NewRecord
from moldau.client.cluster import PRODUCE_RETRIABLE, RETRY_BACKOFF_S, Client, ClusterTopic
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records.batch import next_sequence
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.hashing import murmur2
from moldau.records.record import Record
from moldau.runtime.clock import Clock, SystemClock
from moldau.runtime.errors import ErrorCode, KafkaError

BATCH_BYTES: Final = 512 * 1024
RECORD_OVERHEAD_BYTES: Final = 32
ACKS_ALL: Final = -1
UNANSWERED: Final = -1


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition of a key, given the number of partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Settings of the producer, with the names that Kafka's producers use."""

    acks: int = ACKS_ALL
    idempotent: bool = True
    compression: Compression = Compression.NONE
    batch_bytes: int = BATCH_BYTES


@dataclass(slots=True)
class Acknowledged:
    """Acknowledgements of a partition. With acks=0 the offsets are -1, because the node does not answer."""

    records: int = 0
    first_offset: int = UNANSWERED
    last_offset: int = UNANSWERED


@dataclass(slots=True)
class _OpenBatch:
    partition: int
    records: list[Record] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, record: NewRecord, now_ms: int) -> None:
        timestamp = now_ms if record.timestamp_ms is None else record.timestamp_ms
        self.records.append(Record(0, timestamp, record.key, record.value, record.headers))
        self.size_bytes += size_of(record)


def size_of(record: NewRecord) -> int:
    """The approximate size of a record in a batch."""
    headers = sum(len(name) + len(value or b"") + 4 for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + RECORD_OVERHEAD_BYTES


class TopicProducer:
    """Produces to a topic. A batch of a partition is sent when the partition's previous batch is
    acknowledged.
    """

    def __init__(
        self,
        client: Client,
        topic: ClusterTopic,
        settings: ProducerSettings,
        *,
        clock: Clock | None = None,
        first_partition: int = 0,
    ) -> None:
        self._client = client
        self._topic = topic
        self._settings = settings
        self._clock = clock if clock is not None else SystemClock()
        self._producer_id = -1
        self._producer_epoch = -1
        self._sequences: dict[int, int] = {}
        self._keyless = first_partition
        self.acknowledged: dict[int, Acknowledged] = {}

    async def start(self) -> None:
        """Get a producer id if one is needed."""
        if not self._settings.idempotent:
            return

        async def ask() -> InitProducerIdResponse:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1)
            response: InitProducerIdResponse = await self._client.ask(request)
            if response.error_code is not ErrorCode.none:
                raise KafkaError(response.error_code, f"no producer id: {response.error_code.name}")
            return response

        response = await self._client.retrying(ask)
        self._producer_id, self._producer_epoch = response.producer_id, response.producer_epoch

    async def send(self, records: Sequence[NewRecord]) -> None:
        """Send records. Returns when all records are acknowledged. Raises ``KafkaError``,
        ``CommandError``."""
        queues: dict[int, list[_OpenBatch]] = {}
        # Records without a key go to the same partition during a call, so that they form whole batches, as
        # with sticky producers.
        keyless = self._keyless = (self._keyless + 1) % len(self._topic.leaders)
        now_ms = self._clock.now_ms()
        for record in records:
            partition = self._partition_of(record, keyless)
            queue = queues.setdefault(partition, [])
            if not queue or queue[-1].size_bytes + size_of(record) > self._settings.batch_bytes:
                queue.append(_OpenBatch(partition))
            queue[-1].add(record, now_ms)
        results = await asyncio.gather(
            *(self._send_in_order(queue) for queue in queues.values()), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _partition_of(self, record: NewRecord, keyless: int) -> int:
        if record.partition is not None:
            if record.partition not in self._topic.leaders:
                raise CommandError(f"topic {self._topic.name} has no partition {record.partition}")
            return record.partition
        if record.key is None:
            return keyless
        return partition_of_key(record.key, len(self._topic.leaders))

    async def _send_in_order(self, batches: Sequence[_OpenBatch]) -> None:
        for batch in batches:
            await self._send_batch(batch)

    async def _send_batch(self, batch: _OpenBatch) -> None:
        sequence = self._sequences.get(batch.partition, 0) if self._settings.idempotent else -1
        encoded = build_batch(
            batch.records,
            compression=self._settings.compression,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=sequence,
        )
        base_offset = await self._until_acknowledged(batch, encoded)
        count = len(batch.records)
        self._sequences[batch.partition] = next_sequence(max(sequence, 0), count)
        row = self.acknowledged.setdefault(batch.partition, Acknowledged())
        row.records += count
        if base_offset >= 0:
            row.first_offset = base_offset if row.first_offset < 0 else row.first_offset
            row.last_offset = base_offset + count - 1

    async def _until_acknowledged(self, batch: _OpenBatch, encoded: bytes) -> int:
        """Send a batch again until it is acknowledged or fails permanently. If it is unknown whether the
        batch was appended, only an idempotent producer sends the batch again.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._client.timeout_s
        while True:
            try:
                return await self._send_once(batch.partition, encoded)
            except KafkaError as error:
                unknown = error.code in (ErrorCode.network_exception, ErrorCode.request_timed_out)
                final = error.code not in PRODUCE_RETRIABLE or (unknown and not self._settings.idempotent)
                if final or loop.time() >= deadline:
                    raise
            await asyncio.sleep(RETRY_BACKOFF_S)
            self._topic = await self._client.topic(self._topic.name)

    async def _send_once(self, partition: int, encoded: bytes) -> int:
        data = PartitionProduceData(index=partition, records=encoded)
        topic = TopicProduceData(topic_id=self._topic.topic_id, name=self._topic.name, partition_data=[data])
        request = ProduceRequest(
            acks=self._settings.acks, timeout_ms=self._client.timeout_ms, topic_data=[topic]
        )
        leader = self._topic.leaders[partition]
        if self._settings.acks == 0:
            await self._client.send_one_way(request, broker=leader)
            return UNANSWERED
        response = await self._client.ask(request, broker=leader)
        (answer,) = response.responses[0].partition_responses
        if answer.error_code is not ErrorCode.none:
            reason = answer.error_message or answer.error_code.name.upper()
            raise KafkaError(answer.error_code, f"{self._topic.name}-{partition}: {reason}")
        base_offset: int = answer.base_offset
        return base_offset
