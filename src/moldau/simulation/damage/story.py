"""The scenarios of damaged files, in several rounds. A node is stopped, its files are damaged, and the node
starts again. The scenarios differ in how the node ends before the damage."""

import asyncio
import logging
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final

from moldau.protocol.partitions import TopicPartition
from moldau.runtime import Machine
from moldau.server.node import ServerNode
from moldau.server.settings import development_config
from moldau.server.subsystems.diskless.subsystem import DisklessSubsystem
from moldau.server.subsystems.tiered.subsystem import TieredSubsystem
from moldau.simulation.clients.client import Bootstrap, Producer, Sending, SimulatedClient
from moldau.simulation.damage.checks import Contents, Reports, check_refusal, check_start
from moldau.simulation.damage.files import Copy, FileDamage, copy_of, damage, restore
from moldau.simulation.damage.objects import live_objects
from moldau.simulation.damage.reading import PATIENCE_S, Reader, health
from moldau.simulation.history import History, Outcome
from moldau.simulation.offsets.committer import OffsetCommitter
from moldau.simulation.scenario import Scenario
from moldau.simulation.seeds import stream
from moldau.simulation.stories.tiny_node import PORT
from moldau.simulation.world.disks.disk import MountedDisk
from moldau.simulation.world.disks.lost_files import DATA
from moldau.simulation.world.object_storage import CLASS_NAME, TIER_CLASS_NAME
from moldau.simulation.world.world import World

CLASSIC, COMPACTED, DISKLESS, TIERED, PASSING = "classic", "compacted", "diskless", "tiered", "passing"
PARTITION_COUNT: Final = 2
HEALTH_PORT: Final = 9090
START_LIMIT_S: Final = 200.0
WORK_LIMIT_S: Final = 300.0
CHECKPOINTED_S: Final = 11.0
"""Time after which the end of every log is in checkpoints."""
QUIET_S: Final = 100.0
"""Time for the grace periods of deletions, and for some rounds of background work."""
_TOPICS: Final[Mapping[str, Mapping[str, str]]] = {
    CLASSIC: {"diskless.enable": "false"},
    COMPACTED: {"diskless.enable": "false", "cleanup.policy": "compact"},
    DISKLESS: {"diskless.enable": "true", "retention.ms": "-1"},
    TIERED: {
        "diskless.enable": "false",
        "remote.storage.enable": "true",
        "local.retention.bytes": "1",
        "retention.ms": "-1",
    },
}
_ON_THIS_DISK_ONLY: Final = (CLASSIC, COMPACTED, TIERED)
_PROPERTIES: Final = {
    "controller.listener.names": "CONTROLLER",
    "num.partitions": "1",
    "metrics.listener": f"node-1:{HEALTH_PORT}",
    "offsets.topic.num.partitions": "2",
    "remote.log.storage.manager.class.name": TIER_CLASS_NAME,
    "remote.log.manager.task.interval.ms": "500",
    "remote.log.metadata.topic.num.partitions": "2",
    "diskless.metadata.topic.num.partitions": "2",
    "diskless.storage.class.name": CLASS_NAME,
    "backup.enable": "false",
    "diskless.storage.url": "simulated:",
    # No object with existing records is deleted, because nothing moves from the WAL to segments.
    "diskless.consolidation.enable": "false",
    # Each kind of work is frequent, so that every run has all kinds.
    "diskless.metadata.max.new.records.between.snapshots": "20",
    "diskless.coordinator.orphan.scan.interval.ms": "10000",
    "diskless.coordinator.orphan.scan.grace.period.ms": "40000",
    "metadata.log.max.record.bytes.between.snapshots": "2000",
    "metadata.max.retention.bytes": "6000",
    "log.retention.check.interval.ms": "3000",
    "log.flush.offset.checkpoint.interval.ms": "5000",
    "log.flush.start.offset.checkpoint.interval.ms": "5000",
    "log.roll.ms": "1000",
    "log.index.interval.bytes": "256",
    "log.segment.delete.delay.ms": "500",
    "log.cleaner.backoff.ms": "1000",
    "log.cleaner.min.cleanable.ratio": "0.01",
}


