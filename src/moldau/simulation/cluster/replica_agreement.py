"""Checkers of replicated logs, for scenarios of several nodes. They compare the replicas' reports as they
arrive.

Each checker is for a single log. The checkers do not depend on the quorum, and work for any log with offsets,
epochs and a watermark.

- :class:`LogAgreement`: every replica has the same batches below the watermark, and applies each of them
  once.
- :class:`LeaderAgreement`: an epoch has at most one leader.
- :class:`WatermarkMonotonicity`: a replica's watermark does not go back while the replica is open, and a new
  leader does not return a lower watermark than its predecessors.
- :class:`StateAgreement`: replicas that have applied the log up to the same offset have the same state. It
  does not matter whether a replica led, followed, rebuilt the state from the log, or loaded the state from a
  snapshot.
"""

import zlib
from collections import OrderedDict
from typing import Any, Final, NamedTuple

from moldau.records.batch import iter_headers
from moldau.simulation.history import History

STATES_KEPT: Final = 400
"""Number of offsets whose states are kept. If the state at the offset of a replica is no longer kept, the
replica's state is not compared."""


class Batch(NamedTuple):
    """A committed batch, without its bytes."""

    last_offset: int
    epoch: int
    checksum: int


class LogAgreement:
    """Checks that all replicas have committed the same batches."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._batches: dict[int, Batch] = {}
        self._end_offsets: dict[str, int] = {}

    def restored(self, replica: str, end_offset: int) -> None:
        """Record that a replica has loaded a snapshot of everything before ``end_offset``."""
        self._end_offsets[replica] = end_offset

    def committed(self, replica: str, base_offset: int, end_offset: int, views: list[memoryview]) -> None:
        """Compare the batches that a replica has applied with the batches of other replicas. A ``replica`` is
        a process of a node."""
        applied_offset = self._end_offsets.get(replica, 0)
        if base_offset < applied_offset:
            self._history.violate(f"{replica} has applied {base_offset} after {applied_offset}")
        self._end_offsets[replica] = end_offset
        for view in views:
            for position, header in iter_headers(view):
                content = view[position : position + header.size_bytes]
                batch = Batch(header.last_offset, header.partition_leader_epoch, zlib.crc32(content))
                self._compare(replica, header.base_offset, batch)

    def _compare(self, replica: str, base_offset: int, batch: Batch) -> None:
        known = self._batches.setdefault(base_offset, batch)
        if known != batch:
            self._history.violate(
                f"{replica} has committed {batch} at {base_offset}, another replica {known}: logs disagree"
            )


class LeaderAgreement:
    """Checks that all replicas report the same leader for an epoch."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._leaders: dict[int, int] = {}

    def led(self, replica: str, epoch: int, leader_id: int) -> None:
        """Compare the leader of an epoch, as a replica reports it, with the earlier reports."""
        known = self._leaders.setdefault(epoch, leader_id)
        if known != leader_id:
            self._history.violate(f"{replica}: epoch {epoch} is led by {leader_id} and by {known}")


class WatermarkMonotonicity:
    """Checks that high watermarks do not go back: the watermark of each replica, and the watermarks that
    leaders return, in the order of the leaders' epochs."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._of_replicas: dict[str, int] = {}
        self._of_leaders: dict[int, int] = {}

    def seen(self, replica: str, watermark: int) -> None:
        """Check the watermark of a replica against its earlier watermarks. A ``replica`` is a process of a
        node."""
        known = self._of_replicas.get(replica, 0)
        if watermark < known:
            self._history.violate(f"{replica}: the watermark went back from {known} to {watermark}")
        self._of_replicas[replica] = max(known, watermark)

    def answered(self, epoch: int, watermark: int) -> None:
        """Check the watermark in a response of the leader of an epoch. The leader must already have a
        watermark in its epoch."""
        before = max((told for led, told in self._of_leaders.items() if led <= epoch), default=0)
        if watermark < before:
            self._history.violate(
                f"the leader of epoch {epoch} answers with {watermark}: the watermark went back from {before}"
            )
        self._of_leaders[epoch] = max(self._of_leaders.get(epoch, 0), watermark)


class StateAgreement:
    """Checks that all replicas have equal states at the same offset. States are compared by ``==``."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._states: OrderedDict[int, tuple[str, Any]] = OrderedDict()

    def reached(self, replica: str, offset: int, state: Any) -> None:
        """Compare the state of a replica with the states of other replicas. The replica has applied
        everything up to ``offset``, and nothing after it."""
        other, known = self._states.setdefault(offset, (replica, state))
        if known != state:
            self._history.violate(f"{replica} and {other} disagree: their states at {offset} are not equal")
        while len(self._states) > STATES_KEPT:
            self._states.popitem(last=False)

    def decides_on(self, replica: str, led: Any, applied: Any) -> None:
        """Check the state from which a leader makes decisions. It must be the state that follows from the
        leader's committed log."""
        if led != applied:
            self._history.violate(f"{replica} decides on a state that its log disagrees with")
