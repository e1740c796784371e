"""``/metrics`` and ``/health``: the node's gauges and its health."""

import json
from collections.abc import Callable, Mapping

from moldau.metrics.registry import CONTENT_TYPE
from moldau.network.http import HttpAnswer, HttpServer
from moldau.server.metadata.metadata_view import MetadataView
from moldau.server.observing.meters import NodeMeters
from moldau.server.subsystem import HealthCheck
from moldau.storage.critical_logs.recovery_report import RepairKind
from moldau.storage.log_manager import LogManager


class Monitoring:
    """Serves the pages ``/metrics`` and ``/health``. ``listener`` is ``host:port`` (``metrics.listener``)."""

    def __init__(
        self,
        listener: str,
        meters: NodeMeters,
        checks: Mapping[str, HealthCheck],
        notices: Mapping[str, HealthCheck],
    ) -> None:
        """``notices`` report known faults of a running node, for example a skipped record."""
        self._meters = meters
        self._checks = checks
        self._notices = notices
        host, _, port = listener.rpartition(":")
        self._server = HttpServer(
            {"/metrics": self._metrics, "/health": self._health}, host.strip("[]") or None, int(port)
        )

    async def start(self) -> int:
        """Open the listener. Returns the bound port."""
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


def watch_cluster(meters: NodeMeters, metadata: MetadataView) -> None:
    """Gauges of the controller and the metadata quorum."""
    quorum, publisher = metadata.quorum, metadata.publisher

    def controller_gauge(name: str, read: Callable[[], float]) -> None:
        meters.gauge("kafka.controller", "KafkaController", name, read)

    controller_gauge("ActiveControllerCount", lambda: quorum.is_leader)
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
        "current-leader": lambda: -1 if quorum.leader_id is None else quorum.leader_id,
        "current-epoch": lambda: quorum.epoch,
        "high-watermark": lambda: quorum.high_watermark,
    }.items():
        meters.gauge("kafka.server", "raft-metrics", name, read)


def health_checks(metadata: MetadataView, logs: LogManager) -> dict[str, HealthCheck]:
    """Return the health checks of the parts that every node has."""

    def quorum() -> str | None:
        seen = metadata.quorum
        if seen.leader_id is None:
            return seen.voice.no_leader(seen.now_ms) or "the metadata quorum has no leader"
        return seen.voice.no_leader(seen.now_ms)

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


def quorum_notice(metadata: MetadataView) -> str | None:
    """Return the problems that this node has with other nodes of the quorum, for example wrong settings; None
    if there are none."""
    quorum = metadata.quorum
    return "; ".join(quorum.voice.problems(quorum.now_ms)) or None
