"""A quorum of controllers with additional brokers. It elects leaders, replicates the metadata and survives
faults.

Three controllers are whole nodes. Two brokers are observers of the quorum: they register and send heartbeats,
but have no partitions. Clients create, alter and delete topics through the active controller.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from moldau.cluster.broker_lifecycle import BrokerIdentity, BrokerLifecycle, LifecycleTimes
from moldau.cluster.controller.network_channel import NetworkControllerChannel
from moldau.cluster.controller.service import ControllerService
from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.registrations import Endpoint, SupportedFeature
from moldau.config.broker import BrokerConfig
from moldau.config.topic_config import TopicConfig
from moldau.network.client.rpc_client import RpcClient
from moldau.quorum.core.election_state import ElectionState
from moldau.quorum.core.voters import ReplicaKey, Voter, VoterSet
from moldau.quorum.subscriptions import Committed
from moldau.runtime import KafkaError, Machine
from moldau.server import settings
from moldau.server.bound_listeners import BoundListeners
from moldau.server.identity import identify
from moldau.server.metadata.metadata_node import MetadataNode
from moldau.server.node import ServerNode
from moldau.server.subsystems.controller.subsystem import ControllerSubsystem
from moldau.simulation.cluster.elections import Scene, disturb_elections, stop_after_votes, strike
from moldau.simulation.cluster.formatted import format_folders
from moldau.simulation.cluster.replica_agreement import (
    LeaderAgreement,
    LogAgreement,
    StateAgreement,
    WatermarkMonotonicity,
)
from moldau.simulation.cluster.topic_client import TopicClient
from moldau.simulation.history import History
from moldau.simulation.nemesis import Fault, Nemesis, Weather
from moldau.simulation.scenario import Scenario
from moldau.simulation.seeds import stream
from moldau.simulation.world.host import Host, Program
from moldau.simulation.world.process import serving
from moldau.simulation.world.world import World
from moldau.storage.log_manager import LogManager
from moldau.storage.snapshots.replicated_log import SnapshotReader

CLUSTER_ID: Final = "bW9sZGF1LXNpbXVsYXRlZA"
CONTROLLER_PORT: Final = 9093
BROKER_PORT: Final = 9092
CONTROLLER_IDS: Final = (1, 2, 3)
BROKER_IDS: Final = (11, 12)
LATE_BROKER_ID: Final = 13
ALL_IDS: Final = (*CONTROLLER_IDS, *BROKER_IDS, LATE_BROKER_ID)
CLIENT_COUNT: Final = 2
CONVERGENCE_LIMIT_S: Final = 120.0

_VOTERS: Final = VoterSet(
    Voter(ReplicaKey(node_id), f"node-{node_id}", CONTROLLER_PORT) for node_id in CONTROLLER_IDS
)
_COMMON: Final = {
    "controller.quorum.voters": ",".join(f"{each.key.id}@{each.host}:{each.port}" for each in _VOTERS),
    "controller.listener.names": "CONTROLLER",
    # No-op records are rare in this story, because more of them would take much of a run's time and change
    # little.
    "metadata.max.idle.interval.ms": "5000",
    "log.dirs": "/data",
    # Snapshots are so frequent that logs begin at snapshots. Replicas that were down must then download
    # snapshots.
    "metadata.log.max.record.bytes.between.snapshots": "1000",
    "metadata.max.retention.bytes": "1",
    "metadata.log.segment.ms": "500",
}


Storm = Callable[[Scene], Coroutine[Any, Any, None]]


def quorum() -> Scenario:
    """Processes of controllers and brokers are killed or paused, and their links break."""
    return _scenario((Fault.KILL, Fault.KILL, Fault.PAUSE, Fault.CUT, Fault.CUT, Fault.RESET))


def quorum_power() -> Scenario:
    """Machines of controllers and brokers lose power, processes are killed or paused, and links break."""
    return _scenario((Fault.KILL, Fault.POWER_LOSS, Fault.POWER_LOSS, Fault.PAUSE, Fault.CUT, Fault.RESET))


def quorum_votes() -> Scenario:
    """The processes of voters end directly after the voters have voted."""
    return _scenario((Fault.KILL, Fault.CUT), stop_after_votes)


def quorum_votes_power() -> Scenario:
    """Voters lose power directly after they have voted."""
    return _scenario((Fault.POWER_LOSS, Fault.CUT), stop_after_votes)


def quorum_links() -> Scenario:
    """Links fail or delay messages in one direction. They also deliver old requests after newer requests."""
    faults = (*(Fault.ONE_WAY, Fault.OVERTAKE) * 3, Fault.CUT, Fault.KILL)
    return replace(_scenario(faults, strike), fault_count=12)


def quorum_clock() -> Scenario:
    """The wall clocks of nodes jump by an hour, forwards and backwards. Processes also pause for a while."""
    faults = (*(Fault.CLOCK_JUMP, Fault.PAUSE) * 2, Fault.KILL)
    scenario = _scenario(faults, strike)
    weather = replace(scenario.weather, clock_skew_ms=3_600_000)
    return replace(scenario, weather=weather, fault_count=15)


def _scenario(faults: tuple[Fault, ...], storm: Storm = disturb_elections) -> Scenario:
    return Scenario(
        partitions=(),
        story=partial(QuorumStory, storm=storm),
        weather=Weather(faults, pause_s_max=6.0, between_s_max=3.0),
        fault_count=5,
    )


class QuorumCheckers:
    """The checkers of the metadata log."""

    def __init__(self, history: History) -> None:
        self.logs = LogAgreement(history)
        self.leaders = LeaderAgreement(history)
        self.watermarks = WatermarkMonotonicity(history)
        self.states = StateAgreement(history)


class QuorumWitness:
    """Reports the state of a process's replica to the checkers. It is a listener of the process's quorum, and
    a subscriber to new images."""

    def __init__(
        self,
        checkers: QuorumCheckers,
        replica: str,
        metadata: MetadataNode,
        controller: ControllerService | None,
    ) -> None:
        self._checkers = checkers
        self._replica = replica
        self._log = metadata.log
        self._controller = controller
        self._driver = metadata.driver
        self._driver.add_listener(self)
        metadata.publisher.subscribe(self)

    def on_commit(self, committed: Committed) -> None:
        self._checkers.logs.committed(
            self._replica, committed.base_offset, committed.end_offset, committed.batches
        )

    def on_snapshot(self, reader: SnapshotReader) -> None:
        self._checkers.logs.restored(self._replica, reader.snapshot_id.offset)

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        if leader_id is not None:
            self._checkers.leaders.led(self._replica, epoch, leader_id)

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        offset = image.provenance.offset
        self._checkers.states.reached(self._replica, offset, image)
        controller = self._controller
        if controller is not None and controller.is_active and self._log.next_offset() == offset + 1:
            self._checkers.states.decides_on(self._replica, controller.image, image)


class QuorumStory:
    """A seeded run of a quorum."""

    def __init__(self, world: World, scenario: Scenario, *, storm: Storm) -> None:
        self._world = world
        self._scenario = scenario
        self._storm = storm
        self.history = History(world.loop.elapsed_s)
        self.checkers = QuorumCheckers(self.history)
        self.replicas: dict[int, MetadataNode] = {}
        """The replica in the newest process of each node."""
        self._lives: dict[int, str] = {}
        """The name of the newest process of each node, as the checkers use it."""
        self._clients: list[TopicClient] = []
        self._acknowledged = asyncio.Event()
        """An event that is set when a client gets the acknowledgement of a change."""

    async def run(self) -> list[str]:
        """Run the scenario; return the violations."""
        world = self._world
        programs: dict[Host, Program] = {
            world.host(f"node-{node_id}"): partial(self._controller, node_id) for node_id in CONTROLLER_IDS
        }
        programs |= {world.host(f"node-{node_id}"): partial(self._broker, node_id) for node_id in BROKER_IDS}
        nemesis = Nemesis(
            world, self.history, stream(world.seed, "nemesis"), programs, self._scenario.weather
        )
        for host, program in programs.items():
            host.start(program)
        supervisor = asyncio.create_task(nemesis.supervise())
        scene = Scene(
            world,
            self.history,
            nemesis,
            self._scenario.weather,
            self,
            CONTROLLER_IDS,
            stream(world.seed, "elections"),
            self._scenario.fault_count,
        )
        storm = asyncio.create_task(self._storm(scene))
        clients = self._clients = [
            TopicClient(f"client-{number}", _VOTERS, world, self.history, lambda: self._acknowledged.set())
            for number in range(CLIENT_COUNT)
        ]
        for client in clients:
            await client.done
        await storm
        self.history.note("clients are done")
        # A broker that joins late gets a log that begins with a snapshot.
        world.host(f"node-{LATE_BROKER_ID}").start(partial(self._broker, LATE_BROKER_ID))
        await self._converge(clients)
        supervisor.cancel()
        return self.history.violations

    # The voters whose elections are disturbed

    def leader_id(self) -> int:
        return min((each.driver.leader_id or 0 for each in self.replicas.values()), default=0)

    def election(self, node_id: int) -> ElectionState:
        replica = self.replicas.get(node_id)
        if replica is None or not self._world.host(f"node-{node_id}").running:
            return ElectionState(epoch=-1)
        return replica.driver.election

    def next_acknowledgement(self) -> asyncio.Event:
        acknowledged = self._acknowledged = asyncio.Event()
        return acknowledged

    # The programs of the hosts

    async def _controller(self, node_id: int, machine: Machine) -> None:
        config = _config(
            node_id,
            {"process.roles": "controller", "listeners": f"CONTROLLER://node-{node_id}:{CONTROLLER_PORT}"},
        )
        format_folders(machine, config, CLUSTER_ID)
        node = ServerNode(config, machine)
        await node.start()
        serving()
        assert node.metadata is not None
        self._joined(node_id, node.metadata, node.get(ControllerSubsystem).service)
        raise RuntimeError(await node.failed())

    async def _broker(self, node_id: int, machine: Machine) -> None:
        listener = Endpoint("PLAINTEXT", f"node-{node_id}", BROKER_PORT, 0)
        config = _config(
            node_id,
            {"process.roles": "broker", "listeners": f"PLAINTEXT://{listener.host}:{listener.port}"},
        )
        format_folders(machine, config, CLUSTER_ID)
        failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        identity = identify(machine, config, format_new=False)
        logs = LogManager(
            machine,
            list(config.log_dirs),
            settings.log_manager_settings(config),
            on_offline=lambda path, reason: failure.set_result(f"{path}: {reason}"),
            critical=settings.CRITICAL_TOPICS,
        )
        defaults = settings.log_config(TopicConfig.effective(config, {}))
        await logs.start(lambda topic: defaults)
        metadata = MetadataNode(machine, config, identity, failure.set_result, logs, BoundListeners())
        await logs.note_boot()
        await metadata.start()
        self._joined(node_id, metadata)
        channel = NetworkControllerChannel(
            RpcClient(machine.entropy), _VOTERS.get, lambda: metadata.driver.leader_id
        )
        lifecycle = BrokerLifecycle(
            BrokerIdentity(
                broker_id=node_id,
                cluster_id=CLUSTER_ID,
                incarnation_id=machine.entropy.uuid4(),
                endpoints=[listener],
                features=[
                    SupportedFeature(name, low, high)
                    for name, (low, high) in settings.SUPPORTED_FEATURES.items()
                ],
                log_dirs=tuple(identity.directories.values()),
            ),
            channel,
            machine.entropy,
            lambda: metadata.publisher.image.provenance.offset,
            times=LifecycleTimes(registration_timeout_ms=600_000),
        )
        metadata.publisher.subscribe(_LifecyclePublisher(lifecycle.metadata_moved))
        lifecycle.start()
        lifecycle.ready()
        serving()
        while not failure.done():
            await asyncio.sleep(0.1)
            self._note_watermarks()
            await self._read_current(node_id, metadata)
        raise RuntimeError(failure.result())

    def _note_watermarks(self) -> None:
        for node_id, replica in self.replicas.items():
            driver = replica.driver
            self.checkers.watermarks.seen(self._lives[node_id], driver.high_watermark)
            if driver.is_leader and (told := driver.describe().high_watermark) >= 0:
                self.checkers.watermarks.answered(driver.epoch, told)

    async def _read_current(self, node_id: int, metadata: MetadataNode) -> None:
        """Check the image of a broker that reports its image as current. The image must contain every change
        that was acknowledged to a client."""
        told = {topic for client in self._clients for topic in client.present}
        try:
            await metadata.until_current()
        except (KafkaError, TimeoutError):
            return  # at this time the leader of the quorum does not respond
        image = metadata.publisher.image
        deleted = {topic for client in self._clients for topic in client.deleted}
        missing = {topic for topic in told - deleted if image.topics.get(topic) is None}
        if missing:
            self.history.violate(f"node {node_id} takes an image without {sorted(missing)} for current")

    def _joined(
        self, node_id: int, metadata: MetadataNode, controller: ControllerService | None = None
    ) -> None:
        host = self._world.host(f"node-{node_id}")
        name = f"{host.name}.{host.life}"
        QuorumWitness(self.checkers, name, metadata, controller)
        self.replicas[node_id], self._lives[node_id] = metadata, name

    async def _converge(self, clients: "Iterable[TopicClient]") -> None:
        """Wait until every node has the same metadata, and the metadata contain all acknowledged changes."""
        deadline = self._world.loop.elapsed_s() + CONVERGENCE_LIMIT_S
        while not self._is_one():
            if self._world.loop.elapsed_s() > deadline:
                states = {
                    node_id: (each.driver.leader_id, each.driver.epoch, each.publisher.image.provenance)
                    for node_id, each in self.replicas.items()
                }
                self.history.violate(f"the replicas do not come to agree: {states}")
                return
            await asyncio.sleep(0.5)
        for node_id, replica in self.replicas.items():
            for client in clients:
                client.check(node_id, replica.publisher.image)

    def _is_one(self) -> bool:
        hosts = [self._world.host(f"node-{node_id}") for node_id in ALL_IDS]
        if len(self.replicas) < len(hosts) or not all(host.running for host in hosts):
            return False
        first, *others = self.replicas.values()
        image = first.publisher.image
        return (
            first.driver.leader_id is not None
            and sum(not broker.fenced for broker in image.brokers.values()) == len(BROKER_IDS) + 1
            and all(
                each.driver.leader_id == first.driver.leader_id
                and each.publisher.image.provenance.offset == image.provenance.offset
                and each.publisher.image == image
                for each in others
            )
        )


@dataclass(slots=True)
class _LifecyclePublisher:
    """Passes each new metadata image to a broker's lifecycle."""

    call: Callable[[], None]

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.call()


def _config(node_id: int, properties: dict[str, str]) -> BrokerConfig:
    return BrokerConfig.from_properties({**_COMMON, "node.id": str(node_id), **properties})
