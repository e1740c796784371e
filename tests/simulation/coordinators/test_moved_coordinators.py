"""A coordinator moves to another broker by an election. The old broker refuses every request at once, also
the requests that wait, and the new broker has the state."""

import asyncio
from typing import Any

import pytest
from simulated_cluster import Cluster

from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC
from moldau.coordinators.runtime import CoordinatorRuntime
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

BROKERS = (11, 12)
GROUP, TOPIC = "g", "t"
PROPERTIES = {
    "offsets.topic.replication.factor": "2",
    "offsets.topic.num.partitions": "1",
    # The first member waits for this time, so that its request waits while the coordinator moves.
    "group.initial.rebalance.delay.ms": "600000",
    "group.max.session.timeout.ms": "3600000",
}


def commit(offset: int) -> OffsetCommitRequest:
    row = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    return OffsetCommitRequest(
        group_id=GROUP, topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[row])]
    )


class House:
    def __init__(self, world: World) -> None:
        roles = {1: "controller"} | dict.fromkeys(BROKERS, "broker")
        self.cluster = Cluster(world, roles, dict.fromkeys(roles, PROPERTIES))
        self._askers = 0

    async def ask(self, broker: int, api_key: ApiKey, version: int, request: Message) -> Any:
        self._askers += 1
        name = f"asker-{self._askers}"
        client = self.cluster.client(name, broker)
        return await self.cluster.on(name, client.ask(api_key, version, request))

    def leads(self, broker: int) -> bool:
        hosted = self.cluster.nodes[broker].get(PartitionsSubsystem)
        replica: Any = hosted.partition(CONSUMER_OFFSETS_TOPIC, 0)
        return replica is not None and replica.is_leader

    async def begin(self) -> int:
        """Start the cluster, and commit an offset. Returns the broker with the coordinator."""
        self.cluster.start(1, *BROKERS)
        await self.cluster.until(lambda: len(self.cluster.nodes) == 3)
        await self.cluster.on("admin", self.cluster.client("admin", 11).create_topic(TOPIC, 1, {}))
        lookup = FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])
        while True:
            (found,) = (await self.ask(11, ApiKey.FIND_COORDINATOR, 4, lookup)).coordinators
            if found.error_code is ErrorCode.none and await self.committed(found.node_id, 7):
                return int(found.node_id)
            await asyncio.sleep(0.1)

    async def committed(self, broker: int, offset: int) -> bool:
        return await self.commit(broker, offset) is ErrorCode.none

    async def commit(self, broker: int, offset: int) -> ErrorCode:
        answer = await self.ask(broker, ApiKey.OFFSET_COMMIT, 8, commit(offset))
        code: ErrorCode = answer.topics[0].partitions[0].error_code
        return code

    async def fetch(self, broker: int) -> int | ErrorCode:
        topic = OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
        answer = await self.ask(
            broker, ApiKey.OFFSET_FETCH, 7, OffsetFetchRequest(group_id=GROUP, topics=[topic])
        )
        code: ErrorCode = answer.error_code
        return code if code is not ErrorCode.none else int(answer.topics[0].partitions[0].committed_offset)

    async def loaded(self, broker: int) -> int | ErrorCode:
        """Fetch the offset, as a client that tries again while the coordinator is loaded."""
        while True:
            found = await self.fetch(broker)
            if found is not ErrorCode.coordinator_load_in_progress:
                return found
            await asyncio.sleep(0.05)

    async def join(self, broker: int) -> ErrorCode:
        request = JoinGroupRequest(
            group_id="waiting",
            session_timeout_ms=1_800_000,
            rebalance_timeout_ms=1_800_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        code: ErrorCode = (await self.ask(broker, ApiKey.JOIN_GROUP, 3, request)).error_code
        return code

    async def heartbeat(self, broker: int) -> ErrorCode:
        request = HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="m")
        code: ErrorCode = (await self.ask(broker, ApiKey.HEARTBEAT, 4, request)).error_code
        return code

    async def move(self, old: int, new: int) -> None:
        """Let the new broker lead, and wait until the old broker knows this."""
        row = ReassignablePartition(partition_index=0, replicas=[new, old])
        topic = ReassignableTopic(name=CONSUMER_OFFSETS_TOPIC, partitions=[row])
        answer = await self.ask(
            old, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, AlterPartitionReassignmentsRequest(topics=[topic])
        )
        assert answer.responses[0].partitions[0].error_code is ErrorCode.none
        while not self.leads(new):
            await self.ask(old, ApiKey.ELECT_LEADERS, 2, ElectLeadersRequest(topic_partitions=None))
            await asyncio.sleep(0.1)
        await self.cluster.until(lambda: not self.leads(old))


async def refusals(house: House, old: int, new: int) -> list[object]:
    """Move the coordinator. Returns the old broker's answers to a request that waits, and to later ones."""
    waiting = asyncio.ensure_future(house.join(old))
    await asyncio.sleep(1)
    assert not waiting.done()
    await house.move(old, new)
    # The request would otherwise wait for ten minutes.
    waited = await asyncio.wait_for(waiting, 5)
    return [waited, await house.commit(old, 8), await house.fetch(old), await house.heartbeat(old)]


def test_the_old_broker_refuses_requests_at_once_and_the_new_broker_has_the_state() -> None:
    with World(5) as world:
        house = House(world)

        async def story() -> None:
            old = await house.begin()
            new = sum(BROKERS) - old
            assert await house.fetch(new) is ErrorCode.not_coordinator
            assert await refusals(house, old, new) == [ErrorCode.not_coordinator] * 4
            assert await house.loaded(new) == 7
            assert await house.committed(new, 9)
            assert await house.fetch(new) == 9

        world.run(story())


def test_a_coordinator_that_is_not_unloaded_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a broker keeps the coordinator of a partition that it does not lead any more."""
    monkeypatch.setattr(CoordinatorRuntime, "leave", lambda self, partition, epoch: None)
    with World(5) as world:
        house = House(world)

        async def story() -> None:
            old = await house.begin()
            with pytest.raises((AssertionError, TimeoutError)):
                assert await refusals(house, old, sum(BROKERS) - old) == [ErrorCode.not_coordinator] * 4

        world.run(story())
