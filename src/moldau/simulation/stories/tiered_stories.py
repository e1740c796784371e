"""Scenarios of tiered topics whose segments leave the disk within seconds. The object store sometimes
fails."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from moldau.protocol.partitions import TopicPartition
from moldau.runtime import Machine
from moldau.simulation.checks.tiered_checks import TieredAfterlife
from moldau.simulation.clients.administrator import delete_some_records, open_passing_topic
from moldau.simulation.clients.client import SimulatedClient
from moldau.simulation.nemesis import Fault, Weather
from moldau.simulation.scenario import Scenario
from moldau.simulation.stories.tiny_node import PORT as NODE_PORT
from moldau.simulation.world.disks.disk import MountedDisk
from moldau.simulation.world.disks.lost_files import DATA
from moldau.simulation.world.object_storage import TIER_CLASS_NAME
from moldau.simulation.world.process import serving

KEPT = "events"
SHORTENED = "shrinking"
SWITCHING = "switching"
PASSING = tuple(f"passing-{number}" for number in range(3))
PARTITION_COUNT = 2
_PROPERTIES = {
    "controller.listener.names": "CONTROLLER",
    "num.partitions": "1",
    # No-op records are rare, because more of them would take much of a run's time and change little.
    "metadata.max.idle.interval.ms": "5000",
    "remote.log.storage.manager.class.name": TIER_CLASS_NAME,
    "remote.log.manager.task.interval.ms": "500",
    "remote.log.metadata.topic.num.partitions": "3",
    # Segments are rolled often, so that every run has rolls, copies and deletions.
    "log.roll.ms": "400",
    "log.retention.check.interval.ms": "700",
    "log.index.interval.bytes": "256",
    "log.segment.delete.delay.ms": "500",
    # Time for which no remote segment is deleted after a start that truncated a log. This time is shorter
    # than the time without faults at the end of a run.
    "diskless.coordinator.orphan.scan.grace.period.ms": "40000",
}
_SYNCED = {"log.flush.interval.messages": "1"}
_TIERED = {"remote.storage.enable": "true", "local.retention.bytes": "1", "retention.ms": "-1"}
_OFF = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
_ALWAYS = (Fault.KILL, Fault.KILL, Fault.PAUSE, Fault.CUT, Fault.RESET, Fault.DATABASES_LOST)
_STORE = (Fault.STORE_DOWN, Fault.STORE_POOR, Fault.STORE_POOR)


def tiered() -> Scenario:
    """The faults are kills at any step, pauses, broken links, losses of caches, and a store that is down,
    slow or throttled, or that does not respond."""
    return _story((*_ALWAYS, *_STORE))


def tiered_power() -> Scenario:
    """The faults of :func:`tiered`, and also losses of power. Every append is synced."""
    return _story((*_ALWAYS, *_STORE, *(Fault.POWER_LOSS,) * 4), _SYNCED)


def tiered_disk() -> Scenario:
    """The disk fails and fills up. It contains the logs, the remote tier's caches and its metadata topic."""
    return _story((*_ALWAYS, *_STORE, Fault.POWER_LOSS, *(Fault.DISK_ERROR, Fault.DISK_FULL) * 3), _SYNCED)


def tiered_clock() -> Scenario:
    """The node's clock jumps by an hour, forwards and backwards. Records with correct timestamps are kept for
    45 minutes."""
    faults = (*(Fault.CLOCK_JUMP,) * 6, Fault.PAUSE, Fault.CUT, Fault.RESET)
    scenario = _story(
        faults, configs={"retention.ms": "2700000", "message.timestamp.after.max.ms": "7200000"}
    )
    weather = replace(scenario.weather, clock_skew_ms=3_600_000)
    return replace(scenario, weather=weather, stamped=True, fault_count=12)


def _story(
    faults: tuple[Fault, ...],
    properties: Mapping[str, str] | None = None,
    configs: Mapping[str, str] = MappingProxyType({}),
) -> Scenario:
    """Tiered topics with ``faults``. ``configs`` are additional configs of the topics without
    ``retention.bytes``."""
    # This import is local, because the tiny node runs without the server.
    from moldau.server.node import ServerNode
    from moldau.server.settings import development_config

    async def program(machine: Machine) -> None:
        assert isinstance(machine.disk, MountedDisk)
        machine.disk.make_dirs(DATA)  # the mount point of the disk exists before the node
        machine.disk.sync_dir("/")
        values = {**_PROPERTIES, **(properties or {})}
        config = development_config(DATA, NODE_PORT, values, host="node-1")
        node = ServerNode(config, machine, format_new=True)
        machine.disk.process.exhibit = node
        await node.start()
        serving()
        raise RuntimeError(await node.failed())

    async def prepare(client: SimulatedClient) -> None:
        await client.create_topic(KEPT, PARTITION_COUNT, {**_TIERED, **configs})
        await client.create_topic(SHORTENED, 1, {**_TIERED, "retention.bytes": "6000"})
        await client.create_topic(SWITCHING, 1, {**_TIERED, **configs})

    partitions = (
        TopicPartition(KEPT, 0),
        TopicPartition(SHORTENED, 0),
        TopicPartition(KEPT, 1),
        TopicPartition(SWITCHING, 0),
    )
    return Scenario(
        program,
        partitions,
        prepare=prepare,
        meddle=_meddle,
        shortened=frozenset(partition for partition in partitions if partition.topic != KEPT),
        afterlife=TieredAfterlife(),
        weather=Weather(faults),
        producer_count=4,
        plain_producer_count=1,
        consumer_count=4,
        records_per_producer=120,
        fault_count=4,
        time_limit_s=2_000.0,
    )


async def _meddle(client: SimulatedClient) -> None:
    """During the scenario, topics are created and deleted, tiering is switched off and on, and records are
    deleted."""
    chance = client.chance
    for number, topic in enumerate(PASSING):
        await open_passing_topic(client, topic, f"passer-{number}", _TIERED, records=20, pause_s=0.2)
        await delete_some_records(client, TopicPartition(SHORTENED, 0))
        await _switch(client)
        if chance.random() < 0.7:
            await client.delete_topic(topic)
        await client.pause()
    if chance.random() < 0.4:
        # the deletion is permanent, so no part of the topic may exist afterwards
        await client.alter_topic(SWITCHING, _OFF)


async def _switch(client: SimulatedClient) -> None:
    """Switch off tiering or copying. After a while, switch it on again."""
    if client.chance.random() < 0.5:
        change = _OFF
    else:
        change = {"remote.log.copy.disable": "true", "local.retention.bytes": "-2"}
    await client.alter_topic(SWITCHING, change)
    for _ in range(client.chance.randrange(10)):
        await client.pause()
    again = {"remote.storage.enable": "true", "remote.log.copy.disable": "false"}
    await client.alter_topic(SWITCHING, {**again, "local.retention.bytes": "1"})