class End(Enum):
    """How a process ends before the damage."""

    KILL = "kill"
    STOP = "stop"
    POWER_LOSS = "power loss"


class DamageStory:
    """Rounds of four steps: work, end of the process, damage, start. Every start is checked."""

    def __init__(
        self,
        world: World,
        end: End,
        *,
        properties: Mapping[str, str],
        kinds: str = "",
        rounds: int = 3,
    ) -> None:
        """``kinds`` is a text that the kinds of damaged files must contain; by default, all kinds match."""
        self._world = world
        self._way_to_end = end
        self._properties = {**_PROPERTIES, **properties}
        self._kinds = kinds
        self._rounds = rounds
        self._chance = stream(world.seed, "damage")
        self._node = world.host("node-1")
        self._bootstrap = Bootstrap("node-1", PORT)
        self._started = asyncio.Event()
        self._log_lines: list[str] = []
        self._copies: list[Copy] = []
        self._round = 0
        self.history = History(world.loop.elapsed_s)
        self._committers = [
            OffsetCommitter(
                name, self._bootstrap, self.history, stream(world.seed, name), CLASSIC, PARTITION_COUNT
            )
            for name in ("group-0", "group-1")
        ]
        self._partitions = [
            TopicPartition(topic, index) for topic in _TOPICS for index in range(PARTITION_COUNT)
        ]

    async def run(self) -> list[str]:
        with _lines_of(logging.getLogger("moldau"), self._heard):
            await self._start()
            admin = self._client("admin")
            await self._on("admin", self._create_topics(admin))
            before = Contents({}, {})
            while self._round < self._rounds and not self.history.violations:
                before = await self._work(before)
                if self.history.violations:
                    break
                await self._end()
                before = await self._damage_and_start(before)
                self._round += 1
        return self.history.violations

    # Starts and ends of the process --------------------------------------------------------------

    async def _program(self, machine: Machine) -> None:
        assert isinstance(machine.disk, MountedDisk)
        machine.disk.make_dirs(DATA)  # the mount point of the disk exists before the node
        machine.disk.sync_dir("/")
        config = development_config(DATA, PORT, self._properties, host="node-1", diskless=True)
        node = ServerNode(config, machine, format_new=self._node.life == 1)
        machine.disk.process.exhibit = node
        await node.start()
        self._started.set()
        raise RuntimeError(await node.failed())

    async def _start(self) -> BaseException | None:
        """Start the node. If the start is refused, returns the error."""
        self._started.clear()
        self._log_lines.clear()
        process = self._node.start(self._program)
        assert process.main is not None
        started = asyncio.ensure_future(self._started.wait())
        done, _ = await asyncio.wait(
            (started, process.main), timeout=START_LIMIT_S, return_when=asyncio.FIRST_COMPLETED
        )
        started.cancel()
        if not done:
            return TimeoutError(f"neither started nor refused after {START_LIMIT_S:g} s")
        return process.main.exception() if process.main.done() else None

    async def _end(self) -> None:
        end = self._way_to_end
        self.history.note(f"round {self._round}: {end.value}")
        process = self._node.process
        assert process is not None
        assert process.main is not None
        match end:
            case End.KILL:
                self._node.kill()
            case End.POWER_LOSS:
                self._node.lose_power()
            case End.STOP:
                context = process.context()
                await context.run(self._world.loop.create_task, process.exhibit.stop(), context=context)
                self._node.kill()

    # Work ----------------------------------------------------------------------------------------

    async def _create_topics(self, admin: SimulatedClient) -> None:
        for topic, configs in _TOPICS.items():
            await admin.create_topic(topic, PARTITION_COUNT, dict(configs))

    async def _work(self, before: Contents) -> Contents:
        """Produce records, commit offsets, and create and delete topics. Returns the contents of the node,
        which must be complete."""
        first = len(self.history.productions)
        producers = []
        for partition in self._partitions:
            name = f"producer-{self._round}-{partition.topic}-{partition.partition}"
            chance = stream(self._world.seed, name)
            keyed = partition.topic == COMPACTED
            producer = Producer(name, self._bootstrap, self.history, chance, partition, Sending(keyed=keyed))
            producers.append(self._on(name, producer.run(chance.randint(5, 60), pause_s=0.2)))
        groups = [
            self._on(f"{each.name} {self._round}", each.run(8, pause_s=0.4)) for each in self._committers
        ]
        work = [*producers, *groups, self._on(f"passer {self._round}", self._pass())]
        _, pending = await asyncio.wait(work, timeout=WORK_LIMIT_S)
        if pending:
            self.history.violate(f"clients cannot go on: {len(pending)} of {len(work)}")
            return before
        await asyncio.sleep(CHECKPOINTED_S + self._chance.uniform(0.0, 5.0))
        contents = await self._contents(f"before {self._round}")
        self._check_work(before, contents, first)
        return contents

    async def _pass(self) -> None:
        """Create and delete a topic."""
        topic = f"{PASSING}-{self._round}"
        client = self._client(topic)
        kind = self._chance.choice(sorted(_TOPICS))
        await client.create_topic(topic, 1, dict(_TOPICS[kind]))
        producer = Producer(
            topic,
            self._bootstrap,
            self.history,
            client.chance,
            TopicPartition(topic, 0),
            Sending(keyed=kind == COMPACTED),
        )
        await producer.run(10, pause_s=0.1)
        await client.delete_topic(topic)

    def _check_work(self, before: Contents, contents: Contents, first: int) -> None:
        for partition, error in contents.unreadable.items():
            self.history.violate(f"{partition} is unreadable without any damage: {error}")
        for partition, records in before.records.items():
            if set(records) - set(contents.records[partition]):
                self.history.violate(f"{partition} has lost records without any damage")
        for production in self.history.productions[first:]:
            found = set(contents.records.get(production.partition, ()))
            if production.partition.topic not in _TOPICS or production.outcome is not Outcome.OK:
                continue
            if {value for _, value in found}.isdisjoint(production.values):
                self.history.violate(f"acknowledged {production.values[0]!r} is lost without any damage")

    # Damage --------------------------------------------------------------------------------------

    async def _damage_and_start(self, before: Contents) -> Contents:
        copy = copy_of(self._node)
        count = self._chance.choice((1, 1, 1, 2, 3))
        damages = damage(
            self._node,
            self._chance,
            copy,
            self._copies,
            kinds=self._kinds,
            count=count,
            trusts_indexes=self._way_to_end is not End.POWER_LOSS,
        )
        self._copies.append(copy)
        for each in damages:
            self.history.note(f"damage: {each}")
        error = await self._start()
        if error is None:
            after = await self._check_start(damages, before)
            if self.history.violations or (not after.unreadable and after.records == before.records):
                return after
            # The start succeeded but records are lost. Therefore the operator ends the node and restores the
            # files.
            self._node.kill()
        else:
            self.history.note(f"refused: {error}")
            self.history.violations += check_refusal(damages, error)
            self._node.kill()
        restore(self._node, copy)
        error = await self._start()
        if error is not None:
            self.history.violate(f"the restored node does not start: {error!r}, after {damages}")
            return before
        return await self._check_start([], before)

    async def _check_start(self, damages: Sequence[FileDamage], before: Contents) -> Contents:
        await asyncio.sleep(QUIET_S)
        process = self._node.process
        assert process is not None
        assert process.main is not None
        if process.main.done():
            self.history.violate(f"the node ended: {process.main.exception()!r}, after {damages}")
            return before
        number = f"{self._node.life}"
        await self._verify_commits(number)
        reports = Reports(
            list(self._log_lines), await self._on(f"health {number}", health("node-1", HEALTH_PORT))
        )
        after = await self._contents(f"after {number}")
        self.history.violations += check_start(
            damages,
            before,
            after,
            reports,
            self._world.object_store.objects,
            may_lose=_ON_THIS_DISK_ONLY,
        )
        return after

    async def _verify_commits(self, number: str) -> None:
        checks = [self._on(f"{each.name} judge {number}", each.verify()) for each in self._committers]
        _, pending = await asyncio.wait(checks, timeout=PATIENCE_S)
        for each in pending:
            each.cancel()
            self.history.violate("the offsets of a group cannot be fetched")

    # Contents ------------------------------------------------------------------------------------

    async def _contents(self, name: str) -> Contents:
        reader = Reader(name, self._bootstrap, self.history, stream(self._world.seed, name))
        topics = await self._on(f"topics {name}", reader.topics())
        records: dict[TopicPartition, list[tuple[int, bytes]]] = {}
        unreadable: dict[TopicPartition, str] = {}
        for partition in self._partitions:
            each = Reader(name, self._bootstrap, self.history, stream(self._world.seed, name, *partition))
            where = f"{name} {partition.topic}-{partition.partition}"
            records[partition], error = await self._on(where, each.read(partition))
            if error is not None:
                unreadable[partition] = error
        # If a coordinator does not load, its partitions are unreadable. The check of the partitions therefore
        # finds this case, too.
        return Contents(topics, records, unreadable, set() if unreadable else await self._live_objects())

    async def _live_objects(self) -> set[str]:
        process = self._node.process
        assert process is not None
        context = process.context()
        node = process.exhibit
        coordinators = node.get(DisklessSubsystem).coordinators
        tiered = node.get(TieredSubsystem)
        looking = live_objects(self._world.object_store, coordinators, tiered, frozenset(_TOPICS))
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await context.run(self._world.loop.create_task, looking, context=context)
        except TimeoutError:
            self.history.violate("the coordinators or the remote tier are not loaded")
            return set()

    # Clients -------------------------------------------------------------------------------------

    def _client(self, name: str) -> SimulatedClient:
        return SimulatedClient(name, self._bootstrap, self.history, stream(self._world.seed, name))

    def _on(self, host: str, story: Awaitable[Any]) -> "asyncio.Task[Any]":
        async def program() -> Any:
            return await story

        process = self._world.host(host).start(lambda _machine: program())
        assert process.main is not None
        return process.main

    def _heard(self, line: str) -> None:
        self._log_lines.append(line)
        self.history.note(f"log: {line}")


