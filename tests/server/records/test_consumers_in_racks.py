"""Consumers of librdkafka read from a follower in their rack (KIP-392)."""

import json
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import moldau.testing
from moldau.config.definition import ConfigError
from moldau.server.settings import RACK_AWARE_SELECTOR, check_supported, development_config

pytestmark = pytest.mark.real_time


def read_in_rack(cluster: moldau.testing.Cluster, rack: str, count: int) -> tuple[int, int]:
    """Read ``count`` records. Returns the number of records that were read, and the broker that sent the last
    records."""
    brokers: list[int] = []

    def note(text: str) -> None:
        partitions: dict[str, Any] = json.loads(text)["topics"].get("near", {}).get("partitions", {})
        if "0" in partitions:
            brokers.append(partitions["0"]["broker"])

    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": f"rack-{rack}",
            "auto.offset.reset": "earliest",
            "client.rack": rack,
            "statistics.interval.ms": 50,
            "stats_cb": note,
        }
    )
    consumer.subscribe(["near"])
    seen = 0
    for _ in range(600):
        if seen >= count and len(brokers) > 1:
            break
        message = consumer.poll(0.1)
        seen += message is not None and message.error() is None
        if seen == count:
            brokers.clear()  # return only the brokers of the last records
            seen += 1
    consumer.close()
    return seen - 1, brokers[-1]


def test_a_consumer_with_a_rack_reads_from_the_replica_there() -> None:
    with moldau.testing.Cluster(
        brokers=3, racks=("a", "b", "c"), properties={"replica.selector.class": RACK_AWARE_SELECTOR}
    ) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic("near", 1, 3)])["near"].result(30)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
        for number in range(200):
            producer.produce("near", b"value-%d" % number)
        assert producer.flush(30) == 0
        homes = {rack: read_in_rack(cluster, rack, 200) for rack in "abc"}
    assert homes == {"a": (200, 1), "b": (200, 2), "c": (200, 3)}


def test_another_selector_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"replica\.selector\.class must be"):
        check_supported(development_config("/data", 9092, {"replica.selector.class": "com.example.Mine"}))
