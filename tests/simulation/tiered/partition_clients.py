"""Clients of one partition, for stories that a test plays step by step. They send each request to the leader
that the metadata name, and compare leader epochs or not."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from simulated_cluster import Cluster

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import iter_headers
from moldau.records.builder import build_batch
from moldau.records.record import Record, read_records
from moldau.runtime import ErrorCode
from moldau.simulation.clients.client import (
    FETCH_VERSION,
    INIT_PRODUCER_ID_VERSION,
    PRODUCE_VERSION,
    joined,
)
from moldau.simulation.world.clock import EPOCH_MS

PARTITION = TopicPartition("t", 0)
KEEPER = 13
"""A broker that has no replica of the partition, and never fails."""
HOUR_MS = 3_600_000
HOURS_AGO = 20
"""The age of the first hour at the beginning of a story. A story takes less than half an hour, and brokers
forget producers whose last record is older than a day."""
OFFSET_FOR_LEADER_EPOCH_VERSION = 4
VALUE_BYTES = 1_500
"""Each record fills some sectors of a disk, so a loss of power can take one record and leave another."""
ANY_SIZE = 1_000_000


class StoredRecord(NamedTuple):
    """A record that was acknowledged, or that a consumer has read. ``epoch`` is its leader epoch."""

    offset: int
    epoch: int
    value: bytes


class PartitionClients:
    """The clients of a partition in a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.lineage: list[StoredRecord] = []
        """The acknowledged records that every consumer must read, by offset."""
        self.wrong: list[str] = []
        """The violations that a story has found."""
        self._producers: dict[str, tuple[int, int]] = {}
        self._last: dict[str, tuple[bytes, int]] = {}
        self._sequences: Counter[str] = Counter()

    def row(self, partition: TopicPartition = PARTITION) -> Any:
        """The partition in the metadata; ``None`` if the topic is not known."""
        metadata = self.cluster.nodes[KEEPER].metadata
        assert metadata is not None
        topic = metadata.publisher.image.topics.get(partition.topic)
        return None if topic is None else topic.partitions[partition.partition]

    def expect(self, condition: bool, violation: str) -> None:
        if not condition:
            self.wrong.append(violation)

    async def ask(self, broker: int, api: ApiKey, version: int, request: Any) -> Any:
        client = self.cluster.client("client", broker)
        return await self.cluster.on(client.name, client.ask(api, version, request))

    async def repeated(
        self, ask: Callable[[], Awaitable[Any]], is_done: Callable[[Any], bool], count: int = 100
    ) -> Any:
        """Ask until the answer is as wanted, and return the answer."""
        for _ in range(count):
            answer = await ask()
            if is_done(answer):
                return answer
            await self.cluster.on("client", self.cluster.client("client", KEEPER).pause())
        raise TimeoutError(f"the answer is still {answer}")

    async def write(self, hour: int, *names: str, producer: str = "producer") -> None:
        """Write one batch for each name with acks=all. The records belong to the lineage. Each producer is
        idempotent."""
        for name in names:
            value = name.encode().ljust(VALUE_BYTES, b".")
            offset = await self._produce(producer, value, EPOCH_MS + (hour - HOURS_AGO) * HOUR_MS)
            self.lineage.append(StoredRecord(offset, self.row().leader_epoch, value))

    async def write_again(self, producer: str) -> int:
        """Repeat the last batch of a producer, as after a lost response. Returns the acknowledged offset."""
        batch, offset = self._last[producer]
        found = await self._send(batch)
        self.expect(found == offset, f"{producer}'s batch at {offset} was stored again at {found}")
        return found

    async def _produce(self, producer: str, value: bytes, timestamp_ms: int) -> int:
        if producer not in self._producers:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
            answer = await self.repeated(
                lambda: self.ask(KEEPER, ApiKey.INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION, request),
                lambda answer: answer.error_code is ErrorCode.none,
            )
            self._producers[producer] = answer.producer_id, answer.producer_epoch
        producer_id, producer_epoch = self._producers[producer]
        batch = build_batch(
            [Record(0, timestamp_ms, None, value, ())],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=self._sequences[producer],
        )
        self._sequences[producer] += 1
        offset = await self._send(batch)
        self._last[producer] = batch, offset
        return offset

    async def _send(self, batch: bytes) -> int:
        data = PartitionProduceData(index=PARTITION.partition, records=memoryview(batch))
        topic = TopicProduceData(name=PARTITION.topic, partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[topic])
        response = await self.ask(self.row().leader, ApiKey.PRODUCE, PRODUCE_VERSION, request)
        answer = response.responses[0].partition_responses[0]
        assert answer.error_code is ErrorCode.none, answer
        return int(answer.base_offset)

    async def fetch(
        self,
        offset: int,
        *,
        current_epoch: int = -1,
        last_epoch: int = -1,
        replica_id: int = -1,
        max_bytes: int = ANY_SIZE,
    ) -> PartitionData:
        """Fetch from the leader, until the answer has records, an error or a diverging epoch."""
        wanted = FetchPartition(
            partition=PARTITION.partition,
            current_leader_epoch=current_epoch,
            fetch_offset=offset,
            last_fetched_epoch=last_epoch,
            partition_max_bytes=max_bytes,
        )
        request = FetchRequest(
            replica_id=replica_id,
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=10_000_000,
            topics=[FetchTopic(topic=PARTITION.topic, partitions=[wanted])],
        )

        async def answer() -> PartitionData:
            response = await self.ask(self.row().leader, ApiKey.FETCH, FETCH_VERSION, request)
            found = response.responses[0].partitions[0]
            assert isinstance(found, PartitionData)
            return found

        answered: PartitionData = await self.repeated(
            answer,
            lambda row: bool(
                row.error_code is not ErrorCode.none or joined(row.records) or row.diverging_epoch.epoch >= 0
            ),
        )
        return answered

    async def first_read(self, offset: int, *, current_epoch: int = -1, last_epoch: int = -1) -> StoredRecord:
        """The record at an offset, which a consumer gets first. ``last_epoch`` is the epoch of the record
        that it has read before."""
        answer = await self.fetch(offset, current_epoch=current_epoch, last_epoch=last_epoch, max_bytes=1)
        found = next((each for each in _records(answer) if each.offset == offset), None)
        return found or _refused(answer)

    async def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Ask the leader for the end of an epoch, as a consumer does that checks its position (KIP-320)."""
        wanted = OffsetForLeaderPartition(
            partition=PARTITION.partition, current_leader_epoch=self.row().leader_epoch, leader_epoch=epoch
        )
        request = OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderTopic(topic=PARTITION.topic, partitions=[wanted])]
        )
        response = await self.ask(
            self.row().leader, ApiKey.OFFSET_FOR_LEADER_EPOCH, OFFSET_FOR_LEADER_EPOCH_VERSION, request
        )
        answer = response.topics[0].partitions[0]
        assert answer.error_code is ErrorCode.none, answer
        return answer.leader_epoch, answer.end_offset

    async def read(self, *, with_epochs: bool) -> list[StoredRecord]:
        """Read from the leader, from offset 0 to the high watermark.

        Consumers ``with_epochs`` (KIP-320) send the leader's epoch and the epoch of the last record, and get
        one batch at a time. The other consumers get as much as possible.
        """
        found: list[StoredRecord] = []
        offset, end = 0, 1
        while offset < end:
            answer = await self.fetch(
                offset,
                current_epoch=self.row().leader_epoch if with_epochs else -1,
                last_epoch=found[-1].epoch if with_epochs and found else -1,
                max_bytes=1 if with_epochs else ANY_SIZE,
            )
            records = [each for each in _records(answer) if each.offset >= offset]
            if not records:
                return [*found, _refused(answer)]
            found += records
            offset, end = found[-1].offset + 1, answer.high_watermark
        return found


def _refused(answer: PartitionData) -> StoredRecord:
    """The answer to a reader that gets no records. It is unequal to every record."""
    return StoredRecord(-1, -1, f"{answer.error_code.name} {answer.diverging_epoch}".encode())


def _records(answer: PartitionData) -> list[StoredRecord]:
    view = memoryview(joined(answer.records))
    return [
        StoredRecord(record.offset, header.partition_leader_epoch, record.value or b"")
        for start, header in iter_headers(view)
        for record in read_records(view[start : start + header.size_bytes])
    ]
