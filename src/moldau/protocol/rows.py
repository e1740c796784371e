"""The rows of a request and of its response. The paths to the rows determine how a request is divided into
slices. Pure.

An API has cuts when each of its rows is answered independently. Then the rows of the slices' responses, one
after another, are the response to the whole request.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

SLICE_ROWS: Final = 256
"""Number of rows that are answered without a break. This takes at most about 10 ms."""


class Cut(NamedTuple):
    """The path to the rows of an API, in the request and in the response. It contains fields from the
    outermost array to the innermost.

    ``distinct`` leaves out a row that requests the same data as an earlier row. The answer to such a row may
    be many times as long as the row. Therefore it occurs only once in the whole response.
    """

    asked: tuple[str, ...]
    answered: tuple[str, ...]
    rows: int = SLICE_ROWS
    distinct: Callable[[Sequence[Any]], Iterable[Any]] | None = None


PARTITIONS: Final = Cut(("topics", "partitions"), ("topics", "partitions"))
"""The usual rows: partitions by topic."""
