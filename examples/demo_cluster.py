"""A Moldau cluster in a minute. It has three kinds of topics. Three nodes are killed one after the other, and
no record is missing.

The demo starts three brokers in three racks and three controllers, each in its own process. It creates a
replicated classic topic, a diskless topic and a tiered topic. An idempotent producer and a consumer group run
all the time. Meanwhile three nodes are killed with SIGKILL and started again, one after the other: the broker
that leads the coordinator of the diskless topic, the active controller, and another broker. Finally every
topic is read from its beginning. The demo prints the result and the producer's longest pause at each kill.
``demo.py --cluster`` starts this demo.
"""

import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from demo_node import console
from demo_processes import ClusterProcesses, Deadline, Late
from demo_streams import PARTITIONS, QUIET, GroupReader, OrderStream, read_from_the_beginning
from rich.table import Table

from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC

COORDINATORS = DISKLESS_METADATA_TOPIC
REPLICAS = 3
TOPICS: dict[str, tuple[str, ...]] = {
    "classic": (),
    "diskless": ("diskless.enable=true",),
    # Records older than about five seconds are read from the object store.
    "tiered": ("remote.storage.enable=true", "segment.ms=3000", "local.retention.ms=2000"),
}
WARM_UP_S = 2.0


@dataclass(frozen=True, slots=True)
class Kill:
    """A node that was killed, and the producer's longest pause in each topic until the node was back."""

    name: str
    pauses_s: Mapping[str, float]


