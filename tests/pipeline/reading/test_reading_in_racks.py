"""If ``format("moldau")`` reads records through brokers, it uses a broker in its own rack (KIP-392)."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import moldau.testing
from moldau.client.cluster import Client, parse_bootstrap
from moldau.pipeline.reading.broker import BrokerReader
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.reading.topic_source import TopicSource
from moldau.protocol.messages.fetch import FetchRequest
from moldau.records.batch import parse_header
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.settings import RACK_AWARE_SELECTOR

pytestmark = pytest.mark.real_time

RACKS = {1: "a", 2: "b", 3: "c"}
RECORDS = 50
LIMIT_S = 60
TOPICS = {"classic": "false", "diskless": "true"}


class NotingClient(Client):
    """A client that notes the broker of each fetch. With ``fails_at``, fetches from this broker fail."""

    fails_at = -1

    def __init__(self, bootstrap: str) -> None:
        super().__init__(parse_bootstrap(bootstrap), LIMIT_S)
        self.fetched_from: list[Any] = []

    async def ask(self, message: Any, **options: Any) -> Any:
        if isinstance(message, FetchRequest):
            self.fetched_from.append(options["broker"])
            if options["broker"] == self.fails_at:
                raise KafkaError(ErrorCode.network_exception, "the connection is lost")
        return await super().ask(message, **options)


@pytest.fixture(scope="module")
def cluster() -> Iterator[moldau.testing.Cluster]:
    properties = {"replica.selector.class": RACK_AWARE_SELECTOR, "diskless.system.enable": "true"}
    with moldau.testing.Cluster(brokers=3, racks=tuple(RACKS.values()), properties=properties) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        made = [
            NewTopic(name, 1, replica_assignment=[[1, 2, 3]], config={"diskless.enable": is_diskless})
            for name, is_diskless in TOPICS.items()
        ]
        for topic in admin.create_topics(made).values():
            topic.result(LIMIT_S)
        producer = Producer({"bootstrap.servers": running.bootstrap_servers, "acks": "all"})
        for name in TOPICS:
            for number in range(RECORDS):
                producer.produce(name, b"value-%d" % number, partition=0)
        assert producer.flush(LIMIT_S) == 0
        yield running


def read_in(
    cluster: moldau.testing.Cluster, topic: str, rack: str, fails_at: int = -1
) -> tuple[list[int], int, int]:
    """Read the whole topic. Returns the brokers of all fetches, the leader, and the number of records."""

    async def read() -> tuple[list[int], int, int]:
        client = NotingClient(cluster.bootstrap_servers)
        client.fails_at = fails_at
        found = await client.topic(topic)
        source = TopicSource(cluster.bootstrap_servers, topic, str(found.topic_id), rack=rack)
        reader = BrokerReader(client, source, OffsetRange(0, 0, RECORDS))
        count = 0
        async for batches in reader.chunks():
            count += sum(parse_header(batch).records_count for batch in batches)
        await client.close()
        return client.fetched_from, found.leaders[0], count

    return asyncio.run(read())


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize(("broker_id", "rack"), RACKS.items())
def test_records_come_from_the_broker_of_the_rack(
    cluster: moldau.testing.Cluster, topic: str, broker_id: int, rack: str
) -> None:
    fetched_from, leader, count = read_in(cluster, topic, rack)
    assert count == RECORDS
    assert fetched_from[0] == leader
    assert fetched_from[-1] == broker_id


@pytest.mark.parametrize("rack", ["", "nowhere"])
def test_without_a_broker_in_the_rack_the_leader_is_read(cluster: moldau.testing.Cluster, rack: str) -> None:
    fetched_from, leader, count = read_in(cluster, "classic", rack)
    assert (set(fetched_from), count) == ({leader}, RECORDS)


def test_the_leader_is_read_if_the_broker_of_the_rack_fails(cluster: moldau.testing.Cluster) -> None:
    _, leader, _ = read_in(cluster, "classic", "")
    failing = leader % 3 + 1
    fetched_from, _, count = read_in(cluster, "classic", RACKS[failing], fails_at=failing)
    assert count == RECORDS
    assert fetched_from[:3] == [leader, failing, leader]
