"""Scenarios of diskless topics with several coordinators, a store that fails, and the work of an
administrator. In some scenarios the records leave the WAL within seconds."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from moldau.protocol.partitions import TopicPartition
from moldau.runtime import Machine
from moldau.simulation.checks.consolidation_checks import ConsolidationAfterlife
from moldau.simulation.checks.diskless_checks import DisklessAfterlife
from moldau.simulation.clients.administrator import delete_some_records, open_passing_topic
from moldau.simulation.clients.client import SimulatedClient
from moldau.simulation.nemesis import Fault, Weather
from moldau.simulation.scenario import Afterlife, Scenario
from moldau.simulation.stories.tiny_node import PORT as NODE_PORT
from moldau.simulation.world.disks.disk import MountedDisk
from moldau.simulation.world.disks.lost_files import DATA
from moldau.simulation.world.object_storage import CLASS_NAME, TIER_CLASS_NAME
from moldau.simulation.world.process import serving

KEPT = "events"
SHORTENED = "shrinking"
CLASSIC = "classic"
PASSING = tuple(f"passing-{number}" for number in range(4))
PARTITION_COUNT = 2
_KEPT_BYTES = 6_000
KEPT_FOR_LESS_THAN_A_JUMP = {"retention.ms": "2700000", "message.timestamp.type": "LogAppendTime"}
_PROPERTIES = {
    "controller.listener.names": "CONTROLLER",
    "num.partitions": "1",
    # No-op records are rare, because more of them would take much of a run's time and change little.
    "metadata.max.idle.interval.ms": "5000",
    "diskless.metadata.topic.num.partitions": "3",
    "diskless.storage.class.name": CLASS_NAME,
    "backup.enable": "false",
    "diskless.storage.url": "simulated:",
    # Each kind of work is frequent, so that every run has all kinds.
    "diskless.metadata.max.new.records.between.snapshots": "20",
    "diskless.coordinator.orphan.scan.interval.ms": "20000",
    "diskless.coordinator.orphan.scan.grace.period.ms": "40000",
    "log.retention.check.interval.ms": "5000",
    "log.index.interval.bytes": "256",
}
ALWAYS = (
    Fault.KILL,
    Fault.KILL,
    Fault.PAUSE,
    Fault.CUT,
    Fault.RESET,
    Fault.CACHE_LOST,
    Fault.DATABASES_LOST,
)
_CONSOLIDATION_PROPERTIES = {
    "remote.log.storage.manager.class.name": TIER_CLASS_NAME,
    "remote.log.metadata.topic.num.partitions": "3",
    # Small amounts are consolidated often, so that every run has many segments.
    "diskless.consolidation.interval.ms": "300",
    "diskless.consolidation.segment.bytes": "1500",
    "diskless.consolidation.max.age.ms": "2000",
}
_STORE_FAULTS = (Fault.STORE_DOWN, Fault.STORE_POOR, Fault.STORE_POOR)


def diskless() -> Scenario:
    """The faults are kills, pauses, broken links, and losses of files that the node can rebuild."""
    return story(ALWAYS)


def diskless_power() -> Scenario:
    """The faults of :func:`diskless`, and also losses of power. When records are written, only the
    coordinators' log is synced."""
    return story((*ALWAYS, Fault.POWER_LOSS, Fault.POWER_LOSS, Fault.POWER_LOSS, Fault.POWER_LOSS))


def diskless_disk() -> Scenario:
    """The disk fails and fills up. It contains the coordinators' log, their databases and the cache."""
    return story((*ALWAYS, Fault.POWER_LOSS, *(Fault.DISK_ERROR, Fault.DISK_FULL) * 3))


def diskless_store() -> Scenario:
    """The object store is down, slow or throttled, sends only a part of a response, or does not respond."""
    # A plug-in store may bill its requests, so the node closes few WAL objects before the end of the
    # interval. The interval is short, so that the other objects are also closed soon.
    return story(
        (*ALWAYS, *_STORE_FAULTS, *_STORE_FAULTS, Fault.POWER_LOSS),
        {"diskless.append.commit.interval.ms": "100"},
    )


def diskless_defects() -> Scenario:
    """Ports raise unexpected exceptions. There are no other faults, so every request must get a response."""
    return replace(story((Fault.DEFECTS,)), must_answer=True, watches_budgets=True, fault_count=8)


def diskless_defects_kills() -> Scenario:
    """Ports raise unexpected exceptions. The node is also killed and loses its cache. It then reads the
    records of the cache from objects."""
    faults = (Fault.DEFECTS, Fault.DEFECTS, Fault.CACHE_LOST, Fault.KILL)
    return replace(story(faults), watches_budgets=True, fault_count=8)


def diskless_stop() -> Scenario:
    """There are clean stops, kills and unexpected exceptions. The memory budgets of every process are
    checked."""
    faults = (*(Fault.STOP,) * 3, Fault.KILL, Fault.DEFECTS, Fault.PAUSE, Fault.RESET, Fault.CACHE_LOST)
    return replace(story(faults), watches_budgets=True, fault_count=8)


