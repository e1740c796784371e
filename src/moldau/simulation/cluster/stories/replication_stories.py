"""Replicated partitions on three brokers. Replicas fail while clients write and read.

Every topic has three replicas, and at least two must be in sync. Therefore no record that is acknowledged
with acks=all may be lost. At the end, all replicas are in sync and equal byte for byte up to the watermark.
"""

import asyncio
import enum
import random
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from moldau.cluster.image.registrations import FeatureRanges
from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.partitions import TopicPartition
from moldau.replication.classic_partition import ClassicPartition
from moldau.runtime import Machine
from moldau.server.node import ServerNode
from moldau.server.settings import SUPPORTED_FEATURES
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.simulation.checks.log_checks import check
from moldau.simulation.clients.client import (
    CREATE_TOPICS_VERSION,
    Bootstrap,
    Consumer,
    Producer,
    Sending,
    SimulatedClient,
)
from moldau.simulation.cluster.formatted import format_folders
from moldau.simulation.cluster.groups_at_work import GroupsAtWork
from moldau.simulation.cluster.handovers import Handovers
from moldau.simulation.cluster.mover import Mover
from moldau.simulation.cluster.node_config import BROKER_PORT, node_config
from moldau.simulation.cluster.watermark_watch import WatermarkWatch
from moldau.simulation.coordinators.agreement import CoordinatorWatch
from moldau.simulation.history import History
from moldau.simulation.nemesis import Fault, Nemesis, Weather
from moldau.simulation.scenario import Scenario
from moldau.simulation.seeds import stream
from moldau.simulation.world.disks.disk import MountedDisk
from moldau.simulation.world.host import Host, Program
from moldau.simulation.world.process import serving
from moldau.simulation.world.world import World

CLUSTER_ID: Final = "bW9sZGF1LXNpbXVsYXRlZA"
NODE_IDS: Final = (1, 2, 3)
BROKERS: Final = tuple(Bootstrap(f"node-{node_id}", BROKER_PORT) for node_id in NODE_IDS)
TOPIC: Final = "events"
PARTITIONS: Final = tuple(TopicPartition(TOPIC, index) for index in range(3))
_OFFSETS: Final = tuple(TopicPartition(CONSUMER_OFFSETS_TOPIC, index) for index in range(2))
CONVERGENCE_LIMIT_S: Final = 120.0

SHORT_METADATA: Final = {
    "metadata.log.max.record.bytes.between.snapshots": "4000",
    "metadata.max.retention.bytes": "1",
}
"""Snapshots are frequent. Therefore a node may start with an old image, in which partitions have replicas on
other nodes than now."""
_SLOW_COPIES: Final = {
    # One batch of a response is enough to make it a copy.
    "replica.fetch.max.bytes": "400",
    "replica.catch.up.max.bytes.per.second": "4000",
}
SYNCED: Final = {"log.flush.interval.messages": "1"}


class FaultPattern(enum.Enum):
    """The kind of faults that a story injects."""

    RANDOM = enum.auto()
    """Random faults of the kinds that the scenario allows, and leaders that are disconnected from the other
    nodes."""
    LAGGING_FOLLOWERS = enum.auto()
    """A follower is disconnected from its leader, which is killed while the follower lags."""
    BLACKOUTS = enum.auto()
    """Two nodes stop cleanly, and the last node loses its power."""
    ROLLING_RESTARTS = enum.auto()
    """All nodes are restarted one after another."""


def replication() -> Scenario:
    """Processes of nodes are killed, paused or cleanly restarted, and links break."""
    faults = (*(Fault.KILL,) * 3, *(Fault.STOP, Fault.PAUSE, Fault.CUT, Fault.ONE_WAY) * 2, Fault.RESET)
    return scenario_of({}, faults)


def replication_power() -> Scenario:
    """Nodes lose power, are killed or paused, and links break. Logs are synced before records are
    acknowledged."""
    return scenario_of(SYNCED, (*(Fault.POWER_LOSS,) * 3, Fault.KILL, Fault.PAUSE, Fault.CUT, Fault.ONE_WAY))