class _Ear(logging.Handler):
    def __init__(self, hear: Any) -> None:
        super().__init__(logging.INFO)
        self._hear = hear

    def emit(self, record: logging.LogRecord) -> None:
        self._hear(f"{record.levelname} {record.getMessage()}")


@contextmanager
def _lines_of(logger: logging.Logger, hear: Any) -> Iterator[None]:
    """Collect the log lines of ``logger`` with ``hear``, while the ``with`` block runs."""
    ear = _Ear(hear)
    disabled, level, propagate = logging.root.manager.disable, logger.level, logger.propagate
    logging.disable(logging.NOTSET)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(ear)
    try:
        yield
    finally:
        logger.removeHandler(ear)
        logger.propagate = propagate
        logger.setLevel(level)
        logging.disable(disabled)


_SYNCED: Final = {"log.flush.interval.messages": "1"}


def kill_damage() -> Scenario:
    """The process is killed before the damage."""
    return scenario(End.KILL)


def stop_damage() -> Scenario:
    """The node stops cleanly before the damage. Its start should therefore need no recovery."""
    return scenario(End.STOP)


def power_damage() -> Scenario:
    """The machine loses its power before the damage. Every append was synced."""
    return scenario(End.POWER_LOSS)


def scenario(end: End, kinds: str = "") -> Scenario:
    """Return a scenario in which processes end in the way ``end``. Only kinds of files whose name contains
    the text ``kinds`` are damaged."""
    properties = _SYNCED if end is End.POWER_LOSS else {}

    def story(world: World, _scenario: Scenario) -> DamageStory:
        return DamageStory(world, end, properties=properties, kinds=kinds)

    return Scenario(story=story, time_limit_s=8_000.0, step_limit=4_000_000, cpu_limit_s=300.0)
