"""The rows of a request and of its answer: the paths by which a request is cut into slices. Pure.

An API has cuts when each of its rows is answered independently. Then the rows of the slices' answers, one
after another, are the answer to the whole request.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

SLICE_ROWS: Final = 256
"""Number of rows that are answered without a break, which takes at most some 10 ms."""


class Cut(NamedTuple):
    """The path to the rows of an API, in the request and in the response. It contains fields from the
    outermost array to the innermost.

    ``distinct`` leaves out a row that requests the same data as an earlier row. Such an answer may be many
    times as long as its row, so it occurs only once in the whole answer.
    """

    asked: tuple[str, ...]
    answered: tuple[str, ...]
    rows: int = SLICE_ROWS
    distinct: Callable[[Sequence[Any]], Iterable[Any]] | None = None


PARTITIONS: Final = Cut(("topics", "partitions"), ("topics", "partitions"))
"""The usual rows: partitions by topic."""
