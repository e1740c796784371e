"""Whole clusters under load: nodes fail while clients write, read, commit offsets and rebalance.

Partitions have a single replica, so clients wait when a broker is down. The scenario checks the histories of
producers and consumers, of committed offsets, and of a group's generations. It also compares the states of
all coordinators with their logs. And it checks the metadata log, the leaders of this log, and the images on
all nodes.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from moldau.config.broker import BrokerConfig
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import Machine
from moldau.server.node import ServerNode
from moldau.server.subsystems.controller.subsystem import ControllerSubsystem
from moldau.simulation.checks.log_checks import check
from moldau.simulation.clients.client import Bootstrap, Consumer, Producer, Sending, SimulatedClient
from moldau.simulation.cluster.formatted import format_folders
from moldau.simulation.cluster.stories.quorum_stories import QuorumCheckers, QuorumWitness
from moldau.simulation.coordinators.agreement import watch_coordinators
from moldau.simulation.history import History
from moldau.simulation.nemesis import Fault, Nemesis, Weather
from moldau.simulation.offsets.committer import OffsetCommitter
from moldau.simulation.offsets.member import CommittingMember, GroupMonitor
from moldau.simulation.scenario import Scenario
from moldau.simulation.seeds import stream
from moldau.simulation.world.disks.disk import MountedDisk
from moldau.simulation.world.host import Host, Program
from moldau.simulation.world.process import serving
from moldau.simulation.world.world import World

CLUSTER_ID: Final = "bW9sZGF1LXNpbXVsYXRlZA"
CONTROLLER_PORT: Final = 9093
BROKER_PORT: Final = 9092
BROKERS: Final = (11, 12)
SEPARATE: Final = {1: "controller", 2: "controller", 3: "controller", 11: "broker", 12: "broker"}
COMBINED: Final = {1: "controller", 11: "broker,controller", 12: "broker,controller"}
TOPIC: Final = "events"
PARTITIONS: Final = tuple(TopicPartition(TOPIC, index) for index in range(4))
CONVERGENCE_LIMIT_S: Final = 120.0

_COMMON: Final = {
    "controller.listener.names": "CONTROLLER",
    # No-op records are rare in this story, because more of them would take much of a run's time and change
    # little.
    "metadata.max.idle.interval.ms": "5000",
    "log.dirs": "/data",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "200",
    # Short timeouts. They make it possible that brokers are fenced in a run, and that a killed broker can
    # soon register again.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "300",
    # Segments are rolled often, so that every run has rolls and recoveries.
    "log.roll.ms": "400",
    "log.index.interval.bytes": "256",
}
_FAULTS: Final = (*(Fault.KILL,) * 4, *(Fault.CUT, Fault.ONE_WAY) * 2, Fault.PAUSE, Fault.RESET)


def cluster() -> Scenario:
    """Three controllers and two brokers, each on its own host."""
    return _scenario(SEPARATE)


def cluster_combined() -> Scenario:
    """Three nodes: one is only a controller, and two are both controller and broker."""
    return _scenario(COMBINED)


def _scenario(roles: Mapping[int, str]) -> Scenario:
    return Scenario(
        partitions=PARTITIONS,
        story=partial(ClusterStory, roles=roles),
        weather=Weather(_FAULTS, pause_s_max=4.0, between_s_max=3.0),
        fault_count=6,
        producer_count=3,
        plain_producer_count=1,
        consumer_count=2,
        records_per_producer=150,
        committer_count=2,
        commits_per_committer=20,
        group_member_count=3,
        joins_per_member=6,
    )


class ClusterStory:
    """A seeded run of a cluster."""

    def __init__(self, world: World, scenario: Scenario, *, roles: Mapping[int, str]) -> None:
        self._world = world
        self._scenario = scenario
        self._roles = roles
        voters = (node_id for node_id, role in roles.items() if "controller" in role)
        self._voters = ",".join(f"{node_id}@node-{node_id}:{CONTROLLER_PORT}" for node_id in voters)
        self.history = History(world.loop.elapsed_s)
        self._checkers = QuorumCheckers(self.history)
        self.nodes: dict[int, ServerNode] = {}
        """The newest process of each node that has started."""

    async def run(self) -> list[str]:
        """Run the scenario; return the violations."""
        world, scenario = self._world, self._scenario
        programs: dict[Host, Program] = {
            world.host(f"node-{node_id}"): partial(self._node, node_id) for node_id in self._roles
        }
        nemesis = Nemesis(world, self.history, stream(world.seed, "nemesis"), programs, scenario.weather)
        for host, program in programs.items():
            host.start(program)
        supervisor = asyncio.create_task(nemesis.supervise())
        watches = [asyncio.create_task(self._watch(node_id)) for node_id in BROKERS]
        admin = SimulatedClient("admin", self._bootstrap(0), self.history, stream(world.seed, "admin"))
        await self._converge(self._brokers_problem)  # so that partitions are assigned to both brokers
        await self._on("admin", admin.create_topic(TOPIC, len(PARTITIONS), {}))
        storm = asyncio.create_task(nemesis.storm(scenario.fault_count))
        consumers = [self._consumer(name, number) for number, name in self._names("consumer")]
        readers = [self._on(each.name, each.run()) for each in consumers]
        committers = [self._committer(number, name) for number, name in self._names("group")]
        await asyncio.gather(*self._work(committers))
        await storm
        self.history.note("clients are done")
        # The request goes to the other broker, but the current controller decides about it.
        later = SimulatedClient(
            "late admin", self._bootstrap(1), self.history, stream(world.seed, "late admin")
        )
        await self._on("late admin", later.create_topic("later", 2, {}))
        await self._converge(self._problem)
        violations = await self._check(readers, committers)
        supervisor.cancel()
        for watch in watches:
            watch.cancel()
            if watch.done() and not watch.cancelled() and watch.exception() is not None:
                violations = [*violations, f"a watch of a node failed: {watch.exception()!r}"]
        return violations

    # The clients of a run

    def _names(self, kind: str) -> list[tuple[int, str]]:
        scenario = self._scenario
        count = {
            "producer": scenario.producer_count + scenario.plain_producer_count,
            "consumer": scenario.consumer_count,
            "group": scenario.committer_count,
            "member": scenario.group_member_count,
        }[kind]
        return [(number, f"{kind}-{number}") for number in range(count)]

    def _bootstrap(self, number: int) -> Bootstrap:
        return Bootstrap(f"node-{BROKERS[number % len(BROKERS)]}", BROKER_PORT)

    def _work(self, committers: list[OffsetCommitter]) -> "list[asyncio.Task[Any]]":
        """Run all clients until they have finished."""
        scenario, seed, monitor = self._scenario, self._world.seed, GroupMonitor("members", self.history)
        tasks = []
        for number, name in self._names("producer"):
            producer = Producer(
                name,
                self._bootstrap(number),
                self.history,
                stream(seed, name),
                PARTITIONS[number % len(PARTITIONS)],
                Sending(idempotent=number < scenario.producer_count),
            )
            tasks.append(self._on(name, producer.run(scenario.records_per_producer, pause_s=0.3)))
        for number, name in self._names("member"):
            chance = stream(seed, name)
            member = CommittingMember(name, self._bootstrap(number), monitor, chance, len(PARTITIONS))
            tasks.append(self._on(name, member.run(scenario.joins_per_member)))
        count = scenario.commits_per_committer
        return [*tasks, *(self._on(each.name, each.run(count, pause_s=0.3)) for each in committers)]

    def _consumer(self, name: str, number: int, *, observed: bool = True) -> Consumer:
        partition = PARTITIONS[number % len(PARTITIONS)]
        chance = stream(self._world.seed, name)
        return Consumer(name, self._bootstrap(number), self.history, chance, partition, observed=observed)

    def _committer(self, number: int, name: str) -> OffsetCommitter:
        chance = stream(self._world.seed, name)
        return OffsetCommitter(name, self._bootstrap(number), self.history, chance, TOPIC, len(PARTITIONS))

    def _on(self, name: str, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        async def program(_machine: Machine) -> Any:
            return await work

        process = self._world.host(name).start(program)
        assert process.main is not None
        return process.main

    # The nodes of a run

    async def _node(self, node_id: int, machine: Machine) -> None:
        config = self._config(node_id)
        format_folders(machine, config, CLUSTER_ID)
        node = ServerNode(config, machine)
        assert isinstance(machine.disk, MountedDisk)
        machine.disk.process.exhibit = node
        await node.start()
        serving()
        self.nodes[node_id] = node
        assert node.metadata is not None
        controller = node.find(ControllerSubsystem)
        host = self._world.host(f"node-{node_id}")
        service = None if controller is None else controller.service
        QuorumWitness(self._checkers, f"{host.name}.{host.life}", node.metadata, service)
        raise RuntimeError(await node.failed())

    def _config(self, node_id: int) -> BrokerConfig:
        name, role = f"node-{node_id}", self._roles[node_id]
        listeners = [f"PLAINTEXT://{name}:{BROKER_PORT}"] if "broker" in role else []
        listeners += [f"CONTROLLER://{name}:{CONTROLLER_PORT}"] if "controller" in role else []
        return BrokerConfig.from_properties(
            {
                **_COMMON,
                "node.id": str(node_id),
                "process.roles": role,
                "controller.quorum.voters": self._voters,
                "listeners": ",".join(listeners),
            }
        )

    async def _watch(self, node_id: int) -> None:
        host = self._world.host(f"node-{node_id}")
        await watch_coordinators([host], self.history, self._scenario.coordinator_tally)

    # The end of a run

    async def _check(
        self, readers: "list[asyncio.Task[Any]]", committers: list[OffsetCommitter]
    ) -> list[str]:
        await asyncio.gather(*(self._on(f"{each.name} judge", each.verify()) for each in committers))
        final: dict[TopicPartition, list[tuple[int, bytes]]] = {}
        for number, partition in enumerate(PARTITIONS):
            final_reader = self._consumer(f"judge-{number}", number, observed=False)
            final[partition] = await self._on(final_reader.name, final_reader.read_to_end())
        for reader in readers:
            if reader.done() and not reader.cancelled() and reader.exception() is not None:
                self.history.violate(f"a consumer failed: {reader.exception()!r}")
        return check(self.history, final)

    async def _converge(self, problem_of: Callable[[], str | None]) -> None:
        deadline = self._world.loop.elapsed_s() + CONVERGENCE_LIMIT_S
        while (problem := problem_of()) is not None:
            if self._world.loop.elapsed_s() > deadline:
                self.history.violate(f"the nodes do not come to agree: {problem}")
                return
            await asyncio.sleep(0.5)

    def _brokers_problem(self) -> str | None:
        """Return the reason why the nodes do not have the same metadata yet, or why a broker is still fenced.
        Return None if neither is the case."""
        hosts = {node_id: self._world.host(f"node-{node_id}") for node_id in self._roles}
        down = [node_id for node_id, host in hosts.items() if not host.running or node_id not in self.nodes]
        if down:
            return f"{down} are down"
        replicas = [metadata for node in self.nodes.values() if (metadata := node.metadata) is not None]
        images = [replica.publisher.image for replica in replicas]
        offsets = {image.provenance.offset for image in images}
        leaders = {replica.driver.leader_id for replica in replicas}
        if len(leaders) > 1 or len(offsets) > 1 or any(image != images[0] for image in images):
            return f"quorum leaders {leaders}, images as of {offsets}"
        unfenced = {broker.broker_id for broker in images[0].brokers.values() if not broker.fenced}
        return None if unfenced == set(BROKERS) else f"brokers {unfenced}"

    def _problem(self) -> str | None:
        """Return the problem that :meth:`_brokers_problem` has found. If it has found none, return the reason
        why a broker does not lead its partitions yet. Return None if there is no problem at all."""
        problem = self._brokers_problem()
        if problem is not None:
            return problem
        metadata = self.nodes[BROKERS[0]].metadata
        topic = None if metadata is None else metadata.publisher.image.topics.get(TOPIC)
        led = [] if topic is None else [partition.leader for partition in topic.partitions]
        return None if set(led) == set(BROKERS) else f"partitions are led by {led}"
