"""Checks that a value is in the encoding of its writer's schema, and that it does not exceed limits.

The Avro library detects only some faults. If the index of a union or an enum is negative, the library counts
from the end of the list. It reads every byte except zero as true, and it reads numbers of any length. It also
accepts a value whose end is missing. A recursive type can nest a value of some kilobytes so deeply that the
library's recursion crashes the process. With an array of nulls, ten bytes can represent a trillion items.
Therefore each value is checked before it is decoded. The schema is compiled to functions, because the check
runs for every value.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from moldau.pipeline.values.avro_schemas import RECORDS, Schema, parse

LEVELS_MAX: Final = 200
ITEMS_MAX: Final = 100_000
"""Maximum number of items in a value that are encoded in no bytes, such as nulls. The maximum grows by one
for each byte of the value."""
_SIZES: Final = {"null": 0, "float": 4, "double": 8}
_INT_BITS: Final = 32
_LONG_BITS: Final = 64

Skip = Callable[[bytes, int, int], int]
"""Skips a value. The arguments are the bytes, the value's position and its nesting level. Returns the
position after the value."""


class NotAvroError(ValueError):
    """The bytes do not encode a value of the schema, or the value exceeds a limit."""


def check_value(value: bytes, start: int, text: str) -> None:
    """Check one value, which begins at ``start``. ``text`` is the writer's schema.

    Raises :class:`NotAvroError`.
    """
    walk = _walk_of(text)
    walk.items = 0
    try:
        end = walk.skip(value, start, 0)
    except IndexError:
        raise NotAvroError("the value ends early") from None
    if end > len(value):
        raise NotAvroError("the value ends early")
    if left := len(value) - end:
        raise NotAvroError(f"{left} bytes are left after the record")


@cache
def _walk_of(text: str) -> "_Walk":
    return _Walk(parse(text))


class _Walk:
    """Makes the functions that skip values of a schema. ``items`` counts the items of the current value that
    have no bytes."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._records: dict[str, list[Skip]] = {}
        self.items = 0
        self.skip = self._of(schema.root)

    def _of(self, declared: Any) -> Skip:
        found = self._schema.resolve(declared)
        if isinstance(found, list):
            return _union([self._of(one) for one in found])
        kind = found if isinstance(found, str) else found["type"]
        if kind in RECORDS:
            return self._record(found)
        match kind:
            case "boolean":
                return _skip_boolean
            case "int":
                return _skip_int
            case "long":
                return _skip_long
            case "bytes" | "string":
                return _skip_bytes
            case "enum":
                return _enum(len(found["symbols"]))
            case "array":
                return self._blocks(found["items"], is_map=False)
            case "map":
                return self._blocks(found["values"], is_map=True)
        size = _SIZES[kind] if kind in _SIZES else int(found["size"])
        return lambda value, at, level: at + size

    def _record(self, found: Any) -> Skip:
        name = found["name"]
        if name in self._records:
            fields = self._records[name]
        else:
            fields = self._records[name] = []  # stored before its fields, because a field may have this type
            fields.extend([self._of(one["type"]) for one in found["fields"]])

        def skip(value: bytes, at: int, level: int) -> int:
            if level > LEVELS_MAX:
                raise NotAvroError(f"more than {LEVELS_MAX} levels deep")
            level += 1
            for field in fields:
                at = field(value, at, level)
            return at

        return skip

    def _blocks(self, declared: Any, *, is_map: bool) -> Skip:
        item = self._of(declared)
        is_counted = not is_map and self._takes_no_bytes(declared, ())

        def skip(value: bytes, at: int, level: int) -> int:
            level += 1
            while True:
                count, at = _long(value, at)
                if not count:
                    return at
                end = -1
                if count < 0:  # a negative count: the size of the block in bytes follows
                    count = -count
                    size, at = _long(value, at)
                    end = at + size
                if is_counted:
                    self._count(count, value)
                else:
                    at = _items(value, at, level, count, item, is_map)
                if end not in (-1, at):
                    raise NotAvroError("the size of a block differs from its header")

        return skip

    def _count(self, count: int, value: bytes) -> None:
        self.items += count
        if self.items > len(value) + ITEMS_MAX:
            raise NotAvroError(f"{self.items} items of arrays in {len(value)} bytes")

    def _takes_no_bytes(self, declared: Any, open_names: tuple[str, ...]) -> bool:
        found = self._schema.resolve(declared)
        if isinstance(found, (str, list)):
            return found == "null"
        if found["type"] in RECORDS:
            name = found["name"]
            inside = (*open_names, name)
            return name not in open_names and all(
                self._takes_no_bytes(one["type"], inside) for one in found["fields"]
            )
        return found["type"] == "null" or (found["type"] == "fixed" and not found["size"])


def _items(value: bytes, at: int, level: int, count: int, item: Skip, is_map: bool) -> int:
    for _ in range(count):
        if is_map:
            at = _skip_bytes(value, at, level)
        at = item(value, at, level)
        if at > len(value):
            raise IndexError
    return at


def _union(branches: list[Skip]) -> Skip:
    count = len(branches)
    firsts = {2 * branch: skip for branch, skip in enumerate(branches[:64])}

    def skip(value: bytes, at: int, level: int) -> int:
        byte = value[at]
        if byte in firsts:  # the fast case, for most unions
            return firsts[byte](value, at + 1, level + 1)
        branch, at = _long(value, at)
        if not 0 <= branch < count:
            raise NotAvroError(f"a union has no type {branch}")
        return branches[branch](value, at, level + 1)

    return skip


def _enum(count: int) -> Skip:
    bytes_of_symbols = frozenset(range(0, 2 * min(count, 64), 2))

    def skip(value: bytes, at: int, level: int) -> int:
        if value[at] in bytes_of_symbols:  # the fast case, for most enums
            return at + 1
        symbol, at = _long(value, at)
        if not 0 <= symbol < count:
            raise NotAvroError(f"an enum has no symbol {symbol}")
        return at

    return skip


def _skip_boolean(value: bytes, at: int, level: int) -> int:
    if value[at] > 1:
        raise NotAvroError(f"a boolean is 0 or 1, not {value[at]}")
    return at + 1


def _skip_bytes(value: bytes, at: int, level: int) -> int:
    byte = value[at]
    if byte < 0x80 and not byte & 1:  # the fast case, for most lengths
        return at + 1 + (byte >> 1)
    size, at = _long(value, at)
    if size < 0:
        raise NotAvroError(f"a length is {size}")
    return at + size


def _skip_long(value: bytes, at: int, level: int) -> int:
    return at + 1 if value[at] < 0x80 else _number(value, at, _LONG_BITS)[1]


def _skip_int(value: bytes, at: int, level: int) -> int:
    return at + 1 if value[at] < 0x80 else _number(value, at, _INT_BITS)[1]


def _long(value: bytes, at: int) -> tuple[int, int]:
    byte = value[at]
    return ((byte >> 1) ^ -(byte & 1), at + 1) if byte < 0x80 else _number(value, at, _LONG_BITS)


def _number(value: bytes, at: int, bits: int) -> tuple[int, int]:
    """A number in zigzag encoding, and the position after it."""
    number = shift = 0
    while shift < bits:
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> bits:
                break
            return (number >> 1) ^ -(number & 1), at
        shift += 7
    raise NotAvroError(f"a number has more than {bits} bits")
