"""A quorum of controllers with brokers beside it: it elects, replicates the metadata and survives faults.

Three controllers are whole nodes; two brokers are observers of the quorum that register and send heartbeats,
without partitions. Clients create, alter and delete topics at whichever controller leads.
"""

import asyncio
import contextlib
import random
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from moldau.cluster.broker_lifecycle import BrokerIdentity, BrokerLifecycle
from moldau.cluster.delta import MetadataDelta
from moldau.cluster.formatter import FormatRequest, format_storage
from moldau.cluster.image import MetadataImage
from moldau.cluster.registrations import Endpoint, SupportedFeature
from moldau.cluster.remote_controller_channel import RemoteControllerChannel
from moldau.config.broker import BrokerConfig
from moldau.config.topic import TopicConfig
from moldau.network.client import RpcClient
from moldau.quorum.subscriptions import Committed
from moldau.quorum.voters import ReplicaKey, Voter, VoterSet
from moldau.records.batch import iter_headers
from moldau.runtime import KafkaError, Machine
from moldau.server import settings
from moldau.server.identity import identify
from moldau.server.metadata_node import MetadataNode
from moldau.server.node import Node
from moldau.simulation.history import History
from moldau.simulation.host import Host, Program
from moldau.simulation.nemesis import Fault, Nemesis, Weather
from moldau.simulation.scenario import Scenario
from moldau.simulation.seeds import stream
from moldau.simulation.topic_client import TopicClient
from moldau.simulation.world import World
from moldau.storage.log_manager import LogManager
from moldau.storage.replicated_log import SnapshotReader

CLUSTER_ID: Final = "bW9sZGF1LXNpbXVsYXRlZA"
CONTROLLER_PORT: Final = 9093
BROKER_PORT: Final = 9092
CONTROLLER_IDS: Final = (1, 2, 3)
BROKER_IDS: Final = (11, 12)
LATE_BROKER_ID: Final = 13
ALL_IDS: Final = (*CONTROLLER_IDS, *BROKER_IDS, LATE_BROKER_ID)
ELECTION_COUNT: Final = 3
CLIENT_COUNT: Final = 2
CONVERGENCE_LIMIT_S: Final = 120.0

_VOTERS: Final = VoterSet(
    Voter(ReplicaKey(node_id), f"node-{node_id}", CONTROLLER_PORT) for node_id in CONTROLLER_IDS
)
_COMMON: Final = {
    "controller.quorum.voters": ",".join(f"{each.key.id}@{each.host}:{each.port}" for each in _VOTERS),
    "controller.listener.names": "CONTROLLER",
    "log.dirs": "/data",
    # Often, so that logs are cut behind snapshots, and replicas that were away fetch these.
    "metadata.log.max.record.bytes.between.snapshots": "1000",
    "metadata.log.segment.ms": "500",
}


def quorum() -> Scenario:
    """Controllers and brokers whose processes are killed and whose links break."""
    return _scenario((Fault.KILL, Fault.KILL, Fault.PAUSE, Fault.CUT, Fault.CUT, Fault.RESET))


def quorum_power() -> Scenario:
    """Controllers and brokers whose machines also lose power."""
    return _scenario((Fault.KILL, Fault.POWER_LOSS, Fault.POWER_LOSS, Fault.PAUSE, Fault.CUT, Fault.RESET))


def _scenario(faults: tuple[Fault, ...]) -> Scenario:
    return Scenario(
        partitions=(),
        story=QuorumStory,
        weather=Weather(faults, pause_s_max=6.0, between_s_max=3.0),
        fault_count=5,
    )


@dataclass(slots=True)
class Ledger:
    """The replicas' commits and leaders, compared with each other as they happen."""

    history: History
    batches: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """By base offset: last offset, epoch and checksum of a committed batch."""
    leaders: dict[int, int] = field(default_factory=dict)
    """By epoch."""

    def committed(self, replica: str, base_offset: int, batch: tuple[int, int, int]) -> None:
        """Note a batch that a replica has applied: every replica applies the same one there."""
        known = self.batches.setdefault(base_offset, batch)
        if known != batch:
            self.history.violate(
                f"{replica} has committed {batch} at {base_offset}, another replica {known}: logs disagree"
            )

    def led(self, replica: str, epoch: int, leader_id: int) -> None:
        """Note a replica's word of who leads an epoch: there is at most one leader in each."""
        known = self.leaders.setdefault(epoch, leader_id)
        if known != leader_id:
            self.history.violate(f"{replica}: epoch {epoch} is led by {leader_id} and by {known}")


