"""Lookups at a leader and at its follower. Only the leader returns offsets. The leader and the follower each
describe the producers of their own log."""

import asyncio
from typing import Any

import pytest
from simulated_cluster import Cluster

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from moldau.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from moldau.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.protocol.special_timestamps import LATEST_TIMESTAMP
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime import ErrorCode
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

BATCH = memoryview(build_batch([Record(0, 1_700_000_000_000, b"k", b"v", ())]))
AT_A_FOLLOWER = [ErrorCode.not_leader_or_follower] * 2 + [ErrorCode.none]
"""The error codes of the three lookups at a follower. DescribeProducers succeeds, because a follower
describes the producers of its own log, as in Kafka."""
PROPERTIES = {"default.replication.factor": "2", "min.insync.replicas": "1"}
LOOKUPS: tuple[tuple[ApiKey, int, Any], ...] = (
    (
        ApiKey.LIST_OFFSETS,
        7,
        ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=LATEST_TIMESTAMP)]
                )
            ],
        ),
    ),
    (
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        4,
        OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[
                OffsetForLeaderTopic(
                    topic="t", partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=0)]
                )
            ],
        ),
    ),
    (
        ApiKey.DESCRIBE_PRODUCERS,
        0,
        DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])]),
    ),
)


def test_only_the_current_leader_returns_offsets() -> None:
    with World(8) as world:
        cluster = Cluster(
            world, {1: "controller", 11: "broker", 12: "broker"}, dict.fromkeys((1, 11, 12), PROPERTIES)
        )

        def replica(broker: int) -> Any:
            return cluster.nodes[broker].get(PartitionsSubsystem).partition("t", 0)

        def leader() -> int:
            return next(
                (
                    each
                    for each in (11, 12)
                    if each in cluster.nodes and replica(each) and replica(each).is_leader
                ),
                0,
            )

        async def ask(broker: int, api_key: ApiKey, version: int, request: Any) -> Any:
            client = cluster.client("asker", broker)
            return await cluster.on("asker", client.ask(api_key, version, request))

        async def codes(broker: int) -> list[ErrorCode]:
            found = []
            for api_key, version, request in LOOKUPS:
                topic = (await ask(broker, api_key, version, request)).topics[0]
                found.append(topic.partitions[0].error_code)
            return found

        async def story() -> None:
            cluster.start(1, 11, 12)
            await cluster.until(lambda: len(cluster.nodes) == 3)
            await cluster.on("admin", cluster.client("admin", 11).create_topic("t", 1, {}))
            await cluster.until(lambda: leader() != 0 and replica(11) is not None and replica(12) is not None)
            preferred = leader()
            other = 23 - preferred
            replica(preferred).append(BATCH, required_acks=1, timeout_ms=1_000)
            await cluster.until(lambda: replica(other).log.log_end_offset == 1)
            assert await codes(preferred) == [ErrorCode.none] * 3
            assert await codes(other) == AT_A_FOLLOWER
            for broker in (11, 12):
                folders = (
                    await ask(broker, ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None))
                ).results
                row = next(topic for topic in folders[0].topics if topic.name == "t").partitions[0]
                assert (row.partition_size, row.offset_lag) == (len(BATCH), 0)

            cluster.kill(preferred)
            await cluster.until(lambda: leader() == other)
            assert await codes(other) == [ErrorCode.none] * 3
            cluster.start(preferred)
            await cluster.until(lambda: preferred in cluster.nodes)
            await asyncio.sleep(5)
            election = ElectLeadersRequest(
                election_type=0,
                topic_partitions=[TopicPartitions(topic="t", partitions=[0])],
                timeout_ms=5_000,
            )
            answer = await ask(other, ApiKey.ELECT_LEADERS, 2, election)
            row = answer.replica_election_results[0].partition_result[0]
            assert row.error_code in (ErrorCode.none, ErrorCode.election_not_needed)
            await cluster.until(lambda: leader() == preferred)
            await cluster.until(lambda: not replica(other).is_leader)
            assert await codes(preferred) == [ErrorCode.none] * 3
            assert await codes(other) == AT_A_FOLLOWER

        world.run(story())
