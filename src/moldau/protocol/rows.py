"""Divides large requests into slices. A row is an item of an array in a request, for example a partition, or
the item of the response that answers it. A slice is a request with some of the rows. Pure.

A request can be divided if the API handles each row independently. The rows of the slices' responses, one
after another, are then the response to the whole request.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

SLICE_ROWS: Final = 256
"""Number of rows that are answered without a pause for other work. The answers take at most about 10 ms."""


class Cut(NamedTuple):
    """Names two arrays. The request's array ``asked`` has the rows that are divided into slices. The
    response's array ``answered`` has the answers to these rows. Each array is given by a path of field names,
    from the outermost array to the innermost.

    ``distinct`` is a function that leaves out each row that requests the same data as an earlier row. It is
    used if the answer to a row may be many times as long as the row. The whole response then contains each
    such answer only once.
    """

    asked: tuple[str, ...]
    answered: tuple[str, ...]
    rows: int = SLICE_ROWS
    distinct: Callable[[Sequence[Any]], Iterable[Any]] | None = None


PARTITIONS: Final = Cut(("topics", "partitions"), ("topics", "partitions"))
"""The usual array: the partitions of topics."""
