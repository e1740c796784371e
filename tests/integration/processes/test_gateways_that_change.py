"""Idempotent producers of four client libraries on a diskless topic of three brokers in three racks.

Each producer names its rack, so its gateway is the only broker of this rack. The gateways are paused with
SIGSTOP and resumed, or killed with SIGKILL and started again. A paused gateway is fenced, and clients send
their next batches to a broker of another rack, while the gateway still has earlier batches. Nevertheless each
record must be stored exactly once, and in order.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from cluster_processes import QUIET, Processes, wait_for
from confluent_kafka.admin import AdminClient
from foreign_clients import Java
from steady_producers import SteadyProducer, check_records, one_of_each, wait_for_more

pytestmark = [pytest.mark.real_time, pytest.mark.java]

RACKS: Final = {1: "a", 2: "b", 3: "c"}
CONTROLLER: Final = 101
ROLES: Final = dict.fromkeys(RACKS, "broker") | {CONTROLLER: "controller"}
PROPERTIES: Final = {
    "diskless.system.enable": "true",
    "diskless.metadata.topic.num.partitions": 2,
    "diskless.metadata.topic.replication.factor": 3,
    "default.replication.factor": 3,
    "broker.session.timeout.ms": 2_500,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 2_000,
}


class GatewayWatch:
    """Notes which broker each rack's clients are shown as the leader of a partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.shown: dict[str, list[int]] = {rack: [] for rack in RACKS.values()}
        """The leaders of partition 0 by rack, each time that the leader has changed."""
        self._bootstrap, self._topic = bootstrap, topic

    def wait_for(self, rack: str, *, home: int, at_home: bool) -> None:
        """Wait until clients of a rack are shown their own broker, or another broker."""

        def is_there() -> bool:
            leader = self._leader(rack)
            if leader < 0:
                return False
            if [leader] != self.shown[rack][-1:]:
                self.shown[rack].append(leader)
            return (leader == home) is at_home

        wait_for(is_there)

    def _leader(self, rack: str) -> int:
        # A new client asks any broker. A client that is connected to a paused broker would wait for it.
        admin = AdminClient(
            {
                "bootstrap.servers": self._bootstrap,
                "client.id": f"watch,rack={rack}",
                "socket.timeout.ms": 1_000,
                **QUIET,
            }
        )
        # A broker that has just started may not know the topic.
        row = admin.list_topics(self._topic, timeout=3).topics[self._topic].partitions.get(0)
        return -1 if row is None else int(row.leader)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Processes]:
    objects = tmp_path / "objects"
    objects.mkdir()
    properties = {**PROPERTIES, "diskless.storage.url": f"file://{objects}"}
    found = Processes(tmp_path, ROLES, properties, racks=RACKS)
    found.start(*ROLES)
    try:
        yield found
    finally:
        found.kill_all()


@pytest.fixture
def producers(cluster: Processes, java: Java, tmp_path: Path) -> Iterator[list[SteadyProducer]]:
    with one_of_each(cluster.bootstrap, java, tmp_path, ("a", "b", "b", "c")) as found:
        yield found


def test_no_record_is_lost_or_doubled_while_gateways_change(
    cluster: Processes, producers: list[SteadyProducer]
) -> None:
    watch = GatewayWatch(cluster.bootstrap, "java")
    for node_id, rack in RACKS.items():
        watch.wait_for(rack, home=node_id, at_home=True)
    for producer in producers:
        producer.start()
    wait_for_more(producers)
    for node_id, rack in RACKS.items():
        cluster.pause(node_id)
        try:
            watch.wait_for(rack, home=node_id, at_home=False)
            # Producers of the rack may have to wait for their records in the paused broker.
            wait_for_more([each for each in producers if each.rack != rack])
        finally:
            cluster.resume(node_id)
        watch.wait_for(rack, home=node_id, at_home=True)
        wait_for_more(producers)
        cluster.kill(node_id)
        watch.wait_for(rack, home=node_id, at_home=False)
        wait_for_more(producers)
        cluster.start(node_id)
        watch.wait_for(rack, home=node_id, at_home=True)
        wait_for_more(producers)
    for producer in producers:
        producer.end()
    check_records(cluster.bootstrap, producers)
    for node_id, rack in RACKS.items():
        assert watch.shown[rack].count(node_id) >= 3, watch.shown
