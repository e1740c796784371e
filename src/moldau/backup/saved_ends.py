"""The end of the saved part of each log. Deletions wait for this end. Pure."""

from typing import NamedTuple

from moldau.backup.cut_format import LogId

__all__ = ["SavedEnds"]


class SavedEnds:
    """The ends of this broker's logs in the last complete cut, as the requests of the cut's maker contain
    them."""

    def __init__(self) -> None:
        self._ends: dict[LogId, _Ends] = {}

    def note(self, log_id: LogId, end_offset: int, rounds: int) -> None:
        """Record that the newest cut has all records of a log before ``end_offset``; -1 for no record.

        ``rounds`` is the number of times that the maker of the cut has saved all logs. The end moves back
        when a cut could not continue an earlier one.
        """
        known = self._ends.get(log_id, _Ends(-1, -1, 0))
        earlier = known.newest if rounds > 0 and rounds != known.rounds else known.earlier
        self._ends[log_id] = _Ends(min(earlier, end_offset), end_offset, rounds)

    def covers(self, log_id: LogId, end_offset: int) -> bool:
        """Whether the newest cut has all records of a log before ``end_offset``. If so, it also has all
        records of other logs that led to these records."""
        known = self._ends.get(log_id)
        return known is not None and known.earlier >= end_offset


class _Ends(NamedTuple):
    earlier: int
    """The end in a cut that was complete before the newest cut began. The newest cut therefore also has all
    records of the other logs that led to these records. This is not true for ``newest``, because the logs of
    one step are read in no fixed order."""
    newest: int
    rounds: int
