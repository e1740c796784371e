"""Values that are JSON objects, as a column of structs.

msgspec checks that each value is one JSON object, which costs little, and Arrow then parses a whole column
at once. It never sees anything else: bytes that are no JSON can end Arrow's process, and two halves of an
object in neighbouring records must not become one. Where types do not fit, halves are tried until the values
are found that are to blame, so that a value's fate never depends on its neighbours.
"""

import contextlib
import re
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from moldau.client.errors import ToolError
from moldau.pipeline.values.evolution import add_columns

_NOISE: Final = re.compile(r" in row \d+|JSON parse error: ")
_BRACKETS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
NESTED_MAX: Final = 200
"""Arrow's parser calls itself for each level, and a deep enough value would end the process."""
_INT64: Final = range(-(2**63), 2**63)
ParseErrors: Final = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError, UnicodeDecodeError)

Rejected = dict[int, str]
"""Why a value could not be decoded, by its row."""


def check_json_columns(columns: pa.DataType) -> None:
    """Raises :class:`ToolError` for types that a JSON value does not have."""
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


def decode_json(values: pa.Array, columns: pa.DataType) -> tuple[pa.Array, Rejected]:
    """A struct for each value, null for null and for what is rejected."""
    rejected = _malformed(values)
    usable = values.is_valid().to_numpy(zero_copy_only=False).copy()
    usable[list(rejected)] = False
    rows = np.flatnonzero(usable)
    if not columns.num_fields:
        return pa.nulls(len(values), columns), rejected
    misfits: Rejected = {}
    pieces: list[pa.Array] = []
    _decode(values if len(rows) == len(values) else values.take(pa.array(rows)), 0, columns, pieces, misfits)
    rejected.update((int(rows[row]), reason) for row, reason in misfits.items())
    good = np.delete(rows, list(misfits))
    decoded = pa.concat_arrays(pieces) if pieces else pa.array([], columns)
    if len(good) < len(values):
        slots, missing = np.zeros(len(values), np.int64), np.ones(len(values), np.bool_)
        slots[good] = np.arange(len(good))
        missing[good] = False
        decoded = decoded.take(pa.array(slots, mask=missing))
    return decoded, rejected


class _Anything(msgspec.Struct):
    """An object whose members are checked and passed."""


def _malformed(values: pa.Array) -> Rejected:
    """What is not one JSON object, or has more levels than are parsed."""
    check = msgspec.json.Decoder(_Anything).decode
    found: Rejected = dict.fromkeys(_too_deep(values), f"more than {NESTED_MAX} levels deep")
    for row, value in enumerate(values.to_pylist()):
        if value is None or row in found:
            continue
        try:
            check(value)
        except msgspec.MsgspecError as error:
            found[row] = str(error)
    return found


def _too_deep(values: pa.Array) -> list[int]:
    """Few values have so many brackets at all, and only these are looked at."""
    brackets = pc.add(pc.count_substring(values, "["), pc.count_substring(values, "{")).fill_null(0)
    many = np.flatnonzero(brackets.to_numpy(zero_copy_only=False) > NESTED_MAX)
    return [int(row) for row in many if _depth(values[int(row)].as_py()) > NESTED_MAX]


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


def _decode(
    values: pa.Array, first: int, columns: pa.DataType, pieces: list[pa.Array], misfits: Rejected
) -> None:
    if not len(values):
        return
    try:
        pieces.append(_parse(values, columns))
    except ParseErrors as error:
        if len(values) == 1:
            misfits[first] = " ".join(_NOISE.sub("", str(error)).split())
            return
        middle = len(values) // 2
        _decode(values.slice(0, middle), first, columns, pieces, misfits)
        _decode(values.slice(middle), first + middle, columns, pieces, misfits)


def _parse(values: pa.Array, columns: pa.DataType) -> pa.Array:
    table = _read(values, pa.schema(list(columns)), "ignore").combine_chunks()
    assert table.num_rows == len(values)
    table.validate(full=True)  # text is UTF-8, too
    arrays = [table.column(field.name).combine_chunks() for field in columns]
    return pa.StructArray.from_arrays(arrays, fields=list(columns))


def _read(values: pa.Array, schema: pa.Schema | None, beyond: str) -> pa.Table:
    lines = pc.binary_join_element_wise(values, b"", b"\n")
    bounds = np.frombuffer(lines.buffers()[1], np.int32)
    text = lines.buffers()[2].slice(0, int(bounds[len(lines)]))
    return pj.read_json(
        pa.BufferReader(text),
        read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=beyond),
    )


def infer_json(values: pa.Array) -> pa.DataType:
    """The columns of these values: a struct type that may have null types in it.

    What is no object is passed.
    """
    malformed = _malformed(values)
    usable = values.is_valid().to_numpy(zero_copy_only=False).copy()
    usable[list(malformed)] = False
    values = values.filter(pa.array(usable))
    if not len(values):
        return pa.struct([])
    try:
        return _plain(pa.struct(list(_read(values, None, "infer").schema)))
    except ParseErrors:
        return _infer_slowly(values)


def _plain(found: pa.DataType) -> pa.DataType:
    """Text that looks like a time is still text: the next record may have another."""
    if pa.types.is_timestamp(found):
        return pa.string()
    if pa.types.is_struct(found):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in found])
    if pa.types.is_list(found):
        return pa.list_(_plain(found.value_type))
    return found


def _infer_slowly(values: pa.Array) -> pa.DataType:
    found: pa.DataType = pa.struct([])
    for value in values:
        # Of a number beyond all floats, say, no type is known: decoding tells what becomes of the value.
        with contextlib.suppress(UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
            parsed = msgspec.json.decode(value.as_py())
            found = add_columns(found, type_of_json(parsed), keep=True, widen=True)
    return found


def type_of_json(value: Any) -> pa.DataType:
    """The column type that holds one parsed value; null where that is open."""
    match value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case int():
            return pa.int64() if value in _INT64 else pa.float64()
        case float():
            return pa.float64()
        case str():
            return pa.string()
        case list():
            element: Any = pa.null()
            for one in value:
                element = add_columns(element, type_of_json(one), keep=True, widen=True)
            return pa.list_(element)
        case _:
            return pa.struct([pa.field(name, type_of_json(one)) for name, one in value.items()])
