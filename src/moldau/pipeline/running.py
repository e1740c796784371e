"""How a job has its units run: on Spark, or in this process."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class RunUnits(Protocol):
    """Calls a function for each unit, somewhere; what it returned, in order."""

    def __call__(self, function: Callable[[Any], Any], units: Sequence[Any], /) -> list[Any]: ...
