"""Chance: identifiers, jitter and election time-outs, all from one seedable source."""

import random
import uuid
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


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
        """A new list with the same items in a random order."""
        ...


class SeededEntropy:
    """Entropy that repeats itself for the same seed."""

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
    """Entropy seeded by the operating system."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()
