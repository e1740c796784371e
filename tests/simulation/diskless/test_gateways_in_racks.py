"""Diskless topics on three brokers in three racks. The tests check the metadata that the brokers send to
clients, and other responses."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from simulated_cluster import Cluster

from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from moldau.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from moldau.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
)
from moldau.protocol.messages.describe_topic_partitions import (
    TopicRequest as TopicToDescribe,
)
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime import ErrorCode
from moldau.server.subsystems.diskless.subsystem import DisklessSubsystem
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.simulation.clients.rpc import RpcConnection
from moldau.simulation.world.object_storage import CLASS_NAME
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

BATCH = build_batch([Record(0, 1_700_000_000_000, b"k", b"v", ())])
RACKS = {11: "a", 12: "b", 13: "c"}
PARTITIONS = 3
PROPERTIES = {
    "diskless.system.enable": "true",
    "diskless.metadata.topic.num.partitions": "2",
    "diskless.metadata.topic.replication.factor": "1",
    "diskless.storage.class.name": CLASS_NAME,
    "backup.enable": "false",
    "diskless.storage.url": "simulated:",
    "diskless.append.commit.interval.ms": "50",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "300",
}


class RackCluster(Cluster):
    """One controller, a broker in each rack, and the diskless topic ``t`` with one replica for each
    partition. ``racks`` names other brokers and their racks."""

    def __init__(self, world: World, racks: Mapping[int, str] = RACKS, **more: str) -> None:
        self.racks = racks
        roles = {1: "controller"} | dict.fromkeys(racks, "broker")
        common = PROPERTIES | {name.replace("_", "."): value for name, value in more.items()}
        properties = {node_id: {**common, "broker.rack": rack} for node_id, rack in racks.items()}
        super().__init__(world, roles, {1: common, **properties})

    async def ready(self) -> None:
        self.start(1, *self.racks)
        await self.until(lambda: len(self.nodes) == 1 + len(self.racks))
        create = self.client("admin", 11).create_topic("t", PARTITIONS, {"diskless.enable": "true"})
        await self.on("admin", create)
        await self.until(lambda: all(self._knows_topic(broker) for broker in self.racks))
        await asyncio.sleep(1)

    def _knows_topic(self, broker: int) -> bool:
        metadata = self.nodes[broker].metadata
        return metadata is not None and metadata.publisher.image.topics.get("t") is not None

    async def ask(self, broker: int, client_id: str, api_key: ApiKey, version: int, request: Any) -> Any:
        async def ask() -> Any:
            connection = await RpcConnection.open(client_id, f"node-{broker}", 9092)
            try:
                software = {"client_software_name": "test", "client_software_version": "1"}
                await connection.request(ApiKey.API_VERSIONS, 3, ApiVersionsRequest(**software))
                return await connection.request(api_key, version, request, timeout_s=30)
            finally:
                connection.close()

        return await self.on(f"client-{api_key.name}", ask())

    async def metadata(self, broker: int, client_id: str, version: int = 12, asks: bool = False) -> Any:
        """The metadata of topic ``t``. With ``asks``, the request also requests the list of gateways."""
        topics = [MetadataRequestTopic(name="t")]
        request = MetadataRequest(topics=topics, include_preferred_produce_brokers=asks)
        return (await self.ask(broker, client_id, ApiKey.METADATA, version, request)).topics[0]

    async def leaders(self, broker: int, client_id: str) -> list[tuple[int, int]]:
        """Leader and epoch of each partition."""
        topic = await self.metadata(broker, client_id)
        return [(row.leader_id, row.leader_epoch) for row in topic.partitions]

    async def described_leaders(self, broker: int, client_id: str) -> list[tuple[int, int]]:
        """Leader and epoch of each partition according to DescribeTopicPartitions."""
        request = DescribeTopicPartitionsRequest(topics=[TopicToDescribe(name="t")])
        answer = await self.ask(broker, client_id, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request)
        return [(row.leader_id, row.leader_epoch) for row in answer.topics[0].partitions]

    async def produce(self, broker: int, index: int, client_id: str = "p") -> Any:
        data = [PartitionProduceData(index=index, records=BATCH)]
        request = ProduceRequest(
            acks=-1, timeout_ms=9_000, topic_data=[TopicProduceData(name="t", partition_data=data)]
        )
        answer = await self.ask(broker, client_id, ApiKey.PRODUCE, 9, request)
        return answer.responses[0].partition_responses[0]

    async def fetch(self, broker: int, index: int, offset: int, **more: Any) -> Any:
        part = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=more.pop("max_wait_ms", 0),
            min_bytes=1,
            topics=[FetchTopic(topic="t", partitions=[part])],
            rack_id=more.pop("rack", ""),
        )
        answer = await self.ask(broker, more.pop("client_id", "c"), ApiKey.FETCH, 12, request)
        return answer.responses[0].partitions[0]

    async def fetch_first(self, broker: int, index: int, size_bytes: int, **more: Any) -> Any:
        """Fetch from the beginning until the answer has ``size_bytes`` bytes. The first fetch from a broker
        begins to fill its cache."""
        for _ in range(20):
            row = await self.fetch(broker, index, 0, max_wait_ms=500, **more)
            assert row.error_code is ErrorCode.none
            if len(row.records) >= size_bytes:
                return row
        raise AssertionError(f"{len(row.records)} bytes instead of {size_bytes}")

    def meter(self, broker: int, name: str) -> float:
        registry = self.nodes[broker].get(DisklessSubsystem).manager
        return float(getattr(registry.rack_traffic, name).value)


@pytest.fixture
def cluster() -> Iterator[RackCluster]:
    with World(5) as world:
        yield RackCluster(world)


def test_clients_are_shown_leaders_in_the_rack_that_their_id_names(cluster: RackCluster) -> None:
    async def story() -> None:
        await cluster.ready()
        unknown = await cluster.leaders(11, "any")
        for broker in RACKS:
            for home, rack in RACKS.items():
                for client_id in (f"rack={rack}", f"x,diskless_az={rack}", f"ws_az={rack}-StreamThread-1",
                                  f"automq_type=c&automq_az={rack}"):  # fmt: skip
                    shown = await cluster.leaders(broker, client_id)
                    assert [leader for leader, _ in shown] == [home] * PARTITIONS
                    assert [epoch for _, epoch in shown] == [epoch for _, epoch in unknown]
                    assert await cluster.described_leaders(broker, client_id) == shown
            for client_id in ("any", "rack=z", "frack=a"):
                assert await cluster.leaders(broker, client_id) == unknown
                assert await cluster.described_leaders(broker, client_id) == unknown
            rows = (await cluster.metadata(broker, "any", asks=True)).partitions
            assert [row.preferred_produce_brokers for row in rows] == [(11, 12, 13)] * PARTITIONS
            rows = (await cluster.metadata(broker, "rack=b", asks=True)).partitions
            assert [row.preferred_produce_brokers for row in rows] == [(12,)] * PARTITIONS
            for not_asked in (
                await cluster.metadata(broker, "rack=b"),
                await cluster.metadata(broker, "any", 8),
            ):
                assert not not_asked.partitions[0].preferred_produce_brokers

    cluster.world.run(story())


def test_every_broker_answers_all_that_clients_ask_a_leader(cluster: RackCluster) -> None:
    async def story() -> None:
        await cluster.ready()
        for count, (broker, index) in enumerate((b, i) for i in range(PARTITIONS) for b in RACKS):
            offset = count % len(RACKS)
            row = await cluster.produce(broker, index)
            assert (row.error_code, row.base_offset) == (ErrorCode.none, offset)
        for broker in RACKS:
            for index in range(PARTITIONS):
                row = await cluster.fetch_first(broker, index, 3 * len(BATCH))
                assert (row.high_watermark, len(row.records)) == (3, 3 * len(BATCH))
                for timestamp, offset in ((-1, 3), (-2, 0), (1_700_000_000_000, 0), (-3, 0)):
                    part = ListOffsetsPartition(partition_index=index, timestamp=timestamp)
                    topics = [ListOffsetsTopic(name="t", partitions=[part])]
                    request = ListOffsetsRequest(replica_id=-1, topics=topics)
                    answer = await cluster.ask(broker, "c", ApiKey.LIST_OFFSETS, 7, request)
                    listed = answer.topics[0].partitions[0]
                    assert (listed.error_code, listed.offset) == (ErrorCode.none, offset)
                epoch = OffsetForLeaderPartition(partition=index, leader_epoch=0)
                asked = OffsetForLeaderEpochRequest(
                    replica_id=-1, topics=[OffsetForLeaderTopic(topic="t", partitions=[epoch])]
                )
                answer = await cluster.ask(broker, "c", ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, asked)
                end = answer.topics[0].partitions[0]
                assert (end.error_code, end.leader_epoch, end.end_offset) == (ErrorCode.none, 0, 3)
                described = DescribeProducersRequest(
                    topics=[TopicRequest(name="t", partition_indexes=[index])]
                )
                answer = await cluster.ask(broker, "c", ApiKey.DESCRIBE_PRODUCERS, 0, described)
                assert answer.topics[0].partitions[0].error_code is ErrorCode.none
        for index, broker in enumerate(RACKS):
            part = DeleteRecordsPartition(partition_index=index, offset=index + 1)
            deletion = DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name="t", partitions=[part])], timeout_ms=9_000
            )
            answer = await cluster.ask(broker, "c", ApiKey.DELETE_RECORDS, 2, deletion)
            deleted = answer.topics[0].partitions[0]
            assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.none, index + 1)
            for reader in RACKS:
                row = await cluster.fetch(reader, index, index + 1)
                assert (row.error_code, row.high_watermark) == (ErrorCode.none, 3)

    cluster.world.run(story())


def test_a_reader_at_a_broker_without_a_replica_is_woken_by_a_commit_elsewhere(cluster: RackCluster) -> None:
    async def story() -> None:
        await cluster.ready()
        replica = (await cluster.metadata(11, "any")).partitions[0].replica_nodes[0]
        reader, producer = (broker for broker in RACKS if broker != replica)
        await cluster.fetch(reader, 0, 0)
        for offset in range(5):
            waiting = asyncio.create_task(cluster.fetch(reader, 0, offset, max_wait_ms=20_000))
            await asyncio.sleep(1)
            assert not waiting.done()
            assert (await cluster.produce(producer, 0)).error_code is ErrorCode.none
            # The time is virtual. It includes a request for the positions, and a GET.
            acknowledged_s = cluster.world.loop.elapsed_s()
            assert len((await waiting).records) == len(BATCH)
            assert cluster.world.loop.elapsed_s() - acknowledged_s < 0.15

    cluster.world.run(story())


def test_a_failover_of_a_coordinator_does_not_move_gateways() -> None:
    """Gateways depend on the preferred replicas of ``__diskless_metadata``, and not on its leaders."""
    racks = {11: "a", 12: "a", 13: "b", 14: "b"}
    large: RackCluster

    def coordinators() -> list[Any]:
        metadata = large.nodes[13].metadata
        assert metadata is not None
        return list(metadata.publisher.image.topics.get(DISKLESS_METADATA_TOPIC).partitions)

    async def shown() -> list[list[int]]:
        found = [await large.leaders(broker, f"rack={rack}") for broker in racks for rack in "ab"]
        return [[leader for leader, _ in each] for each in found]

    async def story() -> None:
        await large.ready()
        before = await shown()
        preferred = [each.leader for each in coordinators()]
        for broker in (11, 12):
            # Both brokers of a rack, one after the other, so that the leader of each of their coordinators
            # moves.
            large.kill(broker)
            await large.until(lambda gone=broker: all(each.leader != gone for each in coordinators()))
            large.start(broker)
            await large.until(lambda: all(len(each.isr) == len(racks) for each in coordinators()))
        assert any(each.leader != first for each, first in zip(coordinators(), preferred, strict=True)), (
            "no coordinator has moved"
        )
        assert await shown() == before

    with World(6) as world:
        large = RackCluster(world, racks, diskless_metadata_topic_replication_factor="4")
        world.run(story())


def test_a_consumer_is_sent_to_the_gateway_of_its_rack(cluster: RackCluster) -> None:
    """A leader may send a consumer to another broker (KIP-392) if the consumer's fetches contain
    ``client.rack``."""

    async def story() -> None:
        await cluster.ready()
        await cluster.produce(11, 1)
        await cluster.fetch(13, 1, 0)
        for broker in RACKS:
            for home, rack in RACKS.items():
                if broker == home:
                    row = await cluster.fetch_first(broker, 1, len(BATCH), rack=rack)
                    assert (row.preferred_read_replica, len(row.records)) == (-1, len(BATCH))
                else:
                    row = await cluster.fetch(broker, 1, 0, rack=rack)
                    assert row.error_code is ErrorCode.none
                    assert (row.preferred_read_replica, len(row.records)) == (home, 0)
            assert (await cluster.fetch(broker, 1, 0, rack="z")).preferred_read_replica == -1

    cluster.world.run(story())


def test_bytes_of_records_that_cross_racks_are_counted(cluster: RackCluster) -> None:
    async def story() -> None:
        await cluster.ready()
        await cluster.produce(12, 0, "rack=b")
        await cluster.fetch(12, 0, 0, client_id="rack=b")
        await cluster.produce(12, 0)
        await cluster.fetch(12, 0, 0)
        for broker in RACKS:
            assert cluster.meter(broker, "bytes_in") == cluster.meter(broker, "bytes_out") == 0
        await cluster.produce(12, 0, "rack=a")
        await cluster.fetch(12, 0, 0, client_id="rack=c")
        assert cluster.meter(12, "bytes_in") == len(BATCH)
        assert cluster.meter(12, "bytes_out") == 3 * len(BATCH)

    cluster.world.run(story())


def test_commit_requests_to_other_brokers_are_counted(cluster: RackCluster) -> None:
    """A batch has one coordinator. Commits at the broker's own coordinators need no request."""

    async def story() -> None:
        await cluster.ready()
        for broker in RACKS:
            for index in range(PARTITIONS):
                await cluster.produce(broker, index)
        meters = [cluster.nodes[broker].get(PartitionsSubsystem)._context.meters.registry for broker in RACKS]
        calls = [each.scoped("moldau.diskless", "Writer").value("CommitCallsPerSec") or 0 for each in meters]
        assert sum(calls) == PARTITIONS * (len(RACKS) - 1)

    cluster.world.run(story())


def test_a_rack_without_live_brokers_is_served_by_the_leader_of_the_metadata(cluster: RackCluster) -> None:
    async def story() -> None:
        await cluster.ready()
        cluster.kill(13)
        await asyncio.sleep(10)
        unknown = await cluster.leaders(11, "any")
        assert await cluster.leaders(11, "rack=c") == await cluster.leaders(12, "rack=c") == unknown
        assert [leader for leader, _ in await cluster.leaders(12, "rack=a")] == [11] * PARTITIONS
        cluster.start(13)
        await cluster.until(lambda: 13 in cluster.nodes)
        await asyncio.sleep(3)
        assert [leader for leader, _ in await cluster.leaders(12, "rack=c")] == [13] * PARTITIONS

    cluster.world.run(story())
