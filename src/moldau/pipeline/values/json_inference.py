"""Determines columns for JSON values. The types at each position are counted, and the counts determine the
types of columns.

Counting is commutative and associative, so the order of values and their division into units make no
difference. A column gets the narrowest type that fits all values. If only STRING fits all values, a narrower
type is still used if at most one record in a hundred does not fit it. Otherwise the type is STRING, which
stores every value as its JSON text. The reasons are in docs/decisions/0017-columns-by-counts.md.
"""

import enum
import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from moldau.pipeline.values.ddl import DECIMAL_DIGITS_MAX
from moldau.pipeline.values.json_rows import has_repeated_names

MISFITS_SHARE: Final = 100
"""A type is used only if at most one record in this number does not fit it. Such a record becomes a dead
letter."""
LEVELS_MAX: Final = 30
"""Maximum nesting depth of columns. Readers of Parquet and of Iceberg's metadata have such limits."""
POSITIONS_MAX: Final = 20_000
"""Maximum number of positions that are counted. If there are more positions, the deepest levels are removed.
"""
COLUMNS_MAX: Final = 2_000
NAMES_MAX: Final = 1_000
"""Maximum number of names in one object."""
NAME_CHARACTERS_MAX: Final = 255
_LOOK_EVERY: Final = 1024
_NOTHING: Final = re.compile(rb"null|\{\s*\}|\[\s*\]")
_SPACED_QUOTES: Final = (b'" ', b'"\n', b'"\t', b'"\r')
_SPACED_NAME_ENDS: Final = re.compile(rb'"\s+:')
_INT64: Final = range(-(2**63), 2**63)
_DECIMALS: Final = range(-(10**DECIMAL_DIGITS_MAX) + 1, 10**DECIMAL_DIGITS_MAX)
_EXACT_MAX: Final = 2**53


class JsonKind(enum.IntEnum):
    """Kinds of JSON values. Two kinds are distinguished only if their values need columns of different
    types."""

    BOOLEAN = 0
    NUMBER = 1
    """A fraction, or an integer of int64 that DOUBLE stores exactly."""
    INT64 = 2
    """An integer of int64 that is not a ``NUMBER``."""
    INTEGER = 3
    """An integer of at most 38 digits that int64 cannot store."""
    HUGE = 4
    """A number that is none of the kinds above."""
    STRING = 5
    OBJECT = 6
    ARRAY = 7


class ValueCounts:
    """Counts at a position: the number of records with each kind of value, and the counts at the positions
    inside it."""

    __slots__ = ("element", "fraction", "kinds", "last", "last_record", "members", "records")

    def __init__(self) -> None:
        self.records = 0
        """Number of records with a non-null value at this position."""
        self.last_record = -1
        self.kinds = [0] * len(JsonKind)
        """Number of records with a value of each kind."""
        self.last = [-1] * len(JsonKind)
        """For each kind, the number of the last record that has a value of this kind."""
        self.fraction = False
        self.members: dict[str, ValueCounts] = {}
        self.element: ValueCounts | None = None

    def inside(self) -> Iterator["ValueCounts"]:
        yield from self.members.values()
        if self.element is not None:
            yield self.element

    def merge(self, other: "ValueCounts", levels: int) -> None:
        """Add the counts of other records."""
        self.records += other.records
        self.fraction |= other.fraction
        self.kinds = [mine + theirs for mine, theirs in zip(self.kinds, other.kinds, strict=True)]
        if not levels:
            return
        for name, member in other.members.items():
            self.members.setdefault(name, ValueCounts()).merge(member, levels - 1)
        if other.element is not None:
            self.element = self.element or ValueCounts()
            self.element.merge(other.element, levels - 1)

    def cut(self, levels: int) -> None:
        """Remove the levels that are deeper than ``levels``."""
        if not levels:
            self.members, self.element = {}, None
        for one in self.inside():
            one.cut(levels - 1)


class FoundValues:
    """Counts of the types in the values of many records, in limited memory. Tasks send them to the driver."""

    def __init__(self) -> None:
        self.root = ValueCounts()
        self.levels = LEVELS_MAX
        """Number of levels at which positions are counted."""
        self.odd = False
        """Whether a value could not be parsed or has repeated names. Decoding must then check each value."""
        self._records = 0

    def add(self, value: bytes) -> None:
        """Count one value, which is a JSON object."""
        try:
            parsed = msgspec.json.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            try:
                parsed = json.loads(value.decode(), parse_int=_parse_int)
            except (ValueError, RecursionError):  # for example, a text is not valid Unicode
                self.odd = True
                return
        self._records += 1
        members = _count(self.root, parsed, self._records, self.levels)
        if _may_hide_a_value(value, members) and has_repeated_names(value):
            self.odd = True
        if self._records % _LOOK_EVERY == 0:
            self._bound()

    def merge(self, other: "FoundValues") -> None:
        self.levels = min(self.levels, other.levels)
        self.odd |= other.odd
        self.root.cut(self.levels)
        self.root.merge(other.root, self.levels)
        self._records += other._records  # later records get numbers that are not used yet
        self._bound()

    def _bound(self) -> None:
        """Limit the number of positions by removing the deepest levels. The resulting depth depends only on
        the positions, and not on the times at which this method is called."""
        total = 0
        for level, count in enumerate(_counts_of_levels(self.root)):
            total += count
            if total > POSITIONS_MAX:
                self.levels = min(self.levels, level - 1)
                self.root.cut(self.levels)
                return

    def finish(self) -> "FoundValues":
        self._bound()
        return self


