"""Requests that wait for a change of a partition.

A waiter has partitions and a deadline. Waiters are indexed by partition. Therefore an append to a partition
without waiters needs almost no time in this module. Any other append wakes only the waiters of its partition.

Deadlines are rounded up to ticks. This makes a wait of half a second or more at most 6 % longer, and a
shorter wait about 1 ms longer. Many waiters then share a timer, and their responses are sent in one iteration
of the event loop. A change of a partition wakes the partition's waiters immediately.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable
from math import ceil
from typing import Final, Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)

LONG_WAIT_S: Final = 0.5
LONG_TICK_S: Final = 1 / 32
SHORT_TICK_S: Final = 1 / 1024
"""Time between two ticks of short waits. :data:`LONG_TICK_S` is a multiple of this time. Both tick times are
exact as floats."""


class Expiring(Protocol):
    """A wait that ends at a deadline."""

    def expire(self) -> None:
        """Called at most once, when the deadline has passed. It must not raise."""
        ...


class Deadlines:
    """The deadlines of all waits of a node. Each tick has one timer."""

    def __init__(self) -> None:
        self._ticks: dict[float, tuple[asyncio.TimerHandle, dict[Expiring, None]]] = {}
        self._is_stopped = False
        self._known_loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the node. It is stored, because getting the running loop costs a system call
        in Python 3.11."""
        loop = self._known_loop
        if loop is None:
            loop = self._known_loop = asyncio.get_running_loop()
        return loop

    def due(self, timeout_s: float) -> float:
        """The end of a wait that begins now, as a time of the event loop's clock."""
        tick_s = LONG_TICK_S if timeout_s >= LONG_WAIT_S else SHORT_TICK_S
        return ceil((self.loop.time() + timeout_s) / tick_s) * tick_s

    def add(self, due: float, wait: Expiring) -> float:
        """Let a wait expire at a time that :meth:`due` returned. If that time has passed, or after
        :meth:`stop`, the wait expires immediately. Returns the time for :meth:`remove`."""
        if self._is_stopped:
            due = 0.0
        tick = self._ticks.get(due)
        if tick is None:
            tick = self._ticks[due] = (self.loop.call_at(due, self._time_is_up, due), {})
        tick[1][wait] = None
        return due

    def remove(self, due: float, wait: Expiring) -> None:
        """Remove a wait that ended before its deadline."""
        timer, waits = self._ticks[due]
        del waits[wait]
        if not waits:
            timer.cancel()
            del self._ticks[due]

    def stop(self) -> None:
        """Expire all waits now, and all later waits immediately."""
        self._is_stopped = True
        for due in list(self._ticks):
            self._time_is_up(due)

    def _time_is_up(self, due: float) -> None:
        timer, waits = self._ticks.pop(due)
        timer.cancel()
        for wait in waits:
            wait.expire()


class Waiter(Generic[K]):
    """One waiting request. Its wait ends when one of its keys is notified, or at its deadline."""

    __slots__ = ("_due", "_places", "_room")

    def __init__(self) -> None:
        self._room: WaitingRoom[K] | None = None
        self._places: list[dict[Waiter[K], None]] = []
        self._due: float | None = None

    def ended(self, woken: bool) -> None:
        """Called once at the end of each wait. ``woken`` is true when a key was notified, and false when the
        time was over. This method runs in the code that notifies, and must not raise."""
        raise NotImplementedError

    def add(self, keys: Iterable[K]) -> None:
        """Add keys to the keys of this wait. The call does nothing if the wait has ended."""
        if self._room is not None:
            self._room._enter(self, keys, self._places)

    def finish(self, woken: bool) -> None:
        """End the wait, if it has not ended yet. ``woken`` is the result."""
        room = self._room
        if room is not None:
            if self._due is not None:
                room.deadlines.remove(self._due, self)
            self._leave(room, woken)

    def expire(self) -> None:
        room = self._room
        if room is not None:
            self._leave(room, False)

    def _leave(self, room: "WaitingRoom[K]", woken: bool) -> None:
        self._room = None
        room._forget(self, self._places)
        self.ended(woken)


