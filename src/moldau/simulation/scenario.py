"""A scenario with a seed. Clients work while faults are injected. Then everything is repaired, read and
checked."""

import asyncio
import gc
import hashlib
import signal
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

from moldau.protocol.partitions import TopicPartition
from moldau.runtime import Machine
from moldau.simulation.checks.answers_checks import watch_budgets
from moldau.simulation.checks.log_checks import check
from moldau.simulation.clients.client import Bootstrap, Consumer, Producer, Sending, SimulatedClient
from moldau.simulation.coordinators.agreement import AgreementTally, watch_coordinators
from moldau.simulation.history import History
from moldau.simulation.nemesis import Nemesis, Weather
from moldau.simulation.offsets.committer import OffsetCommitter
from moldau.simulation.offsets.member import CommittingMember, GroupMonitor
from moldau.simulation.seeds import stream
from moldau.simulation.world.host import Host, Program
from moldau.simulation.world.loop import SimulationError
from moldau.simulation.world.network import NetworkOptions
from moldau.simulation.world.world import World

Prepare = Callable[[SimulatedClient], Awaitable[None]]


_FRAMES_SHOWN = 4


class StuckError(SystemExit):
    """The program under test does not end. This class is not an ``Exception``, so that no task of the program
    can catch the error and continue."""


@contextmanager
def patience(cpu_s: float) -> Iterator[None]:
    """Raise :class:`StuckError` in the running code after ``cpu_s`` seconds of CPU time.

    The limit is CPU time and not wall time, so that a busy machine does not make a run fail. Only the main
    thread gets signals, so there is no limit in another thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_signal: int, frame: FrameType | None) -> None:
        stack = traceback.extract_stack(frame)[-_FRAMES_SHOWN:]
        at = " < ".join(f"{entry.name}:{entry.lineno}" for entry in reversed(stack))
        raise StuckError(f"no end after {cpu_s:g} s of processor time, at {at}")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


class Afterlife(Protocol):
    """The checks at the end of a scenario."""

    async def quiet(self, world: World, node: Host, history: History) -> None:
        """After all clients have finished, wait until the node has removed everything that it no longer
        needs."""
        ...

    async def check(self, world: World, node: Host, history: History) -> None:
        """Record violations in the history. It is called after everything was read."""
        ...

    async def spoil(self, world: World, node: Host, history: History) -> None:
        """Remove everything that may be lost. This is called after :meth:`check`. When everything is read
        again, the result must be the same."""
        ...


class Story(Protocol):
    """A scenario that runs with a seed."""

    history: History

    async def run(self) -> list[str]:
        """Run the scenario; return the violations."""
        ...


async def _no_program(machine: Machine) -> None:
    """A program that does nothing. It is used by scenarios that start their own programs."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """The options of a scenario. ``program`` runs as a process of the node under test."""

    program: Program = _no_program
    partitions: tuple[TopicPartition, ...] = ()
    story: "Callable[[World, Scenario], Story] | None" = None
    """The story of a scenario that does not have the usual producers and consumers of a single node."""
    prepare: Prepare | None = None
    meddle: Prepare | None = None
    """The work of an administrator while producers work. It must end by itself."""
    shortened: frozenset[TopicPartition] = frozenset()
    """Partitions whose first records are sometimes deleted."""
    afterlife: Afterlife | None = None
    weather: Weather = field(default_factory=Weather)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    must_answer: bool = False
    """Whether a request without a response in time is a violation. Set this if no fault of the scenario loses
    responses.
    """
    watches_budgets: bool = False
    """Whether the budgets of every process are checked while it runs. The attribute ``exhibit`` of the
    process must then be the node.
    """
    watches_coordinators: bool = False
    """Whether the states of coordinators are compared with their logs. The attribute ``exhibit`` of each
    process must then be the node.
    """
    coordinator_tally: AgreementTally = field(default_factory=AgreementTally)
    """The numbers of comparisons. They are sums over all seeds that were run."""
    port: int = 9092
    producer_count: int = 2
    plain_producer_count: int = 1
    consumer_count: int = 1
    records_per_producer: int = 200
    stamped: bool = False
    """Whether records get the time of their producers' clocks. These clocks are correct."""
    committer_count: int = 0
    """Number of groups that commit offsets of the first topic."""
    commits_per_committer: int = 40
    group_member_count: int = 0
    """Number of members of a group. They join and leave the group."""
    joins_per_member: int = 12
    fault_count: int = 3
    time_limit_s: float = 600.0
    step_limit: int = 1_000_000
    """Maximum number of iterations of the event loop. The longest runs need about 50,000. An endless loop
    would need more."""
    cpu_limit_s: float = 120.0
    """Maximum CPU time in seconds. The longest runs need some seconds."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a seed. ``digest`` identifies the whole history, including bytes and timing."""

    seed: int
    violations: list[str]
    digest: str
    virtual_s: float
    record_count: int
    history: History


