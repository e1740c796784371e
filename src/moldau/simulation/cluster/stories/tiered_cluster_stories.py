"""Tiered topics on three combined nodes with one object store. Replicas fail while segments move to the
store.

Local segments are deleted within seconds. Therefore, if a follower was down, its log may end before the first
local offset of its leader. The follower then restores its state from the remote tier. Replicas are also
moved, and a new follower restores its state in the same way. At the end, the nodes are stopped one after
another. While a node is stopped, every record is read from offset 0. The store must contain all segments of
existing topics, and no other objects. The replicas of a partition must be equal in the range that all of them
have in local segments.
"""

import asyncio
import random
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from moldau.protocol.partitions import TopicPartition
from moldau.protocol.special_timestamps import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
)
from moldau.replication.classic_partition import ClassicPartition
from moldau.simulation.checks.log_checks import check
from moldau.simulation.checks.tiered_checks import segment_problems
from moldau.simulation.clients.client import (
    CREATE_TOPICS_VERSION,
    Consumer,
    Producer,
    RetryError,
    Sending,
    SimulatedClient,
)
from moldau.simulation.cluster.mover import Mover
from moldau.simulation.cluster.stories.replication_stories import (
    NODE_IDS,
    PARTITIONS,
    TOPIC,
    ReplicationStory,
)
from moldau.simulation.nemesis import Fault, Nemesis, Weather
from moldau.simulation.scenario import Scenario
from moldau.simulation.seeds import stream
from moldau.simulation.world.host import Host, Program
from moldau.simulation.world.object_storage import TIER_CLASS_NAME

QUIET_S: Final = 100.0
"""Time for the grace periods of failed copies and of missing topics. It also includes some rounds of
background work."""
PASSING: Final = "passing"
MOVED_REPLICAS_MIN: Final = 2
OFFSETS_OF_TIERS_VERSION: Final = 9
_PROPERTIES: Final = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": TIER_CLASS_NAME,
    "remote.log.manager.task.interval.ms": "500",
    "remote.log.metadata.topic.num.partitions": "3",
    "remote.log.metadata.topic.replication.factor": "3",
    "log.retention.check.interval.ms": "700",
    "log.segment.delete.delay.ms": "500",
    "auto.leader.rebalance.enable": "true",
    "leader.imbalance.check.interval.seconds": "7",
    # Time for which no remote segment is deleted after a start that truncated a log. This time is shorter
    # than the quiet time at the end.
    "diskless.coordinator.orphan.scan.grace.period.ms": "20000",
}
_TIERED: Final = {"remote.storage.enable": "true", "local.retention.bytes": "1", "retention.ms": "-1"}
_SYNCED: Final = {"log.flush.interval.messages": "1"}
_FAULTS: Final = (
    *(Fault.KILL,) * 4,
    *(Fault.PAUSE, Fault.CUT, Fault.ONE_WAY),
    *(Fault.STORE_DOWN, Fault.STORE_POOR, Fault.STORE_POOR, Fault.DATABASES_LOST),
)


def tiered_cluster() -> Scenario:
    """The faults are kills, pauses, broken links, lost caches, failures of the store, and nodes that are down
    for a long time."""
    return _scenario({}, _FAULTS)


def tiered_cluster_power() -> Scenario:
    """The faults of :func:`tiered_cluster`, and also losses of power. Logs are synced before records are
    acknowledged."""
    return _scenario(_SYNCED, (*_FAULTS, *(Fault.POWER_LOSS,) * 4))


def _scenario(properties: Mapping[str, str], faults: tuple[Fault, ...]) -> Scenario:
    return Scenario(
        partitions=PARTITIONS,
        story=partial(TieredClusterStory, properties={**_PROPERTIES, **properties}),
        weather=Weather(faults, pause_s_max=5.0, between_s_max=3.0, store_s_max=6.0),
        fault_count=6,
        producer_count=2,
        plain_producer_count=1,
        consumer_count=2,
        records_per_producer=250,
        time_limit_s=1_500.0,
    )


