"""Counts the rounds in which all logs of the cluster are saved. Deletions on this broker wait for such
rounds.

A deletion may depend on records of several logs. It waits for the end of a round that began after these
records were written. The cut of that round contains these records, and all records on which they depend. This
broker does not know when a round begins on the broker that makes the cuts. It only receives that broker's
requests.
"""

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["SavedRounds"]


class _Seen(NamedTuple):
    """A request of a round: the name of the sender, and the number of rounds that the sender has
    completed."""

    maker: str
    complete: int


class _Wait:
    """A group of deletions that wait. All of them began to wait after the same request of the broker that
    makes the cuts, and before the next request.
    """

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.first: _Seen | None = None
        """The first request after this wait began. If another sender sends requests later, it is the first
        request of that sender. The round of the request may have begun before this wait began.
        """
        self.is_over = False

    def see(self, seen: _Seen) -> None:
        first = self.first
        if first is None or first.maker != seen.maker:
            self.first = seen
        else:
            # The round of the first request and the next round are complete. The next round began after the
            # deletion began to wait.
            self.is_over = seen.complete >= first.complete + 2


class SavedRounds:
    """Counts the completed rounds for deletions that wait. The broker that makes the cuts sends the number of
    completed rounds to this broker.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        """``now_s`` is a monotonic clock."""
        self._now_s = now_s
        self._waits: list[_Wait] = []

    def see(self, maker: str, complete: int) -> None:
        """Process a request of a ``maker`` that has completed ``complete`` rounds. The name ``maker`` is
        unique: the sender takes another name whenever it counts from 0 again."""
        for wait in self._waits:
            wait.see(_Seen(maker, complete))
        self._waits = [wait for wait in self._waits if not wait.is_over]

    def wait(self) -> Callable[[], bool]:
        """Begin to wait. The returned function returns whether all records that were committed at the time of
        this call are saved."""
        if not self._waits or self._waits[-1].first is not None:
            self._waits.append(_Wait(self._now_s()))
        wait = self._waits[-1]
        return lambda: wait.is_over

    @property
    def waiting_s(self) -> float:
        """Number of seconds that the oldest deletion has waited; 0 when no deletion waits."""
        return self._now_s() - self._waits[0].began_s if self._waits else 0.0
