"""librdkafka clients that name their rack, on a cluster of three brokers in three racks."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import moldau.testing
from moldau.objects import FileStorage

pytestmark = pytest.mark.real_time

HOMES = {"a": 1, "b": 2, "c": 3}
PARTITIONS = 4
RECORDS = 200


@pytest.fixture(scope="module")
def cluster() -> Iterator[moldau.testing.Cluster]:
    properties = {"diskless.metadata.topic.num.partitions": "3"}
    with moldau.testing.Cluster(brokers=3, racks=tuple(HOMES), properties=properties) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        new = NewTopic("orders", PARTITIONS, 1, config={"diskless.enable": "true"})
        admin.create_topics([new])["orders"].result(30)
        yield running


class Watched:
    """A client with its settings. It can show which brokers its partitions use."""

    def __init__(self, cluster: moldau.testing.Cluster, **settings: Any) -> None:
        self.leaders: set[int] = set()
        self.settings = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "statistics.interval.ms": 50,
            "stats_cb": self._note,
            **settings,
        }

    def _note(self, text: str) -> None:
        found = json.loads(text)["topics"].get("orders", {}).get("partitions", {})
        self.leaders = {row["broker"] for index, row in found.items() if int(index) >= 0}


def test_clients_of_a_rack_use_the_broker_there(cluster: moldau.testing.Cluster) -> None:
    for number, (rack, home) in enumerate(HOMES.items()):
        watched = Watched(cluster, **{"client.id": f"rack={rack}", "enable.idempotence": True})
        producer = Producer(watched.settings)
        for record in range(RECORDS):
            producer.produce("orders", b"%d" % record, partition=record % PARTITIONS)
        assert producer.flush(60) == 0
        while not watched.leaders:
            producer.poll(0.1)
        assert watched.leaders == {home}
        assert read_all(cluster, (number + 1) * RECORDS, **{"client.id": f"diskless_az={rack}"}) == {home}
    for rack, home in HOMES.items():
        # The metadata contain the leaders of the partitions, and the first fetch redirects the client
        # (KIP-392).
        assert read_all(cluster, len(HOMES) * RECORDS, **{"client.rack": rack}) == {home}


def read_all(cluster: moldau.testing.Cluster, count: int, **settings: Any) -> set[int]:
    """Read at least ``count`` records. Returns the brokers that sent the last records."""
    group = "-".join(settings.values())
    watched = Watched(cluster, **{"group.id": group, **settings})
    consumer = Consumer(watched.settings)
    consumer.assign([TopicPartition("orders", index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
    seen = polls = 0
    deadline = time.monotonic() + 90
    while seen < count or polls < 30:
        assert time.monotonic() < deadline, f"{seen} of {count} records"
        message = consumer.poll(0.02 if seen >= count else 1.0)
        seen += message is not None and message.error() is None
        polls += seen >= count
    consumer.close()
    return watched.leaders


def test_the_command_shows_gateways_and_their_calls(cluster: moldau.testing.Cluster) -> None:
    command = [sys.executable, "-m", "moldau", "diskless", "coordinators"]
    where = ["--bootstrap", cluster.bootstrap_servers]
    rows = json.loads(subprocess.check_output([*command, "--json", *where]))
    assert [row["gateways"] for row in rows] == [{"a": [1], "b": [2], "c": [3]}] * 3
    assert all(calls <= 2 for row in rows for calls in row["calls"].values())
    table = subprocess.check_output([*command, *where], text=True)
    assert "0,1,2" in table


def test_a_rack_with_one_broker_reads_an_object_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partitions have three coordinators, so a broker finds the batches of an object at three times. The
    caches are filled from the beginning, because first reads are reads of ranges."""
    gets: Counter[tuple[int, str]] = Counter()
    fetch = FileStorage.fetch

    async def counting(self: FileStorage, key: str, offset: int, size: int) -> memoryview:
        gets[id(self), key] += 1
        return await fetch(self, key, offset, size)

    monkeypatch.setattr(FileStorage, "fetch", counting)
    properties = {"diskless.metadata.topic.num.partitions": "3", "diskless.cache.unread.ms": "-1"}
    with moldau.testing.Cluster(brokers=3, racks=tuple(HOMES), properties=properties) as cluster:
        bootstrap = cluster.bootstrap_servers
        new = NewTopic("copied", 9, 3, config={"diskless.enable": "true"})
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([new])["copied"].result(30)
        producer = Producer({"bootstrap.servers": bootstrap, "client.id": "rack=a"})
        for number in range(30):
            for partition in range(9):
                producer.produce("copied", b"%d" % number, partition=partition)
            assert producer.flush(60) == 0
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "c", "client.rack": "c"})
        consumer.assign([TopicPartition("copied", index, OFFSET_BEGINNING) for index in range(9)])
        deadline, seen = time.monotonic() + 90, 0
        while seen < 30 * 9:
            assert time.monotonic() < deadline, f"{seen} records"
            message = consumer.poll(1.0)
            seen += message is not None and message.error() is None
        consumer.close()
    assert gets
    assert set(gets.values()) == {1}
