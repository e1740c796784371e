"""For each log, the end offset of its saved part. A deletion waits until this end includes the records on
which the deletion depends. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

from moldau.protocol.partitions import PartitionKey

__all__ = ["SavedEnds"]


class SavedEnds:
    """For each log of this broker, the end of the part that is in the last complete cut. The ends come from
    the requests of the broker that makes the cuts."""

    def __init__(self) -> None:
        self._ends: dict[PartitionKey, _Ends] = {}

    def note(self, log_id: PartitionKey, end_offset: int, rounds: int) -> None:
        """Record that the newest cut has all records of a log before ``end_offset``. The value -1 means that
        the cut has no record of the log.

        One broker makes the cuts and saves all logs in rounds. ``rounds`` is the number of rounds that it has
        completed. The saved end of a log becomes lower than before if the newest cut could not continue the
        cut before it.
        """
        known = self._ends.get(log_id, _Ends(-1, -1, 0))
        earlier = known.newest if rounds > 0 and rounds != known.rounds else known.earlier
        self._ends[log_id] = _Ends(min(earlier, end_offset), end_offset, rounds)

    def newest(self) -> Iterator[tuple[PartitionKey, int]]:
        """Each log, with its end in the newest cut; -1 if the cut has no record of the log."""
        return ((log_id, ends.newest) for log_id, ends in self._ends.items())

    def covers(self, log_id: PartitionKey, end_offset: int) -> bool:
        """Whether the newest cut has all records of a log before ``end_offset``. If so, the cut also has all
        records of other logs on which these records depend."""
        known = self._ends.get(log_id)
        return known is not None and known.earlier >= end_offset


class _Ends(NamedTuple):
    earlier: int
    """The end in a cut that was complete before the newest cut began. The newest cut therefore also has all
    records of the other logs on which the records before this end depend. The field ``newest`` does not
    guarantee this, because the logs that one step of a cut saves are read in no fixed order."""
    newest: int
    rounds: int
