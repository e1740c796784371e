"""Partitions with chunks whose topic is tiered, on three nodes and one object store.

The story is the story of chunks (:mod:`.story`), with a remote tier. Leaders copy chunks to the tier through
the brokers of the chunks, and local retention removes copied chunks and segments from the disks. Meanwhile
chunks are created, moved and deleted, and nodes and the store fail. At the end the tier must have all records
before the active chunks. Every record is read from offset 0 on: from the tier, from chunks and from the log.
Then each node is stopped once, and all records are read again. Every finished segment must have its objects,
and the store must have no other objects. After the deletion of the topic, its objects must be deleted, too.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

from moldau.cluster.image.chunks import ChunkRegistration
from moldau.protocol.partitions import TopicPartition
from moldau.server.subsystems.tiered.subsystem import TieredSubsystem
from moldau.simulation.checks.tiered_checks import segment_problems
from moldau.simulation.chunks.checks import check_contents, first_common_offset
from moldau.simulation.chunks.story import CHUNK_PROPERTIES, FOLDER, ROLLING, SYNCED, ChunkStory, chunks
from moldau.simulation.clients.client import Consumer
from moldau.simulation.cluster.stories.replication_stories import NODE_IDS, PARTITIONS, TOPIC
from moldau.simulation.nemesis import Fault
from moldau.simulation.scenario import Scenario
from moldau.simulation.world.host import Host
from moldau.simulation.world.object_storage import TIER_CLASS_NAME
from moldau.simulation.world.world import World
from moldau.tiered.copied_end import copied_until
from moldau.tiered.metadata.lineage import LogLineage
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.storage.object_layout import parse_segment_key

QUIET_S: Final = 100.0
"""Time in which the data of failed copies are deleted."""
SETTLED_S: Final = 5.0
"""If the chunks have not changed for this time in seconds, no further change is expected."""
_DOWN_S: Final = 15.0
_PROPERTIES: Final = {
    **CHUNK_PROPERTIES,
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": TIER_CLASS_NAME,
    "remote.log.manager.task.interval.ms": "500",
    "remote.log.metadata.topic.num.partitions": "2",
    "remote.log.metadata.topic.replication.factor": "3",
    "log.segment.delete.delay.ms": "500",
    # Time for which no remote segment is deleted after a start that truncated a log.
    "diskless.coordinator.orphan.scan.grace.period.ms": "20000",
}
_TIERED: Final = {"remote.storage.enable": "true", "local.retention.bytes": "2500", "retention.ms": "-1"}
_STORE_FAULTS: Final = (Fault.STORE_DOWN, Fault.STORE_POOR)


def chunks_tiered() -> Scenario:
    """Nodes are killed, paused or cleanly restarted, links break, and the store fails."""
    faults = (*(Fault.KILL,) * 3, Fault.STOP, Fault.PAUSE, Fault.CUT, Fault.ONE_WAY, *_STORE_FAULTS)
    return _scenario({}, faults)


def chunks_tiered_power() -> Scenario:
    """Nodes lose power, are killed or paused, links break, and the store fails. Logs are synced before
    records are acknowledged."""
    faults = (*(Fault.POWER_LOSS,) * 3, Fault.KILL, Fault.PAUSE, Fault.CUT, *_STORE_FAULTS)
    return _scenario(SYNCED, faults)


def _scenario(properties: Mapping[str, str], faults: tuple[Fault, ...]) -> Scenario:
    scenario = chunks()
    return replace(
        scenario,
        story=partial(TieredChunkStory, properties={**_PROPERTIES, **properties}),
        weather=replace(scenario.weather, faults=faults, store_s_max=5.0),
        records_per_producer=300,
        time_limit_s=1_500.0,
    )


class TieredChunkStory(ChunkStory):
    """A seeded run of tiered partitions with chunks."""

    topic_configs: Mapping[str, str] = MappingProxyType({**ROLLING, **_TIERED})
    deletion_limit_s = 150

    def __init__(self, world: World, scenario: Scenario, *, properties: dict[str, str]) -> None:
        super().__init__(world, scenario, properties=properties)
        self.emptied = 0
        """Number of the records that only the tier has at the end."""
        self._seen: tuple[tuple[int, ...], ...] = ()
        self._seen_s = 0.0

    # The end of a run

    async def _check_survivors(self) -> list[str]:
        await asyncio.sleep(QUIET_S)
        await self._converge()
        violations = list(segment_problems(self.nodes.values(), self._world))
        whole = await self._read_all("after all")
        for each in PARTITIONS:
            metadata = self._partition(each)
            assert metadata is not None
            self.emptied += metadata.chunks[0].start_offset if metadata.chunks else metadata.start_offset
        for node_id in NODE_IDS:
            host = self._world.host(f"node-{node_id}")
            host.kill()
            self.history.note(f"{host.name} is away for the last readers")
            again = await self._read_all(f"without {node_id}")
            violations += [
                f"{each} reads differently without node {node_id}"
                for each in PARTITIONS
                if again[each] != whole[each]
            ]
            await asyncio.sleep(_DOWN_S)
            host.start(partial(self._node, node_id))
            await self._converge()
        return [*violations, *self.history.violations]

    async def _read_all(self, name: str) -> dict[TopicPartition, list[tuple[int, bytes]]]:
        found = {}
        for number, each in enumerate(PARTITIONS):
            reader: Consumer = self._consumer(f"{name}-{number}", number, observed=False)
            found[each] = await self._on(reader.name, reader.read_to_end())
        return found

    def _problem(self) -> str | None:
        problem = super()._problem()
        if problem is not None:
            return problem
        for each in PARTITIONS:
            if (problem := self._uncopied(each)) is not None:
                return problem
        found = tuple(
            tuple(chunk.start_offset for chunk in metadata.chunks)
            for metadata in map(self._partition, PARTITIONS)
            if metadata is not None
        )
        now_s = self._world.loop.elapsed_s()
        if found != self._seen:
            self._seen, self._seen_s = found, now_s
        return None if now_s - self._seen_s >= SETTLED_S else "the chunks still change"

    def _uncopied(self, name: TopicPartition) -> str | None:
        """The reason why the tier does not have all records before the active chunk; ``None`` if it has
        them."""
        metadata = self._partition(name)
        leaders = [(node_id, one) for node_id, one in self._replicas_by_node(name) if one.is_leader]
        if metadata is None or len(leaders) != 1:
            return f"{name} has {len(leaders)} leaders"
        (node_id, leader), log = leaders[0], leaders[0][1].log
        tier = self.nodes[node_id].get(TieredSubsystem).metadata
        identity = TopicIdPartition(leader.key.topic_id, name.topic, name.partition)
        if not tier.is_ready(identity):
            return f"the metadata of {name} are not loaded"
        end = copied_until(
            tier, identity, LogLineage(log.leader_epochs), log.log_start_offset, metadata.start_offset
        )
        if end < metadata.start_offset:
            return f"the tier of {name} ends at {end}, and the active chunk begins at {metadata.start_offset}"
        return None

    def _chunk_differences(
        self, name: TopicPartition, chunk: ChunkRegistration, hosts: dict[int, Host], first_offset: int
    ) -> Iterator[str]:
        first_offset = max(first_offset, first_common_offset(name, chunk, hosts, FOLDER))
        yield from check_contents(name, chunk, hosts, FOLDER, first_offset)

    def _remains(self) -> list[str]:
        keys = sorted(self._world.object_store.objects)
        parsed = {key: parse_segment_key(key) for key in keys}
        return [
            *super()._remains(),
            *(key for key, each in parsed.items() if each is not None and each.id.topic == TOPIC),
        ]
