"""Stories of two brokers. They search for defects that a single broker cannot have.

Each story also runs with the defect that it must detect.
"""

import asyncio
from typing import Any

import pytest
from simulated_cluster import BROKERS, Cluster

from moldau.cluster.decisions.kinds import diskless
from moldau.cluster.decisions.partitions import leader_choice
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC, StateTopic
from moldau.coordinators.diskless.state import commit
from moldau.coordinators.diskless.state.producers import Verdict
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.protocol.partitions import TopicPartition
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.partition_interface import ReadRequest
from moldau.replication.reads import PartitionReader
from moldau.runtime import ErrorCode
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.simulation.checks.log_checks import check
from moldau.simulation.clients.client import Consumer, Producer
from moldau.simulation.cluster.mover import Mover
from moldau.simulation.seeds import stream
from moldau.simulation.world.object_storage import CLASS_NAME
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

ROLES = {1: "controller"} | dict.fromkeys(BROKERS, "broker")
COMMON = {
    "default.replication.factor": "2",
    "min.insync.replicas": "2",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "300",
}
DISKLESS = {
    **COMMON,
    "diskless.system.enable": "true",
    "diskless.metadata.topic.num.partitions": "1",
    "diskless.metadata.topic.replication.factor": "2",
    "diskless.storage.class.name": CLASS_NAME,
    "backup.enable": "false",
    "diskless.storage.url": "simulated:",
    "diskless.append.commit.interval.ms": "50",
    "replica.lag.time.max.ms": "1500",
    "replica.socket.timeout.ms": "1500",
}
RECORD_COUNT = 10
ACKS_ALL = -1


class Brokers:
    """A controller and two brokers."""

    def __init__(self, world: World, properties: dict[str, str]) -> None:
        self.world = world
        self.cluster = Cluster(world, ROLES, dict.fromkeys(ROLES, properties))

    async def start(self) -> None:
        self.cluster.start(*ROLES)
        await self.cluster.until(lambda: len(self.cluster.nodes) == len(ROLES) and self._active() == 2)

    def _active(self) -> int:
        return sum(not broker.fenced for broker in self.image(BROKERS[0]).brokers.values())

    def image(self, node_id: int) -> Any:
        metadata = self.cluster.nodes[node_id].metadata
        assert metadata is not None
        return metadata.publisher.image

    def partition(self, topic: str) -> Any:
        """Partition 0 of a topic, as the controller reports it."""
        found = self.image(1).topics.get(topic)
        return None if found is None else found.partitions[0]

    def replica(self, broker: int, topic: str) -> Any:
        return self.cluster.nodes[broker].get(PartitionsSubsystem).partition(topic, 0)

    async def until_led_by(self, broker: int, topic: str) -> None:
        """Wait until a broker leads partition 0 and all running brokers know that it leads."""

        def is_led() -> bool:
            living = [each for each in BROKERS if each in self.cluster.nodes]
            replicas = {each: self.replica(each, topic) for each in living}
            return all(
                replica is not None and replica.is_leader == (each == broker)
                for each, replica in replicas.items()
            )

        await self.cluster.until(is_led)

    def part(self) -> None:
        """Cut the network link between the brokers. The controller can still reach both brokers."""
        one, other = (f"node-{broker}" for broker in BROKERS)
        self.world.network.cut(one, other)
        self.world.network.cut(other, one)

    def producer(self, partition: TopicPartition, broker: int) -> Producer:
        name = f"producer of {partition.topic}-{partition.partition}"
        bootstrap = self.cluster.bootstrap(broker)
        producer = Producer(name, bootstrap, self.cluster.history, stream(self.world.seed, name), partition)
        return producer

    async def read(self, partitions: list[TopicPartition], broker: int) -> list[str]:
        """Read partitions through a broker, and check them."""
        await asyncio.sleep(5)  # caches of diskless partitions follow the commits of other brokers
        logs, history = {}, self.cluster.history
        for each in partitions:
            name = f"judge of {each.topic}-{each.partition}"
            bootstrap = self.cluster.bootstrap(broker)
            reader = Consumer(name, bootstrap, history, stream(self.world.seed, name), each)
            logs[each] = await self.cluster.on(name, reader.read_to_end())
        return check(history, logs)


def batch(text: str) -> memoryview:
    records = [Record(number, 0, None, f"{text} {number}".encode(), ()) for number in range(RECORD_COUNT)]
    return memoryview(build_batch(records))


