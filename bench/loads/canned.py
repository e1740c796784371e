"""Raw loads on plain sockets: requests that were encoded once, so that the client costs almost nothing."""

import select
import socket
import struct
import time
from collections.abc import Mapping
from uuid import UUID

from moldau.protocol.api import ApiKey
from moldau.protocol.codec import encode_request
from moldau.protocol.framing import RequestHeader, encode_request_header
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.protocol.schema import Message
from moldau.records.builder import build_batch
from moldau.records.record import Record

PRODUCE_VERSION = 9
FETCH_VERSION = 11
"""The versions of both requests are so old that every Kafka since 2.4 handles them in the same way. In these
versions, requests identify topics by name."""
PIPELINE_DEPTH = 256
"""Number of requests in one write. At most twice as many requests are in flight. (Moldau reads up to 512
requests of a connection before the first response.)"""

LONG_POLL_MS = 500
"""Maximum wait of an idle consumer's fetch. This is the default of librdkafka and of the Java client."""


def frame(api_key: ApiKey, version: int, message: Message) -> bytes:
    """A whole request with its length. All requests have the same correlation id."""
    header = encode_request_header(RequestHeader(api_key, version, 7, "bench"))
    body = b"".join([bytes(header), *map(bytes, encode_request(api_key, version, message))])
    return struct.pack(">i", len(body)) + body


def produce_frame(topic: str, partition: int, record_size_bytes: int) -> bytes:
    """A Produce request with one record and acks=all."""
    record = Record(0, 1_700_000_000_000, None, bytes(record_size_bytes), ())
    data = PartitionProduceData(index=partition, records=build_batch([record]))
    return frame(
        ApiKey.PRODUCE,
        PRODUCE_VERSION,
        ProduceRequest(
            acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
        ),
    )


def fetch_frame(topic: str, offsets: Mapping[int, int], max_wait_ms: int) -> bytes:
    """A Fetch request outside any session. ``offsets`` has the offset for each partition."""
    parts = [
        FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        for partition, offset in offsets.items()
    ]
    return frame(
        ApiKey.FETCH,
        FETCH_VERSION,
        FetchRequest(
            replica_id=-1,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=50 << 20,
            session_id=0,
            session_epoch=-1,
            topics=[FetchTopic(topic=topic, topic_id=UUID(int=0), partitions=parts)],
        ),
    )


def connect(bootstrap: str) -> socket.socket:
    host, _, port = bootstrap.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(size)
        if not part:
            raise ConnectionError("the broker closed the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def receive_response(connection: socket.socket) -> bytes:
    """One response, with its length."""
    head = receive_exactly(connection, 4)
    return head + receive_exactly(connection, struct.unpack(">i", head)[0])


class Pipeline:
    """One connection that keeps produce requests in flight. All responses have the same size,
    so the number of received bytes gives the number of responses."""

    def __init__(self, bootstrap: str, topic: str, partition: int, record_size_bytes: int) -> None:
        request = produce_frame(topic, partition, record_size_bytes)
        self._burst = memoryview(request * PIPELINE_DEPTH)
        self._connection = connect(bootstrap)
        self._connection.sendall(request)
        self._response_size = len(receive_response(self._connection))
        self._connection.setblocking(False)
        self._scratch = bytearray(1 << 20)
        self._rest = self._burst[:0]
        self.sent = 0
        self.answered = 0
        self._answered_bytes = 0

    def fileno(self) -> int:
        return self._connection.fileno()

    def wants_to_write(self, goal: int) -> bool:
        return bool(self._rest) or (self.sent < goal and self.sent - self.answered <= PIPELINE_DEPTH)

    def write(self) -> None:
        if not self._rest:
            self._rest = self._burst
            self.sent += PIPELINE_DEPTH
        self._rest = self._rest[self._connection.send(self._rest) :]

    def read(self) -> None:
        size = self._connection.recv_into(self._scratch)
        if not size:
            raise ConnectionError("the broker closed the connection")
        self._answered_bytes += size
        self.answered = self._answered_bytes // self._response_size

    def close(self) -> None:
        self._connection.close()


def run_pipelines(pipelines: list[Pipeline], requests_each: int) -> None:
    """Send ``requests_each`` requests on every connection, and read all responses. ``requests_each`` must be
    a multiple of :data:`PIPELINE_DEPTH`.
    """
    poller = select.poll()
    by_number = {pipeline.fileno(): pipeline for pipeline in pipelines}
    goals = {number: pipeline.sent + requests_each for number, pipeline in by_number.items()}
    for number in by_number:
        poller.register(number, select.POLLIN | select.POLLOUT)
    while by_number:
        for number, events in poller.poll(1000):
            pipeline, goal = by_number[number], goals[number]
            if events & (select.POLLERR | select.POLLHUP):
                raise ConnectionError("the broker closed the connection")
            if events & select.POLLIN:
                pipeline.read()
            if events & select.POLLOUT and pipeline.wants_to_write(goal):
                pipeline.write()
            if pipeline.answered >= goal:
                poller.unregister(number)
                del by_number[number]
                continue
            writing = select.POLLOUT if pipeline.wants_to_write(goal) else 0
            poller.modify(number, select.POLLIN | writing)


def hold_long_polls(bootstrap: str, topic: str, count: int, max_wait_ms: int) -> "LongPolls":
    """Open ``count`` connections of consumers that wait for the first record of ``topic``."""
    request = fetch_frame(topic, {0: 0}, max_wait_ms)
    connections = []
    for position in range(count):
        connections.append(connect(bootstrap))
        if position % 20 == 19:
            time.sleep(0.01)  # the default socket.listen.backlog.size is 50, as in Kafka
    return LongPolls(connections, request)


class LongPolls:
    """Consumers that find no new records and repeat their requests."""

    def __init__(self, connections: list[socket.socket], request: bytes) -> None:
        self._connections = {connection.fileno(): connection for connection in connections}
        self._request = request
        self._poller = select.epoll()

    def start(self) -> None:
        """Send every consumer's first request. Like requests of real consumers, these requests are spread
        over the duration of a poll."""
        for position, (number, connection) in enumerate(self._connections.items()):
            self._poller.register(number, select.EPOLLIN)
            connection.sendall(self._request)
            if position % 20 == 19:
                time.sleep(0.009)

    def run(self, seconds: float) -> int:
        """Keep every consumer waiting for ``seconds``. Returns the number of polls that got a response."""
        answered = 0
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for number, _ in self._poller.poll(0.1):
                connection = self._connections[number]
                if not connection.recv(4096):
                    raise ConnectionError("the broker closed the connection")
                connection.sendall(self._request)
                answered += 1
        return answered
