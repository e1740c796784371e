"""Loads for tiered topics that a parent process controls: ``python -m bench.loads.tiered_load LOAD SPEC``.

Each load reads JSON lines from stdin, and responds with JSON lines on stdout. A *slice* is one part of the
measurement, and takes some seconds. The process and its connections continue after a slice, so slices of
different kinds can follow each other.
"""

import contextlib
import json
import os
import pathlib
import queue
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final
from uuid import UUID

from bench.loads import canned
from bench.loads.load import cpu_s, percentiles
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from moldau.protocol.special_timestamps import EARLIEST_LOCAL_TIMESTAMP

LEAST_PRIORITY: Final = 19
PARTITION_BYTES: Final = 1 << 20
"""The default limit of consumers for the bytes of each partition in a response. :data:`ANSWER_BYTES` is their
limit for the whole response."""
ANSWER_BYTES: Final = 50 << 20
LIST_OFFSETS_VERSION: Final = 8
BATCH_HEAD_BYTES: Final = 27
"""Number of bytes from the start of a batch to the end of the field "last offset delta" in its header."""
DISCARD_BYTES: Final = 1 << 20
_batch_head: Final = struct.Struct(">qi11xi").unpack_from


def steady(spec: dict[str, Any]) -> None:
    """A producer at a fixed rate and a consumer at the end of the topic. Each command is one slice, with a
    topic and a number of seconds."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": spec["bootstrap"], "linger.ms": spec["linger_ms"]})
    padding = bytes(spec["record_size"] - 8)
    with tail(spec) as follow:
        for command in commands():
            follow(command["topic"])
            acknowledged_ms: list[float] = []

            def delivered(error: object, message: Any, found: list[float] = acknowledged_ms) -> None:
                if error is not None:
                    raise RuntimeError(str(error))
                found.append(message.latency() * 1000)

            total = int(spec["rate"] * command["seconds"])
            cpu_before_s, start = cpu_s(), time.perf_counter()
            for number in range(total):
                due = start + number / spec["rate"]
                while (ahead := due - time.perf_counter()) > 0:
                    producer.poll(0)
                    time.sleep(min(ahead, 0.0005))
                value = time.perf_counter_ns().to_bytes(8, "big") + padding
                partition = number % spec["partitions"]
                producer.produce(command["topic"], value, partition=partition, on_delivery=delivered)
            producer.flush(20)
            wall_s = time.perf_counter() - start
            # The first tenth warms up connections and caches.
            answer = percentiles("ack", acknowledged_ms[total // 10 :])
            share = (cpu_s() - cpu_before_s) / wall_s
            tell({**answer, "records_per_s": len(acknowledged_ms) / wall_s, "client_share": share})


@contextlib.contextmanager
def tail(spec: dict[str, Any]) -> Iterator[Callable[[str], None]]:
    """A reader at the end of a topic, until the end of the block. The block gets a function that sets the
    reader's topic."""
    from confluent_kafka import OFFSET_END, Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": spec["bootstrap"], "group.id": "bench", "enable.auto.commit": False}
    )
    over = threading.Event()
    wanted: queue.SimpleQueue[str] = queue.SimpleQueue()

    def receive() -> None:
        while not over.is_set():
            with contextlib.suppress(queue.Empty):
                topic = wanted.get_nowait()
                numbers = range(spec["partitions"])
                consumer.assign([TopicPartition(topic, number, OFFSET_END) for number in numbers])
            consumer.poll(0.05)

    receiver = threading.Thread(target=receive)
    receiver.start()
    try:
        yield wanted.put
    finally:
        over.set()
        receiver.join()
        consumer.close()


def catch_up(spec: dict[str, Any]) -> None:
    """One consumer that reads the remote part again and again. It should disturb the broker as little as a
    consumer on another machine.

    Therefore its process has the lowest priority, and so has the session of the process (``setsid``). It
    reads only the first bytes of each batch, and the kernel discards the other bytes without copying them. A
    command begins a slice, and the next command ends this slice.
    """
    os.setsid()
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/self/autogroup").write_text(f"{LEAST_PRIORITY}\n")
    os.nice(LEAST_PRIORITY)
    reader = CatchUpReader(spec["bootstrap"], spec["topic"], spec["partitions"])
    for _ in commands():
        before_bytes, cpu_before_s, start = reader.size_bytes, cpu_s(), time.perf_counter()
        while not select.select([sys.stdin], [], [], 0)[0]:
            reader.fetch()
        wall_s = time.perf_counter() - start
        sys.stdin.readline()
        share = (cpu_s() - cpu_before_s) / wall_s
        tell({"mb_per_s": (reader.size_bytes - before_bytes) / wall_s / 1e6, "client_share": share})


