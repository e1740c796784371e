"""Jobs that consist of steps, so that the jobs of several clients can take turns on one thread. Pure."""

from collections.abc import Generator
from enum import Enum
from typing import TypeAlias, TypeVar, cast

__all__ = ["NextTurn", "Steps", "exhaust"]

T = TypeVar("T")


class NextTurn(Enum):
    """The value that a job yields at the end of a step."""

    NEXT = "the steps of other clients may run"
    LARGE = "the next step takes much memory, up to the end of the job"


Steps: TypeAlias = Generator[NextTurn, None, T]
"""A job in steps of some milliseconds. The generator returns the job's result."""


def exhaust(steps: Steps[T]) -> T:
    """Run a job to its end, immediately."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return cast(T, done.value)
