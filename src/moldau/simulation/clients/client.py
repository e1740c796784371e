"""Small Kafka clients for the simulation. They use the real protocol and record the responses."""

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from moldau.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.protocol.partitions import TopicPartition
from moldau.protocol.schema import Message
from moldau.protocol.special_timestamps import EARLIEST_TIMESTAMP
from moldau.records.batch import iter_headers
from moldau.records.builder import build_batch
from moldau.records.record import Record, read_records
from moldau.runtime import ErrorCode
from moldau.simulation.clients.rpc import RpcConnection
from moldau.simulation.clients.stale_leaders import is_replaced
from moldau.simulation.history import History, Observation, Outcome, Production
from moldau.simulation.world.process import PROCESS

PRODUCE_VERSION = 11
FETCH_VERSION = 12
METADATA_VERSION = 9
INIT_PRODUCER_ID_VERSION = 4
CREATE_TOPICS_VERSION = 5
DELETE_TOPICS_VERSION = 5
DELETE_RECORDS_VERSION = 2
LIST_OFFSETS_VERSION = 6
INCREMENTAL_ALTER_CONFIGS_VERSION = 1

SEQUENCE_MODULUS = 2**31

RETRIABLE = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.request_timed_out,
        ErrorCode.kafka_storage_error,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.not_controller,
        ErrorCode.broker_not_available,
        ErrorCode.out_of_order_sequence_number,
    }
)


class RetryError(Exception):
    """A transient failure. After it, a client retries on a new connection."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The first address to which a client connects."""

    host: str
    port: int


