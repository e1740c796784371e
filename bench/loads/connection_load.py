"""Loads with many connections, in one separate process: ``python -m bench.loads.connection_load SPEC``.

The connections are plain sockets with encoded requests, so that thousands of them need little CPU time of the
client.
"""

import itertools
import select
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any, Final

from bench.loads import canned, load
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.records.batch import iter_headers

Spec = dict[str, Any]

CONNECTS_AT_ONCE: Final = 20
"""Number of connections that are opened without a pause. The default backlog of a listener is 50, as in
Kafka."""
PAUSE_S: Final = 0.01
LAST_S: Final = 5.0
"""Maximum wait for the responses to the last requests."""
SEARCHED_OFFSET: Final = 0x0102030405060708
"""An offset whose bytes do not occur elsewhere in a Fetch request."""


def opened(bootstrap: str, count: int) -> list[socket.socket]:
    """Connections, each after its first request and response (ApiVersions), as clients make them."""
    request = canned.frame(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
    connections = []
    for position in range(count):
        connection = canned.connect(bootstrap)
        connection.sendall(request)
        canned.receive_response(connection)
        connections.append(connection)
        if position % CONNECTS_AT_ONCE == CONNECTS_AT_ONCE - 1:
            time.sleep(PAUSE_S)
    return connections


def idle_connections(spec: Spec) -> load.Result:
    """``connections`` connections that send nothing for ``seconds``."""
    connections = opened(spec["bootstrap"], spec["connections"])
    start = load.wait_for_go()
    time.sleep(spec["seconds"])
    wall_s = time.perf_counter() - start
    load.finished()
    for connection in connections:
        connection.close()
    return {"wall_s": wall_s, "records": 0}


def slow_producers(spec: Spec) -> load.Result:
    """``connections`` producers for ``seconds``. Each sends one record each second, at different times."""
    count, partitions = spec["connections"], spec["partitions"]
    frames = [
        canned.produce_frame(spec["topic"], number, spec["record_size"]) for number in range(partitions)
    ]
    connections = opened(spec["bootstrap"], count)
    poller = select.epoll()
    by_number = {}
    for position, connection in enumerate(connections):
        by_number[connection.fileno()] = position
        poller.register(connection.fileno(), select.EPOLLIN)
    sent_s = [0.0] * count
    acknowledged_ms: list[float] = []

    def receive(wait_s: float) -> None:
        for number, _ in poller.poll(wait_s):
            position = by_number[number]
            response = canned.receive_response(connections[position])
            _check_produced(response, spec["topic"])
            acknowledged_ms.append((time.perf_counter() - sent_s[position]) * 1000)

    start = load.wait_for_go()
    total = count * spec["seconds"]
    for turn in range(total):
        due = start + turn / count
        while (ahead := due - time.perf_counter()) > 0:
            receive(ahead)
        sent_s[turn % count] = time.perf_counter()
        connections[turn % count].sendall(frames[turn % partitions])
    deadline = time.perf_counter() + LAST_S
    while len(acknowledged_ms) < total and time.perf_counter() < deadline:
        receive(0.1)
    wall_s = time.perf_counter() - start
    load.finished()
    for connection in connections:
        connection.close()
    if len(acknowledged_ms) != total:
        raise RuntimeError(f"{len(acknowledged_ms)} of {total} requests got a response")
    return {"wall_s": wall_s, "records": total, **load.percentiles("ack", acknowledged_ms[total // 10 :])}


def _check_produced(response: bytes, topic: str) -> None:
    # length, correlation id, number of topics, topic, number of partitions, partition (flexible version)
    (error,) = struct.unpack_from(">h", response, 8 + 1 + 1 + 1 + len(topic) + 1 + 4)
    if error:
        raise RuntimeError(f"a produce request failed with error {error}")


class TailReader:
    """A consumer at the end of all partitions of a topic, on one connection."""

    def __init__(self, connection: socket.socket, topic: str, partitions: int, max_wait_ms: int) -> None:
        searched = {number: SEARCHED_OFFSET + number for number in range(partitions)}
        request = canned.fetch_frame(topic, searched, max_wait_ms)
        self._connection = connection
        self._request = bytearray(request)
        self._positions = [request.index(each.to_bytes(8, "big")) for each in searched.values()]
        # length, correlation id, throttle time, error, session, number of topics, topic, number of partitions
        self._head_size = 4 + 4 + 4 + 2 + 4 + 4 + (2 + len(topic)) + 4
        self.offsets = [0] * partitions

    def ask(self) -> None:
        """Request the records after those that were received."""
        for position, offset in zip(self._positions, self.offsets, strict=True):
            struct.pack_into(">q", self._request, position, offset)
        self._connection.sendall(self._request)

    def receive(self) -> Iterator[tuple[int, int]]:
        """Receive a response. Returns the new records, each with its partition and offset."""
        response = memoryview(canned.receive_response(self._connection))
        start = self._head_size
        found: list[tuple[int, int]] = []
        while start < len(response):
            # partition, error, three offsets, aborted transactions, preferred replica, size
            number, error, _, _, _, _, _, size = struct.unpack_from(">ihqqqiii", response, start)
            if error:
                raise RuntimeError(f"a fetch request failed with error {error}")
            start += struct.calcsize(">ihqqqiii")
            begin = self.offsets[number]
            for _, header in iter_headers(response[start : start + size]):
                self.offsets[number] = header.next_offset
            found += [(number, offset) for offset in range(begin, self.offsets[number])]
            start += size
        return iter(found)


def fan_out(spec: Spec) -> load.Result:
    """``connections`` consumers of all partitions, and a producer with ``rate`` records per second for
    ``seconds``. The measured time is the time from a record's request to its arrival at each consumer."""
    partitions = spec["partitions"]
    requests = [
        canned.produce_frame(spec["topic"], number, spec["record_size"]) for number in range(partitions)
    ]
    producer, *connections = opened(spec["bootstrap"], spec["connections"] + 1)
    readers = {
        each.fileno(): TailReader(each, spec["topic"], partitions, canned.LONG_POLL_MS)
        for each in connections
    }
    poller = select.epoll()
    for number in (*readers, producer.fileno()):
        poller.register(number, select.EPOLLIN)
    sent_s: list[float] = []
    arrived_ms: list[float] = []
    waiting = 0

    def receive(wait_s: float) -> None:
        nonlocal waiting
        for number, _ in poller.poll(wait_s):
            if number == producer.fileno():
                _check_produced(canned.receive_response(producer), spec["topic"])
                waiting -= 1
                continue
            reader = readers[number]
            found, now_s = reader.receive(), time.perf_counter()
            reader.ask()
            arrived_ms.extend(
                (now_s - sent_s[offset * partitions + number]) * 1000 for number, offset in found
            )

    for reader in readers.values():
        reader.ask()
    total = int(spec["rate"] * spec["seconds"])
    start = load.wait_for_go()
    for turn in itertools.count():
        due = start + turn / spec["rate"]
        while (ahead := due - time.perf_counter()) > 0:
            receive(ahead)
        if turn == total:
            break
        sent_s.append(time.perf_counter())
        producer.sendall(requests[turn % partitions])
        waiting += 1
    deadline = time.perf_counter() + LAST_S
    while len(arrived_ms) < total * len(readers) and time.perf_counter() < deadline:
        receive(0.1)
    wall_s = time.perf_counter() - start
    load.finished()
    for connection in (producer, *connections):
        connection.close()
    if waiting or len(arrived_ms) != total * len(readers):
        raise RuntimeError(f"{len(arrived_ms)} of {total * len(readers)} records arrived")
    return {
        "wall_s": wall_s,
        "records": len(arrived_ms),
        **load.percentiles("end_to_end", arrived_ms[len(arrived_ms) // 10 :]),
    }


load.LOADS |= {
    "idle_connections": idle_connections,
    "slow_producers": slow_producers,
    "fan_out": fan_out,
}

if __name__ == "__main__":
    load.main()
