"""Runs the units of a job, on Spark or in this process, and reports its progress."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class RunUnits(Protocol):
    """Calls a function for each unit; returns the results in order."""

    def __call__(self, function: Callable[[Any], Any], units: Sequence[Any], /) -> list[Any]: ...


class Lag:
    """The lag at the job's last check: the number of offsets that the source has and the target lacks.

    The job sets it before the work of a round, and at the end of the round.
    """

    def __init__(self) -> None:
        self.records = math.nan
        """The lag; NaN while it is unknown, which is before the first check and when the source does not
        answer.
        """

    def forget(self) -> None:
        self.records = math.nan
