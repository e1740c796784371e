"""The calls to brokers about consolidation and the remote tier, inside the process and over a connection."""

import asyncio
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tiered"))
from consolidation_house import TOPIC, Leader
from consolidation_house import World as House
from wal_batches import Sent

from moldau.cluster.image.image import MetadataImage
from moldau.network.authorization import AclOperation, AclResourceType, AllowEveryone, Authorizer
from moldau.network.client.rpc_client import RpcClient
from moldau.network.context import RequestContext
from moldau.network.limits import Listener
from moldau.network.own_calls import BrokerChannel
from moldau.network.own_serving import BrokerCallHandlers
from moldau.network.served import Handler
from moldau.network.server import SocketServer
from moldau.protocol.api import Scope
from moldau.protocol.own.rights import Right
from moldau.runtime import ErrorCode, KafkaError
from moldau.runtime.entropy import SeededEntropy
from moldau.server.handlers.metadata.versions import VersionHandlers
from moldau.server.requests.dispatch import Dispatcher
from moldau.server.subsystems.tiered.tiered_calls import tool_calls
from moldau.server.topics.registry import PartitionRegistry
from moldau.simulation.world.world import World
from moldau.tiered import calls as tiered
from moldau.tiered.calls import ListSegmentsCall, NetworkTieredCalls
from moldau.tiered.consolidation import calls as consolidation
from moldau.tiered.consolidation.calls import (
    ConsolidationCalls,
    LeaseCall,
    LocalConsolidation,
    NetworkConsolidation,
    PlanCall,
    PublishCall,
)
from moldau.tiered.consolidation.plan import SegmentRules
from moldau.tiered.consolidation.work import BuiltCopy
from moldau.tiered.metadata.calls import METADATA_CALLS
from moldau.tiered.storage.storage_manager import RemotePlace

PLACE = RemotePlace(None, "memory:", "tiered")
TIMEOUT_MS = 60_000


class Broker:
    """A listener that serves the calls."""

    def __init__(self, service: ConsolidationCalls, authorizer: Authorizer) -> None:
        handlers: dict[int, Handler] = {}
        versions = VersionHandlers(Scope.BROKER, lambda: handlers, {}, lambda: (0, {}))
        partitions = PartitionRegistry(MetadataImage)
        calls = tool_calls(partitions, None, lambda topic: False, lambda key: 0, authorizer)
        handlers |= versions.table() | calls.table()
        handlers |= BrokerCallHandlers[ConsolidationCalls](consolidation.CALLS, service, authorizer).table()
        self._dispatcher = Dispatcher(handlers, Scope.BROKER)
        self._server = SocketServer(self._dispatcher, [Listener("PLAINTEXT", "127.0.0.1", 0)])
        self._rpc = RpcClient(SeededEntropy(1))

    async def __aenter__(self) -> BrokerChannel:
        port = (await self._server.start())["PLAINTEXT"]
        return BrokerChannel(self._rpc, "127.0.0.1", port, TIMEOUT_MS)

    async def __aexit__(self, *error: object) -> None:
        await self._rpc.close()
        await self._server.stop(0)
        await self._dispatcher.close()


