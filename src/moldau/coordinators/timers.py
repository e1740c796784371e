"""Named timers of one shard, by the event loop's clock."""

import asyncio
from collections.abc import Callable

from moldau.coordinators.effects import CancelTimer, SetTimer, TimerChange, TimerKey


class _Timer:
    __slots__ = ("due", "handle", "scheduled")

    def __init__(self, due: float, handle: asyncio.Handle) -> None:
        self.due = due
        # The scheduled time is stored here, because uvloop returns a handle without a time for a timer that
        # is due immediately.
        self.scheduled = due
        self.handle = handle


class ShardTimers:
    """Sets, moves and cancels timers.

    Heartbeats postpone the same timer very often. Therefore, if a timer is postponed, its handle in the event
    loop is not replaced. When the handle fires, the time of the timer is checked. If this time has not come
    yet, a new handle is made. So a heartbeat adds no entry to the heap of the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, fire: Callable[[TimerKey], None]) -> None:
        self._loop = loop
        self._fire = fire
        self._timers: dict[TimerKey, _Timer] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def apply(self, change: TimerChange) -> None:
        """Carry out a timer effect of the shard."""
        match change:
            case SetTimer(key, after_ms):
                self._set(key, self._loop.time() + after_ms / 1000)
            case CancelTimer(key):
                timer = self._timers.pop(key, None)
                if timer is not None:
                    timer.handle.cancel()

    def clear(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.handle.cancel()
        self._timers.clear()

    def _set(self, key: TimerKey, due: float) -> None:
        timer = self._timers.get(key)
        if timer is None:
            self._timers[key] = _Timer(due, self._loop.call_at(due, self._due, key))
        elif due >= timer.scheduled:
            timer.due = due
        else:
            timer.handle.cancel()
            timer.due = timer.scheduled = due
            timer.handle = self._loop.call_at(due, self._due, key)

    def _due(self, key: TimerKey) -> None:
        timer = self._timers[key]
        # The loop may run a handle slightly too early, by up to the resolution of the loop's clock. The
        # comparison allows for this.
        if timer.due > timer.scheduled:
            timer.scheduled = timer.due
            timer.handle = self._loop.call_at(timer.due, self._due, key)
            return
        del self._timers[key]
        self._fire(key)
