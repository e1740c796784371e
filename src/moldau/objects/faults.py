"""Injected latency and faults of an object store. They are used in tests, in the simulation and in
benchmarks."""

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field

from moldau.objects.storage import (
    ObjectInfo,
    ObjectStorage,
    StorageError,
    StorageTimeoutError,
    ThrottledError,
)
from moldau.runtime import Entropy
from moldau.runtime.buffers import Buffer

__all__ = ["S3_LATENCY", "FaultyStorage", "Latency", "StorageWeather"]

_P99_SIGMAS = 2.3263478740408408


@dataclass(frozen=True, slots=True)
class Latency:
    """A log-normal distribution of times. It is defined by two of its percentiles, in milliseconds."""

    p50_ms: float = 0.0
    p99_ms: float = 0.0

    def draw_ms(self, entropy: Entropy) -> float:
        if self.p50_ms <= 0:
            return 0.0
        sigma = math.log(max(1.0, self.p99_ms / self.p50_ms)) / _P99_SIGMAS
        # The Box-Muller transform from two uniform numbers to a normal number. The number 0 has no logarithm.
        radius = math.sqrt(-2.0 * math.log(1.0 - entropy.uniform(0.0, 0.9999999)))
        normal = radius * math.cos(2.0 * math.pi * entropy.uniform(0.0, 1.0))
        return self.p50_ms * math.exp(sigma * normal)


S3_LATENCY = Latency(100.0, 300.0)
"""Latency of S3 Standard for an 8 MiB PUT, or a GET of a cold object."""


@dataclass(slots=True)
class StorageWeather:
    """Faults and latency of the next requests. Probabilities are between 0 and 1. They may be changed at any
    time."""

    put_latency: Latency = field(default_factory=Latency)
    get_latency: Latency = field(default_factory=Latency)
    throttled_chance: float = 0.0
    failed_chance: float = 0.0
    """Probability of a server error before the request has an effect."""
    partial_read_chance: float = 0.0
    """Probability that a fetch ends in the middle with an error."""
    answer_lost_chance: float = 0.0
    """Probability that a request takes effect although its sender gets a time-out."""
    down: bool = False


class FaultyStorage:
    """An :class:`ObjectStorage` around another store, with injected faults and latency. By default there are
    no faults and no latency.

    With the same entropy and the same requests, the same faults are injected.
    """

    def __init__(
        self, storage: ObjectStorage, entropy: Entropy, weather: StorageWeather | None = None
    ) -> None:
        self._storage = storage
        self._entropy = entropy
        self.weather = weather or StorageWeather()

    async def upload(self, key: str, data: Buffer, length: int) -> None:
        await self._arrive(self.weather.put_latency)
        await self._storage.upload(key, data, length)
        self._answer()

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        await self._arrive(self.weather.get_latency)
        content = await self._storage.fetch(key, offset, size)
        if self._happens(self.weather.partial_read_chance):
            came = self._entropy.randrange(max(1, size))
            raise StorageError(f"{key}: the connection broke after {came} of {size} bytes")
        return content

    async def delete(self, keys: Collection[str]) -> None:
        await self._arrive(self.weather.get_latency)
        await self._storage.delete(keys)
        self._answer()

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        await self._arrive(self.weather.get_latency)
        async for page in self._storage.list(prefix, start_after=start_after):
            yield page
            await self._arrive(self.weather.get_latency)

    async def check(self) -> None:
        await self._arrive(self.weather.get_latency)
        await self._storage.check()

    async def close(self) -> None:
        await self._storage.close()

    def _happens(self, chance: float) -> bool:
        return chance > 0.0 and self._entropy.uniform(0.0, 1.0) < chance

    async def _arrive(self, latency: Latency) -> None:
        delay_ms = latency.draw_ms(self._entropy)
        if delay_ms > 0:
            await asyncio.sleep(delay_ms / 1000)
        weather = self.weather
        if weather.down:
            raise StorageError("503 the store is down")
        if self._happens(weather.throttled_chance):
            raise ThrottledError("503 SlowDown")
        if self._happens(weather.failed_chance):
            raise StorageError("500 internal error")

    def _answer(self) -> None:
        if self._happens(self.weather.answer_lost_chance):
            raise StorageTimeoutError("no answer in time")
