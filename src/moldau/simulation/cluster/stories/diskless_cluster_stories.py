"""Diskless topics on three combined nodes and one object store. Clients produce through any broker.

Nodes fail while clients work. No acknowledged record may be lost, and no record of an idempotent producer may
be duplicated. The records of such a producer stay in order although the producer changes brokers with
requests in flight. At the end, the caches of all replicas must have the same bytes. The states of the
coordinators must agree with their logs, in all terms on all nodes. The store must have every referenced
object.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final
from uuid import UUID

from moldau.cluster.image.image import MetadataImage
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.config.broker import BrokerConfig
from moldau.diskless.partition.partition import DisklessPartition
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import iter_headers
from moldau.replication.classic_partition import ClassicPartition
from moldau.runtime import Machine
from moldau.server.node import ServerNode
from moldau.server.subsystems.diskless.subsystem import DisklessSubsystem
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.simulation.checks.diskless_checks import QUIET_S, ObjectsChecker
from moldau.simulation.checks.log_checks import check
from moldau.simulation.clients.client import (
    CREATE_TOPICS_VERSION,
    Bootstrap,
    Consumer,
    Producer,
    Sending,
    SimulatedClient,
)
from moldau.simulation.clients.roving import RovingProducer
from moldau.simulation.cluster.clocks import JUMP_MS, KEPT_FOR_LESS_THAN_A_JUMP
from moldau.simulation.cluster.formatted import format_folders
from moldau.simulation.cluster.stories.passing_topic import LAST, PASSING, PASSING_PARTITIONS, PassingTopic
from moldau.simulation.coordinators.agreement import CoordinatorWatch
from moldau.simulation.history import History
from moldau.simulation.nemesis import Fault, Nemesis, Weather
from moldau.simulation.scenario import Scenario
from moldau.simulation.seeds import stream
from moldau.simulation.world.disks.disk import MountedDisk
from moldau.simulation.world.host import Host, Program
from moldau.simulation.world.loop import SimulationError
from moldau.simulation.world.object_storage import CLASS_NAME
from moldau.simulation.world.process import serving
from moldau.simulation.world.world import World

CLUSTER_ID: Final = "bW9sZGF1LWRpc2tsZXNzMw"
NODE_IDS: Final = (1, 2, 3)
BROKER_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
TOPIC: Final = "events"
COORDINATORS: Final = 2
PARTITIONS: Final = tuple(TopicPartition(TOPIC, index) for index in range(3))
REPLICAS: Final = 2
"""Replication factor of the topic. One of the three brokers has no replica of a partition, but it accepts
records for the partition."""
METADATA_REPLICAS: Final = 3
"""Replication factor of ``__diskless_metadata``."""
CONVERGENCE_LIMIT_S: Final = 60.0
SNAPSHOT_S: Final = 10.0
"""Interval at which coordinators check whether they must take a snapshot."""

_COMMON: Final = {
    "process.roles": "broker,controller",
    "controller.quorum.voters": ",".join(f"{id}@node-{id}:{CONTROLLER_PORT}" for id in NODE_IDS),
    "controller.listener.names": "CONTROLLER",
    # No-op records are rare in this story, because more of them would take much of a run's time and change
    # little.
    "metadata.max.idle.interval.ms": "5000",
    "log.dirs": "/data",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "2",
    # A producer must not create a deleted topic again.
    "auto.create.topics.enable": "false",
    "diskless.system.enable": "true",
    "diskless.metadata.topic.num.partitions": str(COORDINATORS),
    "diskless.metadata.topic.replication.factor": "3",
    "diskless.storage.class.name": CLASS_NAME,
    "backup.enable": "false",
    "diskless.storage.url": "simulated:",
    # Caches often begin and stop following.
    "diskless.cache.unread.ms": "2000",
    # Snapshots are so frequent that every run has some. In some runs, replicas also fetch them.
    "diskless.metadata.max.new.records.between.snapshots": "20",
    "diskless.coordinator.orphan.scan.interval.ms": "20000",
    "diskless.coordinator.orphan.scan.grace.period.ms": "40000",
    "log.index.interval.bytes": "256",
    # Short timeouts. They make it possible that in a run brokers are fenced and followers leave the in-sync
    # sets.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "300",
    "replica.lag.time.max.ms": "1500",
    "replica.high.watermark.checkpoint.interval.ms": "500",
    "replica.socket.timeout.ms": "1500",
}


def diskless_cluster() -> Scenario:
    """Nodes are killed, paused and cleanly restarted. They also lose caches, and links break."""
    faults = (*(Fault.KILL,) * 3, *(Fault.STOP, Fault.PAUSE, Fault.CUT, Fault.ONE_WAY) * 2, Fault.RESET)
    return scenario_of((*faults, Fault.CACHE_LOST, Fault.DATABASES_LOST))


def diskless_cluster_power() -> Scenario:
    """Nodes lose power, are killed or paused, and links break. Committed records are on the disks of two
    nodes."""
    scenario = scenario_of((*(Fault.POWER_LOSS,) * 3, Fault.KILL, Fault.PAUSE, Fault.CUT, Fault.ONE_WAY))
    return replace(scenario, story=partial(DisklessClusterStory, loses_all_power=True))


def diskless_cluster_store() -> Scenario:
    """The store is down, slow or throttled. At the end, every object must be referenced."""
    faults = (Fault.STORE_DOWN, Fault.STORE_POOR, Fault.STORE_POOR, Fault.KILL, Fault.PAUSE, Fault.CUT)
    scenario = scenario_of(faults)
    return replace(scenario, story=partial(DisklessClusterStory, checks_leaks=True), fault_count=4)


def diskless_cluster_behind() -> Scenario:
    """A node is down for a long time. The logs of the other nodes then begin after the end of its own log, so
    it must download snapshots."""
    scenario = scenario_of((Fault.KILL,))
    story = partial(DisklessClusterStory, leaves_behind=True)
    return replace(scenario, story=story, fault_count=2, records_per_producer=500)


def diskless_cluster_clock() -> Scenario:
    """The nodes' clocks jump independently by an hour, forwards and backwards, and stay wrong. Records are
    kept for 45 minutes.

    No node is restarted, because a node cannot detect at its start that its clock is wrong.
    """
    faults = (*(Fault.CLOCK_JUMP,) * 6, Fault.PAUSE, Fault.CUT, Fault.ONE_WAY, Fault.RESET)
    scenario = scenario_of(faults)
    story = partial(DisklessClusterStory, layout=ClusterLayout(properties=KEPT_FOR_LESS_THAN_A_JUMP))
    return replace(
        scenario,
        story=story,
        weather=replace(scenario.weather, clock_skew_ms=JUMP_MS),
        stamped=True,
        fault_count=12,
    )


def scenario_of(faults: tuple[Fault, ...]) -> Scenario:
    """Return a scenario in which producers and consumers use all partitions, with faults of these kinds."""
    return Scenario(
        partitions=PARTITIONS,
        story=DisklessClusterStory,
        weather=Weather(faults, pause_s_max=5.0, between_s_max=3.0, cached_topics=(TOPIC,)),
        fault_count=6,
        producer_count=4,
        plain_producer_count=0,
        consumer_count=2,
        records_per_producer=250,
        time_limit_s=2_000.0,
    )


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """The nodes of a scenario's cluster, and the replicas of its metadata topic."""

    racks: Mapping[int, str] = field(default_factory=dict)
    """The racks of all nodes, by node id; empty for three nodes without racks."""
    replicas: int = REPLICAS
    properties: Mapping[str, str] = field(default_factory=dict)
    """Configuration of every node, in addition to the configuration of all scenarios."""


