"""The nodes that can be put to the test, by the name that the command line knows them by."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from moldau.runtime import Machine
from moldau.simulation.client import Client
from moldau.simulation.consolidation_stories import consolidation, consolidation_power
from moldau.simulation.diskless_stories import (
    diskless,
    diskless_clock,
    diskless_defects,
    diskless_defects_kills,
    diskless_disk,
    diskless_power,
    diskless_store,
)
from moldau.simulation.history import Partition
from moldau.simulation.nemesis import Fault, Weather
from moldau.simulation.scenario import Scenario
from moldau.simulation.tiered_stories import tiered, tiered_disk, tiered_power
from moldau.simulation.tiny_node import PARTITION as TINY_PARTITION
from moldau.simulation.tiny_node import PORT as NODE_PORT
from moldau.simulation.tiny_node import Flaw, TinyNode

_ALL_FAULTS = tuple(fault for fault in Fault if fault is not Fault.DEFECTS)
"""Defects are for stories that say which of them a node must weather."""


def tiny(flaw: Flaw = Flaw.NONE) -> Scenario:
    """The tiny node syncs before it answers, so it must weather everything."""

    async def program(machine: Machine) -> None:
        await TinyNode(machine, flaw).run()

    return Scenario(program, (TINY_PARTITION,), weather=Weather(_ALL_FAULTS))


TOPIC = "events"
PARTITION_COUNT = 2
_PROPERTIES = {
    "controller.listener.names": "CONTROLLER",
    "num.partitions": "1",
    # Often, so that every story has rolls and recoveries.
    "log.roll.ms": "400",
    "log.index.interval.bytes": "256",
}
_SYNCED = {"log.flush.interval.messages": "1"}


def node() -> Scenario:
    """A whole node as it comes: a kill of the process must lose nothing that was acknowledged."""
    return _node_scenario({}, (Fault.KILL, Fault.KILL, Fault.PAUSE, Fault.CUT, Fault.RESET))


def node_power() -> Scenario:
    """A whole node that syncs every append must weather a loss of power too."""
    return _node_scenario(
        _SYNCED, (Fault.KILL, Fault.POWER_LOSS, Fault.POWER_LOSS, Fault.PAUSE, Fault.CUT, Fault.RESET)
    )


def node_disk() -> Scenario:
    """A whole node whose disk fills up and fails, too."""
    return _node_scenario(_SYNCED, _ALL_FAULTS)


def node_failed_sync() -> Scenario:
    """As ``node_disk``, but after a failed sync only the program is restarted, not the machine."""
    scenario = node_disk()
    return replace(scenario, weather=replace(scenario.weather, reboot_after_disk_error=False))


def _node_scenario(properties: Mapping[str, str], faults: tuple[Fault, ...]) -> Scenario:
    # Imported here: the tiny node runs without the server.
    from moldau.server.node import Node
    from moldau.server.settings import development_config

    async def program(machine: Machine) -> None:
        machine.disk.make_dirs("/data")  # a mount point: there long before the node
        machine.disk.sync_dir("/")
        config = development_config("/data", NODE_PORT, {**_PROPERTIES, **properties}, host="node-1")
        node = Node(config, machine, format_new=True)
        await node.start()
        raise RuntimeError(await node.failed())

    async def prepare(client: Client) -> None:
        await client.create_topic(TOPIC, PARTITION_COUNT, {})

    partitions = tuple(Partition(TOPIC, index) for index in range(PARTITION_COUNT))
    return Scenario(program, partitions, prepare=prepare, weather=Weather(faults), consumer_count=2)


def quorum() -> Scenario:
    """A quorum of controllers; see :mod:`moldau.simulation.quorum_stories`."""
    from moldau.simulation import quorum_stories  # the tiny node runs without the server

    return quorum_stories.quorum()


def quorum_power() -> Scenario:
    """A quorum of controllers on machines that lose power."""
    from moldau.simulation import quorum_stories

    return quorum_stories.quorum_power()


SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "tiny": tiny,
    "node": node,
    "node-power": node_power,
    "node-disk": node_disk,
    "node-failed-sync": node_failed_sync,
    "quorum": quorum,
    "quorum-power": quorum_power,
    "diskless": diskless,
    "diskless-power": diskless_power,
    "diskless-disk": diskless_disk,
    "diskless-store": diskless_store,
    "diskless-clock": diskless_clock,
    "diskless-defects": diskless_defects,
    "diskless-defects-kills": diskless_defects_kills,
    "consolidation": consolidation,
    "consolidation-power": consolidation_power,
    "tiered": tiered,
    "tiered-power": tiered_power,
    "tiered-disk": tiered_disk,
}
