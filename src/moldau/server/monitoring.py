"""``/metrics`` and ``/health``: the node's gauges, and whether it is well."""

import json
from collections.abc import Callable, Mapping
from functools import partial

from moldau.config.broker import BrokerConfig
from moldau.coordinators.groups.service import GroupService
from moldau.coordinators.groups.states import GroupState
from moldau.metrics.registry import CONTENT_TYPE
from moldau.network.http import HttpAnswer, HttpServer
from moldau.runtime.machine import Machine
from moldau.server.hosting import PartitionHosting
from moldau.server.metadata_node import MetadataNode
from moldau.server.meters import NodeMeters
from moldau.server.registry import PartitionRegistry
from moldau.storage.log_manager import LogManager
from moldau.storage.recovery_report import RepairKind

HealthCheck = Callable[[], str | None]
"""What is wrong with one part of the node, in one sentence; None when it is well."""


class Monitoring:
    """Serves the two pages; ``listener`` is ``host:port`` (``metrics.listener``)."""

    def __init__(
        self,
        listener: str,
        meters: NodeMeters,
        checks: Mapping[str, HealthCheck],
        notices: Mapping[str, HealthCheck],
    ) -> None:
        """``notices``: faults that a node lives with, such as a record that had to be skipped."""
        self._meters = meters
        self._checks = checks
        self._notices = notices
        host, _, port = listener.rpartition(":")
        self._server = HttpServer(
            {"/metrics": self._metrics, "/health": self._health}, host.strip("[]") or None, int(port)
        )

    async def start(self) -> int:
        """Serve; the bound port."""
        return await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    def _metrics(self) -> HttpAnswer:
        return HttpAnswer(self._meters.registry.render(), CONTENT_TYPE)

    def _health(self) -> HttpAnswer:
        found = {name: check() for name, check in self._checks.items()}
        well = not any(found.values())
        body: dict[str, str | dict[str, str]] = {
            "status": "up" if well else "degraded",
            "checks": {name: reason or "ok" for name, reason in found.items()},
        }
        notices = {name: said for name, notice in self._notices.items() if (said := notice()) is not None}
        if notices:
            body["notices"] = notices
        return HttpAnswer(json.dumps(body).encode(), "application/json", 200 if well else 503)


def controller_monitoring(
    machine: Machine, config: BrokerConfig, metadata: MetadataNode, logs: LogManager
) -> Monitoring | None:
    """The pages of a node that is only a controller; None without ``metrics.listener``."""
    listener = config.optional_text("metrics.listener")
    if listener is None:
        return None
    meters = NodeMeters()
    watch_cluster(meters, metadata)
    checks = health_checks(metadata, logs) | {"errors": machine.unexpected.problem}
    return Monitoring(listener, meters, checks, {})


def watch_cluster(meters: NodeMeters, metadata: MetadataNode) -> None:
    """Gauges of the controller and the metadata quorum."""
    driver, publisher = metadata.driver, metadata.publisher

    def controller_gauge(name: str, read: Callable[[], float]) -> None:
        meters.gauge("kafka.controller", "KafkaController", name, read)

    controller_gauge("ActiveControllerCount", lambda: driver.is_leader)
    controller_gauge("GlobalTopicCount", lambda: len(publisher.image.topics))
    controller_gauge(
        "GlobalPartitionCount", lambda: sum(len(topic.partitions) for topic in publisher.image.topics)
    )
    controller_gauge(
        "OfflinePartitionsCount",
        lambda: sum(not p.has_leader for topic in publisher.image.topics for p in topic.partitions),
    )
    controller_gauge("ActiveBrokerCount", lambda: sum(1 for _ in publisher.image.active_brokers()))
    controller_gauge("FencedBrokerCount", lambda: sum(b.fenced for b in publisher.image.brokers.values()))
    controller_gauge("LastAppliedRecordOffset", lambda: publisher.image.provenance.offset)
    for name, read in {
        "current-leader": lambda: -1 if driver.leader_id is None else driver.leader_id,
        "current-epoch": lambda: driver.epoch,
        "high-watermark": lambda: driver.high_watermark,
    }.items():
        meters.gauge("kafka.server", "raft-metrics", name, read)


