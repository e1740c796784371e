"""The cost of saving the cluster's own logs: ``python -m bench.saves [--rounds 5] [--seconds 10]``.

A development node runs in this process with the default settings, but it saves only when the bench requests a
save. Clients in another process produce to 12 diskless partitions as fast as they can, commit the offsets of
a group, and run transactions. After an interval the clients stop, and the bench measures one save. The cost
is the CPU time of this process during the save, in percent of the interval.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import suppress
from statistics import median
from typing import Any, Final, NamedTuple

import uvloop

from moldau.runtime.garbage_collection import collect_rarely
from moldau.runtime.machine import Machine
from moldau.server.node import ServerNode
from moldau.server.settings import development_config
from moldau.server.subsystems.backup.subsystem import BackupSubsystem

TOPIC: Final = "saves"
PARTITIONS: Final = 12
NEVER_MS: Final = 2_000_000_000
REST_S: Final = 3.0
"""Pause before a save. In this time the node ends its work on the last requests of the clients."""
INTERVAL_S: Final = 10.0
"""The default of ``backup.interval.ms``."""


def load(bootstrap: str, seconds: float) -> None:
    """Produce, commit offsets and run transactions for some time. Prints the numbers of these operations."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    value, sent, commits, transactions = bytes(1024), 0, 0, 0
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.kbytes": 65_536})
    group = Consumer({"bootstrap.servers": bootstrap, "group.id": "saves", "enable.auto.commit": False})
    moving = Producer({"bootstrap.servers": bootstrap, "transactional.id": "saves"})
    moving.init_transactions(30)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        for _ in range(500):
            with suppress(BufferError):
                producer.produce(TOPIC, value, partition=sent // 50 % PARTITIONS)
                sent += 1
        producer.poll(0)
        group.commit(offsets=[TopicPartition(TOPIC, 0, commits)], asynchronous=True)
        commits += 1
        if commits % 10 == 0:
            moving.begin_transaction()
            moving.produce(TOPIC, value, partition=transactions % PARTITIONS)
            moving.commit_transaction(30)
            transactions += 1
    producer.flush(60)
    group.close()
    print(f"{sent:,} records, {commits:,} commits of offsets, {transactions:,} transactions")


class Save(NamedTuple):
    """The cost of one save."""

    cpu_s: float
    puts: float
    size_bytes: float


class SavesBench:
    """A node in this process. Its saves are measured one at a time."""

    def __init__(self, node: ServerNode) -> None:
        self._subsystem = node.get(BackupSubsystem)
        scope = self._subsystem.meters
        self._puts, self._bytes = scope.counter("ObjectsPerSec"), scope.counter("BytesPerSec")

    async def save(self) -> Save:
        puts, size_bytes = self._puts.value, self._bytes.value
        cpu_began = time.process_time()
        await self._subsystem.maker.run_once()
        cpu_s = time.process_time() - cpu_began
        return Save(cpu_s, self._puts.value - puts, self._bytes.value - size_bytes)


async def _create_topic(address: Any) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": str(address)})
    made = admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)])[TOPIC]
    await asyncio.to_thread(made.result, 30)


async def run(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="moldau-saves-") as folder:
        config = development_config(folder, 0, {"backup.interval.ms": str(NEVER_MS)}, diskless=True)
        node = ServerNode(config, Machine.real(), format_new=True)
        address = await node.start()
        try:
            await _create_topic(address)
            collect_rarely()  # the command line calls this function, too
            await _measure(SavesBench(node), str(address), options)
        finally:
            await node.stop()


async def _measure(bench: SavesBench, bootstrap: str, options: argparse.Namespace) -> None:
    saves: list[Save] = []
    for number in range(options.rounds + 1):
        arguments = ["-m", "bench.saves", "--load", bootstrap, "--seconds", str(options.seconds)]
        clients = await asyncio.create_subprocess_exec(sys.executable, *arguments)
        if await clients.wait() != 0:
            raise RuntimeError("the clients failed")
        await asyncio.sleep(REST_S)
        save, again = await bench.save(), await bench.save()
        if number:  # the first save stores whole logs
            saves.append(save)
        print(f"save: {save}; at once again: {again}")
    share = median(each.cpu_s for each in saves) / INTERVAL_S
    puts = max(each.puts for each in saves) / INTERVAL_S
    print(f"CPU: {100 * share:.2f} % of a core; at most {puts:.1f} PUTs a second")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.saves", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=INTERVAL_S)
    parser.add_argument("--load", metavar="BOOTSTRAP", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load is not None:
        load(options.load, options.seconds)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(options))


if __name__ == "__main__":
    main()