class TieredClusterStory(ReplicationStory):
    """A seeded run of tiered partitions."""

    async def run(self) -> list[str]:
        """Run the scenario; return the violations."""
        world, scenario = self._world, self._scenario
        programs: dict[Host, Program] = {
            world.host(f"node-{node_id}"): partial(self._node, node_id) for node_id in NODE_IDS
        }
        nemesis = Nemesis(world, self.history, stream(world.seed, "nemesis"), programs, scenario.weather)
        for host, program in programs.items():
            host.start(program)
        supervisor = asyncio.create_task(nemesis.supervise())
        admin = self._begin_at_any(SimulatedClient, "admin")
        await self._on("admin", self._create_tiered(admin, TOPIC, len(PARTITIONS)))
        await self._converge()
        storm = asyncio.create_task(self._strike(nemesis))
        readers = [
            self._on(f"consumer-{number}", self._consumer(f"consumer-{number}", number).run())
            for number in range(scenario.consumer_count)
        ]
        working = [
            self._on(each.name, each.run(scenario.records_per_producer, pause_s=1.0))
            for each in (self._producer(number) for number in range(len(PARTITIONS)))
        ]
        working.append(self._on("meddler", self._pass_by(self._begin_at_any(SimulatedClient, "meddler"))))
        mover = Mover(self._begin_at_any(SimulatedClient, "mover"), PARTITIONS, NODE_IDS, MOVED_REPLICAS_MIN)
        moving = self._on("mover", mover.run(lambda: not all(each.done() for each in (*working, storm))))
        await asyncio.gather(*working)
        await storm
        await moving
        settler = Mover(
            self._begin_at_any(SimulatedClient, "settler"), PARTITIONS, NODE_IDS, MOVED_REPLICAS_MIN
        )
        await self._on("settler", settler.settle())
        self.history.note("producers are done")
        for reader in readers:
            reader.cancel()
        await self._converge()
        await asyncio.sleep(QUIET_S)
        final = await self._read_all("judge")
        for reader in readers:
            if reader.done() and not reader.cancelled() and reader.exception() is not None:
                self.history.violate(f"a consumer failed: {reader.exception()!r}")
        for violation in [*self._differences(), *segment_problems(self.nodes.values(), world)]:
            self.history.violate(violation)
        if not self.history.violations:
            await self._read_with_others_leading(nemesis, final)
        supervisor.cancel()
        return check(self.history, final)

    # The clients of a run

    async def _create_tiered(self, client: SimulatedClient, name: str, partition_count: int) -> None:
        topic = CreatableTopic(
            name=name,
            num_partitions=partition_count,
            replication_factor=len(NODE_IDS),
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in _TIERED.items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=5_000)
        while True:
            try:
                response = await client.ask(ApiKey.CREATE_TOPICS, CREATE_TOPICS_VERSION, request)
                if response.topics[0].error_code.name in ("none", "topic_already_exists"):
                    return
            except OSError:
                pass
            await client.pause()

    async def _pass_by(self, client: SimulatedClient) -> None:
        """Repeatedly create, fill and delete a topic of the same name; the last topic may be kept."""
        chance = client.chance
        for number in range(3):
            await self._create_tiered(client, PASSING, 2)
            name, partition = f"passer-{number}", TopicPartition(PASSING, chance.randrange(2))
            producer: Producer = self._begin_at_any(Producer, name, partition, Sending(idempotent=True))
            await producer.run(30, pause_s=0.3)
            producer.disconnect()
            await asyncio.sleep(chance.uniform(0.0, 3.0))
            if number < 2 or chance.random() < 0.5:
                await client.delete_topic(PASSING)

    # Faults

    async def _strike(self, nemesis: Nemesis) -> None:
        """Inject faults, isolate leaders, and keep nodes down for a long time."""
        chance = stream(self._world.seed, "leaders")
        for _ in range(self._scenario.fault_count):
            draw = chance.random()
            if draw < 0.5:
                await nemesis.storm(1)
            elif draw < 0.75:
                await asyncio.sleep(chance.uniform(0.1, 2.0))
                await self._isolate_leader(chance)
            else:
                await self._send_away(nemesis, chance)
        nemesis.calm()

    async def _send_away(self, nemesis: Nemesis, chance: random.Random) -> None:
        """Keep a node down for some time. Meanwhile the other nodes may move records to the tier that this
        node does not have."""
        node_id = chance.choice(NODE_IDS)
        host = self._world.host(f"node-{node_id}")
        seconds = chance.uniform(8.0, 25.0)
        self.history.note(f"{host.name} is away for {seconds:.3f} s")
        await nemesis.restart(host, seconds)

    # The end of a run

    async def _read_all(self, name: str) -> dict[TopicPartition, list[tuple[int, bytes]]]:
        final: dict[TopicPartition, list[tuple[int, bytes]]] = {}
        for number, each in enumerate(PARTITIONS):
            final_reader: Consumer = self._consumer(f"{name}-{number}", number, observed=False)
            final[each] = await self._on(final_reader.name, final_reader.read_to_end())
        return final

    async def _read_with_others_leading(
        self, nemesis: Nemesis, final: Mapping[TopicPartition, list[tuple[int, bytes]]]
    ) -> None:
        """Stop the nodes one after another. Each time, check that the other leaders return the same records
        and have loaded the remote metadata."""
        for node_id in NODE_IDS:
            down = asyncio.create_task(nemesis.restart(self._world.host(f"node-{node_id}"), 20.0))
            await asyncio.sleep(3.0)
            again = await self._read_all(f"judge without {node_id}")
            for each in PARTITIONS:
                if again[each] != final[each]:
                    self.history.violate(f"{each} reads differently without node {node_id}")
                await self._on(f"offsets of {each} {node_id}", self._check_offsets(each))
            await down
            await self._converge()

    async def _check_offsets(self, wanted: TopicPartition) -> None:
        """Check that the leader's local log begins after the first offset, but not after the end of the
        copied part."""
        client = self._begin_at_any(SimulatedClient, f"offsets of {wanted}")
        while True:
            try:
                first = await client.list_offset(wanted, EARLIEST_TIMESTAMP)
                local = await client.list_offset(wanted, EARLIEST_LOCAL_TIMESTAMP, OFFSETS_OF_TIERS_VERSION)
                tiered = await client.list_offset(wanted, LATEST_TIERED_TIMESTAMP, OFFSETS_OF_TIERS_VERSION)
                break
            except (OSError, RetryError):
                client.disconnect()
                await client.pause()
        if first != 0 or not first <= local <= tiered + 1:
            self.history.violate(f"{wanted}: first {first}, first local {local}, last tiered {tiered}")

    def _differences(self) -> Iterator[str]:
        for each in PARTITIONS:
            replicas = self._replicas(each)
            start = max(replica.log.local_log_start_offset for replica in replicas)
            if len({_content(replica, start) for replica in replicas}) > 1:
                yield f"the replicas of {each} are not equal from offset {start} on"


def _content(replica: ClassicPartition, start: int) -> bytes:
    log, parts = replica.log, []
    offset = start
    while offset < replica.high_watermark:
        found = log.read(offset, 1 << 20, upper_bound_offset=replica.high_watermark)
        parts += [bytes(view) for view in found.views]
        offset = found.next_offset
    return b"".join(parts)