def follow_with_another_log() -> list[str]:
    """A follower that lacks the last records of its leader becomes the new leader, and the former leader
    follows it. At the offsets of the missing records, the new leader appends other records with acks=all. The
    new leader is lost as soon as the producer of these other records gets its response. Returns the errors.
    """
    with World(1) as world:
        brokers = Brokers(world, COMMON)
        first, second = BROKERS
        answered = asyncio.Event()

        async def story() -> list[str]:
            cluster = brokers.cluster
            await brokers.start()
            await cluster.on("admin", cluster.client("admin", first).create_topic("t", 1, {}))
            mover = Mover(cluster.client("mover", first), (), BROKERS, 2)
            await prefer(mover, (first, second))
            await brokers.until_led_by(first, "t")
            await prefer(mover, (second, first), elect=False)
            brokers.part()
            # Only the first broker appends this record. The record is never acknowledged, because the
            # follower is disconnected.
            brokers.replica(first, "t").append(batch("old"), required_acks=ACKS_ALL, timeout_ms=60_000)
            await elect()
            await brokers.until_led_by(second, "t")
            new = brokers.replica(second, "t")
            new.append(batch("new"), required_acks=ACKS_ALL, timeout_ms=60_000).add_done_callback(told)
            assert brokers.replica(first, "t").log.log_end_offset == new.log.log_end_offset
            assert new.high_watermark == 0
            world.network.heal_all()
            async with asyncio.timeout(60):
                await answered.wait()
            await brokers.until_led_by(first, "t")
            views = brokers.replica(first, "t").log.read(0, 1 << 20).views
            content = b"".join(bytes(view) for view in views)
            lost = [number for number in range(RECORD_COUNT) if f"new {number}".encode() not in content]
            return [f"records {lost} were acknowledged and are lost"] if lost else []

        def told(answer: "asyncio.Future[Any]") -> None:
            assert answer.result().error is ErrorCode.none
            brokers.cluster.kill(second)
            answered.set()

        async def prefer(mover: Mover, replicas: tuple[int, ...], *, elect: bool = True) -> None:
            cluster = brokers.cluster
            assert await cluster.on("mover", mover.move(TopicPartition("t", 0), replicas))
            await cluster.until(lambda: brokers.partition("t").preferred_leader == replicas[0])
            await cluster.until(lambda: set(brokers.partition("t").isr) == set(BROKERS))
            if elect:
                await elect_preferred()

        async def elect() -> None:
            await elect_preferred()
            assert set(brokers.partition("t").isr) == set(BROKERS)

        async def elect_preferred() -> None:
            request = ElectLeadersRequest(
                election_type=0, topic_partitions=[TopicPartitions(topic="t", partitions=[0])]
            )
            asker = brokers.cluster.client("elector", second)
            await brokers.cluster.on("elector", asker.ask(ApiKey.ELECT_LEADERS, 2, request))

        return world.run(story())


def test_a_follower_counts_once_its_log_agrees_with_its_leaders() -> None:
    assert follow_with_another_log() == []


def test_a_leader_that_counts_a_follower_before_a_log_comparison_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = PartitionReader.read

    def counted(self: PartitionReader, request: ReadRequest) -> Any:
        if request.replica_id >= 0 and request.offset <= self._log.log_end_offset:
            self._follower_fetched(request)
        return read(self, request)

    monkeypatch.setattr(PartitionReader, "read", counted)
    assert follow_with_another_log()


def lose_the_only_coordinator_in_sync() -> list[str]:
    """The leader of a coordinator is disconnected from its follower. Later the leader's node is killed.
    Returns the errors.

    Producers continue all the time. At the end the killed node starts again.
    """
    with World(2) as world:
        brokers = Brokers(world, DISKLESS)

        async def story() -> list[str]:
            cluster = brokers.cluster
            await brokers.start()
            await cluster.until(lambda: in_sync() == set(BROKERS))
            admin = cluster.client("admin", BROKERS[0])
            await cluster.on("admin", admin.create_topic("t", 2, {"diskless.enable": "true"}))
            leader = brokers.partition(DISKLESS_METADATA_TOPIC).leader
            other = sum(BROKERS) - leader
            # Each broker leads one of the partitions, so one of the producers can always reach the
            # coordinator.
            partitions = [TopicPartition("t", 0), TopicPartition("t", 1)]
            producers = [brokers.producer(each, leader) for each in partitions]
            writing = [cluster.on(each.name, each.run(150, pause_s=0.3)) for each in producers]
            await asyncio.sleep(2)
            brokers.part()
            await cluster.until(lambda: in_sync() == {leader})
            await asyncio.sleep(4)
            cluster.kill(leader)
            world.network.heal_all()
            await cluster.until(lambda: brokers.partition(DISKLESS_METADATA_TOPIC).leader == other)
            cluster.start(leader)
            _, late = await asyncio.wait(writing, timeout=60)
            stuck = [f"{len(late)} producers are not answered"] if late else []
            return [*stuck, *await brokers.read(partitions, other)]

        def in_sync() -> set[int]:
            found = brokers.partition(DISKLESS_METADATA_TOPIC)
            return set() if found is None else set(found.isr)

        return world.run(story())


