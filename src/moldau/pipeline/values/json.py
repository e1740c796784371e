"""Decodes values that are JSON objects to a column of structs.

msgspec checks that each value is one JSON object, which is cheap. Arrow then parses a whole column at once.
Values that Arrow rejects or would misinterpret are decoded one by one
(:mod:`moldau.pipeline.values.json_rows`). The rules of that module apply in every case. Therefore the result
for a value never depends on other values.
"""

import re
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from moldau.client.errors import ToolError
from moldau.pipeline.values.json_arrow import ParseErrors, lines_of, parse
from moldau.pipeline.values.json_inference import FoundValues
from moldau.pipeline.values.json_rows import Misfit, Rewriter, Seconds

_NOISE: Final = re.compile(r" in row \d+|JSON parse error: ")
_BRACKETS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
NESTED_MAX: Final = 200
"""Maximum nesting depth of a value. Arrow's parser is recursive, and a very deep value would crash the
process."""
PIECE_VALUES: Final = 512
"""Number of values in a piece. If one value of a piece must be checked separately, all values of this piece
are checked one by one."""
_SUSPECTS: Final = {
    # For these types Arrow would change some values: it would use the nearest number or infinity, or drop the
    # zone of a time. If a value matches the pattern of a type, it is checked separately.
    pa.float64(): re.compile(rb"[:,\[\s]-?\d{16,}[,}\]\s]"),
    pa.float32(): re.compile(rb"[eE]\+?\d\d|\d{38}"),
    pa.timestamp("us"): re.compile(rb'\d-\d\d[ T]\d[^"]*[Zz+-]'),
}

RejectedRows = dict[int, str]
"""For each row, the reason why its value could not be decoded."""


def check_json_columns(columns: pa.DataType) -> None:
    """Raises :class:`ToolError` for column types to which no JSON value can be converted."""
    for field in columns:
        for found in _inside(field.type):
            if pa.types.is_map(found) or pa.types.is_date(found) or pa.types.is_time(found):
                raise ToolError(
                    f"column {field.name}: JSON values are not decoded as DATE, TIME or MAP;"
                    " take STRING or STRUCT<>"
                )


def _inside(found: pa.DataType) -> list[pa.DataType]:
    inner: list[pa.DataType] = []
    if pa.types.is_struct(found):
        inner = [field.type for field in found]
    elif pa.types.is_list(found):
        inner = [found.value_type]
    return [found, *(deeper for one in inner for deeper in _inside(one))]


def decode_json(
    values: pa.Array, columns: pa.DataType, *, whole: bool = False, seconds: Seconds | None = None
) -> tuple[pa.Array, RejectedRows]:
    """Return one struct for each value, or the value's text if the column is a STRING. The entry is null for
    null and rejected values.

    With ``whole``, names match regardless of case. A value is then rejected if one of its members has no
    column. ``seconds`` has additional columns for values that do not fit the first column of a member.
    """
    rejected = _malformed(values)
    rows = _usable(values, rejected)
    usable = values if len(rows) == len(values) else values.take(pa.array(rows))
    if columns == pa.string():
        return _spread(usable.cast(columns), rows, len(values)), rejected
    if not columns.num_fields and not whole:
        return pa.nulls(len(values), columns), rejected
    misfits: RejectedRows = {}
    decoded = _decode(usable, columns, Rewriter(columns, whole=whole, seconds=seconds or {}), misfits)
    rejected.update((int(rows[row]), reason) for row, reason in misfits.items())
    return _spread(decoded, np.delete(rows, list(misfits)), len(values)), rejected


def _usable(values: pa.Array, rejected: RejectedRows) -> Any:
    usable = values.is_valid().to_numpy(zero_copy_only=False).copy()
    usable[list(rejected)] = False
    return np.flatnonzero(usable)


def _spread(decoded: pa.Array, rows: Any, count: int) -> pa.Array:
    """An array with the values at their rows, and nulls in all other rows."""
    if len(rows) == count:
        return decoded
    slots, missing = np.zeros(count, np.int64), np.ones(count, np.bool_)
    slots[rows] = np.arange(len(rows))
    missing[rows] = False
    return decoded.take(pa.array(slots, mask=missing))


class _Anything(msgspec.Struct):
    """The type of any JSON object. The parser checks the members of the object, and then drops them."""


