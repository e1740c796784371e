"""A minimal node: one partition on the real log, without groups and without a controller.

It tests the simulation itself. A correct node must pass every seed, and the simulation must find each planted
defect.
"""

import asyncio
from enum import Enum
from typing import Any

from moldau.protocol.api import ApiKey
from moldau.protocol.codec import decode_request, encode_response
from moldau.protocol.framing import RequestHeader, parse_request_header, response_frame
from moldau.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from moldau.protocol.messages.init_producer_id import InitProducerIdResponse
from moldau.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from moldau.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from moldau.protocol.partitions import TopicPartition
from moldau.protocol.schema import Message
from moldau.records.batch import validate_produce
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog

PARTITION = TopicPartition("tiny", 0)
PORT = 9092
_FOLDER = "/data/tiny-0"
_PRODUCER_IDS = "/data/producer-ids"


class Flaw(Enum):
    """The defects that a test can insert into the tiny node."""

    NONE = "none"
    ANSWERS_BEFORE_SYNC = "answers before sync"
    DOUBLES_ON_RETRY = "doubles on retry"
    SERVES_UNSYNCED = "serves unsynced records"


class TinyNode:
    """A process of the node. :meth:`run` never returns."""

    def __init__(self, machine: Machine, flaw: Flaw = Flaw.NONE, *, segment_bytes: int = 20_000) -> None:
        self._machine = machine
        self._flaw = flaw
        self._config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=256)
        self._log: PartitionLog | None = None
        self._appended = asyncio.Event()

    async def run(self) -> None:
        disk = self._machine.disk
        disk.make_dirs("/data")
        disk.sync_dir("/")
        self._log = await self._machine.workers.run(
            PartitionLog.open, self._machine, _FOLDER, PARTITION, self._config
        )
        await self._log.flush()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(self), "0.0.0.0", PORT)
        await server.serve_forever()

    @property
    def log(self) -> PartitionLog:
        assert self._log is not None
        return self._log

    async def answer(self, header: RequestHeader, request: Any) -> Message:
        match header.api_key:
            case ApiKey.METADATA:
                return self._metadata()
            case ApiKey.INIT_PRODUCER_ID:
                return InitProducerIdResponse(producer_id=self._next_producer_id(), producer_epoch=0)
            case ApiKey.PRODUCE:
                return await self._produce(request)
            case ApiKey.FETCH:
                return await self._fetch(request)
        raise ValueError(f"API key {header.api_key} is not served")

    def _metadata(self) -> Message:
        partition = MetadataResponsePartition(
            partition_index=PARTITION.partition, leader_id=1, replica_nodes=[1], isr_nodes=[1]
        )
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="node-1", port=PORT)],
            topics=[MetadataResponseTopic(name=PARTITION.topic, partitions=[partition])],
        )

    def _next_producer_id(self) -> int:
        disk = self._machine.disk
        number = int(disk.read(_PRODUCER_IDS)) + 1 if disk.exists(_PRODUCER_IDS) else 1
        disk.write_atomically(_PRODUCER_IDS, str(number).encode())
        return number

    async def _produce(self, request: Any) -> Message:
        answer = PartitionProduceResponse(index=0)
        try:
            records = memoryview(bytes(request.topic_data[0].partition_data[0].records))
            headers = validate_produce(records, max_batch_bytes=1_000_000)
            if self._flaw is Flaw.DOUBLES_ON_RETRY:
                headers = [header._replace(producer_id=-1) for header in headers]
            info = self.log.append_as_leader(records, headers, 0)
            if self._flaw is not Flaw.ANSWERS_BEFORE_SYNC:
                await self.log.flush()
            self._appended.set()
            self._appended = asyncio.Event()
            answer = PartitionProduceResponse(index=0, base_offset=info.first_offset)
        except KafkaError as error:
            answer = PartitionProduceResponse(index=0, error_code=error.code, base_offset=-1)
        return ProduceResponse(
            responses=[TopicProduceResponse(name=PARTITION.topic, partition_responses=[answer])]
        )

    def _readable_offset(self) -> int:
        unsynced = self._flaw in (Flaw.SERVES_UNSYNCED, Flaw.ANSWERS_BEFORE_SYNC)
        return self.log.log_end_offset if unsynced else self.log.flushed_offset

    async def _fetch(self, request: Any) -> Message:
        wanted = request.topics[0].partitions[0]
        if wanted.fetch_offset >= self._readable_offset():
            try:
                async with asyncio.timeout(request.max_wait_ms / 1_000):
                    await self._appended.wait()
            except TimeoutError:
                pass
        end = self._readable_offset()
        try:
            result = self.log.read(wanted.fetch_offset, wanted.partition_max_bytes, upper_bound_offset=end)
            answer = PartitionData(
                high_watermark=end,
                last_stable_offset=end,
                log_start_offset=0,
                records=[bytes(view) for view in result.views],
            )
        except KafkaError as error:
            answer = PartitionData(error_code=error.code, high_watermark=-1)
        topic = FetchableTopicResponse(topic=PARTITION.topic, partitions=[answer])
        return FetchResponse(error_code=ErrorCode.none, responses=[topic])


class _Connection(asyncio.Protocol):
    """Sends responses in the order of the requests. The syncs of several appends overlap."""

    def __init__(self, node: TinyNode) -> None:
        self._node = node
        self._received = bytearray()
        self._queue: asyncio.Queue[tuple[RequestHeader, asyncio.Task[Message]]] = asyncio.Queue()
        self._transport: asyncio.Transport | None = None
        self._writer: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._writer = asyncio.get_running_loop().create_task(self._write())

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            size = int.from_bytes(self._received[:4], "big")
            if len(self._received) < 4 + size:
                return
            frame = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            header, start = parse_request_header(frame)
            request = decode_request(header.api_key, header.api_version, memoryview(frame)[start:])
            task = asyncio.get_running_loop().create_task(self._node.answer(header, request))
            self._queue.put_nowait((header, task))

    async def _write(self) -> None:
        while True:
            header, task = await self._queue.get()
            body = encode_response(header.api_key, header.api_version, await task)
            frame = response_frame(header.correlation_id, header.api_key, header.api_version, body)
            if self._transport is not None:
                self._transport.writelines(frame)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._writer is not None:
            self._writer.cancel()
