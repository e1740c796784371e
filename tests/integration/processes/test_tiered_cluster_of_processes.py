"""Three brokers as processes with one object store. librdkafka writes and reads while leaders are killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_processes import LIMIT_S, QUIET, Processes, wait_for
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

ROLES = dict.fromkeys((1, 2, 3), "broker,controller")
SEGMENT_BYTES = 1 << 20
FILLER = b"." * 8_000
RECORDS = 1_200


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    properties = {
        "offsets.topic.replication.factor": 3,
        "offsets.topic.num.partitions": 1,
        "min.insync.replicas": 2,
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
        "replica.lag.time.max.ms": 3000,
        "remote.log.storage.system.enable": "true",
        "rsm.config.url": f"file://{tmp_path}/objects",
        "remote.log.metadata.topic.num.partitions": 2,
        "remote.log.manager.task.interval.ms": 200,
        "log.retention.check.interval.ms": 300,
        "log.segment.delete.delay.ms": 100,
    }
    found = Processes(tmp_path, ROLES, properties)
    found.start(*ROLES)
    try:
        yield found
    finally:
        assert set(found.stop()) == {0}


def test_leaders_are_killed_while_they_copy_and_all_records_are_read(
    processes: Processes, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": processes.bootstrap, **QUIET})
    wait_for(lambda: len(admin.list_topics(timeout=10).brokers) == 3)
    configs = {
        "remote.storage.enable": "true",
        "local.retention.bytes": "1",
        "segment.bytes": str(SEGMENT_BYTES),
    }
    admin.create_topics([NewTopic("tiered", 1, 3, config=configs)])["tiered"].result(LIMIT_S)

    def leader() -> int:
        return int(admin.list_topics("tiered", timeout=10).topics["tiered"].partitions[0].leader)

    def copied() -> int:
        return len(list(tmp_path.glob("objects/tiered/tiered-*/0/*.log")))

    def local_starts() -> list[int]:
        """The first local offset of each replica. It is -1 while the log of the replica is created again."""
        found = {id: [int(path.stem) for path in tmp_path.glob(f"{id}/tiered-0/*.log")] for id in ROLES}
        return [min(offsets, default=-1) for offsets in found.values()]

    wait_for(lambda: leader() in ROLES)
    acknowledged: set[bytes] = set()
    producer = Producer({"bootstrap.servers": processes.bootstrap, "enable.idempotence": True, **QUIET})

    def produce(numbers: range) -> None:
        for number in numbers:
            producer.produce(
                "tiered",
                b"%06d" % number + FILLER,
                on_delivery=lambda error, message: None if error else acknowledged.add(message.value()),
            )
            if number % 100 == 0:
                producer.flush(LIMIT_S)
        producer.flush(LIMIT_S)

    produce(range(RECORDS // 2))
    wait_for(lambda: copied() >= 2)
    killed = leader()
    processes.kill(killed)  # the node copies segments now or soon
    produce(range(RECORDS // 2, RECORDS))
    wait_for(lambda: leader() not in (killed, -1) and copied() * SEGMENT_BYTES > RECORDS * 7_000)
    processes.start(killed)
    # The broker that was down begins its log at the first local offset of the other brokers.
    wait_for(lambda: min(local_starts()) > RECORDS // 2)
    assert len(acknowledged) == RECORDS

    for broker in (None, leader()):
        if broker is not None:
            processes.kill(broker)
            wait_for(lambda down=broker: leader() not in (down, -1))
        assert read_all(processes.bootstrap) == [b"%06d" % number for number in range(RECORDS)]
        if broker is not None:
            processes.start(broker)
            wait_for(lambda: is_in_sync(admin))


def is_in_sync(admin: AdminClient) -> bool:
    partitions = [
        each for topic in admin.list_topics(timeout=10).topics.values() for each in topic.partitions.values()
    ]
    return all(len(partition.isrs) == 3 for partition in partitions)


def read_all(bootstrap: str) -> list[bytes]:
    """Read the topic from offset 0 to its end. Returns the numbers of the records."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "r", "enable.auto.commit": False, **QUIET}
    )
    consumer.assign([TopicPartition("tiered", 0, 0)])
    found: list[bytes] = []

    def has_read_all() -> bool:
        messages = consumer.consume(1000, 1.0)
        found.extend(message.value()[:6] for message in messages if not message.error())
        return len(found) >= RECORDS

    wait_for(has_read_all)
    consumer.close()
    return found
