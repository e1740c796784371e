"""The cost of a request inside a node: its own code and the page cache, without sockets or a client.

``python -m bench.inside`` runs a node in this process. It gives one of the node's connections the bytes that
a producer would send, and measures the CPU time of this thread. Other processes have little effect, so two
versions of the code can be compared on a busy machine. ``--profile`` prints the time of each function (it
overstates the cost of calls).

``python -m bench.inside validation`` compares three levels of checks of a produced batch: all rules for its
header, only size and checksum, and no checks. The rounds alternate in one process.
"""

import argparse
import asyncio
import cProfile
import pstats
import tempfile
import time
from statistics import median
from typing import Any

import uvloop
from crc32c import crc32c

from bench.loads import canned
from moldau.network.connection import ServerConnection
from moldau.network.server import SocketServer
from moldau.records.batch import CHECKED_FROM, LOG_OVERHEAD_BYTES, MAGIC, BatchHeader, parse_header
from moldau.replication import classic_partition
from moldau.runtime.buffers import Buffer
from moldau.runtime.garbage_collection import collect_rarely
from moldau.runtime.machine import Machine
from moldau.server.node import ServerNode
from moldau.server.settings import development_config
from moldau.server.subsystems.listeners import ListenersSubsystem

TOPIC = "inside"


