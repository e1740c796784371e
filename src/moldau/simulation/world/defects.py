"""Ports that raise unexpected exceptions. A store's library, a plug-in or a thread with a defect could raise
such exceptions."""

import random
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from typing import TypeVar
from uuid import UUID

from moldau.runtime import Entropy

T = TypeVar("T")

_KEY_RANGE = 1 << 20
"""The random number in the name of a WAL object is below this number."""


class Defect(Exception):
    """An exception of an unexpected kind."""


class DefectPlace(Enum):
    """The places where an exception may be raised."""

    OBJECT_KEY = "object key"
    """The exception is raised while a WAL object is built from a closed buffer."""
    UPLOAD = "upload"
    FETCH = "fetch"
    SQLITE = "sqlite"
    WORKER = "worker"
    """The exception is raised while the broker's own commits are written into the cache."""


class Defects:
    """The injected exceptions of a host. By default no exceptions are injected."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.chances: dict[DefectPlace, float] = {}
        self.met: Counter[DefectPlace] = Counter()

    def is_due(self, place: DefectPlace) -> bool:
        chance = self.chances.get(place, 0.0)
        if not chance or self._chance.random() >= chance:
            return False
        self.met[place] += 1
        return True

    def meet(self, place: DefectPlace) -> None:
        """Raise :class:`Defect` when an exception is due."""
        if self.is_due(place):
            raise Defect(place.value)


class DefectiveEntropy:
    """An :class:`Entropy` that raises exceptions when names of objects are made."""

    def __init__(self, entropy: Entropy, defects: Defects) -> None:
        self._entropy = entropy
        self._defects = defects

    def uuid4(self) -> UUID:
        return self._entropy.uuid4()

    def uniform(self, low: float, high: float) -> float:
        return self._entropy.uniform(low, high)

    def randrange(self, stop: int) -> int:
        if stop == _KEY_RANGE:
            self._defects.meet(DefectPlace.OBJECT_KEY)
        return self._entropy.randrange(stop)

    def shuffled(self, items: Sequence[T]) -> list[T]:
        return self._entropy.shuffled(items)
