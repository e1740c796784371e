"""Delays deletions of shared data after a start that truncated a log. After such a start the metadata may
lack records, so existing topics may look deleted."""

import asyncio
import logging

from moldau.storage.critical_logs.recovery_report import RecoveryReport

logger = logging.getLogger(__name__)


class DeletionHold:
    """Blocks deletions of shared data (objects or remote segments) if the start of the node has truncated a
    log. The block lasts for ``hold_ms`` after the construction of this object.

    Create it on the event loop, after all logs were opened.
    """

    def __init__(self, report: RecoveryReport, hold_ms: int, what: str) -> None:
        """``what`` is a plural noun for log lines. It names the data whose deletion is blocked."""
        self._ends_at_s = 0.0
        if report.has_cut:
            self._ends_at_s = asyncio.get_running_loop().time() + hold_ms / 1000
            held_s = hold_ms // 1000
            logger.warning("a log was truncated at this start: no %s are deleted for %d s", what, held_s)

    def is_on(self) -> bool:
        return bool(self._ends_at_s) and asyncio.get_running_loop().time() < self._ends_at_s