def run_seed(scenario: Scenario, seed: int) -> Result:
    """Run the scenario with a seed. If the node fails, this raises no error. The errors are in the result."""
    collecting = gc.isenabled()
    # The world of the previous seed consists of objects that refer to each other. Only the garbage collector
    # can free them, and it is off during a run. Without this call, runs of thousands of seeds would need
    # gigabytes.
    gc.collect()
    gc.disable()  # finalizers that run at random times would change the history
    try:
        return _run_seed(scenario, seed)
    finally:
        if collecting:
            gc.enable()


def _run_seed(scenario: Scenario, seed: int) -> Result:
    with World(
        seed,
        network=scenario.network,
        time_limit_s=scenario.time_limit_s,
        step_limit=scenario.step_limit,
    ) as world:
        story: Story = (
            _NodeStory(world, scenario) if scenario.story is None else scenario.story(world, scenario)
        )
        try:
            with patience(scenario.cpu_limit_s):
                violations = world.run(story.run())
        except (SimulationError, StuckError) as error:
            violations = [*story.history.violations, f"{type(error).__name__}: {error}"]
        violations += world.errors()
        if scenario.must_answer:
            violations += world.silences
        loop = world.loop
        summary = f"{story.history.digest()} {loop.digest:08x} {loop.steps} {loop.time():.6f}"
        digest = hashlib.sha256(summary.encode()).hexdigest()[:16]
        count = sum(len(production.values) for production in story.history.productions)
        return Result(seed, violations, digest, loop.elapsed_s(), count, story.history)


