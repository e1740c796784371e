"""The nodes of a cluster that loses all disks, and the operator who restores the cluster."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from moldau.backup.restore.folders import NewCluster, NewNode
from moldau.backup.restore.restoring import RestoreReport, Restoring
from moldau.backup.stored_cuts import StoredCuts
from moldau.cluster.folders.formatter import new_directory_id
from moldau.config.broker import BrokerConfig
from moldau.metrics import Meters
from moldau.quorum.core.voters import ReplicaKey, Voter, VoterSet
from moldau.runtime import Disk, Machine
from moldau.server.node import ServerNode
from moldau.simulation.clients.client import Bootstrap
from moldau.simulation.cluster.formatted import format_folders
from moldau.simulation.world.disks.disk import MountedDisk
from moldau.simulation.world.disks.lost_files import DATA
from moldau.simulation.world.host import Host
from moldau.simulation.world.object_storage import open_simulated, open_simulated_tier
from moldau.simulation.world.process import Process, serving
from moldau.simulation.world.world import World

BROKER_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
CLUSTER_ID: Final = "q1Zh3M0SQ4O5Wc9m6mBk0w"
RESTORED: Final = "/restored"
_COPIED_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class NodeSet:
    """The nodes of the cluster between two restores. All of them are brokers."""

    node_ids: Sequence[int]
    voter_ids: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeOptions:
    """The configuration of every node, and the sets of nodes. After each restore the next set is used."""

    properties: Mapping[str, str]
    node_sets: Sequence[NodeSet]
    replicated: Mapping[str, int] = field(default_factory=dict)
    """Configuration keys of replication factors. The values apply if there are enough brokers."""
    leaves_old_nodes: bool = False
    """Whether the old nodes sometimes run during the restore, if none of the new nodes has the name of an old
    node."""
    interrupts: bool = False
    """Whether a restore is sometimes interrupted. The disks that this restore has written are then lost."""


class LosableCluster:
    """Runs the nodes of a cluster. :meth:`lose_and_restore` ends the current nodes, and starts the next
    nodes."""

    def __init__(self, world: World, options: LifeOptions, chance: random.Random) -> None:
        self._world = world
        self._options = options
        self._chance = chance
        self._nodes = options.node_sets[0]
        ids = sorted({node_id for each in options.node_sets for node_id in each.node_ids})
        self.addresses = [Bootstrap(f"node-{node_id}", BROKER_PORT) for node_id in ids]
        """The addresses of the brokers in all sets of nodes."""
        for each in self.addresses:
            world.host(each.host)  # this makes the host refuse connections while it runs no node
        self.report: RestoreReport | None = None
        """The report of the last restore."""
        self.restored_s = 0.0
        self.are_left = False
        """Whether the old nodes were left running during the last restore."""
        self.lives = 0

    @property
    def hosts(self) -> list[Host]:
        """The hosts of the current nodes."""
        return [self._world.host(f"node-{node_id}") for node_id in self._nodes.node_ids]

    def start(self) -> None:
        """Start the first nodes, with new folders."""
        self._start(is_new=True)

    async def lose_and_restore(self) -> None:
        """End all nodes, remove their disks, and restore the cluster with other nodes. Sometimes the old
        nodes end only some time after the restore.

        If no state was saved, ``report`` is ``None`` afterwards.
        """
        old = self.hosts
        self.report = None
        self._nodes = self._chance.choice(self._options.node_sets)
        self.are_left = are_left = (
            self._options.leaves_old_nodes
            and not {host.name for host in old}.intersection(host.name for host in self.hosts)
            and self._chance.random() < 0.7
        )
        if not are_left:
            _end(old)
        if self._options.interrupts and self._chance.random() < 0.2:
            begun = asyncio.ensure_future(self._restore(waits=False))
            await asyncio.wait([begun], timeout=self._chance.uniform(0.0, 1.0))
            if not begun.done():
                self._world.host("operator").kill()
                begun.cancel()
            _empty(self._world.host("operator"), RESTORED)
        self.report = await self._restore(waits=are_left)
        if self.report is not None:
            self._hand_out()
            self._start(is_new=False)
            if are_left:  # clients may use the old nodes, which acknowledge no record any more
                await asyncio.sleep(self._chance.uniform(0.0, 8.0))
                _end(old)
            self.restored_s = self._world.loop.elapsed_s()

    # The operator -------------------------------------------------------------------------------

    async def _restore(self, *, waits: bool) -> RestoreReport | None:
        process = self._world.host("operator").start(partial(self._restoring, waits=waits))
        assert process.main is not None
        # When the operator's program is killed, none of its code may run. Therefore it is not cancelled.
        found: RestoreReport | None = await asyncio.shield(process.main)
        self._world.host("operator").kill()  # the program has ended, and this call ends its process
        return found

    async def _restoring(self, machine: Machine, *, waits: bool) -> RestoreReport | None:
        """Restore all nodes into folders of one machine."""
        machine.disk.make_dirs(RESTORED)
        machine.disk.sync_dir("/")
        storage = open_simulated("", {}, machine)
        found = await StoredCuts(storage).newest()
        if found is None:
            return None
        nodes = [
            NewNode(
                node_id=node_id,
                path=f"{RESTORED}/node-{node_id}",
                directory_id=new_directory_id(machine.entropy),
            )
            for node_id in self._nodes.node_ids
        ]
        voters = [Voter(ReplicaKey(id), f"node-{id}", CONTROLLER_PORT) for id in self._nodes.voter_ids]
        cluster = NewCluster(cluster_id=found.cut.cluster_id, nodes=nodes, static_voters=VoterSet(voters))
        has_tier = self._options.properties.get("remote.log.storage.system.enable") == "true"
        tier = open_simulated_tier({}, machine, Meters()) if has_tier else None
        return await Restoring(machine, storage, found, cluster, tier=tier, waits=waits).run()

    def _hand_out(self) -> None:
        """Copy the restored folders to the machines of the nodes."""
        operator = self._world.host("operator")
        source = operator.disk.mount(Process("operator"))
        for host in self.hosts:
            _copy(source, f"{RESTORED}/{host.name}", host.disk.mount(Process("operator")), DATA)
        _empty(operator, RESTORED)

    # The nodes ----------------------------------------------------------------------------------

    def _start(self, *, is_new: bool) -> None:
        self.lives += 1
        for node_id, host in zip(self._nodes.node_ids, self.hosts, strict=True):
            config = self._config(node_id)

            async def program(machine: Machine, config: BrokerConfig = config) -> None:
                if is_new:
                    format_folders(machine, config, CLUSTER_ID)
                node = ServerNode(config, machine)
                assert isinstance(machine.disk, MountedDisk)
                machine.disk.process.exhibit = node
                await node.start()
                serving()
                raise RuntimeError(await node.failed())

            host.start(program)

    def _config(self, node_id: int) -> BrokerConfig:
        listeners = {"broker": f"PLAINTEXT://node-{node_id}:{BROKER_PORT}"}
        if node_id in self._nodes.voter_ids:
            listeners["controller"] = f"CONTROLLER://node-{node_id}:{CONTROLLER_PORT}"
        voters = (f"{id}@node-{id}:{CONTROLLER_PORT}" for id in self._nodes.voter_ids)
        count = len(self._nodes.node_ids)
        return BrokerConfig.from_properties(
            {
                "node.id": str(node_id),
                "process.roles": ",".join(listeners),
                "listeners": ",".join(listeners.values()),
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": ",".join(voters),
                "log.dirs": DATA,
                **{key: str(min(value, count)) for key, value in self._options.replicated.items()},
                **self._options.properties,
            }
        )


def _end(hosts: Sequence[Host]) -> None:
    """End the nodes of hosts, and remove their disks."""
    for host in hosts:
        host.kill()
        _empty(host)


def _empty(host: Host, folder: str = DATA) -> None:
    disk = host.disk.mount(Process("operator"))
    if not disk.is_dir(folder):
        return
    for name in disk.list(folder):
        path = f"{folder}/{name}"
        if disk.is_dir(path):
            disk.remove_tree(path)
        else:
            disk.remove(path)
    disk.sync_dir(folder)


def _copy(source: Disk, path: str, target: Disk, copied: str) -> None:
    """Copy a folder durably."""
    target.make_dirs(copied)
    target.sync_dir(copied.rpartition("/")[0] or "/")
    for name in source.list(path):
        here, there = f"{path}/{name}", f"{copied}/{name}"
        if source.is_dir(here):
            _copy(source, here, target, there)
            continue
        with closing(target.open(there, create=True)) as written:
            written.write_at(0, [source.read(here)])
            written.sync()
    target.sync_dir(copied)
