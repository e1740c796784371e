"""Converts JSON values one by one. Each member is compared with its column, and rewritten if the column needs
another form.

This is the slow path, for values that Arrow cannot parse unchanged. The result is JSON for Arrow's parser. If
a STRING column gets a value that is not a string, it stores the value's JSON text. If a value does not fit,
the error names its path.
"""

import decimal
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from moldau.pipeline.values.ddl import render_type
from moldau.pipeline.values.json_arrow import is_parsed

Path = tuple[str, ...]
"""The path to a member: names of members from the value down, and ``element`` for elements of an array."""
Seconds = Mapping[Path, tuple[str, ...]]
"""Additional columns of a member, for the values that do not fit its own column."""

_INTEGER: Final = re.compile(rb"-?\d+")
_NUMBER: Final = re.compile(rb"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_DECIMAL: Final = re.compile(rb"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
"""The form in which Arrow accepts decimals. Decimals in strings have the same form."""
_ZONE: Final = re.compile(rb"^.{10}.*[Zz+-]", re.DOTALL)
_QUOTE: Final = ord('"')
_INEXACT_DIGITS: Final = 16
_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
Fits = Callable[[bytes], bool]
_SHOWN_MAX: Final = 60
_INTEGERS: Final = {pa.int32(): range(-(2**31), 2**31), pa.int64(): range(-(2**63), 2**63)}
_DIGITS_MAX: Final = 400
"""Maximum number of digits of parsed numbers. No column type has more digits."""


class Misfit(ValueError):
    """A value does not fit its column. The text names the column."""


class Rewriter:
    """Rewrites values for the columns of a table.

    With ``whole``, names match regardless of case, and a member without a column raises :class:`Misfit`.
    """

    def __init__(self, columns: pa.DataType, *, whole: bool, seconds: Seconds) -> None:
        self.is_needed = whole or bool(seconds)
        """Whether this class must convert the values, even if Arrow would parse them."""
        self._root = _Object(columns, (), whole, seconds)

    def rewrite(self, value: bytes) -> bytes:
        """Rewrite one value. Raises :class:`Misfit`."""
        return self._root.write(value.strip(), has_repeated_names(value))


class _JsonPlace(NamedTuple):
    """The place of a member in the result: the name of its first column, and all its columns with their
    names. The names are JSON text."""

    own: bytes
    columns: list[tuple[bytes, "_CompiledColumn"]]


class _CompiledColumn:
    """A column in a compiled form, because access to Arrow's types is slow."""

    def __init__(self, column: pa.DataType, path: Path) -> None:
        self._column = column
        self._path = path

    def write(self, raw: bytes, repeated: bool) -> bytes:
        raise NotImplementedError

    def misfit(self, raw: bytes) -> Misfit:
        shown = _shown(raw[: 4 * _SHOWN_MAX].decode(errors="replace"))
        return Misfit(f"{_shown_path(self._path)}: {shown} is no {render_type(self._column)}")


class _Leaf(_CompiledColumn):
    def __init__(self, column: pa.DataType, path: Path, fits: Fits) -> None:
        super().__init__(column, path)
        self._fits = fits

    def write(self, raw: bytes, repeated: bool) -> bytes:
        if raw != b"null" and not self._fits(raw):
            raise self.misfit(raw)
        return raw


class _Text(_CompiledColumn):
    def write(self, raw: bytes, repeated: bool) -> bytes:
        return raw if raw[0] == _QUOTE or raw == b"null" else msgspec.json.encode(raw.decode())


class _Array(_CompiledColumn):
    def __init__(self, column: pa.DataType, path: Path, element: _CompiledColumn) -> None:
        super().__init__(column, path)
        self._element = element

    def write(self, raw: bytes, repeated: bool) -> bytes:
        if raw == b"null":
            return raw
        if raw[:1] != b"[":
            raise self.misfit(raw)
        write = self._element.write
        return b"[%s]" % b",".join([write(bytes(one), repeated) for one in _ELEMENTS(raw)])


class _Object(_CompiledColumn):
    def __init__(self, column: pa.DataType, path: Path, whole: bool, seconds: Seconds) -> None:
        super().__init__(column, path)
        self._whole = whole
        self._places: dict[str, _JsonPlace] = {}
        others = {name for own, names in seconds.items() if own[:-1] == path for name in names}
        types = {field.name: field.type for field in column}
        for name in types:
            if name in others:
                continue
            names = (name, *seconds.get((*path, name), ()))
            columns = [
                (msgspec.json.encode(one), _node(types[one], (*path, one), whole, seconds, len(names) > 1))
                for one in names
            ]
            self._places[name.lower() if whole else name] = _JsonPlace(columns[0][0], columns)

    def write(self, raw: bytes, repeated: bool) -> bytes:
        if raw == b"null":
            return raw
        if raw[:1] != b"{":
            raise self.misfit(raw)
        written: dict[bytes, bytes] = {}
        seen: set[bytes] = set()
        names: set[str] = set()
        for name, one in _members(raw, repeated):
            place = self._places.get(name.lower() if self._whole else name)
            if place is None and not self._whole:
                continue
            if name in names or (place is not None and place.own in seen and one != b"null"):
                raise Misfit(f"member {_shown_path((*self._path, name))} is there more than once")
            names.add(name)
            if place is None:
                if not _holds_nothing(one, repeated):
                    raise Misfit(f"no column holds member {_shown_path((*self._path, name))}")
                continue
            if one == b"null":
                continue
            seen.add(place.own)
            key, value = _first_that_fits(place, one, repeated)
            written[key] = value
        return b"{%s}" % b",".join([b"%s:%s" % pair for pair in written.items()])


def _first_that_fits(place: _JsonPlace, raw: bytes, repeated: bool) -> tuple[bytes, bytes]:
    for key, node in place.columns[:-1]:
        try:
            return key, node.write(raw, repeated)
        except Misfit:
            continue
    key, node = place.columns[-1]
    return key, node.write(raw, repeated)


def _node(
    column: pa.DataType, path: Path, whole: bool, seconds: Seconds, has_second: bool
) -> _CompiledColumn:
    if pa.types.is_struct(column):
        return _Object(column, path, whole, seconds)
    if pa.types.is_list(column):
        inside = (*path, "element")
        return _Array(column, path, _node(column.value_type, inside, whole, seconds, has_second))
    if column == pa.string():
        return _Text(column, path)
    return _Leaf(column, path, _fits(column, exactly=has_second))


def _members(raw: bytes, repeated: bool) -> list[tuple[str, bytes]]:
    """Return the members of an object in their order. With ``repeated``, a name that occurs twice is returned
    a second time at the end."""
    found = _MEMBERS(raw)
    once = [(name, bytes(one)) for name, one in found.items()]
    if not repeated:
        return once
    pairs: list[tuple[str, Any]] = _decoder_of_pairs().decode(raw.decode(errors="replace"))
    names = [name for name, _ in pairs]
    # A repeated name only has to appear twice in the result, so that the member is rejected. Its value has no
    # effect.
    return [*once, *((name, found_value) for name, found_value in once if names.count(name) > 1)]


def has_repeated_names(value: bytes) -> bool:
    repeated = False

    def note_names(pairs: list[tuple[str, Any]]) -> None:
        nonlocal repeated
        repeated = repeated or len({name for name, _ in pairs}) < len(pairs)

    json.loads(value.decode(errors="replace"), object_pairs_hook=note_names, parse_int=len, parse_float=len)
    return repeated


def _decoder_of_pairs() -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=list, parse_int=len, parse_float=len)


