"""A compacted topic on a running node. Old values are removed while readers continue, and all latest values
exist after a restart."""

import contextlib
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC
from moldau.testing import Node

PROPERTIES = {
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.segment.delete.delay.ms": "0",
    "log.retention.check.interval.ms": "50",
}


def wait_until(condition, why: str) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, why
        time.sleep(0.05)


def segment_sizes(folder: Path) -> list[int]:
    """Sizes of the existing segments. The cleaner may remove some segments while the sizes are read."""
    sizes = []
    for path in sorted(folder.glob("*.log")):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return sizes


def read_all(bootstrap: str, topic: str) -> dict[bytes, tuple[int, bytes]]:
    """The last value of each key and its offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    found: dict[bytes, tuple[int, bytes]] = {}
    consumer.assign([TopicPartition(topic, 0, 0)])
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), 60)
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None, "the reader does not come to the end"
            assert message.error() is None
            found[message.key()] = (message.offset(), message.value())
            if message.offset() >= end - 1:
                return found
    finally:
        consumer.close()


def test_a_topic_of_keys_stays_small(tmp_path: Path) -> None:
    data = str(tmp_path / "data")

    def size() -> int:
        return sum(segment_sizes(Path(data, "keyed-0")))

    with Node(data=data, properties=PROPERTIES) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
        config = {"cleanup.policy": "compact", "segment.ms": "20"}
        topic = NewTopic("keyed", num_partitions=1, replication_factor=1, config=config)
        admin.create_topics([topic])["keyed"].result(60)
        producer = Producer({"bootstrap.servers": node.bootstrap_servers, "enable.idempotence": True})
        for number in range(2000):
            producer.produce("keyed", key=b"%d" % (number % 10), value=b"%d" % number + b"x" * 100)
            if not number % 20:
                producer.flush()
        producer.flush()

        def is_small() -> bool:
            # Each new record may close the active segment, so that the cleaner can compact this segment.
            producer.produce("keyed", key=b"later", value=b"")
            return producer.flush(60) == 0 and size() < 20_000

        wait_until(is_small, "the topic is not compacted")
        found = read_all(node.bootstrap_servers, "keyed")
        assert {key: offset for key, (offset, _) in found.items() if key != b"later"} == {
            b"%d" % key: 1990 + key for key in range(10)
        }
        producer.produce("keyed", key=b"0", value=b"after")
        assert producer.flush(60) == 0
    with Node(data=data, properties=PROPERTIES) as node:
        again = read_all(node.bootstrap_servers, "keyed")
        assert again[b"0"][1] == b"after"
        del found[b"0"], again[b"0"]
        assert again == found
        assert Path(data, "cleaner-offset-checkpoint").read_bytes().startswith(b"0\n")


def test_the_offsets_topic_is_compacted(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    properties = {**PROPERTIES, "offsets.topic.num.partitions": "1"}

    def segments() -> list[int]:
        return segment_sizes(Path(data, f"{CONSUMER_OFFSETS_TOPIC}-0"))

    with Node(data=data, properties=properties) as node:
        producer = Producer({"bootstrap.servers": node.bootstrap_servers})
        producer.produce("t", b"v")
        assert producer.flush(60) == 0
        consumer = Consumer(
            {"bootstrap.servers": node.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["t"])
        message = consumer.poll(60)
        assert message is not None
        entry = ConfigEntry("segment.ms", "10", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("TOPIC", CONSUMER_OFFSETS_TOPIC, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
        admin.incremental_alter_configs([resource])[resource].result(60)
        for _ in range(300):
            consumer.commit(message, asynchronous=False)

        def is_compacted() -> bool:
            # The active segment is not compacted. It is rolled only when a record is appended.
            consumer.commit(message, asynchronous=False)
            return len(segments()) > 1 and sum(segments()) < 6000

        wait_until(is_compacted, "the offsets are not compacted")
        consumer.close()
    with Node(data=data, properties=properties) as node:
        reader = Consumer({"bootstrap.servers": node.bootstrap_servers, "group.id": "g"})
        reader.subscribe(["t"])
        wait_until(lambda: bool(reader.poll(0.1) or reader.assignment()), "no partition is assigned")
        assert [part.offset for part in reader.committed(reader.assignment(), 60)] == [1]
        reader.close()