class SimulatedClient:
    """Common base of producers and consumers. It finds leaders and retries."""

    others: Sequence[Bootstrap] = ()
    """Further bootstrap brokers, besides ``bootstrap``. For each connection, the client chooses one of all
    these brokers."""

    def __init__(self, name: str, bootstrap: Bootstrap, history: History, chance: random.Random) -> None:
        self.name = name
        self.history = history
        self.chance = chance
        self.bootstrap = bootstrap
        self._connection: RpcConnection | None = None

    async def pause(self) -> None:
        """Wait for a while before the next attempt."""
        await asyncio.sleep(self.chance.uniform(0.02, 0.3))

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def leader(self, partition: TopicPartition) -> RpcConnection:
        """Return a connection to the leader of a partition. Raises RetryError or OSError."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        bootstrap = await self._begin()
        request = MetadataRequest(topics=[MetadataRequestTopic(name=partition.topic)])
        try:
            response = await bootstrap.request(ApiKey.METADATA, METADATA_VERSION, request)
            nodes = {node.node_id: (node.host, node.port) for node in response.brokers}
            for topic in response.topics:
                for found in topic.partitions:
                    if (topic.name, found.partition_index) == partition and found.leader_id in nodes:
                        self._connection = await RpcConnection.open(self.name, *nodes[found.leader_id])
                        return self._connection
        finally:
            bootstrap.close()
        raise RetryError(f"no leader for {partition}")

    async def create_topic(self, topic: str, partition_count: int, configs: dict[str, str]) -> None:
        """Create a topic. If the topic exists already, this also succeeds."""
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=topic,
                    num_partitions=partition_count,
                    replication_factor=-1,
                    configs=[CreatableTopicConfig(name=name, value=value) for name, value in configs.items()],
                )
            ],
            timeout_ms=5_000,
        )
        while True:
            try:
                response = await self.ask(ApiKey.CREATE_TOPICS, CREATE_TOPICS_VERSION, request)
                code = response.topics[0].error_code
                if code in (ErrorCode.none, ErrorCode.topic_already_exists):
                    return
                # Kafka returns an error about the replication factor while every broker is still fenced.
                if code not in RETRIABLE and code is not ErrorCode.invalid_replication_factor:
                    self.history.violate(f"{self.name}: CreateTopics of {topic}: {code.name}")
                    return
            except (OSError, RetryError):
                pass
            await self.pause()

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic. If the topic does not exist, this also succeeds."""
        request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=5_000)
        while True:
            try:
                response = await self.ask(ApiKey.DELETE_TOPICS, DELETE_TOPICS_VERSION, request)
                code = response.responses[0].error_code
                if code in (ErrorCode.none, ErrorCode.unknown_topic_or_partition):
                    return
                if code not in RETRIABLE:
                    self.history.violate(f"{self.name}: DeleteTopics of {topic}: {code.name}")
                    return
            except (OSError, RetryError):
                pass
            await self.pause()

    async def alter_topic(self, topic: str, configs: dict[str, str]) -> None:
        """Set configs of a topic."""
        rows = [
            AlterableConfig(name=name, config_operation=0, value=value) for name, value in configs.items()
        ]
        resource = AlterConfigsResource(resource_type=2, resource_name=topic, configs=rows)
        request = IncrementalAlterConfigsRequest(resources=[resource])
        while True:
            try:
                response = await self.ask(
                    ApiKey.INCREMENTAL_ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS_VERSION, request
                )
                code = response.responses[0].error_code
                if code is ErrorCode.none:
                    return
                if code not in RETRIABLE:
                    self.history.violate(f"{self.name}: configs of {topic}: {code.name}")
                    return
            except (OSError, RetryError):
                pass
            await self.pause()

    async def delete_records(self, partition: TopicPartition, before_offset: int) -> int:
        """Delete the records before an offset. Returns the partition's first offset afterwards."""
        wanted = DeleteRecordsPartition(partition_index=partition.partition, offset=before_offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=partition.topic, partitions=[wanted])], timeout_ms=5_000
        )
        while True:
            try:
                connection = await self.leader(partition)
                response = await connection.request(ApiKey.DELETE_RECORDS, DELETE_RECORDS_VERSION, request)
                answer = response.topics[0].partitions[0]
                if answer.error_code is ErrorCode.none:
                    if answer.low_watermark < before_offset:
                        self.history.violate(f"{self.name}: {partition} keeps {answer.low_watermark}")
                    self.history.deleted(partition, answer.low_watermark)
                    return int(answer.low_watermark)
                if answer.error_code not in RETRIABLE:
                    self.history.violate(f"{self.name}: DeleteRecords: {answer.error_code.name}")
                    return -1
            except (OSError, RetryError):
                pass
            self.disconnect()
            await self.pause()

    async def list_offset(
        self, partition: TopicPartition, timestamp: int, version: int = LIST_OFFSETS_VERSION
    ) -> int:
        """Request an offset of a partition from the partition's leader. The timestamp -2 means the first
        offset, and -1 means the end. Raises RetryError or OSError."""
        connection = await self.leader(partition)
        wanted = ListOffsetsPartition(partition_index=partition.partition, timestamp=timestamp)
        topic = ListOffsetsTopic(name=partition.topic, partitions=[wanted])
        request = ListOffsetsRequest(replica_id=-1, topics=[topic])
        response = await connection.request(ApiKey.LIST_OFFSETS, version, request)
        answer = response.topics[0].partitions[0]
        if answer.error_code is not ErrorCode.none:
            raise RetryError(answer.error_code.name)
        return int(answer.offset)

    def begins_at(self) -> Bootstrap:
        """The bootstrap broker for the next connection."""
        return self.chance.choice((self.bootstrap, *self.others)) if self.others else self.bootstrap

    async def _begin(self) -> RpcConnection:
        found = self.begins_at()
        return await RpcConnection.open(self.name, found.host, found.port)

    async def ask(self, api_key: ApiKey, version: int, request: Message) -> Any:
        """Send a request to one of the bootstrap brokers, on a separate connection."""
        connection = await self._begin()
        try:
            return await connection.request(api_key, version, request)
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class Sending:
    """How a producer sends its records."""

    idempotent: bool = True
    """Whether batches have sequence numbers and are sent again until they are acknowledged."""
    keyed: bool = False
    """Whether each record has a different key."""
    stamped: bool = False
    """Whether records get the time of their client's clock."""


