"""``python -m bench.partitions [COUNT ...]``: a node with many partitions.

For each count, it measures five durations: the creation of this number of partitions in one request, a
request for their metadata, sending a record to each partition, a restart, and the deletion of the partitions.
It also measures the memory, the number of descriptors, and the longest time for which another client gets no
response.
"""

import argparse
import os
import pathlib
import signal
import socket
import struct
import tempfile
import threading
import time
from typing import Any, Final

from bench.brokers import Moldau
from bench.measuring.report import Report, environment, rounded
from moldau.protocol.api import request_header_version, response_header_version
from moldau.protocol.codec import decode_response, encode_request
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.protocol.schema import Message
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime.errors import ErrorCode

METADATA: Final = (3, 12)
PRODUCE: Final = (0, 9)
CREATE_TOPICS: Final = (19, 7)
DELETE_TOPICS: Final = (20, 6)
PING: Final = struct.pack(">ihhih", 10, 18, 0, 7, -1)
"""An ApiVersions request, version 0, without a client id."""
PING_PAUSE_S: Final = 0.001
STOP_TIMEOUT_S: Final = 600


class Connection:
    """A blocking connection that sends one request at a time."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=600)

    def call(self, api: tuple[int, int], message: Message) -> Any:
        header = struct.pack(">hhih", *api, 1, -1) + (b"\0" if request_header_version(*api) == 2 else b"")
        body = b"".join(encode_request(*api, message))
        self._socket.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        (size,) = struct.unpack(">i", self.exactly(4))
        return decode_response(*api, memoryview(self.exactly(size))[4 + response_header_version(*api) :])

    def ping(self) -> None:
        self._socket.sendall(PING)
        (size,) = struct.unpack(">i", self.exactly(4))
        self.exactly(size)

    def exactly(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            piece = self._socket.recv(size - len(content))
            if not piece:
                raise EOFError("the node closed the connection")
            content += piece
        return bytes(content)

    def close(self) -> None:
        self._socket.close()


class Pinger:
    """A client that sends small requests to a node from its own thread while the block runs."""

    def __init__(self, bootstrap: str) -> None:
        self._connection = Connection(bootstrap)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.longest_s = 0.0

    def __enter__(self) -> "Pinger":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while not self._stopped.wait(PING_PAUSE_S):
            start = time.perf_counter()
            self._connection.ping()
            self.longest_s = max(self.longest_s, time.perf_counter() - start)


class RestartableMoldau(Moldau):
    """A node that can be started again with its data."""

    def restart(self) -> float:
        """Stop the node and start it again. Returns the seconds from the start until the node is ready."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(STOP_TIMEOUT_S)
        start = time.perf_counter()
        self._process, self.bootstrap = self._start()
        return time.perf_counter() - start

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))


def produce_to_all(connection: Connection, topic: str, count: int) -> None:
    """Send one record to each partition, in order. The request is repeated for a partition that does not
    exist yet."""
    batch = build_batch([Record(0, 0, None, b"value", ())])
    for start in range(0, count, 100):
        waiting = list(range(start, min(start + 100, count)))
        while waiting:
            data = [PartitionProduceData(index=index, records=batch) for index in waiting]
            request = ProduceRequest(
                acks=-1, timeout_ms=60_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
            )
            answers = connection.call(PRODUCE, request).responses[0].partition_responses
            refused = {answer.error_code for answer in answers} - {ErrorCode.none}
            if refused - {ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_or_partition}:
                raise RuntimeError(f"produce was refused: {refused}")
            waiting = [answer.index for answer in answers if answer.error_code is not ErrorCode.none]


def bench_count(report: Report, folder: pathlib.Path, count: int) -> None:
    node = RestartableMoldau(folder)
    title = f"{count} partitions"

    def row(what: str, seconds: float, pinger: Pinger | None) -> None:
        report.add(
            title,
            {
                "what": what,
                "seconds": rounded(seconds),
                "longest silence, ms": "" if pinger is None else round(pinger.longest_s * 1000),
                "RSS, MB": round(node.usage().rss_bytes / 1e6),
                "descriptors": node.descriptors(),
            },
        )

    try:
        with Pinger(node.bootstrap) as pinger:
            time.sleep(1)
        row("at rest", 1, pinger)
        connection = Connection(node.bootstrap)
        with Pinger(node.bootstrap) as pinger:
            start = time.perf_counter()
            topic = CreatableTopic(name="many", num_partitions=count, replication_factor=1)
            answer = connection.call(CREATE_TOPICS, CreateTopicsRequest(topics=[topic], timeout_ms=600_000))
            if answer.topics[0].error_code is not ErrorCode.none:
                raise RuntimeError(f"not created: {answer.topics[0]}")
            created_s = time.perf_counter() - start
        row("create in one request", created_s, pinger)
        with Pinger(node.bootstrap) as pinger:
            start = time.perf_counter()
            connection.call(METADATA, MetadataRequest(topics=[MetadataRequestTopic(name="many")]))
            asked_s = time.perf_counter() - start
        row("describe", asked_s, pinger)
        with Pinger(node.bootstrap) as pinger:
            start = time.perf_counter()
            produce_to_all(connection, "many", count)
            produced_s = time.perf_counter() - start
        row("first record to each", produced_s, pinger)
        connection.close()
        row("restart", node.restart(), None)
        connection = Connection(node.bootstrap)
        with Pinger(node.bootstrap) as pinger:
            start = time.perf_counter()
            connection.call(
                DELETE_TOPICS, DeleteTopicsRequest(topics=[DeleteTopicState(name="many")], timeout_ms=600_000)
            )
            deleted_s = time.perf_counter() - start
            time.sleep(2)
        row("delete in one request", deleted_s, pinger)
        connection.close()
    finally:
        node.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.partitions", description=__doc__)
    parser.add_argument("counts", nargs="*", type=int, default=[1000, 10_000])
    parser.add_argument("--data", type=pathlib.Path, help="folder for the node's data")
    arguments = parser.parse_args()
    report = Report("partitions", environment({}))
    with tempfile.TemporaryDirectory(dir=arguments.data) as folder:
        for count in arguments.counts:
            bench_count(report, pathlib.Path(folder) / str(count), count)
    report.print()
    report.write()


if __name__ == "__main__":
    main()
