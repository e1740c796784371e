"""The rounds in which all logs of the cluster are saved, as a broker learns of them. Deletions wait for them.

A deletion that follows from a record of any log, or from several, waits until a round that began after the
record was written is complete: the cut of that round has the record, and everything that led to it. No broker
knows when the maker of cuts begins a round; it only sees the requests of rounds.
"""

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["SavedRounds"]


class _Seen(NamedTuple):
    """A request of a round: the maker of cuts, and the number of its complete rounds."""

    maker: str
    complete: int


class _Wait:
    """Deletions that began to wait between two requests."""

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.first: _Seen | None = None
        """The first request since then. Its round may have begun earlier."""
        self.is_over = False

    def see(self, seen: _Seen) -> None:
        first = self.first
        if first is None or first.maker != seen.maker:
            self.first = seen
        else:
            # The round of the first request and the one after it are complete. The latter began in time.
            self.is_over = seen.complete >= first.complete + 2


class SavedRounds:
    """The rounds of saves that the maker reports to this broker."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """``now_s`` is a monotonic clock."""
        self._now_s = now_s
        self._waits: list[_Wait] = []

    def see(self, maker: str, complete: int) -> None:
        """Note a request of a maker that has completed this number of rounds. ``maker`` is unique: a maker
        that begins to count anew has another name.
        """
        for wait in self._waits:
            wait.see(_Seen(maker, complete))
        self._waits = [wait for wait in self._waits if not wait.is_over]

    def wait(self) -> Callable[[], bool]:
        """Begin to wait. The result returns whether all records that are committed now are saved."""
        if not self._waits or self._waits[-1].first is not None:
            self._waits.append(_Wait(self._now_s()))
        wait = self._waits[-1]
        return lambda: wait.is_over

    @property
    def waiting_s(self) -> float:
        """For how long the oldest deletion has waited; 0 when none waits."""
        return self._now_s() - self._waits[0].began_s if self._waits else 0.0
