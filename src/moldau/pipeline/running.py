"""How a job has its units run, on Spark or in this process; and what it tells while it runs."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class RunUnits(Protocol):
    """Calls a function for each unit, somewhere; what it returned, in order."""

    def __call__(self, function: Callable[[Any], Any], units: Sequence[Any], /) -> list[Any]: ...


class Lag:
    """How many offsets a source has that a target has not, as a job last saw it.

    Set at the begin of a round, before the work, and at its end.
    """

    def __init__(self) -> None:
        self.records = math.nan
        """NaN while it is not known: before the first look, and when the source does not answer."""

    def forget(self) -> None:
        self.records = math.nan
