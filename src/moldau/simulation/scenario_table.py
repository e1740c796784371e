"""The table of scenarios, by their names on the command line."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType

from moldau.protocol.partitions import TopicPartition
from moldau.runtime import Machine
from moldau.simulation.clients.administrator import delete_some_records
from moldau.simulation.clients.client import SimulatedClient
from moldau.simulation.nemesis import Fault, Weather
from moldau.simulation.restore.cluster_story import restore_cluster
from moldau.simulation.restore.story import restore
from moldau.simulation.restore.tiers import restored_tiers
from moldau.simulation.scenario import Scenario
from moldau.simulation.stories.diskless_stories import (
    consolidation,
    consolidation_power,
    diskless,
    diskless_clock,
    diskless_defects,
    diskless_defects_kills,
    diskless_disk,
    diskless_power,
    diskless_stop,
    diskless_store,
    diskless_transactions,
)
from moldau.simulation.stories.tiered_stories import tiered, tiered_clock, tiered_disk, tiered_power
from moldau.simulation.stories.tiny_node import PARTITION as TINY_PARTITION
from moldau.simulation.stories.tiny_node import PORT as NODE_PORT
from moldau.simulation.stories.tiny_node import Flaw, TinyNode
from moldau.simulation.world.disks.disk import MountedDisk
from moldau.simulation.world.process import serving

_SPECIAL = (Fault.DEFECTS, Fault.STOP, Fault.ONE_WAY, Fault.OVERTAKE)
_ALL_FAULTS = tuple(fault for fault in Fault if fault not in _SPECIAL)
"""All kinds of faults except the special kinds, which most scenarios do not use. Defects are used only in
scenarios that list the defects that a node must survive. Stops are used only for nodes that can be stopped.
Links that fail in one direction, and messages that arrive after later messages, are used only in scenarios
with several nodes."""


def tiny(flaw: Flaw = Flaw.NONE) -> Scenario:
    """The tiny node syncs before it responds. It must therefore survive every fault."""

    async def program(machine: Machine) -> None:
        await TinyNode(machine, flaw).run()

    return Scenario(program, (TINY_PARTITION,), weather=Weather(_ALL_FAULTS))


TOPIC = "events"
PARTITION_COUNT = 2
KEPT_FOR_LESS_THAN_A_JUMP = {"retention.ms": "2700000", "message.timestamp.after.max.ms": "7200000"}
JUMP_MS = 3_600_000
_PROPERTIES = {
    "controller.listener.names": "CONTROLLER",
    "num.partitions": "1",
    # Segments are rolled often, so that every run has rolls and recoveries.
    "log.roll.ms": "400",
    "log.index.interval.bytes": "256",
}
_SYNCED = {"log.flush.interval.messages": "1"}


def node() -> Scenario:
    """A whole node with default settings. A kill of the process must not lose any acknowledged record."""
    return _node_scenario({}, (Fault.KILL, Fault.KILL, Fault.PAUSE, Fault.CUT, Fault.RESET))


def node_power() -> Scenario:
    """A whole node that syncs every append. Unlike :func:`node`, it must also survive a loss of power."""
    return _node_scenario(
        _SYNCED, (Fault.KILL, Fault.POWER_LOSS, Fault.POWER_LOSS, Fault.PAUSE, Fault.CUT, Fault.RESET)
    )


def node_disk() -> Scenario:
    """A whole node with a disk that fills up and fails."""
    return _node_scenario(_SYNCED, _ALL_FAULTS)


def node_failed_sync() -> Scenario:
    """Like ``node_disk``, but after a failed sync only the program is restarted. The machine is not
    rebooted."""
    scenario = node_disk()
    return replace(scenario, weather=replace(scenario.weather, reboot_after_disk_error=False))


def node_deletes() -> Scenario:
    """Requests delete the first records again and again, while processes are killed and the machine loses
    power."""
    faults = (*(Fault.KILL,) * 2, *(Fault.POWER_LOSS,) * 3, Fault.PAUSE, Fault.CUT, Fault.RESET)
    rounds = {"log.retention.check.interval.ms": "700", "log.segment.delete.delay.ms": "500"}
    scenario = _node_scenario({**_SYNCED, **rounds}, faults)
    return replace(scenario, meddle=_delete_records, shortened=frozenset(scenario.partitions), fault_count=6)


async def _delete_records(client: SimulatedClient) -> None:
    for _ in range(8):
        await asyncio.sleep(client.chance.uniform(0.05, 1.0))
        await delete_some_records(client, TopicPartition(TOPIC, client.chance.randrange(PARTITION_COUNT)))


def offsets() -> Scenario:
    """Groups commit offsets and change their members while the process is killed repeatedly."""
    return _offsets({}, (*(Fault.KILL,) * 4, Fault.PAUSE, Fault.CUT, Fault.RESET))


def offsets_power() -> Scenario:
    """Every append is synced. Therefore a loss of power must not lose any commit."""
    faults = (Fault.KILL, *(Fault.POWER_LOSS,) * 3, Fault.PAUSE, Fault.CUT, Fault.RESET)
    return _offsets(_SYNCED, faults)


def offsets_disk() -> Scenario:
    """The disk with the groups' log fails and fills up."""
    faults = (Fault.KILL, Fault.POWER_LOSS, *(Fault.DISK_ERROR, Fault.DISK_FULL) * 2)
    return _offsets(_SYNCED, faults)


