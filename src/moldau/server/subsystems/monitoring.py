"""A node's pages for operators: ``/metrics`` and ``/health``."""

from functools import partial

from moldau.server.bound_listeners import PAGES
from moldau.server.context import NodeContext
from moldau.server.extensions import Extensions
from moldau.server.observing.health_and_metrics import Monitoring, health_checks, quorum_notice, watch_cluster
from moldau.server.subsystem import Contribution, Subsystem
from moldau.storage.critical_logs.recovery_report import RepairKind


class MonitoringSubsystem(Subsystem):
    """Shows the health of every subsystem, on ``metrics.listener`` if it is set."""

    def __init__(self, context: NodeContext, extensions: Extensions) -> None:
        self._context = context
        watch_cluster(context.meters, context.metadata)
        listener = context.config.optional_text("metrics.listener")
        self._pages = (
            None
            if listener is None
            else Monitoring(listener, context.meters, extensions.checks, extensions.notices)
        )

    def contribution(self) -> Contribution:
        context = self._context
        torn = partial(context.logs.report.summary, RepairKind.TORN_TAIL, RepairKind.REBUILT)
        return Contribution(
            checks={
                **health_checks(context.metadata, context.logs),
                "errors": context.machine.unexpected.problem,
            },
            notices={
                "records": context.machine.unreadable.notice,
                "recovery": torn,
                "compaction": context.logs.cleaner.notice,
                "quorum": partial(quorum_notice, context.metadata),
            },
        )

    async def start(self) -> None:
        # The pages are served from this early step on. If the broker must wait for the metadata quorum later,
        # its health page can show this.
        if self._pages is not None:
            self._context.listeners.note(PAGES, "", await self._pages.start())

    async def drain(self) -> None:
        if self._pages is not None:
            await self._pages.stop()
