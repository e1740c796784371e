"""Evolution of a table's columns. New columns are added. Existing columns keep their type or get a wider
type. Pure."""

from typing import Any, NamedTuple

import pyarrow as pa

from moldau.client.errors import ToolError
from moldau.pipeline.values.ddl import render_type


def add_columns(
    old: pa.DataType | None,
    new: pa.DataType | None,
    *,
    promote: bool = False,
) -> pa.DataType | None:
    """``old`` with the additional columns of ``new``, at any depth and in the order of ``new``.

    A column may have different types in ``old`` and ``new``. If ``promote`` is set, and Iceberg can read old
    files with the new type, the new type is used. Otherwise this raises a :class:`ToolError` that names the
    column.
    """
    return _Merge(promote).of(old, new, ("value",))


def is_promotion(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether a column's type may change in this way: INT to BIGINT, FLOAT to DOUBLE, or a decimal to more
    digits."""
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(old.scale == new.scale and old.precision < new.precision)
    return (old, new) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


class _Merge(NamedTuple):
    promote: bool

    def of(self, old: pa.DataType | None, new: pa.DataType | None, path: tuple[str, ...]) -> Any:
        if old is None or new is None or old == new or pa.types.is_null(new):
            return new if old is None else old
        if pa.types.is_null(old):
            return new
        if pa.types.is_struct(old) and pa.types.is_struct(new):
            return self._of_structs(old, new, path)
        if pa.types.is_map(old) and pa.types.is_map(new) and old.key_type == new.key_type:
            return pa.map_(old.key_type, self.of(old.item_type, new.item_type, (*path, "value")))
        if pa.types.is_list(old) and pa.types.is_list(new):
            return pa.list_(self.of(old.value_type, new.value_type, (*path, "element")))
        if self.promote and is_promotion(old, new):
            return new
        advice = (
            "columns can be added, and can change from INT to BIGINT, FLOAT to DOUBLE, or to a longer DECIMAL"
            if self.promote
            else "columns can be added, not changed"
        )
        types = f"{render_type(old)} in the table and {render_type(new)} in the schema"
        raise ToolError(f"column {'.'.join(path)} is {types}: {advice}")

    def _of_structs(self, old: pa.DataType, new: pa.DataType, path: tuple[str, ...]) -> pa.DataType:
        names = {field.name: field.type for field in new}
        fields = [
            pa.field(field.name, self.of(field.type, names.get(field.name), (*path, field.name)))
            for field in old
        ]
        there = {field.name for field in old}
        return pa.struct(
            [*fields, *(pa.field(field.name, field.type) for field in new if field.name not in there)]
        )


def storable(found: pa.DataType | None) -> pa.DataType | None:
    """The columns, except those without a name or without a type (columns with only nulls).

    If names of columns differ only in case, only the first column is kept, because Spark could not
    distinguish the columns. In the same way, only the first of two columns ``a`` and ``a.b`` is kept. In
    Iceberg ``a.b`` may be the name of a column inside ``a``.
    """
    if found is None or pa.types.is_null(found):
        return None
    if pa.types.is_struct(found):
        fields: list[pa.Field] = []
        names: set[str] = set()
        prefixes: set[str] = set()
        for field in found:
            name, before = field.name.lower(), _prefixes(field.name.lower())
            inside = storable(field.type)
            if (
                not name
                or inside is None
                or name in names
                or name in prefixes
                or not names.isdisjoint(before)
            ):
                continue
            names.add(name)
            prefixes |= before
            fields.append(pa.field(field.name, inside))
        return pa.struct(fields) if fields else None
    if pa.types.is_list(found):
        element = storable(found.value_type)
        return None if element is None else pa.list_(element)
    if pa.types.is_map(found):
        item = storable(found.item_type)
        return None if item is None else pa.map_(found.key_type, item)
    return found


def _prefixes(name: str) -> set[str]:
    """Return the beginnings of a name before each of its dots: ``a`` and ``a.b`` for ``a.b.c``."""
    return {name[:at] for at, letter in enumerate(name) if letter == "."}