def test_no_batch_is_lost_with_the_only_coordinator_in_sync() -> None:
    assert lose_the_only_coordinator_in_sync() == []


def test_a_coordinator_that_commits_alone_before_an_unclean_election_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configs = StateTopic.configs
    loose = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    monkeypatch.setattr(StateTopic, "configs", lambda self, count: {**configs(self, count), **loose})
    monkeypatch.setattr(leader_choice, "DECISIVE_TOPICS", frozenset())
    assert any("lost" in line for line in lose_the_only_coordinator_in_sync())


def restart_with_another_coordinator_count() -> list[str]:
    """All nodes restart with a configuration for six coordinators, although only one coordinator exists.
    Returns the errors."""
    with World(3) as world:
        brokers = Brokers(world, DISKLESS)

        async def story() -> list[str]:
            cluster = brokers.cluster
            await brokers.start()
            await cluster.until(lambda: brokers.partition(DISKLESS_METADATA_TOPIC) is not None)
            for node_id in ROLES:
                cluster.kill(node_id)
                cluster.properties[node_id] = {**DISKLESS, "diskless.metadata.topic.num.partitions": "6"}
            await brokers.start()
            admin = cluster.client("admin", BROKERS[1])
            await cluster.on("admin", admin.create_topic("t", 6, {"diskless.enable": "true"}))
            partitions = [TopicPartition("t", index) for index in range(6)]
            producers = [brokers.producer(each, BROKERS[each.partition % 2]) for each in partitions]
            writing = [cluster.on(each.name, each.run(5, pause_s=0.1)) for each in producers]
            _, late = await asyncio.wait(writing, timeout=30)
            if late:
                return [f"{len(late)} of 6 producers are not answered"]
            return await brokers.read(partitions, BROKERS[0])

        return world.run(story())


def test_another_configured_number_of_coordinators_changes_nothing() -> None:
    assert restart_with_another_coordinator_count() == []


def test_partitions_of_coordinators_that_do_not_exist_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assign = diskless.assign_coordinators
    monkeypatch.setattr(diskless, "assign_coordinators", lambda load, _count, wanted: assign(load, 6, wanted))
    assert restart_with_another_coordinator_count() == ["5 of 6 producers are not answered"]


def change_brokers_before_the_first_commit() -> list[str]:
    """A producer sends its first batch to a broker that cannot reach the coordinator. It sends its second
    batch to the coordinator's own broker. Returns the errors."""
    with World(4) as world:
        brokers = Brokers(world, DISKLESS)

        async def story() -> list[str]:
            cluster = brokers.cluster
            await brokers.start()
            admin = cluster.client("admin", BROKERS[0])
            await cluster.on("admin", admin.create_topic("t", 1, {"diskless.enable": "true"}))
            await cluster.until(lambda: all(brokers.replica(broker, "t") for broker in BROKERS))
            await asyncio.sleep(2)  # the coordinator creates the partition
            leader = brokers.partition(DISKLESS_METADATA_TOPIC).leader
            brokers.part()
            first = append(sum(BROKERS) - leader, 0)
            await asyncio.sleep(1)
            second = append(leader, RECORD_COUNT)
            await asyncio.sleep(0.3)
            world.network.heal_all()
            answers = [await first, await second]
            # After NOT_LEADER_OR_FOLLOWER the producer sends the second batch again.
            if answers[1].error is ErrorCode.not_leader_or_follower:
                answers[1] = await append(leader, RECORD_COUNT)
            found = [(each.error, each.base_offset) for each in answers]
            wanted = [(ErrorCode.none, 0), (ErrorCode.none, RECORD_COUNT)]
            return [] if found == wanted else [f"the batches were answered with {found}"]

        def append(broker: int, first_sequence: int) -> "asyncio.Future[Any]":
            """Append records of an idempotent producer, beginning with a sequence number, in the process of a
            broker."""
            records = [Record(number, 0, None, b"x", ()) for number in range(RECORD_COUNT)]
            content = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=first_sequence)
            process = world.host(f"node-{broker}").process
            assert process is not None
            answer: asyncio.Future[Any] = process.context().run(
                brokers.replica(broker, "t").append,
                memoryview(content),
                required_acks=ACKS_ALL,
                timeout_ms=30_000,
            )
            return answer

        return world.run(story())


def test_a_second_batch_waits_for_the_first_one_at_another_broker() -> None:
    assert change_brokers_before_the_first_commit() == []


def test_a_coordinator_that_accepts_any_first_sequence_of_a_producer_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_sequence = commit.check_sequence

    def believing(window: Any, *more: Any) -> Any:
        verdict = check_sequence(window, *more)
        return None if window is None and verdict is Verdict.AHEAD else verdict

    monkeypatch.setattr(commit, "check_sequence", believing)
    assert change_brokers_before_the_first_commit()
