"""Several brokers lose all disks at any moment, in several rounds. Each time they are restored, sometimes as
other nodes.

Producers, transactions and a consumer group continue during all rounds. The disks are lost at one of four
kinds of moments: when a save is stored, when an object is deleted, while a leader is replaced, or at any
other moment.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from moldau.protocol.partitions import TopicPartition
from moldau.simulation.checks.diskless_checks import ObjectsChecker
from moldau.simulation.clients.client import Sending, SimulatedClient
from moldau.simulation.clients.roving import RovingProducer
from moldau.simulation.damage.reading import Reader
from moldau.simulation.history import History
from moldau.simulation.restore.checks import Read, ReadContents, RecordChecker, TimedHistory
from moldau.simulation.restore.clients import (
    GroupProgress,
    Losses,
    RovingTransactionalProducer,
    check_committed,
)
from moldau.simulation.restore.nodes import LifeOptions, LosableCluster, NodeSet
from moldau.simulation.scenario import Scenario
from moldau.simulation.seeds import stream
from moldau.simulation.transactions.cluster_clients import LeaderReader
from moldau.simulation.world.object_storage import CLASS_NAME
from moldau.simulation.world.world import World

TOPIC: Final = "events"
PARTITIONS: Final = [TopicPartition(TOPIC, index) for index in range(2)]
ROUNDS: Final = 2
WORK_LIMIT_S: Final = 400.0
RECORDS_A_ROUND: Final = 50
TRANSACTIONS_A_ROUND: Final = 12
COMMITS_A_ROUND: Final = 15
QUIET_S: Final = 5.0
END_WAIT_S: Final = 60.0
"""A time that is longer than the sum of two times: the timeout of a transaction, and the interval of the
check that aborts it."""
PROPERTIES: Final[Mapping[str, str]] = {
    "diskless.system.enable": "true",
    "diskless.storage.class.name": CLASS_NAME,
    "diskless.storage.url": "simulated:",
    "diskless.metadata.topic.num.partitions": "2",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "200",
    "log.diskless.enable": "true",
    "metadata.max.idle.interval.ms": "5000",
    # Each kind of work is frequent, so that every run has all kinds.
    "diskless.metadata.max.new.records.between.snapshots": "20",
    "diskless.coordinator.orphan.scan.interval.ms": "5000",
    "diskless.coordinator.orphan.scan.grace.period.ms": "40000",
    "log.index.interval.bytes": "256",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "300",
    "replica.lag.time.max.ms": "1500",
}
REPLICATED: Final[Mapping[str, int]] = {
    "default.replication.factor": 2,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "diskless.metadata.topic.replication.factor": 3,
}
NODE_SETS: Final = (
    NodeSet((1, 2, 3), (1, 2, 3)),
    NodeSet((1, 2, 3, 4), (1, 2, 3)),
    NodeSet((4, 5, 6), (4, 5, 6)),
    NodeSet((2, 5), (2,)),
)


class RestoredClusterStory:
    """Rounds of three steps: work, loss of all disks during the work, restore."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        self._world = world
        chance = self._chance = stream(world.seed, "restored cluster")
        self._interval_s = chance.choice((1.0, 2.0, 5.0))
        interval = {"backup.interval.ms": str(round(1000 * self._interval_s))}
        options = LifeOptions(
            properties={**PROPERTIES, **interval},
            node_sets=NODE_SETS,
            replicated=REPLICATED,
            leaves_old_nodes=True,
            interrupts=True,
        )
        self._cluster = LosableCluster(world, options, chance)
        self._times = TimedHistory(world.loop.elapsed_s)
        self.history: History = self._times
        self._losses = Losses()
        self._producers = [
            self._producer(place, f"{number}", idempotent=number > 0)
            for place in PARTITIONS
            for number in range(2)
        ]
        # Each round has one additional producer. The producer starts after the restore, so it gets its
        # producer id from the restored cluster.
        self._newcomers = [
            self._producer(PARTITIONS[0], f"late-{number}", idempotent=True) for number in range(ROUNDS)
        ]
        # One further producer for each round. It starts when the disks are lost, so it may use old nodes that
        # run during the restore.
        self._late = [
            self._producer(PARTITIONS[1], f"last-{number}", idempotent=True) for number in range(ROUNDS)
        ]
        producers = (*self._producers, *self._newcomers, *self._late)
        self._records = RecordChecker(self._times, [each.name for each in producers if each.idempotent])
        self._transactions = [
            RovingTransactionalProducer(
                name,
                self._cluster.addresses,
                self.history,
                stream(world.seed, name),
                PARTITIONS,
                bumps=name.endswith("1"),
            )
            for name in ("transactions-0", "transactions-1")
        ]
        self._group = GroupProgress(
            "group", self._cluster.addresses, self.history, stream(world.seed, "group"), TOPIC
        )

    def _producer(self, place: TopicPartition, name: str, *, idempotent: bool) -> RovingProducer:
        producer: RovingProducer = self._begin_at_any(
            RovingProducer, f"producer-{place.partition}-{name}", place, Sending(idempotent=idempotent)
        )
        return producer

    async def run(self) -> list[str]:
        self._cluster.start()
        admin = self._begin_at_any(SimulatedClient, "admin")
        await self._on("admin", admin.create_topic(TOPIC, len(PARTITIONS), {"retention.ms": "-1"}))
        # The topic must be in a cut before the disks are lost.
        await asyncio.sleep(self._interval_s + self._chance.uniform(2.0, 7.0))
        for number in range(ROUNDS):
            await self._round(number)
            if self.history.violations:
                break
        return self.history.violations

    async def _round(self, number: int) -> None:
        total = (number + 1) * RECORDS_A_ROUND
        work = [self._on(f"{each.name} {number}", each.run(total, pause_s=0.2)) for each in self._producers]
        work += [
            self._on(f"{each.name} {number}", each.run_slowly(TRANSACTIONS_A_ROUND, pause_s=0.5))
            for each in self._transactions
        ]
        work.append(self._on(f"group {number}", self._group.run(COMMITS_A_ROUND, pause_s=0.5)))
        await asyncio.sleep(self._chance.uniform(0.5, 8.0))
        before = await self._contents(f"before {number}") if self._chance.random() < 0.5 else {}
        await self._until_moment()
        self.history.note(f"all disks vanish in round {number}")
        late = self._late[number]
        work.append(self._on(late.name, late.run(RECORDS_A_ROUND, pause_s=0.1)))
        await self._cluster.lose_and_restore()
        if self._cluster.report is None:
            self.history.violate("no state was saved before the disks vanished")
            return
        cut_s = self._elapsed_s(self._cluster.report.cut.created_ms)
        self._losses.add(cut_s, self._cluster.restored_s)
        self.history.note(
            f"restored as {[host.name for host in self._cluster.hosts]}, cut at {cut_s:.3f};"
            f" the old nodes still ran: {self._cluster.are_left}"
        )
        newcomer = self._newcomers[number]
        work.append(self._on(newcomer.name, newcomer.run(RECORDS_A_ROUND, pause_s=0.1)))
        _, pending = await asyncio.wait(work, timeout=WORK_LIMIT_S)
        if pending:
            self.history.violate(f"clients cannot go on after the restore: {len(pending)} of {len(work)}")
            return
        for each in work:
            each.result()
        await self._check(number, before, cut_s)

    async def _until_moment(self) -> None:
        """Wait for the moment at which the disks must be lost."""
        kind = self._chance.choice(("any", "save", "deletion", "hand-over"))
        if kind == "save":
            await self._event(lambda event: event.startswith("put .moldau/backup/"))
        elif kind == "deletion":
            await self._event(lambda event: event.startswith("delete "))
        elif kind == "hand-over":
            self._chance.choice(self._cluster.hosts).kill()
        limit_s = 3.0 if kind == "hand-over" else 0.1
        await asyncio.sleep(self._chance.uniform(0.0, limit_s))
        self.history.note(f"the moment is one of kind {kind}")

    async def _event(self, is_wanted: Callable[[str], bool]) -> None:
        """Wait for an event of the object store, but not longer than a time limit."""
        store, seen = self._world.object_store, asyncio.Event()
        notify = store.on_event

        def noting(event: str) -> None:
            notify(event)
            if is_wanted(event):
                seen.set()

        store.on_event = noting
        try:
            async with asyncio.timeout(6.0):
                await seen.wait()
        except TimeoutError:
            pass
        finally:
            store.on_event = notify

    # Checks --------------------------------------------------------------------------------------

    async def _check(self, number: int, before: ReadContents, cut_s: float) -> None:
        # A leader returns only the commits that it knows. It learns of other brokers' commits a little later.
        await asyncio.sleep(QUIET_S)
        after = await self._contents(f"after {number}")
        if self.history.violations:
            return
        plain = {place: _of_producers(read) for place, read in after.items()}
        self._records.note_read(before)
        self._records.check(plain, cut_s)
        self._records.note_read(after)
        for place, read in before.items():
            client = self._begin_at_any(
                SimulatedClient, f"epochs of {place.partition} in life {self._cluster.lives}"
            )
            found = dict(after[place].records)
            await self._on(client.name, self._records.check_epochs(client, place, read, found))
        await self._check_transactions(number)
        await self._on(f"group check {number}", self._group.check(self._losses))
        checker = ObjectsChecker(self._world, self.history)
        for host in self._cluster.hosts:
            await checker.check(host)

    async def _check_transactions(self, number: int) -> None:
        readers = [
            self._begin_at_any(LeaderReader, f"committed-{number}-{place.partition}", *place)
            for place in PARTITIONS
        ]
        await asyncio.gather(*(self._on(each.name, self._read_all(each)) for each in readers))
        visible = {each.partition: _of_transactions(each.values) for each in readers}
        for violation in check_committed(self._transactions, visible, self._losses):
            self.history.violate(violation)

    async def _read_all(self, reader: LeaderReader) -> None:
        give_up_s = self.history.now_s() + END_WAIT_S
        while not reader.is_at_end:
            await reader.poll()
            if self.history.now_s() > give_up_s:
                self.history.violate(f"a transaction hangs in partition {reader.partition}")
                return

    def _elapsed_s(self, clock_ms: int) -> float:
        """Converts a time of a node's clock to virtual time since the start of the world."""
        now_ms = self._cluster.hosts[0].clock.now_ms()
        return self._world.loop.elapsed_s() - (now_ms - clock_ms) / 1000

    async def _contents(self, name: str) -> ReadContents:
        found: dict[TopicPartition, Read] = {}
        for place in PARTITIONS:
            reader = self._begin_at_any(Reader, f"{name} {place.partition}")
            records, error = await self._on(reader.name, reader.read(place))
            found[place] = Read(records, reader.epochs)
            if error is not None:
                self.history.violate(f"{name}: {place} is unreadable: {error}")
        return found

    def _begin_at_any(self, kind: Any, name: str, *arguments: Any) -> Any:
        first, *others = self._cluster.addresses
        client = kind(name, first, self.history, stream(self._world.seed, name), *arguments)
        client.others = tuple(others)
        return client

    def _on(self, host: str, work: Awaitable[Any]) -> "asyncio.Task[Any]":
        async def program() -> Any:
            return await work

        process = self._world.host(host).start(lambda _machine: program())
        assert process.main is not None
        return process.main


def _of_producers(read: Read) -> Read:
    return Read([each for each in read.records if each[1].startswith(b"producer-")], read.epochs)


def _of_transactions(values: list[str]) -> list[str]:
    return [each for each in values if not each.startswith("producer-")]


def restore_cluster() -> Scenario:
    """Several brokers lose all disks, and the cluster is restored, sometimes as other nodes."""
    return Scenario(story=RestoredClusterStory, time_limit_s=4_000.0, step_limit=8_000_000, cpu_limit_s=600.0)
