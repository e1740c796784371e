"""Repairs made at the start of a node: truncated logs, missing segments, rebuilt files.

Each repair is logged when it is made, counted by its kind, and kept for the health page. A log whose loss
would delete or hide other data is never truncated, except for an incomplete last batch: see
:mod:`moldau.storage.critical_logs.integrity_check`.
"""

import enum
import logging
import threading
from dataclasses import dataclass, replace
from typing import Final

__all__ = ["RecoveryReport", "Repair", "RepairKind"]

logger = logging.getLogger(__name__)

_KEPT_MAX: Final = 1_000
_SHOWN_MAX: Final = 3


class RepairKind(enum.Enum):
    """The severity of a repair."""

    REBUILT = "rebuilt"
    """A file that can be computed from other files was missing or unreadable. Nothing is lost."""
    TORN_TAIL = "torn tail"
    """The last batch of a log was incomplete. This can happen in a crash."""
    LOST = "lost"
    """Records of the log are lost. There were valid batches after a damaged batch, or whole files are
    missing."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One repair. ``offset`` is the first offset that the log no longer contains. It is -1 when no record is
    affected."""

    kind: RepairKind
    path: str
    reason: str
    offset: int = -1
    size_bytes: int = 0

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class RecoveryReport:
    """The repairs of one start of the node. Several threads that open logs may add repairs."""

    is_of_cache = False
    """Whether the report is for a log whose records also exist in another place, for example in the object
    store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.repairs: list[Repair] = []
        """The first repairs, up to a limit."""
        self._counts = dict.fromkeys(RepairKind, 0)

    def add(self, repair: Repair, *, is_of_cache: bool = False) -> None:
        """Store a repair and log it."""
        with self._lock:
            self._counts[repair.kind] += 1
            if len(self.repairs) < _KEPT_MAX:
                self.repairs.append(repair)
        level = logging.ERROR if repair.kind is RepairKind.LOST else logging.WARNING
        logger.log(logging.INFO if is_of_cache else level, "%s: %s", repair.path, repair.reason)

    def of_cache(self) -> "RecoveryReport":
        """Return a report for a log whose records also exist in another place, so that repairs of the log
        lose nothing."""
        return _CacheReport(self)

    def count(self, kind: RepairKind) -> int:
        """The number of repairs of a kind."""
        return self._counts[kind]

    @property
    def has_cut(self) -> bool:
        """Whether any log now ends earlier, or contains less, than before the start."""
        return self._counts[RepairKind.TORN_TAIL] > 0 or self._counts[RepairKind.LOST] > 0

    def summary(self, *kinds: RepairKind) -> str | None:
        """Return the repairs of some kinds in one sentence; ``None`` when there were no such repairs."""
        found = [repair for repair in self.repairs if repair.kind in kinds]
        count = sum(self._counts[kind] for kind in kinds)
        if not count:
            return None
        shown = "; ".join(map(str, found[:_SHOWN_MAX]))
        return shown if count <= _SHOWN_MAX else f"{shown}; and {count - min(_SHOWN_MAX, len(found))} more"


class _CacheReport(RecoveryReport):
    is_of_cache = True

    def __init__(self, report: RecoveryReport) -> None:
        super().__init__()
        self._report = report

    def add(self, repair: Repair, *, is_of_cache: bool = True) -> None:
        self._report.add(replace(repair, kind=RepairKind.REBUILT), is_of_cache=is_of_cache)