class DisklessClusterStory:
    """A seeded run of diskless topics on several nodes."""

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        layout: ClusterLayout = ClusterLayout(),  # immutable, so all objects may share it
        *,
        checks_leaks: bool = False,
        leaves_behind: bool = False,
        loses_all_power: bool = False,
    ) -> None:
        self._layout = layout
        self._node_ids = tuple(layout.racks) or NODE_IDS
        self._world = world
        self._scenario = scenario
        self._checks_leaks = checks_leaks
        self._leaves_behind = leaves_behind
        self._loses_all_power = loses_all_power
        self.history = History(world.loop.elapsed_s)
        self.nodes: dict[int, ServerNode] = {}
        """The newest process of each node that has started."""
        self._passing: PassingTopic | None = None
        self._coordinator_count = COORDINATORS
        self._final: dict[TopicPartition, list[tuple[int, bytes]]] = {}
        """The records of each partition after all clients have finished."""

    async def run(self) -> list[str]:
        """Run the scenario; return the violations."""
        world, scenario = self._world, self._scenario
        hosts = {node_id: world.host(f"node-{node_id}") for node_id in self._node_ids}
        programs: dict[Host, Program] = {host: partial(self._node, id) for id, host in hosts.items()}
        nemesis = Nemesis(world, self.history, stream(world.seed, "nemesis"), programs, scenario.weather)
        for host, program in programs.items():
            host.start(program)
        supervisor = asyncio.create_task(nemesis.supervise())
        watch = CoordinatorWatch(list(programs), self.history, scenario.coordinator_tally)
        await self._on("admin", self._create_topics(self._begin_at_any(SimulatedClient, "admin")))
        await self._converge()
        await self._play(nemesis)
        supervisor.cancel()
        watch.end()
        return self._violations()

    async def _play(self, nemesis: Nemesis) -> None:
        """Let clients work while faults are injected. Afterwards read and check everything."""
        scenario = self._scenario
        storm = asyncio.create_task(self._storm(nemesis))
        readers = [
            self._on(f"consumer-{number}", self._consumer(f"consumer-{number}", number).run())
            for number in range(scenario.consumer_count)
        ]
        producers = [
            self._producer(number)
            for number in range(scenario.producer_count + scenario.plain_producer_count)
        ]
        writing = [
            self._on(each.name, each.run(scenario.records_per_producer, pause_s=0.2)) for each in producers
        ]
        working = [*writing, storm]
        others = self._begin_other_work(lambda: not all(each.done() for each in working))
        await asyncio.gather(*writing, *others)
        await storm
        self.history.note("producers are done")
        await self._converge()
        for number, each in enumerate(PARTITIONS):
            judge = self._consumer(f"judge-{number}", number, observed=False)
            self._final[each] = await self._on(judge.name, judge.read_to_end())
        if self._passing is not None and self._passing.remains:
            judge = self._begin_at_any(Consumer, f"judge-{PASSING}", LAST, observed=False)
            self._final[LAST] = await self._on(judge.name, judge.read_to_end())
        for reader in readers:
            if reader.done() and not reader.cancelled() and reader.exception() is not None:
                self.history.violate(f"a consumer failed: {reader.exception()!r}")
            reader.cancel()
        await self._check()

    def _begin_other_work(self, goes_on: Callable[[], bool]) -> "Sequence[asyncio.Task[Any]]":
        """Begin the work of clients that are neither producers nor consumers. The work ends by itself.
        ``goes_on`` returns True while producers write or faults are injected."""
        return ()

    def _passing_topic(self) -> PassingTopic:
        """A topic that is deleted and created again while the clients work."""

        async def create(client: SimulatedClient) -> None:
            await self._create_topic(client, self._diskless_topic(PASSING, PASSING_PARTITIONS))

        return PassingTopic(self._begin_at_any, self._on, create, self._id_of_passing, self.history)

    def _id_of_passing(self) -> UUID | None:
        topic = self._image.topics.get(PASSING)
        return None if topic is None else topic.topic_id

    @property
    def _image(self) -> MetadataImage:
        """The newest metadata of all nodes."""
        images = [node.metadata.publisher.image for node in self.nodes.values() if node.metadata is not None]
        return max(images, key=lambda image: image.provenance.offset)

    def _violations(self) -> list[str]:
        """All violations of the run, after the last check."""
        return check(self.history, self._final)

    async def _storm(self, nemesis: Nemesis) -> None:
        """Inject faults, and isolate leaders of coordinators."""
        chance = stream(self._world.seed, "leaders")
        for _ in range(self._scenario.fault_count):
            if self._leaves_behind:
                await nemesis.restart(
                    self._world.host(f"node-{chance.choice(self._node_ids)}"), 3 * SNAPSHOT_S
                )
                await self._converge()
            elif self._loses_all_power and chance.random() < 0.4:
                await asyncio.sleep(chance.uniform(0.1, 2.0))
                self.history.note("all nodes lose their power")
                hosts = [self._world.host(f"node-{node_id}") for node_id in self._node_ids]
                downtimes = [chance.uniform(0.1, 3.0) for _ in hosts]
                restarts = zip(hosts, downtimes, strict=True)
                await asyncio.gather(*(nemesis.restart(*each, power_lost=True) for each in restarts))
            elif chance.random() < 0.7:
                await nemesis.storm(1)
            else:
                await asyncio.sleep(chance.uniform(0.1, 2.0))
                await self._isolate_coordinator(chance)

    async def _isolate_coordinator(self, chance: random.Random) -> None:
        """Disconnect the leader of a coordinator from the other nodes. Clients and the store can still
        connect to it."""
        wanted = TopicPartition(DISKLESS_METADATA_TOPIC, chance.randrange(self._coordinator_count))
        leader_id = next((id for id, each in self._replicas(wanted) if each.is_leader), None)
        if leader_id is None:
            return
        seconds = chance.uniform(1.0, 6.0)
        is_mute = chance.random() < 0.3
        self.history.note(f"node-{leader_id} is {'mute' if is_mute else 'isolated'} for {seconds:.3f} s")
        links = [(f"node-{leader_id}", f"node-{other}") for other in self._node_ids if other != leader_id]
        if not is_mute:
            links += [(there, here) for here, there in links]
        for link in links:
            self._world.network.cut(*link)
        await asyncio.sleep(seconds)
        for link in links:
            self._world.network.heal(*link)

    # The clients of a run

    def _begin_at_any(self, kind: Any, name: str, *arguments: Any, **options: Any) -> Any:
        first, *others = (Bootstrap(f"node-{node_id}", BROKER_PORT) for node_id in self._node_ids)
        client = kind(name, first, self.history, stream(self._world.seed, name), *arguments, **options)
        client.others = tuple(others)
        return client

    def _producer(self, number: int) -> Producer:
        sending = Sending(idempotent=number < self._scenario.producer_count, stamped=self._scenario.stamped)
        where = PARTITIONS[number % len(PARTITIONS)]
        producer: RovingProducer = self._begin_at_any(RovingProducer, f"producer-{number}", where, sending)
        return producer

    def _consumer(self, name: str, number: int, *, observed: bool = True) -> Consumer:
        where = PARTITIONS[number % len(PARTITIONS)]
        consumer: Consumer = self._begin_at_any(Consumer, name, where, observed=observed)
        return consumer

    def _topics(self) -> Sequence[CreatableTopic]:
        """The topics of the run."""
        return [self._diskless_topic(TOPIC, len(PARTITIONS))]

    def _diskless_topic(self, name: str, partition_count: int) -> CreatableTopic:
        return CreatableTopic(
            name=name,
            num_partitions=partition_count,
            replication_factor=self._layout.replicas,
            configs=[CreatableTopicConfig(name="diskless.enable", value="true")],
        )

    async def _create_topics(self, client: SimulatedClient) -> None:
        for topic in self._topics():
            await self._create_topic(client, topic)

    async def _create_topic(self, client: SimulatedClient, topic: CreatableTopic) -> None:
        request = CreateTopicsRequest(topics=[topic], timeout_ms=5_000)
        while not await self._is_created(client, request):
            await client.pause()

    @staticmethod
    async def _is_created(client: SimulatedClient, request: CreateTopicsRequest) -> bool:
        try:
            response = await client.ask(ApiKey.CREATE_TOPICS, CREATE_TOPICS_VERSION, request)
        except OSError:
            return False
        return response.topics[0].error_code.name in ("none", "topic_already_exists")

    def _on(self, name: str, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        async def program(_machine: Machine) -> Any:
            return await work

        process = self._world.host(name).start(program)
        assert process.main is not None
        return process.main

    # The nodes of a run

    async def _node(self, node_id: int, machine: Machine) -> None:
        name = f"node-{node_id}"
        properties = {"node.id": str(node_id), "listeners": f"PLAINTEXT://{name}:{BROKER_PORT}"}
        if node_id in NODE_IDS:
            properties["listeners"] += f",CONTROLLER://{name}:{CONTROLLER_PORT}"
        else:
            properties["process.roles"] = "broker"
        if node_id in self._layout.racks:
            properties["broker.rack"] = self._layout.racks[node_id]
        config = BrokerConfig.from_properties({**_COMMON, **self._layout.properties, **properties})
        format_folders(machine, config, CLUSTER_ID)
        node = ServerNode(config, machine)
        assert isinstance(machine.disk, MountedDisk)
        machine.disk.process.exhibit = node
        await node.start()
        serving()
        self.nodes[node_id] = node
        raise RuntimeError(await node.failed())

    # The end of a run

    async def _converge(self) -> None:
        """Wait until the replicas of coordinators are in sync and the caches have all committed records."""
        deadline = self._world.loop.elapsed_s() + CONVERGENCE_LIMIT_S
        while (problem := self._problem()) is not None:
            if self._world.loop.elapsed_s() > deadline:
                raise SimulationError(f"the replicas do not come together: {problem}")
            await asyncio.sleep(0.5)

    def _problem(self) -> str | None:
        for node_id in self._node_ids:
            process = self._world.host(f"node-{node_id}").process
            if process is None or not process.alive or process.exhibit is not self.nodes.get(node_id):
                return f"node {node_id} is down"
        for index in range(self._coordinator_count):
            problem = self._problem_of_coordinator(TopicPartition(DISKLESS_METADATA_TOPIC, index))
            if problem is not None:
                return problem
        for each in PARTITIONS:
            caches = [one.cache for one in self._caches(each)]
            for cache in caches:
                # Otherwise a cache that no client reads would not be filled.
                cache.note_read(self._world.loop.time())
            states = [(one.high_watermark, one.local_end_offset) for one in caches]
            if len(caches) < self._layout.replicas or len({end for state in states for end in state}) > 1:
                return f"caches of {each}: {states}"
        return None

    def _problem_of_coordinator(self, wanted: TopicPartition) -> str | None:
        replicas = [replica for _, replica in self._replicas(wanted)]
        states = {(one.high_watermark, one.log.log_end_offset) for one in replicas}
        if len(replicas) < METADATA_REPLICAS or len(states) > 1:
            return f"{wanted}: {[(one.is_leader, one.high_watermark) for one in replicas]}"
        topic = self._image.topics.get(DISKLESS_METADATA_TOPIC)
        if topic is None or len(topic.partitions[wanted.partition].isr) < METADATA_REPLICAS:
            return f"{wanted}: {topic and topic.partitions[wanted.partition]}"
        led = [
            node.get(DisklessSubsystem).coordinators.is_active(wanted.partition)
            for node in self.nodes.values()
        ]
        return None if led.count(True) == 1 else f"{wanted} is led at {led}"

    def _replicas(self, wanted: TopicPartition) -> Iterator[tuple[int, ClassicPartition]]:
        for node_id, node in self.nodes.items():
            hosted = node.find(PartitionsSubsystem)
            replica = None if hosted is None else hosted.partition(wanted.topic, wanted.partition)
            if isinstance(replica, ClassicPartition):
                yield node_id, replica

    def _caches(self, wanted: TopicPartition) -> Iterator[DisklessPartition]:
        for node in self.nodes.values():
            hosted = node.find(PartitionsSubsystem)
            replica = None if hosted is None else hosted.partition(wanted.topic, wanted.partition)
            if isinstance(replica, DisklessPartition):
                yield replica

    async def _check(self) -> None:
        for each in PARTITIONS:
            contents = [_content(replica) for replica in self._caches(each)]
            for offset in set().union(*contents):
                if len({content[offset] for content in contents if offset in content}) > 1:
                    self.history.violate(f"the caches of {each} are not equal at {offset}")
        if self._checks_leaks:
            self.history.note("quiet")
            await asyncio.sleep(QUIET_S)
            await self._converge()
        checker = ObjectsChecker(self._world, self.history)
        for node_id in self._node_ids:
            await checker.check(self._world.host(f"node-{node_id}"))
        if checker.coordinator_ids != set(range(self._coordinator_count)):
            self.history.violate(f"only the coordinators {checker.coordinator_ids} were checked")
        if self._checks_leaks:
            checker.check_leaks()


def _content(replica: DisklessPartition) -> Mapping[int, bytes]:
    """The cached batches by base offset."""
    log, found = replica.cache.log, {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read(offset, 1 << 20)
        for content in read.views:
            view = memoryview(content)
            for position, header in iter_headers(view):
                found[header.base_offset] = bytes(view[position : position + header.size_bytes])
        offset = read.next_offset
    return found