class ClusterDemo:
    """A running cluster with its clients, and the progress of the demo."""

    def __init__(self, cluster: ClusterProcesses, deadline: Deadline) -> None:
        self._cluster = cluster
        self._deadline = deadline
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        self._stream = OrderStream(cluster.bootstrap, list(TOPICS))
        self._reader = GroupReader(cluster.bootstrap, list(TOPICS))
        self._kills: list[Kill] = []

    def run(self) -> bool:
        """Run the demo. Returns whether no record is missing, doubled or out of order."""
        for topic, configs in TOPICS.items():
            options = [each for config in configs for each in ("--config", config)]
            self._moldau("topics", "create", topic, "-p", str(PARTITIONS), "-r", str(REPLICAS), *options)
        self._stream.start()
        self._await("the first acknowledgements", lambda: self._stream.is_served_since(0))
        self._await("replicas in sync", self._all_in_sync)
        self._reader.start()
        time.sleep(WARM_UP_S)
        first = self._leader_of_coordinator()
        self._kill_broker(first, "the diskless coordinator's broker")
        self._kill_controller()
        others = {1, 2, 3} - {first, self._leader_of_coordinator()}
        self._kill_broker(min(others), "another broker")
        return self._check()

    def _kill_broker(self, node_id: int, name: str) -> None:
        def again() -> None:
            self._await(f"replicas in sync with broker {node_id}", self._all_in_sync)

        self._kill(node_id, name, again)

    def _kill_controller(self) -> None:
        killed = self._quorum()["leader_id"]

        def again() -> None:
            self._await("controllers that have caught up", self._controllers_caught_up)

        self._kill(killed, "the active controller", again)
        console.print(f"the active controller was {killed} and is {self._quorum()['leader_id']}")

    def _kill(self, node_id: int, name: str, wait_until_back: Callable[[], None]) -> None:
        """Kill a node, wait until all partitions are served without it, and start it again."""
        begin = time.monotonic()
        self._cluster.kill(node_id, name)
        moment = time.monotonic()
        awaited = f"acknowledgements in all partitions without {name}"
        self._await(awaited, lambda: self._stream.is_served_since(moment))
        self._cluster.start_again(node_id)
        wait_until_back()
        # After this kill, the pause of each partition ends when the partition acknowledges its next record.
        moment = time.monotonic()
        self._await(awaited, lambda: self._stream.is_served_since(moment))
        self._kills.append(Kill(f"{name} ({node_id})", self._stream.pauses_s(begin, time.monotonic())))

    def _check(self) -> bool:
        """Read all topics from their beginning and print the result. Returns whether it is correct."""
        stream, deadline = self._stream, self._deadline
        left = stream.end(deadline)
        found = read_from_the_beginning(self._cluster.bootstrap, list(TOPICS), deadline)
        is_right = not left and not stream.refused
        table = Table(title="After three kills in the middle")
        for column in ("topic", "acknowledged", "consumed", "missing", "doubled", "out of order"):
            table.add_column(column, justify="left" if column == "topic" else "right")
        for topic, acknowledged in stream.acknowledged.items():
            numbers = [number for part in found[topic].values() for number in part]
            missing = len(acknowledged - set(numbers))
            doubled = len(numbers) - len(set(numbers))
            disordered = sum(part != sorted(part) for part in found[topic].values())
            is_right &= not missing and not doubled and not disordered
            counts = (
                f"{len(acknowledged):,}",
                f"{len(numbers):,}",
                str(missing),
                str(doubled),
                str(disordered),
            )
            table.add_row(topic, *counts)
        console.print(f"undelivered: {left}; refused: {len(stream.refused)}", *stream.refused[:3])
        console.print(table)
        self._show_pauses()
        self._show_tier()
        self._show_reader()
        return is_right

    def _show_reader(self) -> None:
        """Print the number of records that the consumer group read while nodes failed. The group reads each
        record at least once, and some records again after a failure."""
        self._reader.end(self._stream.acknowledged, self._deadline)
        read = self._reader.numbers
        count = sum(len(set(numbers)) for numbers in read.values())
        again = sum(map(len, read.values())) - count
        console.print(f"the consumer group, meanwhile, read {count:,} orders; {again:,} of them once more")

    def _show_pauses(self) -> None:
        table = Table(title="Longest pause of the producer in a partition, ms")
        for column in ("killed", *TOPICS):
            table.add_column(column, justify="left" if column == "killed" else "right")
        for kill in self._kills:
            table.add_row(kill.name, *(f"{kill.pauses_s[topic] * 1000:,.0f}" for topic in TOPICS))
        console.print(table)

    def _show_tier(self) -> None:
        """Print how much of the tiered topic is only in the object store."""
        partitions = json.loads(self._moldau("tiered", "topics", "tiered", "--json"))[0]["partitions"]
        segments = sum(part["segments"] for part in partitions)
        remote_only = sum(part["local_start"] - part["log_start"] for part in partitions)
        console.print(
            f"the tiered topic has {segments} segments in the object store;"
            f" {remote_only:,} of its orders were read from there"
        )

    def _leader_of_coordinator(self) -> int:
        leader: int = self._admin.list_topics(COORDINATORS, 10).topics[COORDINATORS].partitions[0].leader
        return leader

    def _all_in_sync(self) -> bool:
        """Whether all replicas are in sync in each partition of all topics, including internal topics. The
        diskless topic is left out.
        """
        try:
            topics = self._admin.list_topics(timeout=10).topics.values()
        except KafkaException:
            return False
        return all(
            len(part.isrs) == len(part.replicas)
            for topic in topics
            if topic.topic != "diskless"
            for part in topic.partitions.values()
        )

    def _quorum(self) -> dict[str, Any]:
        quorum: dict[str, Any] = json.loads(self._moldau("quorum", "describe", "--json"))
        return quorum

    def _controllers_caught_up(self) -> bool:
        voters = self._quorum()["voters"]
        return all(voter["log_end_offset"] >= 0 and voter["lag"] < 10 for voter in voters)

    def _await(self, awaited: str, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._deadline.left_s(awaited)
            time.sleep(0.1)

    def _moldau(self, *arguments: str) -> str:
        """Run a ``moldau`` command against the cluster. Returns its output."""
        command = [sys.executable, "-m", "moldau", *arguments, "--bootstrap", self._cluster.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Late(f"`moldau {' '.join(arguments)}`: {done.stderr.strip()}")
        return done.stdout


def run(timeout_s: float) -> int:
    """Run the demo within ``timeout_s``. Returns the exit code, which is 1 if records are missing or the demo
    is late.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    is_right = False
    deadline = Deadline(timeout_s)
    with tempfile.TemporaryDirectory(prefix="moldau-demo-") as folder:
        cluster = ClusterProcesses(pathlib.Path(folder), deadline)
        try:
            cluster.start()
            is_right = ClusterDemo(cluster, deadline).run()
        except Late as late:
            console.print(f"[red]not within {timeout_s:.0f} s[/]: {late}")
        finally:
            problems = cluster.stop()
        for problem in problems:
            console.print(f"[red]{problem}[/]")
    if not is_right:
        console.print("[red]records are missing, doubled or out of order[/]")
    return 0 if is_right and not problems else 1
