"""The number of coordinators grows while clients write: ``__diskless_metadata`` gets more partitions."""

import asyncio
from typing import Any

import pytest
from test_gateways_in_racks import PARTITIONS, RACKS, RackCluster

from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from moldau.runtime import ErrorCode
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

WANTED = 5


async def grow(cluster: RackCluster) -> Any:
    wanted = CreatePartitionsTopic(name=DISKLESS_METADATA_TOPIC, count=WANTED, assignments=None)
    request = CreatePartitionsRequest(topics=[wanted], timeout_ms=30_000)
    (row,) = (await cluster.ask(11, "operator", ApiKey.CREATE_PARTITIONS, 3, request)).results
    return row


def owners(cluster: RackCluster, topic: str) -> list[int]:
    metadata = cluster.nodes[11].metadata
    assert metadata is not None
    found = metadata.publisher.image.topics.get(topic)
    assert found is not None
    return [partition.owner for partition in found.partitions]


def test_coordinators_are_added_under_traffic() -> None:
    """Existing partitions keep their coordinators. New partitions get the new coordinators, which have the
    fewest partitions."""

    async def story(cluster: RackCluster) -> None:
        await cluster.ready()
        before = owners(cluster, "t")
        offsets: list[tuple[ErrorCode, int]] = []

        async def write() -> None:
            for number in range(60):
                row = await cluster.produce(11 + number % len(RACKS), 0)
                offsets.append((row.error_code, row.base_offset))

        writing = asyncio.ensure_future(write())
        await asyncio.sleep(1)
        assert (await grow(cluster)).error_code is ErrorCode.none
        create = cluster.client("admin", 12).create_topic("later", 3, {"diskless.enable": "true"})
        await cluster.on("admin", create)
        await writing
        assert offsets == [(ErrorCode.none, number) for number in range(60)]
        assert owners(cluster, "t") == before
        assert set(owners(cluster, "later")) == set(range(2, WANTED))
        for broker in RACKS:
            for index in range(PARTITIONS):
                assert (await cluster.produce(broker, index)).error_code is ErrorCode.none

    with World(7) as world:
        cluster = RackCluster(world)
        world.run(story(cluster))
