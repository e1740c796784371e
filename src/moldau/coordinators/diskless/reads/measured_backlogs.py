"""The WAL backlogs of the coordinators that a broker leads, as of the last measurement."""

from collections.abc import Mapping

from moldau.coordinators.diskless.calls import Backlog


class MeasuredBacklogs:
    """The result of the last measurement. The responses to commits contain it, so that the committing brokers
    know it."""

    def __init__(self) -> None:
        self._size_bytes: dict[int, int] = {}

    def measured(self, backlogs: Mapping[int, Backlog]) -> Backlog:
        """Store the backlogs of all coordinators that this broker leads, and return their sum."""
        self._size_bytes = {coordinator_id: one.size_bytes for coordinator_id, one in backlogs.items()}
        ages = [one.oldest_created_ms for one in backlogs.values() if one.oldest_created_ms is not None]
        batches = sum(one.batches for one in backlogs.values())
        return Backlog(sum(self._size_bytes.values()), batches, min(ages, default=None))

    def size_bytes(self, coordinator_id: int) -> int:
        """The backlog of a coordinator; -1 if it was not measured. Backlogs are measured only if diskless
        records move to remote storage."""
        return self._size_bytes.get(coordinator_id, -1)
