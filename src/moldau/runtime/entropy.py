"""Randomness: identifiers, jitter and election time-outs. All of them come from one source that can be
seeded."""

import os
import random
import uuid
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

T = TypeVar("T")

_UUID_BYTES: Final = 16
_UUIDS_PER_READ: Final = 256


class Entropy(Protocol):
    """A source of random values."""

    def uuid4(self) -> uuid.UUID:
        """A random (version 4) UUID."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """A float in ``[low, high]``."""
        ...

    def randrange(self, stop: int) -> int:
        """An integer in ``[0, stop)``."""
        ...

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return a new list with the same items in a random order."""
        ...


class SeededEntropy:
    """Entropy that returns the same values for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def shuffled(self, items: Sequence[T]) -> list[T]:
        return self._random.sample(items, len(items))


class SystemEntropy(SeededEntropy):
    """Entropy that comes from the operating system. UUIDs are read from the operating system directly. All
    other values come from a generator whose seed the operating system provides.

    One read is made for many UUIDs, because a read releases the interpreter lock for a moment. Creating 1,000
    topics takes 3,000 values. If a worker read the entropy for each value, it would release the lock each
    time, but too briefly: the event loop would wake up each time and not get the lock. In a measurement with
    one read for each value, the event loop was blocked for 0.4 s.
    """

    def __init__(self) -> None:
        self._random = random.Random()
        self._random_bytes: list[bytes] = []
        """Random bytes of the next UUIDs. Threads share them: only ``pop`` and ``extend`` are used, which are
        atomic.
        """

    def uuid4(self) -> uuid.UUID:
        try:
            random_bytes = self._random_bytes.pop()
        except IndexError:
            block = os.urandom(_UUID_BYTES * _UUIDS_PER_READ)
            parts = [block[at : at + _UUID_BYTES] for at in range(0, len(block), _UUID_BYTES)]
            random_bytes = parts.pop()
            self._random_bytes.extend(parts)
        return uuid.UUID(bytes=random_bytes, version=4)