def replication_unsynced() -> Scenario:
    """All machines except one stop cleanly. The last machine loses its power and its unsynced writes.

    This is the case of KIP-966: when the last machine starts again, the in-sync set contains no complete
    replica.
    """
    scenario = scenario_of({}, (Fault.KILL,))
    return replace(
        scenario, story=partial(ReplicationStory, properties={}, faults=FaultPattern.BLACKOUTS), fault_count=3
    )


def replication_lag() -> Scenario:
    """Followers are disconnected from their leader. The leader is killed while they lag."""
    scenario = scenario_of({}, (Fault.KILL,))
    return replace(
        scenario,
        story=partial(ReplicationStory, properties={}, faults=FaultPattern.LAGGING_FOLLOWERS),
        fault_count=4,
    )


def replication_copies() -> Scenario:
    """Followers that were away copy on connections of their own, at a low rate."""
    faults = (*(Fault.KILL,) * 3, *(Fault.STOP, Fault.PAUSE, Fault.CUT, Fault.ONE_WAY) * 2, Fault.RESET)
    return scenario_of(_SLOW_COPIES, faults)


def replication_rolling() -> Scenario:
    """Nodes are cleanly restarted one after another. During some restarts a link is broken."""
    scenario = scenario_of({}, (Fault.STOP,))
    return replace(
        scenario,
        story=partial(ReplicationStory, properties={}, faults=FaultPattern.ROLLING_RESTARTS),
        fault_count=1,
    )


def replication_moves() -> Scenario:
    """Partitions are moved between brokers while brokers fail. Replicas are therefore removed and added
    again."""
    scenario = scenario_of({}, (*(Fault.KILL,) * 3, Fault.STOP, Fault.PAUSE, Fault.CUT, Fault.ONE_WAY))
    return replace(scenario, story=partial(ReplicationStory, properties=SHORT_METADATA, moves=True))


def scenario_of(properties: dict[str, str], faults: tuple[Fault, ...]) -> Scenario:
    """Return a scenario with replicated partitions and with random faults of these kinds."""
    return Scenario(
        partitions=PARTITIONS,
        story=partial(ReplicationStory, properties=properties),
        weather=Weather(faults, pause_s_max=5.0, between_s_max=3.0),
        fault_count=6,
        producer_count=2,
        plain_producer_count=1,
        consumer_count=2,
        records_per_producer=400,
    )