class Witness:
    """A listener of one replica, in one life."""

    def __init__(self, ledger: Ledger, replica: str) -> None:
        self._ledger = ledger
        self._replica = replica
        self._end_offset = 0

    def on_commit(self, committed: Committed) -> None:
        if committed.base_offset < self._end_offset:
            self._ledger.history.violate(
                f"{self._replica} has applied {committed.base_offset} after {self._end_offset}"
            )
        self._end_offset = committed.end_offset
        for view in committed.batches:
            for position, header in iter_headers(view):
                content = view[position : position + header.size_bytes]
                batch = header.last_offset, header.partition_leader_epoch, zlib.crc32(content)
                self._ledger.committed(self._replica, header.base_offset, batch)

    def on_snapshot(self, reader: SnapshotReader) -> None:
        self._end_offset = reader.snapshot_id.offset

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        if leader_id is not None:
            self._ledger.led(self._replica, epoch, leader_id)


class QuorumStory:
    """One seeded story of a quorum."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        self._world = world
        self._scenario = scenario
        self.history = History(world.loop.elapsed_s)
        self.ledger = Ledger(self.history)
        self.replicas: dict[int, MetadataNode] = {}
        """The newest life of each node's replica."""
        self._clients: list[TopicClient] = []
        self._acknowledged = asyncio.Event()
        """Set when a client is told that a change is made."""

    async def run(self) -> list[str]:
        """Play, and return the violations."""
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
        storm = asyncio.create_task(self._storm(nemesis))
        clients = self._clients = [
            TopicClient(f"client-{number}", _VOTERS, world, self.history, lambda: self._acknowledged.set())
            for number in range(CLIENT_COUNT)
        ]
        for client in clients:
            await client.done
        await storm
        self.history.note("clients are done")
        # A broker that joins late finds a log that begins with a snapshot.
        world.host(f"node-{LATE_BROKER_ID}").start(partial(self._broker, LATE_BROKER_ID))
        await self._converge(clients)
        supervisor.cancel()
        return self.history.violations

    async def _storm(self, nemesis: Nemesis) -> None:
        """Disturb some elections, then let the nemesis strike anywhere."""
        chance = stream(self._world.seed, "elections")
        for _ in range(ELECTION_COUNT):
            await asyncio.sleep(chance.uniform(0.5, 3.0))
            await self._disturb_election(nemesis, chance)
        await nemesis.storm(self._scenario.fault_count)

    async def _disturb_election(self, nemesis: Nemesis, chance: random.Random) -> None:
        """Restart the leader and then voters; often, two of them do not see each other.

        A voter that forgets its vote can then vote for both in one epoch.
        """
        network = self._world.network
        one, other, third = (f"node-{node_id}" for node_id in chance.sample(CONTROLLER_IDS, 3))
        is_parted = chance.random() < 0.7
        if is_parted:
            network.cut(one, other)
            network.cut(other, one)
        power_lost = Fault.POWER_LOSS in self._scenario.weather.faults
        if power_lost:
            await self._black_out(nemesis, chance)
        leader_id = min((each.driver.leader_id or 0 for each in self.replicas.values()), default=0)
        restarted = [f"node-{leader_id}" if leader_id else third]
        restarted += [third if is_parted else chance.choice((one, other, third)) for _ in range(4)]
        self.history.note(f"restarts of {restarted}, {one} and {other} parted: {is_parted}")
        for name in restarted:
            pause_s = chance.uniform(0.01, 1.0)
            await nemesis.restart(self._world.host(name), pause_s, power_lost=power_lost)
            await asyncio.sleep(chance.uniform(0.0, 2.5))
        if is_parted:
            network.heal(one, other)
            network.heal(other, one)

    async def _black_out(self, nemesis: Nemesis, chance: random.Random) -> None:
        """Take the power of all controllers in the moment in which a change is acknowledged."""
        acknowledged = self._acknowledged = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                await acknowledged.wait()
        self.history.note("all controllers lose their power")
        hosts = [self._world.host(f"node-{node_id}") for node_id in CONTROLLER_IDS]
        pauses_s = [chance.uniform(0.01, 1.0) for _ in hosts]
        await asyncio.gather(
            *(
                nemesis.restart(host, pause_s, power_lost=True)
                for host, pause_s in zip(hosts, pauses_s, strict=True)
            )
        )

    async def _controller(self, node_id: int, machine: Machine) -> None:
        config = _config(
            node_id,
            {"process.roles": "controller", "listeners": f"CONTROLLER://node-{node_id}:{CONTROLLER_PORT}"},
        )
        _format(machine, config)
        node = Node(config, machine)
        await node.start()
        assert node.metadata is not None
        self._joined(node_id, node.metadata)
        raise RuntimeError(await node.failed())

    async def _broker(self, node_id: int, machine: Machine) -> None:
        listener = Endpoint("PLAINTEXT", f"node-{node_id}", BROKER_PORT, 0)
        config = _config(
            node_id,
            {"process.roles": "broker", "listeners": f"PLAINTEXT://{listener.host}:{listener.port}"},
        )
        _format(machine, config)
        failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        identity = identify(machine, config, format_new=False)
        logs = LogManager(
            machine,
            list(config.log_dirs),
            settings.log_manager_settings(config),
            on_offline=lambda path, reason: failure.set_result(f"{path}: {reason}"),
            guarded=settings.GUARDED_TOPICS,
        )
        defaults = settings.log_config(TopicConfig.effective(config, {}))
        await logs.start(lambda topic: defaults)
        metadata = MetadataNode(machine, config, identity, failure.set_result, logs)
        await logs.note_boot()
        await metadata.start()
        self._joined(node_id, metadata)
        channel = RemoteControllerChannel(
            RpcClient(machine.entropy), _VOTERS, lambda: metadata.driver.leader_id
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
                log_dirs=identity.directory_ids,
            ),
            channel,
            machine.entropy,
            lambda: metadata.publisher.image.provenance.offset,
            registration_timeout_ms=600_000,
        )
        metadata.publisher.subscribe(_Moved(lifecycle.metadata_moved))
        lifecycle.start()
        lifecycle.ready()
        while not failure.done():
            await asyncio.sleep(0.1)
            await self._read_current(node_id, metadata)
        raise RuntimeError(failure.result())

    async def _read_current(self, node_id: int, metadata: MetadataNode) -> None:
        """Hold a broker's own word that its image is current against what clients were told before."""
        told = {topic for client in self._clients for topic in client.present}
        try:
            await metadata.until_current()
        except (KafkaError, TimeoutError):
            return  # the quorum's leader cannot be asked now
        image = metadata.publisher.image
        deleted = {topic for client in self._clients for topic in client.deleted}
        missing = {topic for topic in told - deleted if image.topics.get(topic) is None}
        if missing:
            self.history.violate(f"node {node_id} takes an image without {sorted(missing)} for current")

    def _joined(self, node_id: int, metadata: MetadataNode) -> None:
        host = self._world.host(f"node-{node_id}")
        metadata.driver.add_listener(Witness(self.ledger, f"{host.name}.{host.life}"))
        self.replicas[node_id] = metadata

    async def _converge(self, clients: "Iterable[TopicClient]") -> None:
        """Wait until every node has the same metadata, with all that clients were told."""
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
class _Moved:
    """Tells a broker's life of each new image."""

    call: Callable[[], None]

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.call()


def _config(node_id: int, properties: dict[str, str]) -> BrokerConfig:
    return BrokerConfig.from_properties({**_COMMON, "node.id": str(node_id), **properties})


def _format(machine: Machine, config: BrokerConfig) -> None:
    machine.disk.make_dirs("/data")  # a mount point: there long before the node
    machine.disk.sync_dir("/")
    request = FormatRequest(
        cluster_id=CLUSTER_ID,
        node_id=config.node_id,
        log_dirs=config.log_dirs,
        metadata_dir=config.metadata_log_dir,
        ignore_formatted=True,
    )
    format_storage(machine.disk, machine.entropy, request, machine.clock.now_ms())
