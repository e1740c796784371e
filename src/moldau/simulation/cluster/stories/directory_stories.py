"""Replicated partitions on nodes with two disks each. A disk fails under load, and is repaired or replaced.

A node with one failed disk continues to work. The replicas on its other disk continue, and other nodes become
leaders of the partitions on the failed disk. In another story, replicas move from disk to disk while nodes
are killed. No acknowledged record may be lost.
"""

import asyncio
import contextlib
import random
from dataclasses import replace
from functools import partial
from typing import Final

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from moldau.protocol.partitions import TopicPartition
from moldau.simulation.clients.client import Bootstrap, SimulatedClient
from moldau.simulation.cluster.node_config import BROKER_PORT
from moldau.simulation.cluster.stories.replication_stories import (
    NODE_IDS,
    PARTITIONS,
    TOPIC,
    ReplicationStory,
    replication,
)
from moldau.simulation.nemesis import Fault, Nemesis
from moldau.simulation.scenario import Scenario
from moldau.simulation.seeds import stream
from moldau.simulation.world.host import Host
from moldau.simulation.world.process import Process

METADATA_DISK: Final = "/data/a"
OTHER_DISK: Final = "/data/b"
LEADERS_LEAVE_S: Final = 10.0
"""Time limit within which a node must lose its leaderships of partitions on a failed disk. The node reports
the failed disk immediately, but a controller may have to be elected first."""


def replication_directories() -> Scenario:
    """The second disk of nodes fails. Some nodes are restarted before the operator repairs the disk."""
    properties = {"log.dirs": f"{METADATA_DISK},{OTHER_DISK}"}
    return replace(
        replication(), story=partial(DirectoryStory, properties=properties), fault_count=3, consumer_count=1
    )


def replication_directory_moves() -> Scenario:
    """Replicas move between the disks of their nodes, and the nodes are killed, paused or stopped."""
    properties = {
        "log.dirs": f"{METADATA_DISK},{OTHER_DISK}",
        "replica.alter.log.dirs.io.max.bytes.per.second": "20000",
    }
    faults = (*(Fault.KILL,) * 3, Fault.POWER_LOSS, Fault.STOP, Fault.PAUSE, Fault.CUT)
    scenario = replication()
    return replace(
        scenario,
        story=partial(MovingStory, properties={**properties, "log.flush.interval.messages": "1"}),
        weather=replace(scenario.weather, faults=faults),
        consumer_count=1,
    )


class MovingStory(ReplicationStory):
    """A story in which replicas move between the disks of their nodes."""

    async def _storm(self, nemesis: Nemesis) -> None:
        chance = stream(self._world.seed, "disks")
        storm = asyncio.create_task(super()._storm(nemesis))
        number = 0
        while not storm.done():
            await asyncio.sleep(chance.uniform(0.05, 1.0))
            node_id, path = chance.choice(NODE_IDS), chance.choice((METADATA_DISK, OTHER_DISK))
            number += 1
            await self._on(f"operator-{number}", self._move(node_id, chance.choice(PARTITIONS), path, number))
        await storm

    async def _move(self, node_id: int, partition: TopicPartition, path: str, number: int) -> None:
        name = f"operator-{number}"
        bootstrap = Bootstrap(f"node-{node_id}", BROKER_PORT)
        client = SimulatedClient(name, bootstrap, self.history, stream(self._world.seed, name))
        topic = AlterReplicaLogDirTopic(name=partition.topic, partitions=[partition.partition])
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[topic])])
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(3.0):
                answer = await client.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, request)
                code = answer.results[0].partitions[0].error_code
                self.history.note(f"{partition} of node-{node_id} to {path}: {code.name}")


class DirectoryStory(ReplicationStory):
    """A story in which disks of nodes fail."""

    async def _storm(self, nemesis: Nemesis) -> None:
        chance = stream(self._world.seed, "disks")
        for _ in range(self._scenario.fault_count):
            # Two replicas must have each acknowledged record when the third replica loses its disk.
            await self._converge()
            await asyncio.sleep(chance.uniform(0.1, 2.0))
            await self._lose_disk(nemesis, chance)

    async def _lose_disk(self, nemesis: Nemesis, chance: random.Random) -> None:
        node_id = chance.choice(NODE_IDS)
        host = self._world.host(f"node-{node_id}")
        self.history.note(f"the second disk of {host.name} fails")
        lives = self._lives.get(node_id)
        host.disk.failed_folders.add(OTHER_DISK)
        await asyncio.sleep(chance.uniform(0.5, 3.0))
        if chance.random() < 0.4:
            self.history.note(f"{host.name} is restarted without its disk")
            await nemesis.restart(host, chance.uniform(0.1, 3.0))
        if chance.random() < 0.4:
            other = self._world.host(f"node-{chance.choice([each for each in NODE_IDS if each != node_id])}")
            self.history.note(f"{other.name} is killed meanwhile")
            await nemesis.restart(other, chance.uniform(0.1, 2.0))
        elif self._lives.get(node_id) == lives:
            await self._leaders_have_left(node_id)
        is_new = chance.random() < 0.5
        self.history.note(f"{host.name} gets {'a new disk' if is_new else 'its disk back'}")
        await self._operator_comes(nemesis, host, is_new, chance)

    async def _leaders_have_left(self, node_id: int) -> None:
        """Wait until this node leads no partition in its failed folder. The metadata of another node are used
        to check this."""
        deadline = self._world.loop.elapsed_s() + LEADERS_LEAVE_S
        while led := self._led_on_failed_disk(node_id):
            if self._world.loop.elapsed_s() > deadline:
                self.history.violate(f"node-{node_id} still leads {led} on a failed disk")
                return
            await asyncio.sleep(0.2)

    def _led_on_failed_disk(self, node_id: int) -> list[int]:
        metadata = self.nodes[node_id].metadata
        if metadata is None:
            return []
        failed_id = metadata.identity.directories.get(OTHER_DISK)
        topic = metadata.publisher.image.topics.get(TOPIC)
        rows = () if topic is None else topic.partitions
        return [
            each.partition
            for each, row in zip(PARTITIONS, rows, strict=False)
            if row.leader == node_id
            and row.directory_of(node_id) == failed_id
            and not self._works(node_id, each)
        ]

    def _works(self, node_id: int, partition: TopicPartition) -> bool:
        """Whether a replica has not noticed its failed disk yet, because nothing was written to the disk."""
        replicas = dict(self._replicas_by_node(partition))
        return node_id in replicas and not replicas[node_id].log.is_offline

    async def _operator_comes(
        self, nemesis: Nemesis, host: Host, is_new: bool, chance: random.Random
    ) -> None:
        if chance.random() < 0.5:
            await nemesis.stop(host)
        host.kill()
        host.disk.failed_folders.clear()
        if is_new:
            disk = host.disk.mount(Process("operator"))
            disk.remove_tree(OTHER_DISK)
            disk.make_dirs(OTHER_DISK)
            disk.sync_dir(METADATA_DISK.rpartition("/")[0])
        await nemesis.restart(host, chance.uniform(0.1, 2.0))