class ReplicationStory:
    """A seeded run of replicated partitions."""

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        *,
        properties: dict[str, str],
        faults: FaultPattern = FaultPattern.RANDOM,
        moves: bool = False,
        controller_ids: Sequence[int] = NODE_IDS,
    ) -> None:
        """The brokers are always :data:`NODE_IDS`. By default the same nodes are also the controllers. With
        ``moves``, an administrator moves partitions."""
        self._world = world
        self._scenario = scenario
        self._properties = properties
        self._faults = faults
        self._moves = moves
        self._controller_ids = controller_ids
        self.node_ids: Final = sorted({*NODE_IDS, *controller_ids})
        """All nodes, brokers and controllers."""
        self.history = History(world.loop.elapsed_s)
        config = node_config(NODE_IDS[0], NODE_IDS, controller_ids, properties)
        silence_s = config.integer("broker.session.timeout.ms") / 2_000
        self._handovers = Handovers(world, self.history, controller_ids, silence_s)
        self.nodes: dict[int, ServerNode] = {}
        """The newest process of each node that has started."""
        self._lives: dict[int, int] = {}
        """The number of the newest process of each node. It differs from ``Host.life`` while a restarted node
        has not started completely."""

    async def run(self) -> list[str]:
        """Run the scenario; return the violations."""
        world, scenario = self._world, self._scenario
        programs: dict[Host, Program] = {
            world.host(f"node-{node_id}"): partial(self._node, node_id) for node_id in self.node_ids
        }
        nemesis = Nemesis(world, self.history, stream(world.seed, "nemesis"), programs, scenario.weather)
        for host, program in programs.items():
            host.start(program)
        supervisor = asyncio.create_task(nemesis.supervise())
        await self._on("admin", self._create_topic(self._begin_at_any(SimulatedClient, "admin")))
        # The cluster must be ready before clients start. Otherwise a broker might refuse a producer's first
        # batch and accept its second batch. The producer could then never send the first batch again.
        await self._converge()
        storm = asyncio.create_task(self._storm(nemesis))
        readers = [
            self._on(f"consumer-{number}", self._consumer(f"consumer-{number}", number).run())
            for number in range(scenario.consumer_count)
        ]
        producer_count = scenario.producer_count + scenario.plain_producer_count
        producers = [self._producer(number) for number in range(producer_count)]
        writing = [
            self._on(each.name, each.run(scenario.records_per_producer, pause_s=0.4)) for each in producers
        ]
        watched = list(programs) if scenario.watches_coordinators else []
        watermarks = WatermarkWatch(PARTITIONS, self._replicas_by_node, self.history)
        watch = CoordinatorWatch(watched, self.history, scenario.coordinator_tally)
        groups = GroupsAtWork(scenario, self.history, world.seed, BROKERS, PARTITIONS, self._on)
        writing += groups.start()
        moved = (*PARTITIONS, *_OFFSETS) if scenario.committer_count else PARTITIONS
        mover = Mover(self._begin_at_any(SimulatedClient, "mover"), moved, NODE_IDS, replicas_min=2)
        moving = []
        if self._moves:
            moving.append(self._on("mover", mover.run(lambda: not storm.done())))
        await asyncio.gather(*writing, *moving)
        await storm
        if self._moves:
            await self._on("settler", mover.settle())
        self.history.note("producers are done")
        await self._converge()
        self._handovers.check()
        final_readers = [self._consumer(f"judge-{n}", n, observed=False) for n in range(len(PARTITIONS))]
        final = {each.partition: await self._on(each.name, each.read_to_end()) for each in final_readers}
        for reader in readers:
            if reader.done() and not reader.cancelled() and reader.exception() is not None:
                self.history.violate(f"a consumer failed: {reader.exception()!r}")
        await groups.verify()
        await self._converge()  # a chunk may have ended in the meantime
        for violation in self._differences():
            self.history.violate(violation)
        supervisor.cancel()
        watch.end()
        watermarks.end()
        return check(self.history, final, {each.partition: each.first_offset for each in final_readers})

    async def _storm(self, nemesis: Nemesis) -> None:
        """Inject faults, and isolate leaders."""
        chance = stream(self._world.seed, "leaders")
        for _ in range(self._scenario.fault_count):
            match self._faults:
                case FaultPattern.ROLLING_RESTARTS:
                    await self._roll(nemesis, chance)
                case FaultPattern.BLACKOUTS:
                    await self._converge()
                    await self._black_out(nemesis, chance)
                case FaultPattern.LAGGING_FOLLOWERS:
                    await asyncio.sleep(chance.uniform(0.1, 2.0))
                    await self._starve_follower(nemesis, chance)
                case FaultPattern.RANDOM if chance.random() < 0.6:
                    await nemesis.storm(1)
                case FaultPattern.RANDOM:
                    await asyncio.sleep(chance.uniform(0.1, 2.0))
                    await self._isolate_leader(chance)

    async def _isolate_leader(self, chance: random.Random) -> None:
        """Disconnect a leader from the other nodes. Clients still write records to this leader, but the
        leader cannot acknowledge them.

        If the disconnection is long enough, the leader is fenced and another leader is elected.
        """
        with_groups = self._scenario.committer_count > 0
        partition = chance.choice((*PARTITIONS, *_OFFSETS) if with_groups else PARTITIONS)
        leader_id = next((id for id, each in self._replicas_by_node(partition) if each.is_leader), None)
        if leader_id is None:
            return
        seconds = chance.uniform(1.0, 6.0)
        is_mute = chance.random() < 0.3
        self.history.note(f"node-{leader_id} is {'mute' if is_mute else 'isolated'} for {seconds:.3f} s")
        links = [(f"node-{leader_id}", f"node-{other}") for other in NODE_IDS if other != leader_id]
        if not is_mute:
            links += [(there, here) for here, there in links]
        for link in links:
            self._world.network.cut(*link)
        await asyncio.sleep(seconds)
        for link in links:
            self._world.network.heal(*link)

    async def _starve_follower(self, nemesis: Nemesis, chance: random.Random) -> None:
        """Disconnect a follower from its leader. The other followers stay connected to the leader. Kill the
        leader some time later.

        The follower and the leader can reach the controller. The follower lacks records. If it still counted
        as in sync, it could be elected.
        """
        partition = chance.choice(PARTITIONS)
        leader_id = next((id for id, each in self._replicas_by_node(partition) if each.is_leader), None)
        if leader_id is None:
            return
        follower_id = chance.choice([node_id for node_id in NODE_IDS if node_id != leader_id])
        leader, follower = f"node-{leader_id}", f"node-{follower_id}"
        seconds = chance.uniform(0.5, 5.0)
        self.history.note(f"{follower} is parted from {leader}, which is killed {seconds:.3f} s later")
        links = ((leader, follower), (follower, leader))
        for link in links:
            self._world.network.cut(*link)
        await asyncio.sleep(seconds)
        await nemesis.restart(self._world.host(leader), chance.uniform(2.0, 4.0))
        for link in links:
            self._world.network.heal(*link)

    async def _roll(self, nemesis: Nemesis, chance: random.Random) -> None:
        """Restart all nodes, one after another. Each time, wait first until all replicas are in sync. A
        stopped node must not lead any partition, unless no controller could respond to it."""
        for node_id in chance.sample(NODE_IDS, len(NODE_IDS)):
            await self._converge()
            self._handovers.check()
            host = self._world.host(f"node-{node_id}")
            other_id = chance.choice([other for other in NODE_IDS if other != node_id])
            links = ((host.name, f"node-{other_id}"), (f"node-{other_id}", host.name))
            is_parted = chance.random() < 0.3
            self.history.note(f"rolling restart of {host.name}{f', parted from {other_id}' * is_parted}")
            if is_parted:
                for link in links:
                    self._world.network.cut(*link)
                self._world.loop.call_later(chance.uniform(0.2, 0.9), self._heal, links)
            metadata, began_s = self.nodes[other_id].metadata, self._world.loop.time()
            controller_id = None if metadata is None else metadata.driver.leader_id
            await nemesis.stop(host)
            topic = None if metadata is None else metadata.publisher.image.topics.get(TOPIC)
            if not is_parted and topic and any(each.leader == node_id for each in topic.partitions):
                self._handovers.still_leads(host.name, controller_id, began_s)
            await asyncio.sleep(chance.uniform(0.1, 3.0))
            nemesis.start(host)

    def _heal(self, links: Iterable[tuple[str, str]]) -> None:
        for link in links:
            self._world.network.heal(*link)

    async def _black_out(self, nemesis: Nemesis, chance: random.Random) -> None:
        """Stop two nodes one after the other, then cut the power of the third node."""
        *stopped, last = chance.sample([self._world.host(f"node-{node_id}") for node_id in NODE_IDS], 3)
        for host in stopped:
            await asyncio.sleep(chance.uniform(0.1, 2.0))
            self.history.note(f"stop of {host.name}")
            await nemesis.stop(host)
        await asyncio.sleep(chance.uniform(0.0, 1.0))
        self.history.note(f"{last.name} loses its power")
        await nemesis.restart(last, chance.uniform(0.1, 3.0), power_lost=True)
        for host in chance.sample(stopped, 2):
            await asyncio.sleep(chance.uniform(0.0, 4.0))
            nemesis.start(host)

    # The clients of a run

    def _begin_at_any(self, kind: Any, name: str, *arguments: Any, **options: Any) -> Any:
        first, *others = BROKERS
        client = kind(name, first, self.history, stream(self._world.seed, name), *arguments, **options)
        client.others = tuple(others)
        return client

    def _producer(self, number: int) -> Producer:
        is_idempotent = number < self._scenario.producer_count
        producer: Producer = self._begin_at_any(
            Producer,
            f"producer-{number}",
            PARTITIONS[number],
            Sending(idempotent=is_idempotent, stamped=self._scenario.stamped),
        )
        return producer

    def _consumer(self, name: str, number: int, *, observed: bool = True) -> Consumer:
        consumer: Consumer = self._begin_at_any(
            Consumer, name, PARTITIONS[number % len(PARTITIONS)], observed=observed
        )
        return consumer

    async def _create_topic(self, client: SimulatedClient) -> None:
        topic = CreatableTopic(name=TOPIC, num_partitions=len(PARTITIONS), replication_factor=len(NODE_IDS))
        request = CreateTopicsRequest(topics=[topic], timeout_ms=5_000)
        while True:
            try:
                response = await client.ask(ApiKey.CREATE_TOPICS, CREATE_TOPICS_VERSION, request)
                if response.topics[0].error_code.name in ("none", "topic_already_exists"):
                    return
            except OSError:
                pass
            await client.pause()

    def _on(self, name: str, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        async def program(_machine: Machine) -> Any:
            return await work

        process = self._world.host(name).start(program)
        assert process.main is not None
        return process.main

    # The nodes of a run

    def _features_of(self, node_id: int) -> FeatureRanges:
        """The feature levels of the node's version. A story with several versions sets other levels."""
        return SUPPORTED_FEATURES

    async def _node(self, node_id: int, machine: Machine) -> None:
        name = f"node-{node_id}"
        config = node_config(node_id, NODE_IDS, self._controller_ids, self._properties)
        format_folders(machine, config, CLUSTER_ID)
        node = ServerNode(config, machine, features=self._features_of(node_id))
        assert isinstance(machine.disk, MountedDisk)
        machine.disk.process.exhibit = node
        await node.start()
        serving()
        self.nodes[node_id], self._lives[node_id] = node, self._world.host(name).life
        raise RuntimeError(await node.failed())

    # The end of a run

    async def _converge(self) -> None:
        """Wait until every replica is in sync, and has the watermark of its leader."""
        deadline = self._world.loop.elapsed_s() + CONVERGENCE_LIMIT_S
        while (problem := self._problem()) is not None:
            if self._world.loop.elapsed_s() > deadline:
                self.history.violate(f"the replicas do not come together: {problem}")
                return
            await asyncio.sleep(0.5)

    def _problem(self) -> str | None:
        for node_id in self.node_ids:
            if not self._is_up(node_id):
                return f"node {node_id} is down"
        for each in PARTITIONS:
            replicas = self._replicas(each)
            if len(replicas) < len(NODE_IDS):
                return f"{each} has {len(replicas)} replicas"
            metadata = self.nodes[NODE_IDS[0]].metadata
            topic = None if metadata is None else metadata.publisher.image.topics.get(TOPIC)
            if topic is None or len(topic.partitions[each.partition].isr) < len(NODE_IDS):
                return f"{each}: {topic and topic.partitions[each.partition]}"
            if len({(one.high_watermark, one.log.log_end_offset) for one in replicas}) > 1:
                states = [(one.is_leader, one.high_watermark, one.log.log_end_offset) for one in replicas]
                return f"{each}: {states}"
        return None

    def _is_up(self, node_id: int) -> bool:
        host = self._world.host(f"node-{node_id}")
        return host.running and self._lives.get(node_id) == host.life

    def _replicas(self, wanted: TopicPartition) -> list[ClassicPartition]:
        return [replica for _, replica in self._replicas_by_node(wanted)]

    def _replicas_by_node(self, wanted: TopicPartition) -> Iterator[tuple[int, ClassicPartition]]:
        for node_id, node in self.nodes.items():
            if not self._is_up(node_id):
                continue
            hosted = node.find(PartitionsSubsystem)
            replica = None if hosted is None else hosted.partition(wanted.topic, wanted.partition)
            if isinstance(replica, ClassicPartition):
                yield node_id, replica

    def _differences(self) -> Iterator[str]:
        for each in PARTITIONS:
            contents = {replica_content(replica) for replica in self._replicas(each)}
            if len(contents) > 1:
                yield f"the replicas of {each} are not equal"


def replica_content(replica: ClassicPartition, offset: int = 0) -> bytes:
    """Return the committed batches in a replica's own log, beginning at an offset."""
    log, parts = replica.log, []
    offset = max(offset, log.local_log_start_offset)
    while offset < replica.high_watermark:
        found = log.read(offset, 1 << 20, upper_bound_offset=replica.high_watermark)
        parts += [bytes(view) for view in found.views]
        offset = found.next_offset
    return b"".join(parts)