class Producer(SimulatedClient):
    """Sends numbered records to a partition, with several batches in flight.

    An idempotent producer retries forever, beginning with its first unacknowledged batch. A plain producer
    sends each batch once.
    """

    in_flight_max = 5

    def __init__(
        self,
        name: str,
        bootstrap: Bootstrap,
        history: History,
        chance: random.Random,
        partition: TopicPartition,
        sending: Sending | None = None,
    ) -> None:
        super().__init__(name, bootstrap, history, chance)
        self.partition = partition
        sending = sending or Sending()
        self._keyed = sending.keyed
        self._stamped = sending.stamped
        self.idempotent = sending.idempotent
        self._identity: tuple[int, int] | None = None
        self._unacknowledged: deque[Production] = deque()
        self._next_number = 0

    async def run(self, record_count: int, *, pause_s: float) -> None:
        """Send records until ``record_count`` records were sent in total. An idempotent producer returns when
        all of them are acknowledged. A plain producer returns when all of them were sent."""
        while self._next_number < record_count or self._unacknowledged:
            try:
                await self._send_on_one_connection(record_count, pause_s)
            except (OSError, RetryError):
                self.disconnect()
                if not self.idempotent:
                    self._unacknowledged.clear()
                await self.pause()

    async def _send_on_one_connection(self, record_count: int, pause_s: float) -> None:
        connection = await self.leader(self.partition)
        if self.idempotent and self._identity is None:
            await self._become_known(connection)
        in_flight: deque[tuple[Production, asyncio.Task[None]]] = deque()
        to_resend = deque(self._unacknowledged)
        try:
            while True:
                while len(in_flight) < self.in_flight_max:
                    if to_resend:
                        production = to_resend.popleft()
                    elif self._next_number < record_count:
                        production = self._new_batch(record_count)
                    else:
                        break
                    in_flight.append((production, asyncio.create_task(self._send(connection, production))))
                    if self.chance.random() < 0.5:
                        break
                if not in_flight:
                    return
                if len(in_flight) >= self.in_flight_max or (
                    not to_resend and self._next_number >= record_count
                ):
                    await in_flight.popleft()[1]
                while in_flight and in_flight[0][1].done():
                    await in_flight.popleft()[1]
                await asyncio.sleep(self.chance.expovariate(1.0) * pause_s)
        finally:
            tasks = [task for _, task in in_flight]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _become_known(self, connection: RpcConnection) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        response = await connection.request(ApiKey.INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION, request)
        if response.error_code is not ErrorCode.none:
            raise RetryError(f"InitProducerId: {response.error_code.name}")
        self._identity = (response.producer_id, response.producer_epoch)
        self.history.identified(self.name, response.producer_id)

    def _new_batch(self, record_count: int) -> Production:
        size = min(self.chance.choice((1, 1, 2, 5, 20)), record_count - self._next_number)
        numbers = range(self._next_number, self._next_number + size)
        self._next_number += size
        filler = "." * self.chance.choice((0, 0, 10, 300))
        values = tuple(f"{self.name}/{number}{filler}".encode() for number in numbers)
        production = Production(self.name, self.partition, numbers.start, values, self.idempotent)
        self._unacknowledged.append(production)
        self.history.invoke(production)
        return production

    async def _send(self, connection: RpcConnection, production: Production) -> None:
        producer_id, epoch = self._identity or (-1, -1)
        now_ms = PROCESS.get().host.clock.now_ms() if self._stamped else -1
        batch = build_batch(
            [Record(0, now_ms, value if self._keyed else None, value, ()) for value in production.values],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=production.first_number % SEQUENCE_MODULUS if self.idempotent else -1,
        )
        data = PartitionProduceData(index=self.partition.partition, records=memoryview(batch))
        topic = TopicProduceData(name=self.partition.topic, partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[topic])
        response = await connection.request(ApiKey.PRODUCE, PRODUCE_VERSION, request)
        answer = response.responses[0].partition_responses[0]
        code = answer.error_code
        if code is ErrorCode.none:
            self._end(production, Outcome.OK, answer.base_offset)
        elif code is ErrorCode.duplicate_sequence_number:
            self._end(production, Outcome.OK, -1)
        elif code in RETRIABLE and not production.is_given_up(code, self.history.now_s()):
            raise RetryError(code.name)
        elif code in RETRIABLE:
            self._end(production, Outcome.OK, -1)
        else:
            self._end(production, Outcome.FAILED, reason=code.name)
            if self.idempotent:
                self.history.violate(f"{self.name}: batch {production.first_number}: {code.name}")

    def _end(self, production: Production, outcome: Outcome, offset: int = -1, reason: str = "") -> None:
        self.history.end(production, outcome, offset, reason)
        if production in self._unacknowledged:
            self._unacknowledged.remove(production)