def _may_hide_a_value(value: bytes, members: int) -> bool:
    """Whether an object may contain a name twice, with a last value that has no type (for example null). This
    last value hides the value before it."""
    names = value.count(b'":')  # also counts texts that begin with a colon
    if members == names and not any(quoted in value for quoted in _SPACED_QUOTES):
        return False
    return bool(_NOTHING.search(value)) and members != names + len(_SPACED_NAME_ENDS.findall(value))


def _parse_int(text: str) -> int | float:
    return int(text) if len(text) < DECIMAL_DIGITS_MAX * 2 else float("inf")


def _counts_of_levels(root: ValueCounts) -> Iterator[int]:
    level = [root]
    while level:
        yield len(level)
        level = [inside for one in level for inside in one.inside()]


def _count(found: ValueCounts, value: Any, record: int, levels: int) -> int:
    """Count one value, which is not null. Returns the number of members inside the value."""
    kind = _KINDS.get(type(value), -1)
    if kind < 0:
        kind = _kind_of_number(value)
        found.fraction |= type(value) is float and kind == _NUMBER
    if found.last[kind] != record:
        found.last[kind] = record
        found.kinds[kind] += 1
        if found.last_record != record:
            found.last_record = record
            found.records += 1
    count = 0
    if kind == _OBJECT and levels:
        count = len(value)
        members = found.members
        for name, one in value.items():
            if one is not None:
                member = members.get(name)
                if member is None:
                    member = members[name] = ValueCounts()
                count += _count(member, one, record, levels - 1)
    elif kind == _ARRAY and levels:
        if found.element is None:
            found.element = ValueCounts()
        for one in value:
            if one is not None:
                count += _count(found.element, one, record, levels - 1)
    return count


# The counting code uses plain numbers for the kinds, because hashing an enum member would cost as much as all
# other work.
_NUMBER: Final = int(JsonKind.NUMBER)
_OBJECT: Final = int(JsonKind.OBJECT)
_ARRAY: Final = int(JsonKind.ARRAY)
_KINDS: Final = {bool: int(JsonKind.BOOLEAN), str: int(JsonKind.STRING), dict: _OBJECT, list: _ARRAY}


def _kind_of_number(value: int | float) -> int:
    if type(value) is float:
        return int(JsonKind.HUGE) if math.isinf(value) else _NUMBER
    if -_EXACT_MAX <= value <= _EXACT_MAX:
        return _NUMBER
    if value in _INT64:
        return _NUMBER if int(float(value)) == value else int(JsonKind.INT64)
    return int(JsonKind.INTEGER if value in _DECIMALS else JsonKind.HUGE)


class JsonColumns(NamedTuple):
    """The column type of a position, which is ``None`` if the type is unknown. ``odd`` is true if values must
    be checked because some members have no column."""

    type: pa.DataType | None
    odd: bool


def columns_of(
    found: FoundValues, table: pa.DataType | None, reserved: frozenset[tuple[str, ...]] = frozenset()
) -> JsonColumns:
    """The columns of a table: existing columns, which keep their types, and newly found columns.

    ``reserved`` has the paths of columns that do not store the member with the same name.
    """
    for levels in range(found.levels, -1, -1):
        chosen = _InferredColumns(reserved, found.levels).of(found.root, table, (), levels)
        if chosen.type is None or chosen.type == table or _width(chosen.type) <= COLUMNS_MAX:
            return chosen._replace(odd=chosen.odd or found.odd)
    return JsonColumns(table, True)


def _width(found: pa.DataType) -> int:
    return 1 + sum(_width(found.field(at).type) for at in range(found.num_fields))


