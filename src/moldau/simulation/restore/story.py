"""A node loses all disks at any moment, in several rounds. Each time it is restored from the object store.

Producers continue during all rounds, with the same producer ids. The guarantees of a restore are checked
(:mod:`.checks`).
"""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, Final

from moldau.backup.restore.folders import NewCluster, NewNode
from moldau.backup.restore.restoring import RestoreReport, Restoring
from moldau.backup.stored_cuts import StoredCuts
from moldau.cluster.folders.formatter import new_directory_id
from moldau.metrics import Meters
from moldau.objects.storage import ObjectStorage
from moldau.protocol.partitions import TopicPartition
from moldau.quorum.core.voters import ReplicaKey, Voter, VoterSet
from moldau.runtime import Machine
from moldau.server.node import ServerNode
from moldau.server.settings import development_config
from moldau.simulation.clients.client import Bootstrap, Producer, Sending, SimulatedClient
from moldau.simulation.damage.reading import Reader
from moldau.simulation.history import History
from moldau.simulation.restore.checks import Read, ReadContents, RecordChecker, TimedHistory
from moldau.simulation.scenario import Scenario
from moldau.simulation.seeds import stream
from moldau.simulation.stories.tiny_node import PORT
from moldau.simulation.world.disks.disk import MountedDisk
from moldau.simulation.world.disks.lost_files import DATA
from moldau.simulation.world.object_storage import (
    CLASS_NAME,
    TIER_CLASS_NAME,
    open_simulated,
    open_simulated_tier,
)
from moldau.simulation.world.process import Process, serving
from moldau.simulation.world.world import World
from moldau.tiered.storage.storage_manager import RemoteStorageManager

TOPIC: Final = "events"
PARTITION_COUNT: Final = 2
ROUNDS: Final = 3
WORK_LIMIT_S: Final = 400.0
RECORDS_A_ROUND: Final = 60
PROPERTIES: Final[Mapping[str, str]] = {
    "controller.listener.names": "CONTROLLER",
    "num.partitions": "1",
    "diskless.metadata.topic.num.partitions": "2",
    "diskless.storage.class.name": CLASS_NAME,
    "diskless.storage.url": "simulated:",
    "remote.log.storage.manager.class.name": TIER_CLASS_NAME,
    "remote.log.metadata.topic.num.partitions": "2",
    # Each kind of work is frequent, so that every run has all kinds.
    "diskless.metadata.max.new.records.between.snapshots": "20",
    "diskless.consolidation.interval.ms": "1000",
    "diskless.consolidation.segment.bytes": "2000",
    "diskless.consolidation.max.age.ms": "3000",
    "diskless.coordinator.orphan.scan.interval.ms": "5000",
    "diskless.coordinator.orphan.scan.grace.period.ms": "40000",
    "log.index.interval.bytes": "256",
}


