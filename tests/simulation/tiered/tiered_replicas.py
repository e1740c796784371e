"""A tiered partition with two replicas, for stories that a test plays step by step, and the judgement at the
end of each story.

The metadata of remote segments are on a third broker. With only two brokers, no segment could be copied while
one of them is down, because each event about a segment must be on two brokers of this topic.

The time stamps of records determine the segments. All records of one *hour* are in one segment, and the first
record of a later hour begins a new segment. All hours are long past, so :meth:`TieredReplicas.expire` can end
the local retention of chosen segments.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from partition_clients import HOUR_MS, HOURS_AGO, KEEPER, PARTITION, PartitionClients, StoredRecord
from simulated_cluster import BROKERS, CONTROLLERS, Cluster, separate

from moldau.cluster.internal_topics import REMOTE_LOG_METADATA_TOPIC
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.protocol.partitions import TopicPartition
from moldau.replication.classic_partition import ClassicPartition
from moldau.runtime import ErrorCode
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.server.subsystems.tiered.subsystem import TieredSubsystem
from moldau.simulation.clients.client import CREATE_TOPICS_VERSION
from moldau.simulation.cluster.mover import ELECT_VERSION, Mover
from moldau.simulation.world.object_storage import TIER_CLASS_NAME
from moldau.simulation.world.process import Process
from moldau.simulation.world.world import World
from moldau.storage.log.leader_epochs import EpochEntry
from moldau.storage.log.partition_log import PartitionLog
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.storage.storage_manager import RemoteStorageError

A, B = BROKERS
ROLLS = str(HOUR_MS // 2)
NEVER_ROLLS = str(1_000 * HOUR_MS)
PROPERTIES = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": TIER_CLASS_NAME,
    "remote.log.manager.task.interval.ms": "300",
    "remote.log.metadata.topic.num.partitions": "1",
    "remote.log.metadata.topic.replication.factor": "1",
    "log.roll.ms": ROLLS,
    "log.retention.check.interval.ms": "700",
    "replica.lag.time.max.ms": "1500",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}
TIERED = {"remote.storage.enable": "true", "retention.ms": "-1", "local.retention.ms": "-1"}


class Segment(NamedTuple):
    """The offsets of a finished remote segment, and its leader epochs."""

    start: int
    end: int
    epochs: tuple[int, ...]


class TieredReplicas(PartitionClients):
    """Three controllers, the two replicas on the brokers ``A`` and ``B``, and the broker ``KEEPER``."""

    def __init__(self, world: World) -> None:
        self.world = world
        nodes = (*CONTROLLERS, *BROKERS, KEEPER)
        super().__init__(
            Cluster(world, {**separate(), KEEPER: "broker"}, {node: dict(PROPERTIES) for node in nodes})
        )

    async def begin(self, *replicas: int, configs: dict[str, str] | None = None) -> None:
        """Start the cluster, and create the topic. The first replica leads."""
        cluster = self.cluster
        cluster.start(*CONTROLLERS, *BROKERS, KEEPER)
        await cluster.until(lambda: len(cluster.nodes) == len(cluster.roles) and cluster.leader() != 0)
        topic = CreatableTopic(
            name=PARTITION.topic,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))],
            configs=[
                CreatableTopicConfig(name=name, value=value)
                for name, value in {**TIERED, **(configs or {})}.items()
            ],
        )
        await self.repeated(
            lambda: self.ask(
                KEEPER,
                ApiKey.CREATE_TOPICS,
                CREATE_TOPICS_VERSION,
                CreateTopicsRequest(topics=[topic], timeout_ms=5_000),
            ),
            lambda response: (
                response.topics[0].error_code in (ErrorCode.none, ErrorCode.topic_already_exists)
            ),
        )
        await self.leads(replicas[0], *replicas)
        metadata = TopicPartition(REMOTE_LOG_METADATA_TOPIC, 0)
        await self.until("the metadata topic", lambda: self.row(metadata) is not None)
        await self.move((KEEPER,), metadata)

    # -- faults and operators -------------------------------------------------------------------------

    async def start(self, broker: int) -> None:
        self.cluster.start(broker)
        await self.until(f"{broker} runs", lambda: broker in self.cluster.nodes)

    async def stop(self, broker: int) -> None:
        """Stop a broker cleanly."""
        process = self.world.host(f"node-{broker}").process
        assert process is not None
        context, stopping = process.context(), self.cluster.nodes[broker].stop()
        await context.run(self.world.loop.create_task, stopping, context=context)
        self.cluster.kill(broker)

    async def kill(self, broker: int) -> None:
        """Kill a broker, and wait until the controllers have noticed it."""
        self.cluster.kill(broker)
        await self.until(
            f"{broker} is fenced", lambda: self.row().leader != broker and self.is_fenced(broker)
        )

    def lose_power(self, broker: int) -> None:
        self.world.host(f"node-{broker}").lose_power()
        del self.cluster.nodes[broker]

    def wipe(self, broker: int) -> None:
        """Replace the disk of a broker that does not run by an empty disk."""
        disk = self.world.host(f"node-{broker}").disk.mount(Process("operator"))
        disk.remove_tree("/data")
        disk.sync_dir("/")

    def cut(self, one: int, other: int) -> None:
        self.world.network.cut(f"node-{one}", f"node-{other}")
        self.world.network.cut(f"node-{other}", f"node-{one}")

    async def alter(self, **configs: str) -> None:
        """Set configs of the topic. In their names, ``_`` stands for a dot."""
        rows = {name.replace("_", "."): value for name, value in configs.items()}
        client = self.cluster.client("administrator", KEEPER)
        await self.cluster.on(client.name, client.alter_topic(PARTITION.topic, rows))

    async def expire(self, before_hour: int, start: int, *brokers: int) -> None:
        """Let the local retention of all hours before ``before_hour`` end on these brokers. Wait until their
        local logs begin at ``start``.

        Then the local retention is unlimited again. It must not remove what another replica keeps by
        mistake.
        """
        age_ms = (HOURS_AGO - before_hour) * HOUR_MS + HOUR_MS // 2
        await self.alter(local_retention_ms=str(age_ms))
        await self.until(
            f"local start {start}",
            lambda: all(self.log(broker).local_log_start_offset == start for broker in brokers),
        )
        await self.alter(local_retention_ms="-1")

    async def move(self, target: tuple[int, ...], partition: TopicPartition = PARTITION) -> None:
        """Give a partition other replicas, and wait until only these replicas exist and are in sync."""
        mover = Mover(self.cluster.client("mover", KEEPER), (), target, 1)
        await self.repeated(
            lambda: self.cluster.on("mover", mover.move(partition, target)), lambda accepted: accepted
        )
        await self.until(
            f"replicas {target} of {partition}",
            lambda: set(self.row(partition).isr) == set(target) == set(self.row(partition).replicas),
        )

    async def elect(self, broker: int) -> None:
        """Make an in-sync replica the leader, as an administrator does."""
        await self.move((broker, *(each for each in self.row().replicas if each != broker)))
        request = ElectLeadersRequest(
            election_type=0,
            topic_partitions=[TopicPartitions(topic=PARTITION.topic, partitions=[PARTITION.partition])],
        )
        await self.ask(KEEPER, ApiKey.ELECT_LEADERS, ELECT_VERSION, request)
        await self.leads(broker, *self.row().replicas)

    async def leads(self, broker: int, *in_sync: int) -> None:
        """Wait until a broker leads, these brokers are the in-sync replicas, and all records are readable."""
        await self.until(
            f"leader {broker} and {in_sync} in sync",
            lambda: (
                (row := self.row()) is not None
                and row.leader == broker
                and set(row.isr) == set(in_sync)
                and (hosted := self.hosted(broker)) is not None
                and hosted.is_leader
                and hosted.leader_epoch == row.leader_epoch
                and hosted.high_watermark == hosted.log.log_end_offset
            ),
        )

    async def new_term(self, broker: int) -> None:
        """Restart the only replica that runs. It then leads in a new epoch."""
        await self.stop(broker)
        await self.start(broker)
        await self.leads(broker, broker)

    # -- states ---------------------------------------------------------------------------------------

    def is_fenced(self, broker: int) -> bool:
        metadata = self.cluster.nodes[KEEPER].metadata
        assert metadata is not None
        fenced: bool = metadata.publisher.image.brokers[broker].fenced
        return fenced

    def hosted(self, broker: int) -> ClassicPartition | None:
        node = self.cluster.nodes.get(broker)
        found = None if node is None else node.get(PartitionsSubsystem).partition(*PARTITION)
        assert found is None or isinstance(found, ClassicPartition)
        return found

    def replica(self, broker: int) -> ClassicPartition:
        found = self.hosted(broker)
        assert found is not None
        return found

    def log(self, broker: int) -> PartitionLog:
        return self.replica(broker).log

    def epochs(self, broker: int) -> tuple[EpochEntry, ...]:
        """The leader epochs of a replica that have records. Followers drop the other epochs."""
        log = self.log(broker)
        return tuple(each for each in log.leader_epochs.entries if each.start_offset < log.log_end_offset)

    def segments(self, broker: int) -> list[Segment]:
        """The finished remote segments, as a broker knows them, by their offsets."""
        replica = self.replica(broker)
        name = TopicIdPartition(replica.key.topic_id, *PARTITION)
        try:
            found = self.cluster.nodes[broker].get(TieredSubsystem).metadata.list_remote_log_segments(name)
        except RemoteStorageError:
            return []  # the broker has not read the metadata yet
        return [
            Segment(each.start_offset, each.end_offset, tuple(entry.epoch for entry in each.leader_epochs))
            for each in found
            if each.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        ]

    async def copied(self, broker: int, *wanted: Segment) -> None:
        """Wait until a broker knows exactly these finished remote segments."""
        await self.until(f"segments {wanted}", lambda: sorted(self.segments(broker)) == sorted(wanted))

    async def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until a condition is met. Raises TimeoutError."""
        try:
            await self.cluster.until(condition)
        except TimeoutError:
            raise TimeoutError(f"{what}: {self.row()}") from None

    # -- the judgement --------------------------------------------------------------------------------

    async def judge(self) -> None:
        """Let each replica lead, and check what consumers read. Compare the replicas."""
        first = self.row().leader
        for leader in (first, A + B - first):
            await self.elect(leader)
            for with_epochs in (True, False):
                found = await self.read(with_epochs=with_epochs)
                reader = f"a consumer of broker {leader} {'with' if with_epochs else 'without'} epochs"
                self.expect(found == self.lineage, f"{reader} reads {_short(found)}")
            end = len(self.lineage)
            ends = self.log(A).log_end_offset, self.log(B).log_end_offset
            self.expect(ends == (end, end), f"the logs end at {ends}, not at {end}")
            self._compare()

    def _compare(self) -> None:
        ours, others = self.log(A), self.log(B)
        self.expect(self.epochs(A) == self.epochs(B), f"epochs {self.epochs(A)} and {self.epochs(B)}")
        expected = {epoch: offset for offset, epoch, _ in reversed(self.lineage)}
        self.expect(
            dict(self.epochs(A)) == expected, f"epochs {self.epochs(A)}, and the records have {expected}"
        )
        producers = sorted(ours.active_producers()), sorted(others.active_producers())
        self.expect(producers[0] == producers[1], f"the producers are {producers}")
        start = max(ours.local_log_start_offset, others.local_log_start_offset)
        self.expect(
            _content(ours, start) == _content(others, start), f"the logs are not equal from {start} on"
        )


async def _play(replicas: TieredReplicas, story: Callable[[TieredReplicas], Awaitable[None]]) -> list[str]:
    try:
        await story(replicas)
        await replicas.judge()
    except TimeoutError as error:
        replicas.wrong.append(f"the replicas do not come together: {error}")
    return [*replicas.wrong, *replicas.cluster.history.violations]


def play(seed: int, story: Callable[[TieredReplicas], Awaitable[None]]) -> list[str]:
    """Play a story, and judge it. Returns the violations."""
    with World(seed) as world:
        return world.run(_play(TieredReplicas(world), story)) + world.errors()


def _short(records: list[StoredRecord]) -> str:
    return ", ".join(f"{each.offset}: {each.value.decode().rstrip('.')} ({each.epoch})" for each in records)


def _content(log: PartitionLog, offset: int) -> bytes:
    parts = []
    while offset < log.log_end_offset:
        found = log.read(offset, 1 << 20)
        parts += [bytes(view) for view in found.views]
        offset = found.next_offset
    return b"".join(parts)
