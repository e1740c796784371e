"""Three controllers and two brokers as processes: librdkafka writes and reads over both brokers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_processes import LIMIT_S, QUIET, Processes, wait_for
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

ROLES = dict.fromkeys((1, 2, 3), "controller") | dict.fromkeys((11, 12), "broker")


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    found = Processes(
        tmp_path, ROLES, {"offsets.topic.replication.factor": 1, "offsets.topic.num.partitions": 4}
    )
    found.start(*ROLES)
    try:
        yield found
    finally:
        assert set(found.stop()) == {0}


def test_clients_use_two_brokers_while_nodes_are_killed(processes: Processes) -> None:
    admin = AdminClient({"bootstrap.servers": processes.bootstrap, **QUIET})

    def brokers() -> list[int]:
        return sorted(admin.list_topics(timeout=10).brokers)

    def leaders() -> list[int]:
        partitions = admin.list_topics("events", timeout=10).topics["events"].partitions
        return sorted(partition.leader for partition in partitions.values())

    wait_for(lambda: brokers() == [11, 12])
    admin.create_topics([NewTopic("events", 4, 1)])["events"].result(LIMIT_S)
    wait_for(lambda: leaders() == [11, 11, 12, 12])

    acknowledged: set[bytes] = set()
    producer = Producer({"bootstrap.servers": processes.bootstrap, "enable.idempotence": True, **QUIET})
    for number in range(1000):
        producer.produce(
            "events",
            b"%d" % number,
            key=b"%d" % number,
            on_delivery=lambda error, message: None if error else acknowledged.add(message.value()),
        )
        producer.poll(0)
        if number == 500:
            leader = processes.leader()
            processes.kill(leader)
    admin.create_topics([NewTopic("later", 2, 1)], operation_timeout=60, request_timeout=100)["later"].result(
        LIMIT_S
    )
    producer.flush(LIMIT_S)
    assert len(acknowledged) == 1000
    processes.start(leader)

    group = {"group.id": "readers", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": processes.bootstrap, **group, **QUIET})
    consumer.subscribe(["events"])
    read: set[bytes] = set()

    def has_read_all() -> bool:
        read.update(message.value() for message in consumer.consume(500, 1.0) if not message.error())
        return read == acknowledged

    wait_for(has_read_all)
    consumer.close()

    processes.kill(12)
    wait_for(lambda: brokers() == [11] and leaders() == [-1, -1, 11, 11])
    processes.start(12)
    wait_for(lambda: brokers() == [11, 12] and leaders() == [11, 11, 12, 12])