class _NodeStory:
    def __init__(self, world: World, scenario: Scenario) -> None:
        self._world = world
        self._scenario = scenario
        self.history = History(world.loop.elapsed_s)
        self._node = world.host("node-1")
        self._bootstrap = Bootstrap("node-1", scenario.port)
        self._watches: list[asyncio.Task[None]] = []

    async def run(self) -> list[str]:
        scenario, world = self._scenario, self._world
        chance = stream(world.seed, "nemesis")
        nemesis = Nemesis(world, self.history, chance, {self._node: scenario.program}, scenario.weather)
        self._node.start(scenario.program)
        supervisor = asyncio.create_task(nemesis.supervise())
        if scenario.watches_budgets:
            self._watches.append(asyncio.create_task(watch_budgets(self._node, self.history)))
        if scenario.watches_coordinators:
            watching = watch_coordinators([self._node], self.history, scenario.coordinator_tally)
            self._watches.append(asyncio.create_task(watching))
        if scenario.prepare is not None:
            client = SimulatedClient("admin", self._bootstrap, self.history, stream(world.seed, "admin"))
            await self._on(world.host("admin"), scenario.prepare(client))
        storm = asyncio.create_task(nemesis.storm(scenario.fault_count))
        readers = [self._start_consumer(number) for number in range(scenario.consumer_count)]
        committers = self._committers()
        count = scenario.commits_per_committer
        commits = [self._on(world.host(each.name), each.run(count, pause_s=0.3)) for each in committers]
        await asyncio.gather(*self._producers(), *self._meddlers(), *commits, *self._members())
        await storm
        self.history.note("producers are done")
        await asyncio.gather(
            *(self._on(world.host(f"{each.name} judge"), each.verify()) for each in committers)
        )
        violations = await self._ending(readers)
        supervisor.cancel()
        for watch in self._watches:
            watch.cancel()
            if watch.done() and not watch.cancelled() and watch.exception() is not None:
                violations = [*violations, f"a watch of the node failed: {watch.exception()!r}"]
        return violations

    async def _ending(self, readers: "list[asyncio.Task[Any]]") -> list[str]:
        scenario, afterlife = self._scenario, self._scenario.afterlife
        if afterlife is not None:
            for reader in readers:
                reader.cancel()
            await afterlife.quiet(self._world, self._node, self.history)
        final, first_offsets = await self._read_all("judge")
        for reader in readers:
            if reader.done() and not reader.cancelled() and reader.exception() is not None:
                self.history.violate(f"a consumer failed: {reader.exception()!r}")
        violations = check(self.history, final, first_offsets)
        if afterlife is not None and not violations:
            await afterlife.check(self._world, self._node, self.history)
            await afterlife.spoil(self._world, self._node, self.history)
            again, first_again = await self._read_all("second judge")
            for partition in scenario.partitions:
                if (final[partition], first_offsets[partition]) != (again[partition], first_again[partition]):
                    self.history.violate(f"{partition} has changed: {final[partition]}, {again[partition]}")
            violations = check(self.history, final, first_offsets)
        return violations

    def _on(self, host: Host, story: Coroutine[Any, Any, Any] | Awaitable[Any]) -> "asyncio.Task[Any]":
        async def program() -> Any:
            return await story

        process = host.start(lambda _machine: program())
        assert process.main is not None
        return process.main

    def _producers(self) -> "list[asyncio.Task[Any]]":
        scenario, tasks = self._scenario, []
        for number in range(scenario.producer_count + scenario.plain_producer_count):
            name = f"producer-{number}"
            chance = stream(self._world.seed, name)
            producer = Producer(
                name,
                self._bootstrap,
                self.history,
                chance,
                scenario.partitions[number % len(scenario.partitions)],
                Sending(idempotent=number < scenario.producer_count, stamped=scenario.stamped),
            )
            pause_s = chance.choice((0.01, 0.1, 0.3))
            run = producer.run(scenario.records_per_producer, pause_s=pause_s)
            tasks.append(self._on(self._world.host(name), run))
        return tasks

    def _committers(self) -> list[OffsetCommitter]:
        scenario = self._scenario
        topic = scenario.partitions[0].topic
        count = sum(partition.topic == topic for partition in scenario.partitions)
        return [
            OffsetCommitter(name, self._bootstrap, self.history, stream(self._world.seed, name), topic, count)
            for name in (f"group-{number}" for number in range(scenario.committer_count))
        ]

    def _members(self) -> "list[asyncio.Task[Any]]":
        scenario, monitor = self._scenario, GroupMonitor("members", self.history)
        members = [
            CommittingMember(
                name, self._bootstrap, monitor, stream(self._world.seed, name), len(scenario.partitions)
            )
            for name in (f"member-{number}" for number in range(scenario.group_member_count))
        ]
        return [
            self._on(self._world.host(each.name), each.run(scenario.joins_per_member)) for each in members
        ]

    def _meddlers(self) -> "list[asyncio.Task[Any]]":
        meddle = self._scenario.meddle
        if meddle is None:
            return []
        chance = stream(self._world.seed, "meddler")
        client = SimulatedClient("meddler", self._bootstrap, self.history, chance)
        return [self._on(self._world.host("meddler"), meddle(client))]

    def _start_consumer(self, number: int) -> "asyncio.Task[Any]":
        name = f"consumer-{number}"
        partition = self._scenario.partitions[number % len(self._scenario.partitions)]
        consumer = Consumer(
            name,
            self._bootstrap,
            self.history,
            stream(self._world.seed, name),
            partition,
            shortened=partition in self._scenario.shortened,
        )
        return self._on(self._world.host(name), consumer.run())

    async def _read_all(
        self, reader_prefix: str
    ) -> tuple[dict[TopicPartition, list[tuple[int, bytes]]], dict[TopicPartition, int]]:
        """Read all records, and also the first offset of each partition."""
        final: dict[TopicPartition, list[tuple[int, bytes]]] = {}
        first_offsets: dict[TopicPartition, int] = {}
        for partition in self._scenario.partitions:
            name = f"{reader_prefix}-{partition.topic}-{partition.partition}"
            chance = stream(self._world.seed, name)
            reader = Consumer(
                name,
                self._bootstrap,
                self.history,
                chance,
                partition,
                observed=False,
                shortened=partition in self._scenario.shortened,
            )
            final[partition] = await self._on(self._world.host(name), reader.read_to_end())
            first_offsets[partition] = reader.first_offset
        return final, first_offsets
