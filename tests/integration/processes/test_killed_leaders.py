"""The leader of a partition is killed with SIGKILL. Another broker leads long before the session of the
killed process ends, and the next process of the killed broker can register.

The session is longer than the limit of the whole test, so the end of a session cannot be the reason.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_processes import LIMIT_S, QUIET, Processes, wait_for
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

SEPARATE = {101: "controller", 1: "broker", 2: "broker", 3: "broker"}
COMBINED = dict.fromkeys((1, 2, 3), "broker,controller")
PROPERTIES = {
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "broker.session.timeout.ms": 20 * LIMIT_S * 1000,
}


@pytest.fixture(params=[SEPARATE, COMBINED], ids=["separate", "combined"])
def processes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Processes]:
    found = Processes(tmp_path, request.param, PROPERTIES)
    found.start(*request.param)
    try:
        yield found
    finally:
        # A clean stop without a controller would wait for half of the session.
        found.kill_all()


def test_another_leader_is_elected_although_the_session_has_not_ended(processes: Processes) -> None:
    admin = AdminClient({"bootstrap.servers": processes.bootstrap, **QUIET})

    def leaders() -> list[int]:
        partitions = admin.list_topics("events", timeout=10).topics["events"].partitions
        return [partitions[index].leader for index in sorted(partitions)]

    def in_sync() -> set[int]:
        partitions = admin.list_topics("events", timeout=10).topics["events"].partitions
        return {len(each.isrs) for each in partitions.values()}

    wait_for(lambda: len(admin.list_topics(timeout=10).brokers) == 3)
    admin.create_topics([NewTopic("events", 3, 3)])["events"].result(LIMIT_S)
    # Each broker leads a partition. In the combined cluster, one of the brokers is the active controller.
    for killed in (1, 2, 3):
        wait_for(lambda: in_sync() == {3})
        processes.kill(killed)
        wait_for(lambda killed=killed: killed not in leaders() and -1 not in leaders())  # type: ignore[misc]
        producer = Producer({"bootstrap.servers": processes.bootstrap, "acks": "all", **QUIET})
        for partition in range(3):
            producer.produce("events", b"record", partition=partition)
        assert producer.flush(LIMIT_S) == 0
        processes.start(killed)
        wait_for(lambda: len(admin.list_topics(timeout=10).brokers) == 3)
