"""Divides large requests into slices. Each slice has some of the rows of the request (the entries of its
array). ``joined_answers`` joins the responses to the slices.

A slice is a request of the same class with some of the rows (see ``protocol/rows.py``).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from moldau.protocol.rows import SLICE_ROWS, Cut
from moldau.protocol.schema import Message

MANY_ROWS: Final = 2_000
"""Number of rows of a response that are encoded without a break. This takes about 5 ms."""


def has_many_rows(long_answers: Sequence[tuple[str, ...]], answer: Message) -> bool:
    """Whether a worker must encode a response. ``long_answers`` are the paths to the rows of the response."""
    return any(
        sum(_weight(row, fields[1:]) for row in getattr(answer, fields[0])) > MANY_ROWS
        for fields in long_answers
    )


def is_costly(cuts: Sequence[Cut]) -> bool:
    """Whether requests of an API are divided into slices even if they are small. Only requests with several
    rows are divided."""
    return any(cut.rows < SLICE_ROWS for cut in cuts)


def is_large(cuts: Sequence[Cut], request: Message) -> bool:
    """Whether the request has more rows than can be answered without a break."""
    cut = cut_of(cuts, request)
    if cut is None:
        return False
    return sum(_weight(row, cut.asked[1:]) for row in getattr(request, cut.asked[0])) > cut.rows


def cut_of(cuts: Sequence[Cut], request: Message) -> Cut | None:
    """Find the path to the array that is sliced in this request. The result is None when the request is not
    sliced."""
    return next((cut for cut in cuts if getattr(request, cut.asked[0])), None)


def slices(request: Any, cut: Cut) -> Iterator[Any]:
    """The slices of the request, in order."""
    field = cut.asked[0]
    asked = getattr(request, field)
    for rows in _batches(asked if cut.distinct is None else cut.distinct(asked), cut.asked[1:], cut.rows):
        yield replace(request, **{field: rows})


def _batches(rows: Iterable[Any], inner: tuple[str, ...], most: int) -> Iterator[list[Any]]:
    batch: list[Any] = []
    weight = 0
    for row in rows:
        for piece, piece_weight in _pieces(row, inner, most):
            if batch and weight + piece_weight > most:
                yield batch
                batch, weight = [], 0
            batch.append(piece)
            weight += piece_weight
    if batch:
        yield batch


def _pieces(row: Any, inner: tuple[str, ...], most: int) -> Iterator[tuple[Any, int]]:
    """Yield the row unchanged. If it has too many nested rows, yield several copies of the row instead. Each
    copy has some of the nested rows."""
    weight = _weight(row, inner)
    if weight <= most or not inner:
        yield row, weight
        return
    for rows in _batches(getattr(row, inner[0]), inner[1:], most - 1):
        piece = replace(row, **{inner[0]: rows})
        yield piece, _weight(piece, inner)


def _weight(row: Any, inner: tuple[str, ...]) -> int:
    if not inner:
        return 1
    rows = getattr(row, inner[0]) or ()
    if len(inner) == 1:
        return 1 + len(rows)
    return 1 + sum(_weight(each, inner[1:]) for each in rows)
