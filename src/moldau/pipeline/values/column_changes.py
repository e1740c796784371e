"""Changes the type of a column of JSON values. If readers allow it, the existing column becomes wider.
Otherwise a new column is added.

The name of the new column is the name of the old column with the new type, for example ``qty_string``. The
new column stores the values that do not fit the old column. The old column stays unchanged, so no file is
rewritten and no query breaks.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from moldau.client.errors import ToolError
from moldau.pipeline.values.ddl import parse_ddl, render_type
from moldau.pipeline.values.evolution import add_columns
from moldau.pipeline.values.formats import ValueFormat, ValueKind
from moldau.pipeline.values.json import check_json_columns
from moldau.pipeline.values.json_rows import Path

_NAME: Final = r"(?:`(?:[^`]|``)+`|[^\s`.]+)"
_CHANGE: Final = re.compile(rf"\s*({_NAME}(?:\.{_NAME})*)\s+(\S.*)", re.DOTALL)
_WORD: Final = re.compile(r"[A-Z_]+")
ELEMENT: Final = "element"


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """The path of a column below ``value``, and the type that it should have."""

    path: Path
    type: pa.DataType

    def apply(self, table: ValueFormat, where: str, *, promote: bool) -> ValueFormat:
        """The table's format after the change. ``promote`` means that columns may become wider by Iceberg's
        rules.

        Raises :class:`ToolError` if the table has no columns of JSON values, if the column around the changed
        column is missing, or if the existing column can already store every value.
        """
        if table.kind is not ValueKind.JSON:
            raise ToolError("columns are given other types in tables of JSON values: --value json")
        if table.type is None or not pa.types.is_struct(table.type):
            raise ToolError(f"{where} has no columns of JSON values yet")
        changes = _ChangeInTable(self, table, promote)
        found = changes.inside(table.type, ())
        return replace(table.with_type(found), seconds=changes.seconds)


def parse_column_change(text: str) -> ColumnChange:
    """Parse a change such as ``customer.age DOUBLE`` or ``lines.element.`unit price` STRING``. Raises
    :class:`ToolError`."""
    found = _CHANGE.fullmatch(text)
    if found is None:
        raise ToolError(f"{text!r} is no column with its new type, like 'qty STRING'")
    names = re.findall(_NAME, found[1])
    columns = parse_ddl(f"value {found[2]}")
    if columns.num_fields != 1:
        raise ToolError(f"{text!r} is more than one column: give each by an option of its own")
    check_json_columns(columns)
    path = tuple(name[1:-1].replace("``", "`") if name.startswith("`") else name for name in names)
    return ColumnChange(path, columns.field(0).type)


class _ChangeInTable:
    def __init__(self, change: ColumnChange, table: ValueFormat, promote: bool) -> None:
        self._change = change
        self._promote = promote
        self.seconds = dict(table.seconds)

    def inside(self, found: pa.DataType, path: Path) -> pa.DataType:
        """Return the new type of the column at ``path``. The column that must change is inside the column at
        ``path``."""
        wanted = self._change.path[len(path)]
        if pa.types.is_list(found) and wanted == ELEMENT and len(path) + 1 < len(self._change.path):
            return pa.list_(self.inside(found.value_type, (*path, ELEMENT)))
        if not pa.types.is_struct(found):
            place = ".".join(path)
            raise ToolError(f"column {place} is {render_type(found)}: it has no column {wanted} inside")
        fields = list(found)
        at = next((at for at, one in enumerate(fields) if one.name.lower() == wanted.lower()), None)
        if len(path) + 1 == len(self._change.path):
            self._change_field(fields, at, path)
        elif at is None:
            raise ToolError(f"there is no column {'.'.join((*path, wanted))}")
        else:
            own = fields[at]
            fields[at] = pa.field(own.name, self.inside(own.type, (*path, own.name)))
        return pa.struct(fields)

    def _change_field(self, fields: list[Any], at: int | None, path: Path) -> None:
        wanted = self._change.type
        if at is None:
            fields.append(pa.field(self._change.path[-1], wanted))
            return
        own = fields[at]
        try:
            fields[at] = pa.field(own.name, add_columns(own.type, wanted, promote=self._promote))
        except ToolError:
            self._add_second(fields, own, (*path, own.name))

    def _add_second(self, fields: list[Any], own: Any, path: Path) -> None:
        wanted, place = self._change.type, ".".join(path)
        if own.type == pa.string():
            raise ToolError(
                f"column {place} is STRING, which holds every value: query CAST({place} AS"
                f" {render_type(wanted)})"
            )
        types = {one.name: one.type for one in fields}
        there = self.seconds.get(path, ())
        if any(types[name] == wanted for name in there):
            return
        if any(types[name] == pa.string() for name in there):
            raise ToolError(f"column {place} has a STRING beside it, which holds every other value")
        name = self._new_name(own.name, {one.lower() for one in types})
        fields.append(pa.field(name, wanted))
        self.seconds[path] = (*there, name)

    def _new_name(self, own: str, taken: set[str]) -> str:
        word = _WORD.match(render_type(self._change.type))
        assert word is not None
        name = wanted = f"{own}_{word[0].lower()}"
        number = 1
        while name.lower() in taken:
            number += 1
            name = f"{wanted}_{number}"
        return name
