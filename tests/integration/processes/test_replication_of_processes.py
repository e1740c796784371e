"""Three nodes as processes. Each is a broker and a controller. While librdkafka writes, the nodes are
upgraded to the next version and downgraded again, and one of them is killed.

The two versions differ in the feature levels that they support (``next_version.py``).
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_processes import LIMIT_S, NEXT_MOLDAU, QUIET, Processes, wait_for
from confluent_kafka.admin import AdminClient, NewTopic
from steady_load import Load

from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC

NODES = (1, 2, 3)
RECORDS_MIN = 2_000
NEXT_LEVEL = "moldau.diskless.version=2"
PROPERTIES = {
    "min.insync.replicas": 2,
    "default.replication.factor": 3,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
    "group.initial.rebalance.delay.ms": 0,
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 3_000,
}


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    found = Processes(tmp_path, dict.fromkeys(NODES, "broker,controller"), PROPERTIES)
    found.start(*NODES)
    try:
        yield found
    finally:
        assert set(found.stop()) == {0}


def test_nothing_is_lost_in_a_rolling_upgrade_and_back_under_load(processes: Processes) -> None:
    admin = AdminClient({"bootstrap.servers": processes.bootstrap, **QUIET})

    def partitions(topic: str) -> list[tuple[int, int]]:
        """The leader of each partition, and the number of its in-sync replicas."""
        found = admin.list_topics(topic, timeout=10).topics[topic].partitions
        return [(found[index].leader, len(found[index].isrs)) for index in sorted(found)]

    def are_in_sync(count: int) -> bool:
        return all(
            in_sync == count for _, in_sync in partitions("events") + partitions(CONSUMER_OFFSETS_TOPIC)
        )

    wait_for(lambda: len(admin.list_topics(timeout=10).brokers) == len(NODES))
    admin.create_topics([NewTopic("events", 3, 3)])["events"].result(LIMIT_S)
    wait_for(lambda: [in_sync for _, in_sync in partitions("events")] == [3, 3, 3])
    load = Load(processes.bootstrap)
    load.go_on_until(RECORDS_MIN)

    killed = partitions("events")[0][0]
    processes.kill(killed)
    load.go_on_until(RECORDS_MIN)
    wait_for(lambda: are_in_sync(2) and killed not in [leader for leader, _ in partitions("events")])
    processes.start(killed, program=NEXT_MOLDAU)
    load.go_on_until(RECORDS_MIN)
    wait_for(lambda: are_in_sync(3))

    first, second = (node_id for node_id in NODES if node_id != killed)
    assert processes.terminate(first) == 0
    assert first not in [leader for leader, _ in partitions("events")]
    load.go_on_until(RECORDS_MIN)
    processes.start(first, program=NEXT_MOLDAU)
    wait_for(lambda: are_in_sync(3))
    assert "does not support moldau.diskless.version" in processes.change_levels(NEXT_LEVEL)
    assert processes.terminate(second) == 0
    processes.start(second, program=NEXT_MOLDAU)
    load.go_on_until(RECORDS_MIN)
    wait_for(lambda: are_in_sync(3))

    # When all nodes have the next version, the feature level is raised. After that, a node of the old version
    # does not start until the level is lowered.
    wait_for(lambda: not processes.change_levels(NEXT_LEVEL))
    load.go_on_until(RECORDS_MIN)
    assert processes.terminate(second) == 0
    assert "moldau.diskless.version" in processes.fail_to_start(second)
    assert not processes.change_levels("moldau.diskless.version=1", "--downgrade")
    processes.start(second)
    load.finish()
    assert not load.refused
    assert len(load.read) >= len(load.acknowledged)
    assert set(load.read) >= load.acknowledged
    wait_for(lambda: are_in_sync(3))
    for index in range(3):
        wait_for(lambda index=index: len({processes.segments(id, f"events-{index}") for id in NODES}) == 1)