async def code_of(call: Awaitable[object]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        await call
    return caught.value.code


async def plan_and_publish(leader: ConsolidationCalls) -> None:
    """Do the work of one engine. ``leader`` may be in this process, or behind a connection."""
    assert await code_of(leader.plan(PlanCall("e", 0))) is ErrorCode.invalid_request
    plan, place = await leader.plan(PlanCall("e", 1 << 20, 60_000, ["t"]))
    assert place == PLACE
    (work,) = plan.work
    assert (work.segment.metadata.id.topic_id_partition, work.epoch) == (TOPIC, 1)
    other, _ = await leader.plan(PlanCall("other", 1 << 20))
    assert [(one.engine, one.partitions) for one in other.held] == [("e", 1)]
    assert await leader.lease(LeaseCall(UUID(int=5))) is None
    renewed = await leader.lease(LeaseCall(plan.lease_id, 90_000))
    assert renewed == plan.until_ms + 30_000
    copy = BuiltCopy(TOPIC, work.segment.segment_id, 9, b"attempt")
    (published,) = await leader.publish(PublishCall(plan.lease_id, [copy]))
    assert (published.segment_id, published.error) == (copy.segment_id, ErrorCode.fenced_leader_epoch)
    assert await leader.lease(LeaseCall(plan.lease_id, 0, [TOPIC])) is None
    again, _ = await leader.plan(PlanCall("other", 1 << 20))
    assert len(again.work) == 1
    assert not again.held


@pytest.mark.parametrize("form", ["local", "remote"])
def test_an_engine_plans_renews_publishes_and_gives_up(form: str) -> None:
    async def story() -> None:
        house = House()
        await house.commit(Sent(size=400))
        here = Leader(house, 1, rules=SegmentRules(segment_bytes=1, max_age_ms=0)).leader
        local = LocalConsolidation(here, PLACE)
        if form == "local":
            await plan_and_publish(local)
            return
        async with Broker(local, AllowEveryone()) as channel:
            await plan_and_publish(NetworkConsolidation(channel))

    asyncio.run(story())


def test_a_broker_without_a_remote_tier_refuses_each_call() -> None:
    async def story() -> None:
        async with Broker(LocalConsolidation(None, PLACE), AllowEveryone()) as channel:
            refused: list[Awaitable[object]] = [
                NetworkConsolidation(channel).plan(PlanCall("e", 1)),
                NetworkTieredCalls(channel).describe_topics(None),
                NetworkTieredCalls(channel).list_segments(ListSegmentsCall("t", 0)),
            ]
            assert {await code_of(call) for call in refused} == {ErrorCode.unsupported_version}

    asyncio.run(story())


class Reader:
    """A principal that may read one topic, but has no other rights."""

    def allows(
        self, context: RequestContext, operation: AclOperation, resource: AclResourceType, name: str
    ) -> bool:
        return (operation, resource, name) == (AclOperation.READ, AclResourceType.TOPIC, "t")


def test_a_reader_may_only_list_segments_of_its_topics() -> None:
    async def story() -> None:
        async with Broker(LocalConsolidation(None, PLACE), Reader()) as channel:
            leader, tier = NetworkConsolidation(channel), NetworkTieredCalls(channel)
            refused: list[Awaitable[object]] = [
                leader.plan(PlanCall("e", 1)),
                leader.publish(PublishCall(UUID(int=1), [])),
                leader.lease(LeaseCall(UUID(int=1))),
                tier.describe_topics(["t"]),
            ]
            assert {await code_of(call) for call in refused} == {ErrorCode.cluster_authorization_failed}
            other = tier.list_segments(ListSegmentsCall("other", 0))
            assert await code_of(other) is ErrorCode.topic_authorization_failed
            # The principal has the right, but there is no remote tier.
            own = tier.list_segments(ListSegmentsCall("t", 0))
            assert await code_of(own) is ErrorCode.unsupported_version

    asyncio.run(story())


def test_each_call_declares_its_right() -> None:
    declared = {key: call.right for key, call in consolidation.CALLS.items()}
    declared |= {key: call.right for key, call in tiered.CALLS.items()}
    declared |= {key: call.right for key, call in METADATA_CALLS.items()}
    cluster = dict.fromkeys((11656, 11657, 11658, 11660, 11662, 11663), Right.CLUSTER_ACTION)
    assert declared == {**cluster, 11661: Right.READ_TOPIC}


class Stuck:
    """A leader that never finishes a plan."""

    def __init__(self) -> None:
        self.begun = 0

    async def plan(self, call: PlanCall) -> Any:
        self.begun += 1
        await asyncio.get_running_loop().create_future()


def test_a_call_ends_at_its_deadline_and_does_not_begin_after_it() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        began, stuck = loop.time(), Stuck()
        service: Any = stuck
        asked = consolidation.PLAN.ask(PlanCall("e", 1), 0, 30_000)
        late: Any = await consolidation.PLAN.answer(service, asked, 0, waited_ms=30_001)
        assert (late.error_code, stuck.begun) == (ErrorCode.request_timed_out, 0)
        answer: Any = await consolidation.PLAN.answer(service, asked, 0, waited_ms=10_000)
        assert (answer.error_code, stuck.begun) == (ErrorCode.request_timed_out, 1)
        assert loop.time() - began == pytest.approx(20, abs=0.001)

    with World(1) as world:
        world.run(story())