class Consumer(SimulatedClient):
    """Reads a partition by Fetch, beginning at its first offset."""

    rack = ""
    """The rack in each Fetch. A consumer with a rack may be sent to another broker (KIP-392)."""

    def __init__(
        self,
        name: str,
        bootstrap: Bootstrap,
        history: History,
        chance: random.Random,
        partition: TopicPartition,
        *,
        observed: bool = True,
        shortened: bool = False,
    ) -> None:
        """``shortened`` means that the first records are deleted while the consumer reads. The consumer may
        then have to skip to a later offset."""
        super().__init__(name, bootstrap, history, chance)
        self.partition = partition
        self.position = 0
        self.high_watermark = -1
        self.read: list[tuple[int, bytes]] = []
        self._observed = observed
        self._shortened = shortened
        self.first_offset = 0

    @property
    def was_sent(self) -> bool:
        """Whether the consumer reads from a broker to which the leader has sent it."""
        return False

    async def run(self) -> None:
        """Read until the task is cancelled."""
        while True:
            await self.step()

    async def read_to_end(self) -> list[tuple[int, bytes]]:
        """Read everything before the leader's high watermark, with retries."""
        while not 0 <= self.high_watermark <= self.position:
            await self.step()
        return self.read

    async def step(self) -> None:
        """Fetch once; pause when the fetch fails."""
        try:
            await self._fetch(await self.leader(self.partition))
        except (OSError, RetryError):
            self.disconnect()
            await self.pause()

    async def _fetch(self, connection: RpcConnection) -> None:
        wanted = FetchPartition(
            partition=self.partition.partition,
            fetch_offset=self.position,
            partition_max_bytes=self.chance.choice((1, 1_000, 1_000_000)),
        )
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=10_000_000,
            topics=[FetchTopic(topic=self.partition.topic, partitions=[wanted])],
            rack_id=self.rack,
        )
        response = await connection.request(ApiKey.FETCH, FETCH_VERSION, request)
        if response.error_code is not ErrorCode.none:
            raise RetryError(response.error_code.name)
        answer = response.responses[0].partitions[0]
        if answer.error_code is ErrorCode.offset_out_of_range and self.was_sent:
            pass  # Only the leader knows the offsets for certain. The consumer goes back to it.
        elif answer.error_code is ErrorCode.offset_out_of_range and self._shortened:
            await self._begin_again()
        elif answer.error_code is ErrorCode.offset_out_of_range:
            if not await is_replaced(connection, self.partition, self.name, (self.bootstrap, *self.others)):
                self.history.violate(f"{self.name}: offset {self.position} is out of range")
            await self.pause()
        if answer.error_code is not ErrorCode.none:
            raise RetryError(answer.error_code.name)
        if answer.preferred_read_replica >= 0:
            await self._follow(answer.preferred_read_replica)
            return
        self.high_watermark = answer.high_watermark
        view = memoryview(joined(answer.records))
        for start, header in iter_headers(view):
            for record in read_records(view[start : start + header.size_bytes]):
                if record.offset >= self.position:
                    self._note_record(record)

    async def _follow(self, broker_id: int) -> None:
        """Fetch from another broker from now on. A consumer of this class names no rack, so a leader that
        sends it to another broker violates the protocol."""
        self.history.violate(f"{self.name} is sent to broker {broker_id}, but it has no rack")

    async def _begin_again(self) -> None:
        first = await self.list_offset(self.partition, EARLIEST_TIMESTAMP)
        if first <= self.position:
            self.history.violate(f"{self.name}: {self.position} is out of range, the first offset is {first}")
            return
        self.history.note(f"{self.name} goes on at {first}")
        self.position = self.first_offset = first
        self.read.clear()

    def _note_record(self, record: Record) -> None:
        value = record.value or b""
        self.position = record.offset + 1
        self.read.append((record.offset, value))
        if self._observed:
            self.history.observe(Observation(self.name, self.partition, record.offset, value))


def joined(records: object) -> bytes:
    if records is None:
        return b""
    if isinstance(records, bytes | bytearray | memoryview):
        return bytes(records)
    assert isinstance(records, list | tuple)
    return b"".join(records)
