"""Limits that the Avro library does not have: the depth of values, and the number of items that take no
bytes.

With a recursive type, a value of some kilobytes can be nested so deeply that the library's recursion crashes
the process. With an array of nulls, ten bytes can represent a trillion items. Only values of such schemas are
checked before they are decoded.
"""

from functools import cache
from typing import Any, Final

from moldau.pipeline.values.avro_schemas import RECORDS, Schema, parse

LEVELS_MAX: Final = 200
ITEMS_MAX: Final = 100_000
"""Maximum number of items of arrays and maps in a value, in addition to one for each byte."""
_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_VARINTS: Final = ("int", "long", "enum")
_VARINT_BITS_MAX: Final = 63


class BeyondBoundsError(ValueError):
    """A value exceeds a limit, so it is not decoded."""


@cache
def needs_bounds(text: str) -> bool:
    """Whether the depth or size of a decoded value is not limited by its number of bytes."""
    schema = parse(text)
    return _is_unbounded(schema.root, schema, ())


def _is_unbounded(declared: Any, schema: Schema, open_names: tuple[str, ...]) -> bool:
    found = schema.resolve(declared)
    if isinstance(found, str):
        return False
    if isinstance(found, list):
        return any(_is_unbounded(one, schema, open_names) for one in found)
    kind = found["type"]
    if kind in RECORDS:
        name = found["name"]
        inside = (*open_names, name)
        return name in open_names or any(
            _is_unbounded(one["type"], schema, inside) for one in found["fields"]
        )
    if kind == "array":
        items = found["items"]
        return _is_unbounded(items, schema, open_names) or _takes_no_bytes(items, schema)
    return kind == "map" and _is_unbounded(found["values"], schema, open_names)


def _takes_no_bytes(declared: Any, schema: Schema) -> bool:
    """Whether a value takes no bytes. The type must not contain itself."""
    found = schema.resolve(declared)
    if isinstance(found, (str, list)):
        return found == "null"
    if found["type"] in RECORDS:
        return all(_takes_no_bytes(one["type"], schema) for one in found["fields"])
    return found["type"] == "null" or (found["type"] == "fixed" and not found["size"])


def check_bounds(value: bytes, start: int, text: str) -> None:
    """Raises :class:`BeyondBoundsError` for a value that exceeds a limit. The library detects other faults of
    a value.
    """
    _Walk(value, parse(text)).skip(start, parse(text).root, 0)


class _Walk:
    def __init__(self, value: bytes, schema: Schema) -> None:
        self._value = value
        self._schema = schema
        self._items = 0

    def skip(self, at: int, declared: Any, level: int) -> int:
        """Skip a value; returns the position of the next value."""
        if level > LEVELS_MAX:
            raise BeyondBoundsError(f"more than {LEVELS_MAX} levels deep")
        if at > len(self._value):
            raise BeyondBoundsError("the value ends early")
        found = self._schema.resolve(declared)
        if isinstance(found, list):
            branch, at = self._long(at)
            if not 0 <= branch < len(found):
                raise BeyondBoundsError(f"a union has no type {branch}")
            return self.skip(at, found[branch], level + 1)
        kind = found if isinstance(found, str) else found["type"]
        if kind in _SIZES:
            return at + _SIZES[kind]
        if kind in _VARINTS:
            return self._long(at)[1]
        if kind in RECORDS:
            for field in found["fields"]:
                at = self.skip(at, field["type"], level + 1)
            return at
        if kind == "fixed":
            return at + int(found["size"])
        if kind in ("array", "map"):
            return self._blocks(at, found, level)
        length, at = self._long(at)
        return at + max(length, 0)

    def _blocks(self, at: int, found: Any, level: int) -> int:
        is_map = found["type"] == "map"
        items = found["values" if is_map else "items"]
        while True:
            count, at = self._long(at)
            if not count:
                return at
            if count < 0:
                count = -count
                _, at = self._long(at)
            self._items += count
            if self._items > len(self._value) + ITEMS_MAX:
                raise BeyondBoundsError(f"{self._items} items of arrays in {len(self._value)} bytes")
            for _ in range(count):
                if is_map:
                    at = self.skip(at, "bytes", level)
                at = self.skip(at, items, level + 1)

    def _long(self, at: int) -> tuple[int, int]:
        number = shift = 0
        while at < len(self._value) and shift <= _VARINT_BITS_MAX:
            byte = self._value[at]
            at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1), at
            shift += 7
        raise BeyondBoundsError("the value ends early")
