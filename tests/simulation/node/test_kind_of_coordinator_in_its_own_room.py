"""A kind of coordinator consists of a ``HostedKind`` with its shard and codec, the row of its topic, and a
line in the composition. With these parts, clients find the coordinator, its records are committed, and a
restart loads them."""

import asyncio
from typing import Any

import pytest
from simulated_cluster import Cluster

from moldau.cluster.internal_topics import STATE_TOPICS, InternalTopic, StateRetention, StateTopic
from moldau.coordinators.effects import BatchKind, Effects, TimerKey, Token, answer
from moldau.coordinators.hosted import HostedKind, KindContext
from moldau.coordinators.kind import CoordinatorKind
from moldau.coordinators.partitioning import coordinator_partition
from moldau.coordinators.runtime import CoordinatorRuntime
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.runtime import ErrorCode
from moldau.server import composition
from moldau.server.context import BrokerContext
from moldau.server.coordinators.subsystem import HostedCoordinators, kind_context
from moldau.server.extensions import Extensions
from moldau.server.subsystem import Subsystem
from moldau.simulation.clients.rpc import RpcConnection
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

NODE, KEY_TYPE, PARTITIONS, VERSION = 11, 117, 3, 4
KEY = "apples"
TALLIES = StateTopic(
    name="__tally_state",
    retention=StateRetention.COMPACTED,
    factor_key="offsets.topic.replication.factor",
    saved_in_step=0,
)


class TallyShard:
    """A shard whose state is a number. A record contains the new value of this number."""

    def __init__(self) -> None:
        self.total = 0

    def replay(self, offset: int, record: int, kind: BatchKind) -> None:
        self.total = record

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None: ...

    def on_loaded(self, now_ms: int) -> Effects[int]:
        return Effects()

    def on_timer(self, key: TimerKey, now_ms: int) -> Effects[int]:
        return Effects()


class TallyCodec:
    def encode(self, record: int) -> tuple[bytes | None, bytes | None]:
        return b"total", str(record).encode()

    def decode(self, key: bytes | None, value: bytes | None) -> int | None:
        return int(value or b"0")


class TallyCoordinators(HostedKind):
    """The tally coordinators that this broker leads."""

    start_waits = True

    def __init__(self, context: KindContext) -> None:
        kind = CoordinatorKind(
            topic=TALLIES,
            new_shard=lambda partition: TallyShard(),
            codec=TallyCodec(),
            key_type=KEY_TYPE,
            partition_of=coordinator_partition,
        )
        runtime = CoordinatorRuntime(kind, context.machine.clock, context.machine.unexpected)
        factor = context.config.integer(TALLIES.factor_key)
        super().__init__("tallies", runtime, InternalTopic.of(TALLIES, PARTITIONS, factor))


def _count(shard: TallyShard, now_ms: int, token: Token) -> Effects[int]:
    return answer(token, shard.total + 1, [shard.total + 1])


class TallySubsystem(HostedCoordinators[TallyCoordinators]):
    """The usual subsystem under a name by which the test can look it up."""


async def _find() -> int:
    """The broker that a FindCoordinator response names."""
    while True:
        await asyncio.sleep(1)
        connection = await RpcConnection.open("client", f"node-{NODE}", 9092)
        request = FindCoordinatorRequest(key_type=KEY_TYPE, coordinator_keys=[KEY])
        found = (await connection.request(ApiKey.FIND_COORDINATOR, VERSION, request)).coordinators[0]
        connection.close()
        if found.error_code is ErrorCode.none:
            node_id: int = found.node_id
            return node_id


def test_a_coordinator_is_found_and_keeps_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    compose = composition.compose_broker
    contexts: list[BrokerContext] = []

    class WithTallies(composition.Composition):
        """The composition with one more line, which hosts the new kind of coordinator."""

        def __init__(self, extensions: Extensions) -> None:
            super().__init__(extensions)
            super().add(TallySubsystem(TallyCoordinators(kind_context(contexts[-1]))))

    def composed(context: BrokerContext, extensions: Extensions) -> tuple[Subsystem, ...]:
        contexts.append(context)
        return compose(context, extensions)

    monkeypatch.setitem(STATE_TOPICS, TALLIES.name, TALLIES)
    monkeypatch.setattr(composition, "Composition", WithTallies)
    monkeypatch.setattr("moldau.server.broker.compose_broker", composed)
    with World(1) as world:
        cluster = Cluster(world, {NODE: "broker,controller"})

        async def count() -> Any:
            runtime = cluster.nodes[NODE].get(TallySubsystem).kind.runtime
            return await runtime.write(coordinator_partition(KEY, PARTITIONS), _count)

        async def story() -> None:
            for expected in (1, 2):
                cluster.start(NODE)
                await cluster.until(lambda: NODE in cluster.nodes)
                assert await cluster.on("client", _find()) == NODE
                process = world.host(f"node-{NODE}").process
                assert process is not None
                assert await asyncio.create_task(count(), context=process.context()) == expected
                await asyncio.sleep(1)
                cluster.kill(NODE)

        world.run(story())