class RestoreStory:
    """Rounds of three steps: work, loss of all disks during the work, restore."""

    properties = PROPERTIES

    def __init__(self, world: World, scenario: Scenario) -> None:
        self._world = world
        self._chance = stream(world.seed, "restore")
        # With an interval of 90 s, cuts are rare. A record may then show that an object is no longer needed,
        # long before a cut contains this record. The object must not be deleted before the cut contains it.
        self._interval_s = self._chance.choice((1.0, 2.0, 90.0))
        self._node = world.host("node-1")
        self._bootstrap = Bootstrap("node-1", PORT)
        self._report: RestoreReport | None = None
        self._times = TimedHistory(world.loop.elapsed_s)
        self.history: History = self._times
        self._partitions = [TopicPartition(TOPIC, index) for index in range(PARTITION_COUNT)]
        self._producers: list[Producer] = []

    async def run(self) -> list[str]:
        self._node.start(self._program)
        await self._on(
            "admin", self._client("admin").create_topic(TOPIC, PARTITION_COUNT, {"retention.ms": "-1"})
        )
        # The topic must be in a cut before the disks are lost.
        await asyncio.sleep(self._interval_s + self._chance.uniform(2.0, 7.0))
        self._producers = [
            self._producer(partition, number) for partition in self._partitions for number in range(3)
        ]
        idempotent = [each.name for each in self._producers if each.idempotent]
        self._checker = RecordChecker(self._times, idempotent)
        for number in range(ROUNDS):
            await self._round(number)
            if self.history.violations:
                break
        return self.history.violations

    def _producer(self, partition: TopicPartition, number: int) -> Producer:
        name = f"producer-{partition.partition}-{number}"
        chance = stream(self._world.seed, name)
        sending = Sending(idempotent=number > 0)
        return Producer(name, self._bootstrap, self.history, chance, partition, sending)

    async def _round(self, number: int) -> None:
        total = (number + 1) * RECORDS_A_ROUND
        work = [self._on(f"{each.name} {number}", each.run(total, pause_s=0.2)) for each in self._producers]
        await asyncio.sleep(self._chance.uniform(0.5, max(12.0, 1.2 * self._interval_s)))
        before = await self._contents(f"before {number}") if self._chance.random() < 0.5 else {}
        await self._vanish(number)
        _, pending = await asyncio.wait(work, timeout=WORK_LIMIT_S)
        if pending:
            self.history.violate(f"producers cannot go on after the restore: {len(pending)} of {len(work)}")
            return
        after = await self._contents(f"after {number}")
        if not self.history.violations:
            await self._check(before, after)

    # The node ------------------------------------------------------------------------------------

    async def _vanish(self, number: int) -> None:
        """Kill the node, remove its disk, and start a restored node."""
        lost_s = self._world.loop.elapsed_s()
        self._node.kill()
        disk = self._node.disk.mount(Process("operator"))
        for name in disk.list(DATA):
            path = f"{DATA}/{name}"
            if disk.is_dir(path):
                disk.remove_tree(path)
            else:
                disk.remove(path)
        disk.sync_dir(DATA)
        self.history.note(f"all disks vanish in round {number} at {lost_s:.3f}")
        self._report = None
        self._node.start(self._program)

    async def _program(self, machine: Machine) -> None:
        assert isinstance(machine.disk, MountedDisk)
        machine.disk.make_dirs(DATA)  # the mount point of the disk exists before the node
        machine.disk.sync_dir("/")
        properties = {**self.properties, "backup.interval.ms": str(round(1000 * self._interval_s))}
        config = development_config(DATA, PORT, properties, host="node-1", diskless=True)
        storage = open_simulated("", {}, machine)
        found = await StoredCuts(storage).newest()
        if found is not None:
            new_node = NewNode(
                node_id=config.node_id, path=DATA, directory_id=new_directory_id(machine.entropy)
            )
            cluster = NewCluster(
                cluster_id=found.cut.cluster_id,
                nodes=[new_node],
                static_voters=VoterSet([Voter(ReplicaKey(config.node_id), "node-1", 0)]),
            )
            tier = open_simulated_tier({}, machine, Meters())
            self._report = await Restoring(machine, storage, found, cluster, tier=tier).run()
            await self._restored(storage, tier)
        node = ServerNode(config, machine, format_new=True)
        machine.disk.process.exhibit = node
        await node.start()
        serving()
        raise RuntimeError(await node.failed())

    async def _restored(self, storage: ObjectStorage, tier: RemoteStorageManager) -> None:
        """Called after a restore, before the node starts."""

    # Checks --------------------------------------------------------------------------------------

    async def _check(self, before: ReadContents, after: ReadContents) -> None:
        report = self._report
        if report is None:
            self.history.violate("no state was saved before the disks vanished")
            return
        cut_s = self._elapsed_s(report.cut.created_ms)
        self.history.note(
            f"cut at {cut_s:.3f}; {report.newer.batches} batches came back, {report.newer.repeated_batches}"
            " were there"
        )
        self._checker.note_read(before)
        self._checker.check(after, cut_s)
        for partition, read in before.items():
            client = self._client(f"epochs of {partition.partition} in life {self._node.life}")
            found = dict(after[partition].records)
            await self._on(client.name, self._checker.check_epochs(client, partition, read, found))

    def _elapsed_s(self, clock_ms: int) -> float:
        """Converts a time of the node's clock to virtual time since the start of the world."""
        now_ms = self._node.clock.now_ms()
        return self._world.loop.elapsed_s() - (now_ms - clock_ms) / 1000

    async def _contents(self, name: str) -> ReadContents:
        found: dict[TopicPartition, Read] = {}
        for partition in self._partitions:
            seed = stream(self._world.seed, name, *partition)
            reader = Reader(name, self._bootstrap, self.history, seed)
            records, error = await self._on(
                f"{name} {partition.topic} {partition.partition}", reader.read(partition)
            )
            found[partition] = Read(records, reader.epochs)
            if error is not None:
                self.history.violate(f"{name}: {partition} is unreadable: {error}")
        return found

    def _client(self, name: str) -> SimulatedClient:
        return SimulatedClient(name, self._bootstrap, self.history, stream(self._world.seed, name))

    def _on(self, host: str, story: Awaitable[Any]) -> "asyncio.Task[Any]":
        async def program() -> Any:
            return await story

        process = self._world.host(host).start(lambda _machine: program())
        assert process.main is not None
        return process.main


def restore() -> Scenario:
    """A node loses all disks, and is restored from its object store."""
    return Scenario(story=RestoreStory, time_limit_s=4_000.0, step_limit=4_000_000, cpu_limit_s=300.0)