class Wire(asyncio.Transport):
    """Counts the bytes that are written to it."""

    def __init__(self) -> None:
        super().__init__(extra={"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.size_bytes = 0
        self.paused = False
        self.protocol: ServerConnection | None = None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: Any) -> None:
        self.size_bytes += len(data)

    def writelines(self, parts: Any) -> None:
        self.size_bytes += sum(map(len, parts))

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    async def reading(self) -> None:
        """Wait until the connection reads again. This takes a few iterations of the event loop."""
        while self.paused:  # noqa: ASYNC110
            await asyncio.sleep(0)

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        protocol, self.protocol = self.protocol, None
        if protocol is not None:
            protocol.connection_lost(None)


def connect(server: SocketServer) -> tuple[ServerConnection, Wire]:
    """A connection of the node's server without a socket."""
    connection, wire = ServerConnection(server, "PLAINTEXT", "PLAINTEXT"), Wire()
    wire.protocol = connection
    connection.connection_made(wire)
    return connection, wire


async def feed(connection: ServerConnection, wire: Wire, data: memoryview) -> None:
    """Deliver bytes as an event loop does. Each delivery has as many bytes as fit into the buffer. While the
    connection has paused reading, deliver no bytes."""
    while data:
        await wire.reading()
        room = connection.get_buffer(-1)
        size = min(len(room), len(data))
        room[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]


async def create_topic(address: Any) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": str(address)})
    made = admin.create_topics([NewTopic(TOPIC, num_partitions=1, replication_factor=1)])[TOPIC]
    await asyncio.to_thread(made.result, 30)


async def produce(server: SocketServer, options: argparse.Namespace) -> None:
    connection, wire = connect(server)
    request = canned.produce_frame(TOPIC, 0, options.size)
    burst = memoryview(request * options.burst)
    await feed(connection, wire, burst)
    answer_bytes = wire.size_bytes // options.burst
    profile = cProfile.Profile(time.thread_time) if options.profile else None
    for _ in range(options.rounds):
        wire.size_bytes = 0
        start = time.thread_time()
        if profile is not None:
            profile.enable()
        for _ in range(options.requests // options.burst):
            await feed(connection, wire, burst)
        await wire.reading()
        if profile is not None:
            profile.disable()
        spent_s = time.thread_time() - start
        count = options.requests // options.burst * options.burst
        assert wire.size_bytes == count * answer_bytes
        print(f"{spent_s / count * 1e6:6.2f} us CPU a request")
    wire.close()
    if profile is not None:
        print_profile(profile)


async def poll(server: SocketServer, options: argparse.Namespace) -> None:
    """Fetches that find no records and wait. Each connection repeats its fetch when it gets the response."""
    connections = [connect(server) for _ in range(options.connections)]
    request = memoryview(canned.fetch_frame(TOPIC, {0: 0}, canned.LONG_POLL_MS))
    profile = cProfile.Profile(time.thread_time) if options.profile else None
    for _ in range(options.rounds):
        start = time.thread_time()
        if profile is not None:
            profile.enable()
        for position, (connection, wire) in enumerate(connections):
            wire.size_bytes = 0
            await feed(connection, wire, request)
            if position % options.burst == options.burst - 1:
                await asyncio.sleep(canned.LONG_POLL_MS / 1000 / len(connections) * options.burst)
        for _ in range(100):
            if all(wire.size_bytes for _, wire in connections):
                break
            await asyncio.sleep(canned.LONG_POLL_MS / 1000 / 10)
        if profile is not None:
            profile.disable()
        spent_s = time.thread_time() - start
        print(f"{spent_s / len(connections) * 1e6:6.2f} us CPU a poll")
    for _, wire in connections:
        wire.close()
    if profile is not None:
        print_profile(profile)


def print_profile(profile: cProfile.Profile) -> None:
    """Print each function's time without its callees, and the total time of all functions in each file."""
    stats = pstats.Stats(profile).sort_stats("tottime")
    stats.print_stats(30)
    by_file: dict[str, float] = {}
    for (path, _, _), (_, _, own_s, _, _) in stats.stats.items():  # type: ignore[attr-defined]
        name = path.rpartition("/moldau/")[2] if "/moldau/" in path else "elsewhere"
        by_file[name] = by_file.get(name, 0.0) + own_s
    whole_s = sum(by_file.values())
    for name, own_s in sorted(by_file.items(), key=lambda each: -each[1])[:20]:
        print(f"{own_s / whole_s * 100:5.1f} % {name}")


def _size_and_crc(buffer: Buffer, *, max_batch_bytes: int) -> list[BatchHeader]:
    """Check only the size, the format version and the checksum of a batch."""
    header = parse_header(buffer)
    size = header[1] + LOG_OVERHEAD_BYTES  # by index, as in the broker
    if (
        size != len(buffer)
        or header[3] != MAGIC
        or size > max_batch_bytes
        or crc32c(memoryview(buffer)[CHECKED_FROM:]) != header[4]
    ):
        raise ValueError("not a whole batch")
    return [header]


def _nothing(buffer: Buffer, *, max_batch_bytes: int) -> list[BatchHeader]:
    return [parse_header(buffer)]


async def validation(server: SocketServer, options: argparse.Namespace) -> None:
    """Produce with all rules, with size and checksum only, and without checks. The three variants
    alternate."""
    connection, wire = connect(server)
    burst = memoryview(canned.produce_frame(TOPIC, 0, options.size) * options.burst)
    rules = {"all rules": classic_partition.validate_produce, "size and CRC": _size_and_crc, "none": _nothing}
    spent: dict[str, list[float]] = {name: [] for name in rules}
    for number in range(options.rounds + 1):
        for name, rule in rules.items():
            classic_partition.validate_produce = rule  # type: ignore[assignment]
            start = time.thread_time()
            for _ in range(options.requests // options.burst):
                await feed(connection, wire, burst)
            await wire.reading()
            if number:  # the first round is only a warm-up
                count = options.requests // options.burst * options.burst
                spent[name].append((time.thread_time() - start) / count * 1e6)
    wire.close()
    for name, each in spent.items():
        ratios = [one / other for one, other in zip(spent["all rules"], each, strict=True)]
        print(
            f"| {name} | {median(each):.2f} ({min(each):.2f}-{max(each):.2f})"
            f" | {min(spent['all rules']) / min(each):.3f} | {median(ratios):.3f} |"
        )


LOADS = {"produce": produce, "poll": poll, "validation": validation}


async def run(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="moldau-inside-", dir=options.data) as folder:
        config = development_config(folder, 0, {}, diskless=False)
        node = ServerNode(config, Machine.real(), format_new=True)
        address = await node.start()
        try:
            await create_topic(address)
            collect_rarely()  # the command line calls this function, too
            listeners = node.find(ListenersSubsystem)
            assert listeners is not None
            await LOADS[options.load](listeners.server, options)
        finally:
            await node.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.inside", description=__doc__)
    parser.add_argument("load", choices=LOADS, nargs="?", default="produce")
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=1024, help="bytes of the one record of a request")
    parser.add_argument("--burst", type=int, default=256, help="requests that arrive together")
    parser.add_argument("--connections", type=int, default=1000, help="that poll")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", help="where the logs are kept meanwhile")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(options))


if __name__ == "__main__":
    main()
