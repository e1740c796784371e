"""An object store in memory. It has the latency and the failures of a real store, in virtual time.

Its four calls are the calls of a store's server. The client's side is in ``object_storage``. The store
belongs to no host and survives every crash.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


class ObjectStoreError(Exception):
    """The store refused the request or did not respond. ``retriable`` is false when the same request would
    fail again."""

    def __init__(self, message: str, *, retriable: bool = True) -> None:
        super().__init__(message)
        self.retriable = retriable


class NoSuchObjectError(ObjectStoreError):
    """The store has no object with the requested key."""

    def __init__(self, key: str) -> None:
        super().__init__(f"no object {key}", retriable=False)
        self.key = key


class SlowDownError(ObjectStoreError):
    """The store asks the client to send fewer requests."""


class NoAnswerError(ObjectStoreError):
    """The client gets no answer from the store, so it is unknown whether the request took effect."""


@dataclass(slots=True)
class StoreWeather:
    """Probabilities in [0, 1] that a request fails or is slow. They may be changed at any time."""

    slow_chance: float = 0.02
    throttled_chance: float = 0.0
    partial_read_chance: float = 0.0
    """Probability that a read ends before all of its bytes were sent."""
    answer_lost_chance: float = 0.0
    """Probability that the request takes effect but its sender gets no response."""
    down: bool = False

    @classmethod
    def bad(cls, chance: random.Random, *, down: bool) -> "StoreWeather":
        """Probabilities of failures for bad weather. For each kind of failure, ``chance`` chooses one of a
        few probabilities."""
        return cls(
            slow_chance=chance.choice((0.02, 0.5)),
            throttled_chance=chance.choice((0.0, 0.1, 0.6)),
            partial_read_chance=chance.choice((0.0, 0.3)),
            answer_lost_chance=chance.choice((0.0, 0.1, 0.4)),
            down=down,
        )


@dataclass(slots=True)
class StoreCounts:
    """The number of requests that a provider would bill."""

    puts: int = 0
    gets: int = 0
    deletes: int = 0
    lists: int = 0
    gets_of: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of GETs, by the host that sent them and by the object's key."""


class SimulatedObjectStore:
    """Objects by key, shared by every host of a world."""

    def __init__(
        self,
        chance: random.Random,
        now_ms: Callable[[], int],
        *,
        latency_s: float = 0.02,
        slow_factor: float = 20.0,
        time_limit_s: float = 10.0,
    ) -> None:
        self.weather = StoreWeather()
        self.counts = StoreCounts()
        self.objects: dict[str, bytes] = {}
        self.created_ms: dict[str, int] = {}
        self.on_event: Callable[[str], None] = lambda _event: None
        self._chance = chance
        self._now_ms = now_ms
        self._latency_s = latency_s
        self._slow_factor = slow_factor
        self._time_limit_s = time_limit_s

    async def put(self, key: str, data: bytes | memoryview) -> None:
        """Store a whole object. The content of ``data`` at the time of its arrival is used. A second put of a
        key replaces the object."""
        await self._arrive()
        self.counts.puts += 1
        self.objects[key] = bytes(data)
        self.on_event(f"put {key} {len(data)}")
        self.created_ms[key] = self._now_ms()
        await self._answer()

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Bytes of an object. If the object ends earlier, fewer bytes are returned. Raises
        NoSuchObjectError."""
        await self._arrive()
        self.counts.gets += 1
        content = self.objects.get(key)
        await self._answer(lossy=False)
        if content is None:
            raise NoSuchObjectError(key)
        found = content[offset : offset + length]
        if found and self._chance.random() < self.weather.partial_read_chance:
            raise ObjectStoreError(f"{key}: broke off after {self._chance.randrange(len(found))} bytes")
        return found

    async def delete(self, keys: Iterable[str]) -> None:
        """Remove objects. If an object does not exist, this is no error."""
        doomed = list(keys)
        await self._arrive()
        self.counts.deletes += 1
        self.on_event(f"delete {' '.join(doomed)}")
        for key in doomed:
            self.objects.pop(key, None)
            self.created_ms.pop(key, None)
        await self._answer()

    async def list(
        self, prefix: str, start_after: str = "", limit: int = 1_000
    ) -> list[tuple[str, int, int]]:
        """List the objects whose keys have this prefix, in order. An entry has the key, the size in bytes,
        and the creation time in ms since the epoch."""
        await self._arrive()
        self.counts.lists += 1
        keys = [key for key in sorted(self.objects) if key.startswith(prefix) and key > start_after]
        found = [(key, len(self.objects[key]), self.created_ms[key]) for key in keys[:limit]]
        await self._answer(lossy=False)
        return found

    async def _arrive(self) -> None:
        await asyncio.sleep(self._delay_s())
        if self.weather.down:
            await asyncio.sleep(self._chance.uniform(0.0, self._time_limit_s))
            raise ObjectStoreError("503 the store is down")
        if self._chance.random() < self.weather.throttled_chance:
            raise SlowDownError("503 slow down")

    async def _answer(self, *, lossy: bool = True) -> None:
        await asyncio.sleep(self._delay_s())
        if lossy and self._chance.random() < self.weather.answer_lost_chance:
            await asyncio.sleep(self._time_limit_s)
            raise NoAnswerError("no answer in time")

    def _delay_s(self) -> float:
        slow = self._chance.random() < self.weather.slow_chance
        return self._chance.expovariate(1.0) * self._latency_s / 2 * (self._slow_factor if slow else 1.0)
