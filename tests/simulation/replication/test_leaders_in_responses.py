"""If a broker does not lead a partition, its responses to Produce and Fetch name the leader with its epoch
and address. So clients need no Metadata request (KIP-951)."""

from typing import Any
from uuid import UUID

import pytest
from simulated_cluster import Cluster

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.protocol.schema import ZERO_UUID
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.classic_partition import ClassicPartition
from moldau.runtime import ErrorCode
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

# A batch of this size is read by the fast path of Produce.
BATCH = build_batch([Record(0, 1_700_000_000_000, b"k", b"v" * 200, ())])
BROKERS = (11, 12, 13)
PROPERTIES = {"default.replication.factor": "2", "min.insync.replicas": "1", "broker.rack": "north"}
MOVED, FENCED = ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch

Named = tuple[ErrorCode, int, int, list[tuple[int, str, int, str]]]
"""The error, the leader, the leader's epoch, and the endpoints."""


def produce(count: int, name: str, topic_id: UUID) -> ProduceRequest:
    """A request with one row uses the fast path, and a request with two rows uses the general path."""
    rows = [PartitionProduceData(index=0, records=BATCH) for _ in range(count)]
    topic = TopicProduceData(name=name, topic_id=topic_id, partition_data=rows)
    return ProduceRequest(acks=1, timeout_ms=5_000, topic_data=[topic])


def fetch(epoch: int, name: str, topic_id: UUID) -> FetchRequest:
    row = FetchPartition(partition=0, current_leader_epoch=epoch, partition_max_bytes=1_000)
    topic = FetchTopic(topic=name, topic_id=topic_id, partitions=[row])
    return FetchRequest(max_bytes=1_000, session_epoch=-1, topics=[topic])


class House:
    """Three brokers, and a partition with two replicas."""

    def __init__(self, world: World) -> None:
        self.cluster = Cluster(
            world,
            {1: "controller", **dict.fromkeys(BROKERS, "broker")},
            dict.fromkeys((1, *BROKERS), PROPERTIES),
        )
        self.topic_id = ZERO_UUID

    async def begin(self) -> None:
        cluster = self.cluster
        cluster.start(1, *BROKERS)
        await cluster.until(lambda: len(cluster.nodes) == 4)
        await cluster.on("admin", cluster.client("admin", 11).create_topic("t", 1, {}))
        await cluster.until(lambda: self.leader() != 0 and len(self.replicas()) == 2)
        await cluster.until(lambda: all(self.knows(each, self.leader()) for each in BROKERS))
        self.topic_id = self.replicas()[self.leader()].key.topic_id

    def replicas(self) -> dict[int, ClassicPartition]:
        found = {
            each: self.cluster.nodes[each].get(PartitionsSubsystem).partition("t", 0)
            for each in BROKERS
            if each in self.cluster.nodes
        }
        return {each: replica for each, replica in found.items() if isinstance(replica, ClassicPartition)}

    def leader(self) -> int:
        return next((each for each, replica in self.replicas().items() if replica.is_leader), 0)

    def knows(self, broker: int, leader: int) -> bool:
        metadata = self.cluster.nodes[broker].metadata
        topic = metadata and metadata.publisher.image.topics.get("t")
        return bool(topic) and topic.partitions[0].leader == leader

    async def ask(self, broker: int, api_key: ApiKey, version: int, request: Any) -> list[Named]:
        client = self.cluster.client("asker", broker)
        response = await self.cluster.on("asker", client.ask(api_key, version, request))
        endpoints = [(each.node_id, each.host, each.port, each.rack) for each in response.node_endpoints]
        topic = response.responses[0]
        rows = topic.partition_responses if api_key is ApiKey.PRODUCE else topic.partitions
        return [
            (row.error_code, row.current_leader.leader_id, row.current_leader.leader_epoch, endpoints)
            for row in rows
        ]

    async def produce(self, broker: int, version: int, count: int = 1) -> list[Named]:
        by_id = version >= 13
        request = produce(count, "" if by_id else "t", self.topic_id if by_id else ZERO_UUID)
        return await self.ask(broker, ApiKey.PRODUCE, version, request)

    async def fetch(self, broker: int, version: int, epoch: int = -1) -> list[Named]:
        by_id = version >= 13
        request = fetch(epoch, "" if by_id else "t", self.topic_id if by_id else ZERO_UUID)
        return await self.ask(broker, ApiKey.FETCH, version, request)


def test_other_brokers_name_the_leader_and_its_address() -> None:
    with World(8) as world:
        house = House(world)
        cluster = house.cluster

        async def story() -> None:
            await house.begin()
            leader = house.leader()
            epoch = house.replicas()[leader].leader_epoch
            named = (MOVED, leader, epoch, [(leader, f"node-{leader}", 9092, "north")])
            for other in set(BROKERS) - {leader}:
                for version in (10, 13):
                    assert await house.produce(other, version) == [named]
                    assert await house.produce(other, version, 2) == [named, named]
                # Responses of older versions have no field for the address.
                assert await house.produce(other, 9) == [(MOVED, -1, -1, [])]
            # A follower serves consumers, so only the broker without a replica names the leader.
            outsider = next(each for each in BROKERS if each not in house.replicas())
            assert await house.fetch(outsider, 16) == [named]
            assert await house.fetch(outsider, 15) == [(MOVED, -1, -1, [])]
            nothing = (ErrorCode.none, -1, -1, [])
            assert await house.produce(leader, 13) == await house.fetch(leader, 16) == [nothing]

        cluster.world.run(story())


def test_a_new_leader_is_named_with_its_epoch() -> None:
    with World(9) as world:
        house = House(world)
        cluster = house.cluster

        async def story() -> None:
            await house.begin()
            former = house.leader()
            epoch = house.replicas()[former].leader_epoch
            heir = next(each for each in house.replicas() if each != former)
            outsider = next(each for each in BROKERS if each not in house.replicas())
            cluster.kill(former)
            await cluster.until(lambda: house.leader() == heir and house.knows(outsider, heir))
            new_epoch = house.replicas()[heir].leader_epoch
            assert new_epoch > epoch
            endpoints = [(heir, f"node-{heir}", 9092, "north")]
            assert await house.produce(outsider, 13) == [(MOVED, heir, new_epoch, endpoints)]
            # A consumer that knows the new leader, but not its epoch, learns the epoch.
            assert await house.fetch(heir, 16, epoch) == [(FENCED, heir, new_epoch, endpoints)]
            # While the partition has no leader, no leader is named.
            cluster.kill(heir)
            await cluster.until(lambda: house.knows(outsider, -1))
            assert await house.produce(outsider, 13) == [(MOVED, -1, -1, [])]

        cluster.world.run(story())