def diskless_clock() -> Scenario:
    """The node's clock jumps an hour forwards or backwards, and sometimes from an hour ahead to an hour
    behind.

    Records get their time from this clock and are kept for 45 minutes. No record becomes that old.
    """
    faults = (*(Fault.CLOCK_JUMP,) * 6, Fault.PAUSE, Fault.CUT, Fault.RESET)
    scenario = story(faults, new_afterlife=_clock_afterlife, configs=KEPT_FOR_LESS_THAN_A_JUMP)
    weather = replace(scenario.weather, clock_skew_ms=3_600_000)
    return replace(scenario, weather=weather, fault_count=12)


def diskless_transactions() -> Scenario:
    """Transactions over diskless partitions, a classic partition and offsets of groups.

    During the transactions the process is killed, and loses its caches and databases.
    """
    # This import is local, because the tiny node runs without the server.
    from moldau.simulation.transactions.story import LateTransactionStory

    values = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        "group.initial.rebalance.delay.ms": "200",
        "remote.log.storage.system.enable": "false",
    }

    async def prepare(client: SimulatedClient) -> None:
        kept = {"retention.ms": "-1"}  # without retention, because the records' timestamps are in 1970
        await client.create_topic(KEPT, PARTITION_COUNT, {"diskless.enable": "true", **kept})
        await client.create_topic(CLASSIC, 1, {"diskless.enable": "false", **kept})

    partitions = (
        *(TopicPartition(KEPT, index) for index in range(PARTITION_COUNT)),
        TopicPartition(CLASSIC, 0),
    )
    faults = (*ALWAYS, Fault.KILL)
    return replace(
        story(faults, values),
        partitions=partitions,
        prepare=prepare,
        story=LateTransactionStory,
        fault_count=6,
    )


def consolidation() -> Scenario:
    """The faults are kills at any step, pauses, broken links, losses of caches, and a store that is down,
    slow or throttled, or that does not respond."""
    return story((*ALWAYS, *_STORE_FAULTS), _CONSOLIDATION_PROPERTIES, ConsolidationAfterlife)


def consolidation_power() -> Scenario:
    """The faults of :func:`consolidation`, and also losses of power."""
    return story(
        (*ALWAYS, *_STORE_FAULTS, *(Fault.POWER_LOSS,) * 4), _CONSOLIDATION_PROPERTIES, ConsolidationAfterlife
    )


def _clock_afterlife(topics: tuple[str, ...]) -> Afterlife:
    return DisklessAfterlife(topics, checks_leaks=False)


def story(
    faults: tuple[Fault, ...],
    properties: Mapping[str, str] | None = None,
    new_afterlife: Callable[[tuple[str, ...]], Afterlife] = DisklessAfterlife,
    configs: Mapping[str, str] = MappingProxyType({}),
) -> Scenario:
    """Diskless topics with ``faults``. ``properties`` are added to the properties that all scenarios of this
    module have."""
    # This import is local, because the tiny node runs without the server.
    from moldau.server.node import ServerNode
    from moldau.server.settings import development_config

    async def program(machine: Machine) -> None:
        assert isinstance(machine.disk, MountedDisk)
        machine.disk.make_dirs(DATA)  # the mount point of the disk exists before the node
        machine.disk.sync_dir("/")
        values = {**_PROPERTIES, **(properties or {})}
        config = development_config(DATA, NODE_PORT, values, host="node-1", diskless=True)
        node = ServerNode(config, machine, format_new=True)
        machine.disk.process.exhibit = node
        await node.start()
        serving()
        raise RuntimeError(await node.failed())

    async def prepare(client: SimulatedClient) -> None:
        await client.create_topic(KEPT, PARTITION_COUNT, {"diskless.enable": "true", **configs})
        limits = {"diskless.enable": "true", "retention.bytes": str(_KEPT_BYTES)}
        await client.create_topic(SHORTENED, PARTITION_COUNT, limits)

    topics = (KEPT, SHORTENED)
    partitions = tuple(TopicPartition(topic, index) for index in range(PARTITION_COUNT) for topic in topics)
    return Scenario(
        program,
        partitions,
        prepare=prepare,
        meddle=_meddle,
        shortened=frozenset(partition for partition in partitions if partition.topic == SHORTENED),
        afterlife=new_afterlife((*topics, *PASSING)),
        watches_coordinators=True,
        weather=Weather(faults, cached_topics=(*topics, *PASSING)),
        producer_count=4,
        plain_producer_count=2,
        consumer_count=3,
        records_per_producer=150,
        fault_count=4,
        time_limit_s=2_000.0,
    )


async def _meddle(client: SimulatedClient) -> None:
    """During the scenario, topics are created and deleted, and records are deleted."""
    chance = client.chance
    for number, topic in enumerate(PASSING):
        await open_passing_topic(
            client, topic, f"passer-{number}", {"diskless.enable": "true"}, records=30, pause_s=0.05
        )
        await delete_some_records(client, TopicPartition(SHORTENED, chance.randrange(PARTITION_COUNT)))
        if chance.random() < 0.7:
            await client.delete_topic(topic)
        await client.pause()