def _offsets(properties: Mapping[str, str], faults: tuple[Fault, ...]) -> Scenario:
    values = {
        # Rolls and compactions are so frequent that every run has rolls, compactions and recoveries.
        "log.cleaner.backoff.ms": "500",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.segment.delete.delay.ms": "500",
        "group.initial.rebalance.delay.ms": "200",
        **properties,
    }
    return replace(
        _node_scenario(values, faults),
        committer_count=3,
        group_member_count=3,
        producer_count=1,
        plain_producer_count=0,
        consumer_count=0,
        fault_count=6,
        watches_coordinators=True,
    )


def transactions() -> Scenario:
    """Transactions are committed, aborted and fenced while the process is killed again and again."""
    from moldau.simulation.transactions.story import TransactionStory

    values = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        "group.initial.rebalance.delay.ms": "200",
    }
    faults = (*(Fault.KILL,) * 3, Fault.PAUSE, Fault.CUT, Fault.RESET)
    return replace(_node_scenario(values, faults), story=TransactionStory, fault_count=5)


def node_clock() -> Scenario:
    """The node's clock jumps by an hour, forwards and backwards. Records with correct timestamps are kept for
    45 minutes."""
    faults = (*(Fault.CLOCK_JUMP,) * 6, Fault.PAUSE, Fault.CUT, Fault.RESET)
    rounds = {"log.retention.check.interval.ms": "700", "log.segment.delete.delay.ms": "500"}
    scenario = _node_scenario(rounds, faults, KEPT_FOR_LESS_THAN_A_JUMP)
    weather = replace(scenario.weather, clock_skew_ms=JUMP_MS)
    return replace(scenario, weather=weather, stamped=True, fault_count=12)


def _node_scenario(
    properties: Mapping[str, str],
    faults: tuple[Fault, ...],
    configs: Mapping[str, str] = MappingProxyType({}),
) -> Scenario:
    # This import is local, because the tiny node runs without the server.
    from moldau.server.node import ServerNode
    from moldau.server.settings import development_config

    async def program(machine: Machine) -> None:
        machine.disk.make_dirs("/data")  # the mount point of the disk exists before the node
        machine.disk.sync_dir("/")
        config = development_config("/data", NODE_PORT, {**_PROPERTIES, **properties}, host="node-1")
        node = ServerNode(config, machine, format_new=True)
        assert isinstance(machine.disk, MountedDisk)
        machine.disk.process.exhibit = node
        await node.start()
        serving()
        raise RuntimeError(await node.failed())

    async def prepare(client: SimulatedClient) -> None:
        await client.create_topic(TOPIC, PARTITION_COUNT, dict(configs))

    partitions = tuple(TopicPartition(TOPIC, index) for index in range(PARTITION_COUNT))
    return Scenario(program, partitions, prepare=prepare, weather=Weather(faults), consumer_count=2)


def _of_cluster(module: str, name: str) -> Callable[[], Scenario]:
    """A scenario of ``module`` in :mod:`moldau.simulation.cluster.stories`, by the name of its function."""

    def scenario() -> Scenario:
        # This import is local, because the tiny node runs without the server.
        found: Scenario = getattr(import_module(f"moldau.simulation.cluster.stories.{module}"), name)()
        return found

    return scenario


def diskless_order() -> Scenario:
    """A scenario that checks the order of the commits of several brokers."""
    # This import is local, because the tiny node runs without the server.
    from moldau.simulation.cluster.stories import commit_order_stories

    return commit_order_stories.diskless_order()


def chunks() -> Scenario:
    """Partitions with chunks; see :mod:`moldau.simulation.chunks.story`."""
    from moldau.simulation.chunks import story  # the tiny node runs without the server

    return story.chunks()


def chunks_power() -> Scenario:
    """Partitions with chunks on nodes that lose power."""
    from moldau.simulation.chunks import story

    return story.chunks_power()


def chunks_tiered() -> Scenario:
    """Tiered partitions with chunks; see :mod:`moldau.simulation.chunks.tiered_story`."""
    from moldau.simulation.chunks import tiered_story

    return tiered_story.chunks_tiered()


def chunks_tiered_power() -> Scenario:
    """Tiered partitions with chunks on nodes that lose power."""
    from moldau.simulation.chunks import tiered_story

    return tiered_story.chunks_tiered_power()


def chunks_transactions() -> Scenario:
    """Transactions over partitions with chunks; see :mod:`moldau.simulation.chunks.transaction_story`."""
    from moldau.simulation.chunks import transaction_story

    return transaction_story.chunks_transactions()


def kill_damage() -> Scenario:
    """Damaged files after a kill; see :mod:`moldau.simulation.damage.story`."""
    from moldau.simulation.damage import story  # the tiny node runs without the server

    return story.kill_damage()


