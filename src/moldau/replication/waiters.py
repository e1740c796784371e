"""The one waiting room: requests that wait until something happens to a partition.

A waiter names the partitions it cares about and a deadline. It is indexed by partition, so that an
append costs nothing where nobody waits and touches only those who do.
"""

import asyncio
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Waiter(Generic[K]):
    """One waiting request: done when woken, or when its time is up."""

    __slots__ = ("_keys", "_room", "_timer", "future")

    def __init__(self, room: "WaitingRoom[K]", keys: tuple[K, ...], future: "asyncio.Future[bool]") -> None:
        self._room = room
        self._keys = keys
        self._timer: asyncio.TimerHandle | None = None
        self.future = future
        """Result: ``True`` when woken by one of the keys, ``False`` when the time was up."""

    def finish(self, woken: bool) -> None:
        """Leave the room; harmless when it was left before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._room._forget(self, self._keys)
        self._keys = ()
        if not self.future.done():
            self.future.set_result(woken)


class WaitingRoom(Generic[K]):
    """All waiters of a node, by key."""

    def __init__(self) -> None:
        self._by_key: dict[K, dict[Waiter[K], None]] = {}

    def __len__(self) -> int:
        return len({waiter for waiters in self._by_key.values() for waiter in waiters})

    def wait(self, keys: Iterable[K], timeout_s: float) -> Waiter[K]:
        """Wait for :meth:`notify` of any of ``keys``, at most ``timeout_s`` seconds."""
        loop = asyncio.get_running_loop()
        waiter = Waiter(self, tuple(keys), loop.create_future())
        for key in waiter._keys:
            self._by_key.setdefault(key, {})[waiter] = None
        waiter._timer = loop.call_later(timeout_s, waiter.finish, False)
        return waiter

    def notify(self, key: K) -> None:
        """Wake everyone who waits for ``key``."""
        if not self._by_key:
            return  # nobody waits at all: spare the hash of a key, for every append comes by here
        waiters = self._by_key.get(key)
        if waiters:
            for waiter in tuple(waiters):
                waiter.finish(True)

    def release_all(self) -> None:
        """Send everyone away as if their time were up: the node stops."""
        for waiters in list(self._by_key.values()):
            for waiter in tuple(waiters):
                waiter.finish(False)

    def _forget(self, waiter: Waiter[K], keys: tuple[K, ...]) -> None:
        for key in keys:
            waiters = self._by_key.get(key)
            if waiters is not None:
                waiters.pop(waiter, None)
                if not waiters:
                    del self._by_key[key]
