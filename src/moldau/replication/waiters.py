"""The one waiting room: requests that wait until something happens to a partition.

A waiter names the partitions it cares about and a deadline. It is indexed by partition, so that an
append costs nothing where nobody waits and touches only those who do.

Deadlines are kept in ticks: whoever waits long for nothing may wait a little longer (6 % at most), together
with others. Then one timer serves them all, and their answers leave in one turn of the loop. What a waiter
waits for wakes it at once.
"""

import asyncio
from collections.abc import Hashable, Iterable
from math import ceil
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

LONG_WAIT_S: Final = 0.5
LONG_TICK_S: Final = 1 / 32
SHORT_TICK_S: Final = 1 / 1024
"""Ticks of long waits are ticks of short ones too, and exact as floats."""


class Waiter(Generic[K]):
    """One waiting request: done when woken, or when its time is up."""

    __slots__ = ("_due", "_places", "_room", "future")

    def __init__(
        self,
        room: "WaitingRoom[K]",
        places: "list[dict[Waiter[K], None]]",
        due: float,
        future: "asyncio.Future[bool]",
    ) -> None:
        self._room: WaitingRoom[K] | None = room
        self._places = places
        self._due = due
        self.future = future
        """Result: ``True`` when woken by one of the keys, ``False`` when the time was up."""

    def finish(self, woken: bool) -> None:
        """Leave the room; harmless when it was left before."""
        room, self._room = self._room, None
        if room is not None:
            room._forget(self, self._places, self._due)
            if not self.future.done():
                self.future.set_result(woken)


class _Tick(Generic[K]):
    """Everyone whose time is up at one moment."""

    __slots__ = ("timer", "waiters")

    def __init__(self, timer: asyncio.TimerHandle) -> None:
        self.timer = timer
        self.waiters: dict[Waiter[K], None] = {}


class WaitingRoom(Generic[K]):
    """All waiters of a node, by key."""

    def __init__(self) -> None:
        self._by_key: dict[K, dict[Waiter[K], None]] = {}
        self._ticks: dict[float, _Tick[K]] = {}
        self._count = 0
        self._known_loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The node's loop; kept, because asking for the running one costs a system call in Python 3.11."""
        loop = self._known_loop
        if loop is None:
            loop = self._known_loop = asyncio.get_running_loop()
        return loop

    def due(self, timeout_s: float) -> float:
        """The moment, in the loop's time, at which a wait that begins now ends."""
        tick_s = LONG_TICK_S if timeout_s >= LONG_WAIT_S else SHORT_TICK_S
        return ceil((self.loop.time() + timeout_s) / tick_s) * tick_s

    def wait(self, keys: Iterable[K], timeout_s: float) -> Waiter[K]:
        """Wait for :meth:`notify` of any of ``keys``, ``timeout_s`` seconds and up to a tick more."""
        return self.wait_until(keys, self.due(timeout_s))

    def wait_until(self, keys: Iterable[K], due: float) -> Waiter[K]:
        """As :meth:`wait`, until a moment that :meth:`due` gave; at once over when it has passed."""
        loop = self.loop
        by_key = self._by_key
        places: list[dict[Waiter[K], None]] = []
        waiter = Waiter(self, places, due, loop.create_future())
        for key in keys:
            place = by_key.get(key)
            if place is None:
                place = by_key[key] = {}
            place[waiter] = None
            places.append(place)
        tick = self._ticks.get(due)
        if tick is None:
            tick = self._ticks[due] = _Tick(loop.call_at(due, self._time_is_up, due))
        tick.waiters[waiter] = None
        self._count += 1
        return waiter

    def _time_is_up(self, due: float) -> None:
        for waiter in tuple(self._ticks[due].waiters):
            waiter.finish(False)

    def notify(self, key: K) -> None:
        """Wake everyone who waits for ``key``."""
        if not self._count:
            return  # nobody waits at all: spare the hash of a key, for every append comes by here
        place = self._by_key.get(key)
        if place:
            for waiter in tuple(place):
                waiter.finish(True)

    def release_all(self) -> None:
        """Send everyone away as if their time were up: the node stops."""
        for tick in list(self._ticks.values()):
            for waiter in tuple(tick.waiters):
                waiter.finish(False)

    def _forget(self, waiter: Waiter[K], places: list[dict[Waiter[K], None]], due: float) -> None:
        for place in places:
            place.pop(waiter, None)  # a key may be named twice
        tick = self._ticks[due]
        del tick.waiters[waiter]
        if not tick.waiters:
            tick.timer.cancel()
            del self._ticks[due]
        self._count -= 1
        if not self._count:
            # Places stay while somebody waits, for to hash a key is slow; here they go, with deleted topics.
            self._by_key.clear()