def stop_damage() -> Scenario:
    """Damaged files after a clean stop."""
    from moldau.simulation.damage import story

    return story.stop_damage()


def power_damage() -> Scenario:
    """Damaged files after a loss of power."""
    from moldau.simulation.damage import story

    return story.power_damage()


SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "tiny": tiny,
    "node": node,
    "node-power": node_power,
    "node-disk": node_disk,
    "node-failed-sync": node_failed_sync,
    "node-clock": node_clock,
    "node-deletes": node_deletes,
    "restore": restore,
    "restore-cluster": restore_cluster,
    "restored-tiers": restored_tiers,
    "offsets": offsets,
    "offsets-power": offsets_power,
    "offsets-disk": offsets_disk,
    "transactions": transactions,
    "diskless-transactions": diskless_transactions,
    "quorum": _of_cluster("quorum_stories", "quorum"),
    "quorum-power": _of_cluster("quorum_stories", "quorum_power"),
    "quorum-votes": _of_cluster("quorum_stories", "quorum_votes"),
    "quorum-votes-power": _of_cluster("quorum_stories", "quorum_votes_power"),
    "quorum-links": _of_cluster("quorum_stories", "quorum_links"),
    "quorum-clock": _of_cluster("quorum_stories", "quorum_clock"),
    "cluster": _of_cluster("cluster_stories", "cluster"),
    "cluster-combined": _of_cluster("cluster_stories", "cluster_combined"),
    "replication": _of_cluster("replication_stories", "replication"),
    "replication-power": _of_cluster("replication_stories", "replication_power"),
    "replication-groups": _of_cluster("group_stories", "replication_groups"),
    "replication-groups-power": _of_cluster("group_stories", "replication_groups_power"),
    "replication-groups-moves": _of_cluster("group_stories", "replication_groups_moves"),
    "replication-clock": _of_cluster("group_stories", "replication_clock"),
    "diskless-cluster": _of_cluster("diskless_cluster_stories", "diskless_cluster"),
    "diskless-cluster-power": _of_cluster("diskless_cluster_stories", "diskless_cluster_power"),
    "diskless-cluster-clock": _of_cluster("diskless_cluster_stories", "diskless_cluster_clock"),
    "diskless-cluster-behind": _of_cluster("diskless_cluster_stories", "diskless_cluster_behind"),
    "diskless-cluster-store": _of_cluster("diskless_cluster_stories", "diskless_cluster_store"),
    "consolidation-cluster": _of_cluster("consolidation_cluster_stories", "consolidation_cluster"),
    "consolidation-cluster-power": _of_cluster(
        "consolidation_cluster_stories", "consolidation_cluster_power"
    ),
    "consolidation-cluster-topics": _of_cluster(
        "consolidation_cluster_stories", "consolidation_cluster_topics"
    ),
    "diskless-order": diskless_order,
    "diskless-racks": _of_cluster("rack_stories", "diskless_racks"),
    "diskless-racks-storm": _of_cluster("rack_stories", "diskless_racks_storm"),
    "diskless-racks-changes": _of_cluster("rack_stories", "diskless_racks_changes"),
    "transactions-cluster": _of_cluster("transaction_stories", "transactions_cluster"),
    "replication-lag": _of_cluster("replication_stories", "replication_lag"),
    "replication-copies": _of_cluster("replication_stories", "replication_copies"),
    "replication-unsynced": _of_cluster("replication_stories", "replication_unsynced"),
    "replication-rolling": _of_cluster("replication_stories", "replication_rolling"),
    "replication-directories": _of_cluster("directory_stories", "replication_directories"),
    "upgrade": _of_cluster("upgrade_stories", "upgrade"),
    "upgrade-separate": _of_cluster("upgrade_stories", "upgrade_separate"),
    "replication-directory-moves": _of_cluster("directory_stories", "replication_directory_moves"),
    "replication-moves": _of_cluster("replication_stories", "replication_moves"),
    "chunks": chunks,
    "chunks-power": chunks_power,
    "chunks-transactions": chunks_transactions,
    "chunks-tiered": chunks_tiered,
    "chunks-tiered-power": chunks_tiered_power,
    "tiered-cluster": _of_cluster("tiered_cluster_stories", "tiered_cluster"),
    "tiered-cluster-power": _of_cluster("tiered_cluster_stories", "tiered_cluster_power"),
    "diskless": diskless,
    "diskless-power": diskless_power,
    "diskless-disk": diskless_disk,
    "diskless-store": diskless_store,
    "diskless-clock": diskless_clock,
    "diskless-defects": diskless_defects,
    "diskless-defects-kills": diskless_defects_kills,
    "diskless-stop": diskless_stop,
    "consolidation": consolidation,
    "consolidation-power": consolidation_power,
    "tiered": tiered,
    "tiered-power": tiered_power,
    "tiered-disk": tiered_disk,
    "tiered-clock": tiered_clock,
    "kill-damage": kill_damage,
    "stop-damage": stop_damage,
    "power-damage": power_damage,
}
"""All scenarios by their names. `make simulate` runs all of them."""
