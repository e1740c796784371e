"""Jobs on a cluster with a dead broker that is not fenced yet."""

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC

pytest.importorskip("pyspark", reason="needs PySpark: pip install 'moldau[spark]'")

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.types import BinaryType, StructField, StructType

import moldau.testing
from moldau.client.cluster import connected
from moldau.client.move_planning import PlacedPartition, PlannedMove
from moldau.client.moves import begin_moves, until_moved
from moldau.pipeline.sink.writer import find_target
from moldau.pipeline.source.options import SourceOptions, parse_options
from moldau.pipeline.source.snapshot import pin

DEAD, ALIVE = 1, 2
"""Lists of broker addresses that begin with the dead broker."""
TOPIC = "orders"
COORDINATORS = DISKLESS_METADATA_TOPIC
LIMIT_S = 60


class Ruins(NamedTuple):
    """A cluster with one dead broker: the addresses of its brokers, and the leaders of the topic's
    partitions."""

    bootstrap: str
    leaders: dict[int, int]


@pytest.fixture(scope="module")
def ruins() -> Iterator[Ruins]:
    """A cluster whose broker 1 is dead but not fenced. Broker 1 was killed at a time when it led no
    partition."""
    properties = {
        "diskless.system.enable": "true",
        "diskless.metadata.topic.num.partitions": "1",
        "diskless.metadata.topic.replication.factor": "1",
        "broker.session.timeout.ms": "600000",
        "broker.session.early.end.enable": "false",
        "controlled.shutdown.enable": "false",
    }
    with moldau.testing.Cluster(brokers=2, properties=properties) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        made = NewTopic(TOPIC, 1, replica_assignment=[[ALIVE]], config={"diskless.enable": "true"})
        admin.create_topics([made])[TOPIC].result(LIMIT_S)
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        producer.produce(TOPIC, b"one")
        assert producer.flush(LIMIT_S) == 0
        yield Ruins(running.bootstrap_servers, asyncio.run(_kill(running)))


async def _kill(cluster: moldau.testing.Cluster) -> dict[int, int]:
    """Kill the broker when it leads no partition. Returns the topic's leaders as seen by a client that knows
    only this broker."""
    async with connected(cluster.address(DEAD), LIMIT_S) as client:
        move = PlannedMove(PlacedPartition(COORDINATORS, 0, (DEAD,)), (ALIVE,))
        await begin_moves(client, [move])
        await until_moved(client, [move], lambda left: None)
        await client.metadata([])
        cluster.kill(DEAD)
        return (await client.topic(TOPIC)).leaders


def options(ruins: Ruins, **more: str) -> SourceOptions:
    return parse_options({"kafka.bootstrap.servers": ruins.bootstrap, **more})


def test_objects_are_found_through_any_broker(ruins: Ruins, caplog: pytest.LogCaptureFixture) -> None:
    async def look() -> Any:
        async with connected(ruins.bootstrap, LIMIT_S) as client:
            return await pin(client, options(ruins, subscribe=TOPIC))

    (found,) = asyncio.run(look())
    assert [(one.start, one.end) for one in found.ranges] == [(0, 1)]
    assert found.source.wal is not None
    assert caplog.records == []


def test_a_sink_keeps_its_guarantee(ruins: Ruins, caplog: pytest.LogCaptureFixture) -> None:
    target = find_target(options(ruins, topic=TOPIC), StructType([StructField("value", BinaryType())]))
    assert target.exactly is not None
    assert caplog.records == []


def test_a_client_continues_with_brokers_from_the_metadata(ruins: Ruins) -> None:
    """The client is configured with only one broker, and this broker stops after its first response."""
    assert ruins.leaders == {0: ALIVE}
