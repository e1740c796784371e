"""How much of each log is saved: deletions wait for it. Pure."""

from typing import NamedTuple

from moldau.backup.cut import LogId

__all__ = ["SavedEnds"]


class SavedEnds:
    """The ends of this broker's logs in the last complete cut, as requests of the cut's maker tell them."""

    def __init__(self) -> None:
        self._ends: dict[LogId, _Ends] = {}

    def note(self, log_id: LogId, end_offset: int, rounds: int) -> None:
        """Note that the newest cut has all records of a log before ``end_offset``; -1 for no record.

        ``rounds`` is the number of times that the maker of the cut has saved all logs. The end moves back
        when a cut could not continue an earlier one.
        """
        known = self._ends.get(log_id, _Ends(-1, -1, 0))
        earlier = known.newest if rounds > 0 and rounds != known.rounds else known.earlier
        self._ends[log_id] = _Ends(min(earlier, end_offset), end_offset, rounds)

    def covers(self, log_id: LogId, end_offset: int) -> bool:
        """Whether the newest cut has all records of a log before ``end_offset``, and everything in the other
        logs that led to these records.
        """
        known = self._ends.get(log_id)
        return known is not None and known.earlier >= end_offset


class _Ends(NamedTuple):
    earlier: int
    """A cut had this end before the newest one was begun. A later cut has the other logs at least as far:
    the logs of one step are read at about the same time, in no order.
    """
    newest: int
    rounds: int