def _holds_nothing(raw: bytes, repeated: bool) -> bool:
    """Whether a value is null, or an object or array that contains only nulls at all levels. Such a value has
    no type and no content, so dropping it loses nothing.

    ``repeated`` means that an object may have a name twice. In that case the parser would return only the
    last value.
    """
    if raw[:1] not in b"n{[" or (repeated and has_repeated_names(raw)):
        return False
    try:
        return _is_nothing(msgspec.json.decode(raw))
    except msgspec.MsgspecError:  # for instance, a number is out of range
        return False


def _is_nothing(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_nothing(one) for one in value.values())
    return value is None or (isinstance(value, list) and all(_is_nothing(one) for one in value))


def _fits(column: pa.DataType, *, exactly: bool) -> Fits:
    """A function that returns whether a value fits a column of a simple type. A number must fit exactly.

    For times, only the form of a string is checked, unless ``exactly`` is set. With ``exactly`` Arrow parses
    them.
    """
    if column == pa.bool_():
        return lambda raw: raw in (b"true", b"false")
    if column in _INTEGERS:
        bounds = _INTEGERS[column]
        return lambda raw: bool(_INTEGER.fullmatch(raw)) and len(raw) < _DIGITS_MAX and int(raw) in bounds
    if column == pa.float32():
        return _fits_float
    if column == pa.float64():
        return _fits_double
    if pa.types.is_decimal(column):
        return lambda raw: _fits_decimal(raw.strip(b'"'), column.precision, column.scale)
    if pa.types.is_timestamp(column):
        is_local = column.tz is None
        return (
            lambda raw: (
                raw[0] == _QUOTE
                # A time with a zone does not fit a column without zones, because the zone would be lost.
                and not (is_local and _ZONE.search(raw[1:-1]))
                and (not exactly or is_parsed(raw, column))
            )
        )
    return lambda raw: raw[0] == _QUOTE


def _fits_float(raw: bytes) -> bool:
    if not _NUMBER.fullmatch(raw):
        return False
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.float32(float(raw))))


def _fits_double(raw: bytes) -> bool:
    if not _NUMBER.fullmatch(raw):
        return False
    number = float(raw)
    if not math.isfinite(number):
        return False
    return len(raw) < _INEXACT_DIGITS or not _INTEGER.fullmatch(raw) or int(number) == int(raw)


def _fits_decimal(text: bytes, precision: int, scale: int) -> bool:
    if not _DECIMAL.fullmatch(text) or len(text) > _DIGITS_MAX:
        return False
    try:
        number = decimal.Decimal(text.decode())
    except decimal.InvalidOperation:  # the exponent is too large
        return False
    if not number:
        return True
    if number.adjusted() >= precision - scale:
        return False
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    ending = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    return exponent + ending >= -scale


def _shown_path(path: Path) -> str:
    return _shown(".".join(path))


def _shown(text: str) -> str:
    """The text in one line, cut to a maximum length."""
    line = "".join(one if one.isprintable() else repr(one)[1:-1] for one in text[: _SHOWN_MAX + 1])
    return line if len(line) <= _SHOWN_MAX else f"{line[:_SHOWN_MAX]}…"