class CatchUpReader:
    """A connection that fetches every partition from its beginning to the start of its local log."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.size_bytes = 0
        self._topic = topic
        self._connection = canned.connect(bootstrap)
        self._discard = bytearray(DISCARD_BYTES)
        self._left = 0
        self._ends = [self._local_start(partition) for partition in range(partitions)]
        self._offsets = [0] * partitions

    def _local_start(self, partition: int) -> int:
        row = ListOffsetsPartition(
            partition_index=partition, current_leader_epoch=-1, timestamp=EARLIEST_LOCAL_TIMESTAMP
        )
        topics = [ListOffsetsTopic(name=self._topic, partitions=[row])]
        request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics)
        self._connection.sendall(canned.frame(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, request))
        # The response for one partition ends with a timestamp, an offset, a leader epoch and three counts of
        # tagged fields.
        end: int = struct.unpack_from(">q", canned.receive_response(self._connection), -15)[0]
        if end <= 0:
            raise RuntimeError(f"nothing of {self._topic}-{partition} is remote")
        return end

    def fetch(self) -> None:
        """Send one request for all partitions, and read its response."""
        parts = [
            FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=PARTITION_BYTES)
            for number, offset in enumerate(self._offsets)
        ]
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=canned.LONG_POLL_MS,
            min_bytes=1,
            max_bytes=ANSWER_BYTES,
            session_id=0,
            session_epoch=-1,
            topics=[FetchTopic(topic=self._topic, topic_id=UUID(int=0), partitions=parts)],
        )
        self._connection.sendall(canned.frame(ApiKey.FETCH, canned.FETCH_VERSION, request))
        self._left = 4
        self._left = self._integer(">i")
        self._consume(4 + 4 + 2 + 4 + 4)  # correlation, throttle time, error, session, one topic
        self._consume(self._integer(">h"))
        for _ in range(self._integer(">i")):
            self._partition()
        assert not self._left

    def _partition(self) -> None:
        number, error = struct.unpack(">ih", self._consume(6))
        self._consume(8 + 8 + 8)
        aborted = self._integer(">i")
        self._consume(max(0, aborted) * 16 + 4)
        size = self._integer(">i")
        if error:
            raise RuntimeError(f"fetching {self._topic}-{number}: error {error}")
        self.size_bytes += size
        while size >= BATCH_HEAD_BYTES:
            base_offset, length, last_delta = _batch_head(self._consume(BATCH_HEAD_BYTES))
            self._skip(length + 12 - BATCH_HEAD_BYTES)
            size -= length + 12
            self._offsets[number] = base_offset + last_delta + 1
        if self._offsets[number] >= self._ends[number]:
            self._offsets[number] = 0

    def _integer(self, form: str) -> int:
        value: int = struct.unpack(form, self._consume(struct.calcsize(form)))[0]
        return value

    def _consume(self, size: int) -> bytes:
        self._left -= size
        return canned.receive_exactly(self._connection, size) if size else b""

    def _skip(self, size: int) -> None:
        self._left -= size
        while size:
            count = self._connection.recv_into(self._discard, min(size, DISCARD_BYTES), socket.MSG_TRUNC)
            if not count:
                raise ConnectionError("the broker closed the connection")
            size -= count


def commands() -> Iterator[dict[str, Any]]:
    """Report that everything is prepared. Then yield the command in each line of the parent, until the parent
    closes the pipe."""
    tell({"ready": True})
    while line := sys.stdin.readline():
        yield json.loads(line)


def tell(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


LOADS: Final[dict[str, Callable[[dict[str, Any]], None]]] = {"steady": steady, "catch_up": catch_up}


def main() -> None:
    LOADS[sys.argv[1]](json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