def _malformed(values: pa.Array) -> RejectedRows:
    """Return the rows of values that are not exactly one JSON object in UTF-8, or that have too many levels.
    Each row has a reason."""
    check = msgspec.json.Decoder(_Anything).decode
    found: RejectedRows = dict.fromkeys(_too_deep(values), f"more than {NESTED_MAX} levels deep")
    found.update(dict.fromkeys(_no_text(values), "not UTF-8"))
    for row, value in enumerate(values.to_pylist()):
        if value is None or row in found:
            continue
        try:
            check(value)
        except msgspec.MsgspecError as error:
            found[row] = str(error)
    return found


def _too_deep(values: pa.Array) -> list[int]:
    """Rows of values with too many levels. Only the few values with many brackets are examined."""
    brackets = pc.add(pc.count_substring(values, "["), pc.count_substring(values, "{")).fill_null(0)
    many = np.flatnonzero(brackets.to_numpy(zero_copy_only=False) > NESTED_MAX)
    return [int(row) for row in many if _depth(values[int(row)].as_py()) > NESTED_MAX]


def _no_text(values: pa.Array) -> list[int]:
    """Rows of values that are not UTF-8. The whole value must be UTF-8, including the members without a
    column."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return [row for row, value in enumerate(values.to_pylist()) if value and not _is_text(value)]
    return []


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _depth(value: bytes) -> int:
    depth = deepest = 0
    for found in _BRACKETS.finditer(value):
        match found[0]:
            case b"[" | b"{":
                depth += 1
                deepest = max(deepest, depth)
            case b"]" | b"}":
                depth -= 1
    return deepest


def _decode(values: pa.Array, columns: pa.DataType, rewriter: Rewriter, misfits: RejectedRows) -> pa.Array:
    """Decode the values that fit the column. The rows of the other values are added to ``misfits``."""
    found = _parse_as_they_are(values, columns, rewriter)
    if found is not None:
        return found
    pieces: list[pa.Array] = []
    for first in range(0, len(values), PIECE_VALUES):
        piece = values.slice(first, PIECE_VALUES)
        found = _parse_as_they_are(piece, columns, rewriter)
        if found is None:
            inside: RejectedRows = {}
            found = _decode_rewritten(piece, columns, rewriter, inside)
            misfits.update((first + row, reason) for row, reason in inside.items())
        pieces.append(found)
    return pa.concat_arrays(pieces)


def _parse_as_they_are(values: pa.Array, columns: pa.DataType, rewriter: Rewriter) -> pa.Array | None:
    if not len(values):
        return pa.array([], columns)
    if rewriter.is_needed:
        return None
    lines = lines_of(values)
    if any(look.search(lines) for look in _suspects(columns)):
        return None
    try:
        return parse(lines, len(values), columns)
    except ParseErrors:
        return None


def _decode_rewritten(
    values: pa.Array, columns: pa.DataType, rewriter: Rewriter, misfits: RejectedRows
) -> pa.Array:
    rows: list[int] = []
    rewritten: list[bytes] = []
    for row, value in enumerate(values.to_pylist()):
        try:
            rewritten.append(rewriter.rewrite(value))
            rows.append(row)
        except Misfit as misfit:
            misfits[row] = str(misfit)
    if not columns.num_fields:
        return pa.nulls(len(rows), columns)
    pieces: list[pa.Array] = []
    _parse_halves(pa.array(rewritten, pa.binary()), rows, columns, pieces, misfits)
    return pa.concat_arrays(pieces) if pieces else pa.array([], columns)


def _suspects(columns: pa.DataType) -> list[re.Pattern[bytes]]:
    types = {found for field in columns for found in _inside(field.type)}
    return [look for found, look in _SUSPECTS.items() if found in types]


def _parse_halves(
    values: pa.Array, rows: list[int], columns: pa.DataType, pieces: list[pa.Array], misfits: RejectedRows
) -> None:
    """Parse values. If some values do not fit, halve the list and parse the halves until each such value is
    found."""
    if not len(values):
        return
    try:
        pieces.append(parse(lines_of(values), len(values), columns))
    except ParseErrors as error:
        if len(values) == 1:
            misfits[rows[0]] = " ".join(_NOISE.sub("", str(error)).split())
            return
        middle = len(values) // 2
        _parse_halves(values.slice(0, middle), rows[:middle], columns, pieces, misfits)
        _parse_halves(values.slice(middle), rows[middle:], columns, pieces, misfits)


def find_json(values: pa.Array, found: FoundValues) -> None:
    """Count the types in these values. Values that are not objects are skipped, because they do not influence
    the columns."""
    usable = _usable(values, _malformed(values))
    for value in values.take(pa.array(usable)).to_pylist():
        found.add(value)