class _InferredColumns(NamedTuple):
    reserved: frozenset[tuple[str, ...]]
    counted_levels: int

    def of(
        self, found: ValueCounts, table: pa.DataType | None, path: tuple[str, ...], levels: int
    ) -> JsonColumns:
        if table is not None:
            return self._of_column(found, table, path, levels)
        if not found.records:
            return JsonColumns(None, False)
        wanted = _choose(found)
        chosen = self._of_kind(found, wanted, path, levels)
        has_misfits = any(count for kind, count in zip(JsonKind, found.kinds, strict=True) if kind != wanted)
        if chosen.type is None and has_misfits:
            # The arrays or objects are empty or contain only nulls, so nothing in them must be stored. Values
            # of other kinds must be stored. Therefore the column is a STRING.
            return JsonColumns(pa.string(), False)
        return chosen

    def _of_kind(
        self, found: ValueCounts, wanted: JsonKind, path: tuple[str, ...], levels: int
    ) -> JsonColumns:
        if wanted is JsonKind.OBJECT:
            if not levels or len(found.members) > NAMES_MAX:
                return JsonColumns(pa.string(), False)
            return self._of_object(found, [], path, levels)
        if wanted is JsonKind.ARRAY:
            if not levels:
                return JsonColumns(pa.string(), False)
            assert found.element is not None
            element, odd = self.of(found.element, None, (*path, "element"), levels - 1)
            return JsonColumns(None if element is None else pa.list_(element), odd)
        return JsonColumns(_TYPES[wanted], False)

    def _of_column(
        self, found: ValueCounts, table: pa.DataType, path: tuple[str, ...], levels: int
    ) -> JsonColumns:
        """A column that the table already has. It keeps its type, but it may get more columns inside it."""
        if pa.types.is_struct(table):
            if not levels or len(found.members) > NAMES_MAX:
                return JsonColumns(table, found.kinds[JsonKind.OBJECT] > 0)
            return self._of_object(found, list(table), path, levels)
        if pa.types.is_list(table) and found.element is not None:
            element, odd = self.of(found.element, table.value_type, (*path, "element"), max(levels - 1, 0))
            return JsonColumns(pa.list_(element), odd)
        return JsonColumns(table, pa.types.is_list(table) and found.kinds[JsonKind.ARRAY] > 0 and not levels)

    def _of_object(
        self, found: ValueCounts, columns: list[pa.Field], path: tuple[str, ...], levels: int
    ) -> JsonColumns:
        spellings: dict[str, list[str]] = {}
        for name in found.members:
            spellings.setdefault(name.lower(), []).append(name)
        fields: list[pa.Field] = []
        odd = False
        for column in columns:
            names = [] if (*path, column.name) in self.reserved else spellings.pop(column.name.lower(), [])
            odd |= any(name != column.name for name in names)
            inside, odd_inside = self.of(
                _together(found, names, levels), column.type, (*path, column.name), levels - 1
            )
            odd |= odd_inside
            fields.append(pa.field(column.name, inside))
        taken = {field.name.lower() for field in fields}
        for lower, names in sorted(spellings.items()):
            name = min(names, key=lambda one: (-found.members[one].records, one))
            inside, odd_inside = self.of(_together(found, names, levels), None, (*path, name), levels - 1)
            if inside is None:
                odd |= odd_inside
                continue
            if not _is_storable(lower, taken) or len(fields) >= NAMES_MAX:
                odd = True
                continue
            odd |= odd_inside or len(names) > 1
            taken.add(lower)
            fields.append(pa.field(name, inside))
        return JsonColumns(pa.struct(fields) if fields else None, odd)


def _together(found: ValueCounts, names: list[str], levels: int) -> ValueCounts:
    """The sum of the counts of several members. Their names differ only in case, so these members share one
    column."""
    if len(names) == 1:
        return found.members[names[0]]
    together = ValueCounts()
    for name in names:
        together.merge(found.members[name], levels)
    return together


def _is_storable(lower: str, taken: set[str]) -> bool:
    """Whether a column can have this name. Readers ignore case. They may read ``a.b`` as a column ``b``
    inside ``a``."""
    if not lower.strip() or len(lower) > NAME_CHARACTERS_MAX or lower in taken:
        return False
    before = {lower[:at] for at, letter in enumerate(lower) if letter == "."}
    return taken.isdisjoint(before) and not any(one.startswith(f"{lower}.") for one in taken)


_TYPES: Final = {
    JsonKind.BOOLEAN: pa.bool_(),
    JsonKind.INT64: pa.int64(),
    JsonKind.NUMBER: pa.float64(),
    JsonKind.INTEGER: pa.decimal128(DECIMAL_DIGITS_MAX, 0),
    JsonKind.STRING: pa.string(),
}


def _choose(found: ValueCounts) -> JsonKind:
    """Choose the kind of JSON values that determines the column's type. The choice depends only on the
    counts, by the rule in the module's docstring."""
    integers = () if found.fraction else (JsonKind.NUMBER,)
    # For each kind, the kinds of values that its column can store. The narrowest kind comes first.
    held: dict[JsonKind, tuple[JsonKind, ...]] = {
        JsonKind.BOOLEAN: (JsonKind.BOOLEAN,),
        JsonKind.INT64: (*integers, JsonKind.INT64),
        JsonKind.NUMBER: (JsonKind.NUMBER,),
        JsonKind.INTEGER: (*integers, JsonKind.INT64, JsonKind.INTEGER),
        JsonKind.OBJECT: (JsonKind.OBJECT,),
        JsonKind.ARRAY: (JsonKind.ARRAY,),
    }
    misfits = {
        wanted: sum(count for kind, count in zip(JsonKind, found.kinds, strict=True) if kind not in kinds)
        for wanted, kinds in held.items()
    }
    # If several kinds have the same number of misfits, the first of them is chosen.
    best = min(misfits, key=lambda wanted: misfits[wanted])
    return best if misfits[best] * MISFITS_SHARE <= found.records else JsonKind.STRING