def watch_partitions(
    meters: NodeMeters, partitions: PartitionRegistry, hosting: PartitionHosting, logs: LogManager
) -> None:
    """Gauges of this broker's replicas and folders."""

    def replica_gauge(name: str, read: Callable[[], float]) -> None:
        meters.gauge("kafka.server", "ReplicaManager", name, read)

    replica_gauge("PartitionCount", lambda: len(partitions))
    replica_gauge("LeaderCount", lambda: sum(partition.is_leader for partition in partitions))
    replica_gauge("OfflineReplicaCount", lambda: len(hosting.offline))
    replica_gauge("UnderReplicatedPartitions", lambda: sum(p.is_under_replicated for p in partitions))
    meters.gauge(
        "kafka.log",
        "LogManager",
        "OfflineLogDirectoryCount",
        lambda: sum(not directory.is_online for directory in logs.directories),
    )
    for name, kind in {
        "TornTails": RepairKind.TORN_TAIL,
        "LostRecords": RepairKind.LOST,
        "RebuiltFiles": RepairKind.REBUILT,
    }.items():
        meters.gauge("moldau.storage", "Recovery", name, partial(logs.report.count, kind))
    meters.gauge("moldau.storage", "Recovery", "StrayFolders", lambda: logs.stray_count)


def watch_groups(meters: NodeMeters, groups: GroupService) -> None:
    """Kafka's meters of the group coordinator, of both its generations."""

    def count_of(*states: GroupState) -> Callable[[], float]:
        return lambda: sum(
            group.state in states for shard in groups.runtime.shards() for group in shard.groups.values()
        )

    managed = partial(meters.gauge, "kafka.coordinator.group", "GroupMetadataManager")
    managed("NumGroups", count_of(*GroupState))
    for state in GroupState:
        managed(f"NumGroups{state.value}", count_of(state))
    managed("NumOffsets", lambda: sum(shard.offsets.count for shard in groups.runtime.shards()))

    tally = groups.tally
    coordinator = partial(meters.gauge, "kafka.server", "group-coordinator-metrics")
    coordinator("group-count", count_of(*GroupState), protocol="classic")
    coordinator("offset-commit-count", lambda: tally.offset_commits)
    coordinator("offset-expiration-count", lambda: tally.offset_expirations)
    coordinator("offset-deletion-count", lambda: tally.offset_deletions)
    coordinator("group-completed-rebalance-count", lambda: tally.completed_rebalances)
    coordinator("num-partitions", lambda: len(groups.runtime.shards()), state="active")
    coordinator(
        "num-partitions",
        lambda: len(groups.runtime.partitions) - len(groups.runtime.shards()),
        state="loading",
    )


def health_checks(metadata: MetadataNode, logs: LogManager) -> dict[str, HealthCheck]:
    """The parts that every node has, and that can be unwell by themselves."""

    def quorum() -> str | None:
        return None if metadata.driver.leader_id is not None else "the metadata quorum has no leader"

    def storage() -> str | None:
        reasons = [
            f"{directory.path}: {directory.offline_reason}"
            for directory in logs.directories
            if not directory.is_online
        ]
        return "; ".join(reasons) or None

    def recovery() -> str | None:
        return logs.report.summary(RepairKind.LOST)

    return {"quorum": quorum, "storage": storage, "recovery": recovery}


def replicas_check(hosting: PartitionHosting) -> HealthCheck:
    """Whether this broker's replicas are open."""

    def replicas() -> str | None:
        count = len(hosting.offline)
        return f"{count} partitions cannot be opened" if count else None

    return replicas