class FutureWaiter(Waiter[K]):
    """A waiter whose end completes a future."""

    __slots__ = ("future",)

    def __init__(self, future: "asyncio.Future[bool]") -> None:
        super().__init__()
        self.future = future
        """The result: ``True`` when one of the keys woke the waiter, ``False`` when the time was over."""

    def ended(self, woken: bool) -> None:
        if not self.future.done():
            self.future.set_result(woken)


class WaitingRoom(Generic[K]):
    """All waiters of a node, by key."""

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self._by_key: dict[K, dict[Waiter[K], None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the node."""
        return self.deadlines.loop

    def due(self, timeout_s: float) -> float:
        """The end of a wait that begins now, as a time of the event loop's clock."""
        return self.deadlines.due(timeout_s)

    def wait(self, keys: Iterable[K], timeout_s: float) -> FutureWaiter[K]:
        """Wait for :meth:`notify` of any of ``keys``, for ``timeout_s`` seconds plus at most one tick."""
        return self.wait_until(keys, self.due(timeout_s))

    def wait_until(self, keys: Iterable[K], due: float) -> FutureWaiter[K]:
        """Wait like :meth:`wait`, but until a time that :meth:`due` returned. The wait ends immediately when
        that time has passed."""
        waiter: FutureWaiter[K] = FutureWaiter(self.deadlines.loop.create_future())
        self.admit(waiter, keys, due)
        return waiter

    def admit(self, waiter: Waiter[K], keys: Iterable[K], due: float | None) -> None:
        """Begin a wait of ``waiter``, like :meth:`wait_until`, or a wait without a deadline. When the wait
        has ended, the same waiter may be admitted again."""
        places: list[dict[Waiter[K], None]] = []
        waiter._room, waiter._places = self, places
        self._enter(waiter, keys, places)
        waiter._due = None if due is None else self.deadlines.add(due, waiter)
        self._count += 1

    def _enter(self, waiter: Waiter[K], keys: Iterable[K], places: list[dict[Waiter[K], None]]) -> None:
        by_key = self._by_key
        for key in keys:
            place = by_key.get(key)
            if place is None:
                place = by_key[key] = {}
            place[waiter] = None
            places.append(place)

    def notify(self, key: K) -> None:
        """Wake all waiters for ``key``."""
        if not self._count:
            # Every append calls this method. Therefore the key is not hashed when there are no waiters.
            return
        place = self._by_key.get(key)
        if place:
            for waiter in tuple(place):
                waiter.finish(True)

    def notify_all(self) -> None:
        """Wake all waiters for all keys."""
        for key in tuple(self._by_key):
            self.notify(key)

    def release_all(self) -> None:
        """End all waits as if their deadlines had passed, because the node stops. Later waits end
        immediately."""
        self.deadlines.stop()

    def _forget(self, waiter: Waiter[K], places: list[dict[Waiter[K], None]]) -> None:
        for place in places:
            # If a key appeared twice in the arguments of the wait, ``places`` contains the dict of this key
            # twice.
            place.pop(waiter, None)
        self._count -= 1
        if not self._count:
            # Empty entries stay in the index while there are waiters, because hashing a key is slow. All
            # entries are removed here, including the entries of deleted topics.
            self._by_key.clear()


class WatermarkListeners:
    """Listeners to a partition's high watermark. They are the coordinators and standbys that use the
    partition."""

    __slots__ = ("all",)

    def __init__(self) -> None:
        self.all: tuple[Callable[[int], None], ...] = ()
        """Functions that are called with the watermark each time it moves."""

    def follow(self, listener: Callable[[int], None]) -> Callable[[], None]:
        """From now on, call ``listener`` each time the watermark moves, until the returned function is
        called."""
        self.all += (listener,)

        def end() -> None:
            self.all = tuple(each for each in self.all if each is not listener)

        return end
