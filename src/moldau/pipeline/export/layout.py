"""The columns of an export in an Iceberg table: names, field ids, types and partitions.

An export identifies its columns by their original names. Other tools may rename, drop, move or widen columns,
and may partition the table. Therefore the export finds a column by its field id, which never changes. Files
contain the ids and the table's current names and types. A dropped column is no longer written.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import ListType, MapType, NestedField, StructType

from moldau.client.errors import ToolError

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

FIELD_ID: Final = b"PARQUET:field_id"
SOURCE: Final = b"moldau.column"
"""Key in a field's metadata. Its value is the name of the field in the export."""
ROOT: Final = -1
PARTITIONS_MAX: Final = 256
"""Maximum number of files that a task writes at a time."""

Key = tuple[Any, ...]
"""The partition of a file: one value for each field of the partition spec."""


@dataclass(frozen=True, slots=True)
class ExportLayout:
    """The columns that an export writes to a table. The object is sent to the tasks."""

    schema: pa.Schema
    partitioning: "Partitioning | None"

    def arranged(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Convert the export's records to the columns and types of the table."""
        columns = [_arranged(records.column(_source(field)), field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def split(self, records: pa.RecordBatch) -> Iterator[tuple[Key, pa.RecordBatch]]:
        """Split records by their partitions. The records are already in the table's layout."""
        if self.partitioning is None:
            yield (), records
        else:
            yield from self.partitioning.split(records)


class PartitionField(NamedTuple):
    """The source of a partition's value: the index of a column, the indexes of the nested fields inside it,
    and a transform."""

    path: tuple[int, ...]
    transform: Any
    type: Any


@dataclass(frozen=True, slots=True)
class Partitioning:
    """A table's partition spec."""

    table: str
    fields: tuple[PartitionField, ...]

    def split(self, records: pa.RecordBatch) -> Iterator[tuple[Key, pa.RecordBatch]]:
        keys = [_transformed(_at(records, field.path), field) for field in self.fields]
        rows: dict[Key, list[int]] = {}
        for number, key in enumerate(zip(*keys, strict=True)):
            rows.setdefault(key, []).append(number)
        if len(rows) == 1:
            yield next(iter(rows)), records
            return
        for key, numbers in rows.items():
            yield key, records.take(pa.array(numbers, pa.int64()))


def layout_of(metadata: "TableMetadata", columns: pa.Schema, table: str) -> ExportLayout:
    """The table's layout for an export's columns. Raises :class:`ToolError` for an unsupported partition
    spec.
    """
    # Only drivers import this module, because tasks do not need it and the import is slow.
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    ids = _ids_by_source(metadata)
    schema = metadata.schema()
    arrow = schema_to_pyarrow(schema)
    fields = _stored(columns, schema.as_struct(), arrow, ids, ROOT, keep_new=False)
    layout = pa.schema(fields)
    return ExportLayout(layout, _partitioning(metadata.spec(), schema, layout, table))


def stored_columns(metadata: "TableMetadata", columns: pa.Schema, before: pa.Schema, table: str) -> pa.Schema:
    """The columns of an export with the table's names and types. New columns are unchanged.

    ``before`` has the columns that the export wrote earlier. A column that another tool has dropped is
    skipped. If another tool has given the name of a new column to an older column, this raises
    :class:`ToolError`.
    """
    # Only drivers import this module, because tasks do not need it and the import is slow.
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    schema = metadata.schema()
    ids = _ids_by_source(metadata)
    arrow = schema_to_pyarrow(schema)
    fields = _stored(columns, schema.as_struct(), arrow, ids, ROOT, keep_new=True, before=before)
    _check_names(fields, table, "")
    return pa.schema([_bare(field) for field in fields])


def _check_names(fields: Any, table: str, path: str) -> None:
    older = {field.name: _source(field) for field in fields if SOURCE in (field.metadata or {})}
    for field in fields:
        name = f"{path}{field.name}"
        if field.name in older and SOURCE not in (field.metadata or {}):
            raise ToolError(
                f"table {table}: records have {name} now, and another tool has given this name to the column"
                f" that was {path}{older[field.name]}: rename it, and run the export again"
            )
        kind = field.type
        while pa.types.is_list(kind):
            name, kind = f"{name}.element", kind.value_type
        if pa.types.is_struct(kind):
            _check_names(kind, table, f"{name}.")


def _ids_by_source(metadata: "TableMetadata") -> Mapping[tuple[int, str], int]:
    """Field ids by the parent's id and the field's original name. If an existing field and a dropped field
    have the same name, the existing field is used."""
    live = set(metadata.schema().field_ids)
    found: dict[tuple[int, str], int] = {}
    seen: set[int] = set()

    def note(parent: int, field: NestedField) -> None:
        if field.field_id not in seen:
            seen.add(field.field_id)
            key = (parent, field.name)
            if found.get(key) not in live:
                found[key] = field.field_id
        descend(field.field_id, field.field_type)

    def descend(parent: int, kind: Any) -> None:
        if isinstance(kind, StructType):
            for field in kind.fields:
                note(parent, field)
        elif isinstance(kind, ListType):
            descend(kind.element_id, kind.element_type)
        elif isinstance(kind, MapType):
            descend(kind.key_id, kind.key_type)
            descend(kind.value_id, kind.value_type)

    for schema in sorted(metadata.schemas, key=lambda one: one.schema_id):
        descend(ROOT, schema.as_struct())
    return found


def _stored(
    columns: Any,
    struct: StructType,
    arrow: Any,
    ids: Mapping[tuple[int, str], int],
    parent: int,
    *,
    keep_new: bool,
    before: Any = (),
) -> list[pa.Field]:
    """The fields of a struct in the table's order, names and types. ``arrow`` has the table's Arrow fields in
    the order of ``struct``."""
    positions = {field.field_id: number for number, field in enumerate(struct.fields)}
    written = {field.name: field.type for field in before}
    stored = []
    for column in columns:
        field_id = ids.get((parent, column.name))
        if field_id in positions:
            field, target = struct.fields[positions[field_id]], arrow.field(positions[field_id])
            kind = _stored_type(
                column.type,
                field.field_type,
                target.type,
                ids,
                field_id,
                keep_new=keep_new,
                before=written.get(column.name),
            )
            stored.append(pa.field(field.name, kind, column.nullable, _metadata(field_id, column.name)))
        elif keep_new and column.name not in written:
            stored.append(column)
    return stored


def _stored_type(
    ours: pa.DataType,
    kind: Any,
    theirs: pa.DataType,
    ids: Mapping[tuple[int, str], int],
    field_id: int,
    *,
    keep_new: bool,
    before: pa.DataType | None,
) -> pa.DataType:
    if isinstance(kind, StructType) and pa.types.is_struct(ours):
        members = before if before is not None and pa.types.is_struct(before) else ()
        return pa.struct(_stored(ours, kind, theirs, ids, field_id, keep_new=keep_new, before=members))
    if isinstance(kind, ListType) and pa.types.is_list(ours):
        element = before.value_type if before is not None and pa.types.is_list(before) else None
        inner = _stored_type(
            ours.value_type,
            kind.element_type,
            theirs.value_type,
            ids,
            kind.element_id,
            keep_new=keep_new,
            before=element,
        )
        return pa.list_(_like(ours.value_field, inner, kind.element_id))
    if isinstance(kind, MapType) and pa.types.is_map(ours):
        item = before.item_type if before is not None and pa.types.is_map(before) else None
        inner = _stored_type(
            ours.item_type,
            kind.value_type,
            theirs.item_type,
            ids,
            kind.value_id,
            keep_new=keep_new,
            before=item,
        )
        return pa.map_(
            _like(ours.key_field, ours.key_type, kind.key_id), _like(ours.item_field, inner, kind.value_id)
        )
    wider = {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}
    is_wider = (ours, theirs) in wider or (
        pa.types.is_decimal(ours) and pa.types.is_decimal(theirs) and theirs.precision > ours.precision
    )
    return theirs if is_wider else ours


def _like(field: pa.Field, kind: pa.DataType, field_id: int) -> pa.Field:
    """A field of a list or map, with its id and its type in the table. Its name does not change."""
    return pa.field(field.name, kind, field.nullable, _metadata(field_id, field.name))


def _metadata(field_id: int, source: str) -> dict[bytes, bytes]:
    return {FIELD_ID: str(field_id).encode(), SOURCE: source.encode()}


def _source(field: pa.Field) -> str:
    return str(field.metadata[SOURCE].decode())


def _bare(field: pa.Field) -> pa.Field:
    """The field without ids, because pyiceberg assigns new ids when it changes the schema."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_bare(one) for one in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(_bare(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_bare(kind.key_field), _bare(kind.item_field))
    return pa.field(field.name, kind, field.nullable)


def _arranged(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array converted to another type. Fields of structs are found by their source names."""
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        members = [_arranged(pc.struct_field(array, [_source(field)]), field.type) for field in kind]
        if not members:
            return pa.array([None if null else {} for null in array.is_null().to_pylist()], kind)
        # The mask marks the null structs. Without it, readers would see a struct of nulls instead of a null.
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        whole = pa.concat_arrays([array]) if array.offset == 0 else array.take(pa.array(range(len(array))))
        values = _arranged(whole.values, kind.value_type)
        return pa.ListArray.from_arrays(whole.offsets, values, type=kind, mask=whole.is_null())
    return array.cast(kind)


def _partitioning(
    spec: "PartitionSpec", schema: "Schema", layout: pa.Schema, table: str
) -> Partitioning | None:
    if spec.is_unpartitioned():
        return None
    fields = []
    for field in spec.fields:
        path = _path(layout, field.source_id)
        if path is None:
            name = schema.find_column_name(field.source_id)
            raise ToolError(
                f"table {table} is partitioned by {field.name} of column {name}, which the export does not"
                " write: remove that partition field"
            )
        fields.append(PartitionField(path, field.transform, schema.find_type(field.source_id)))
    return Partitioning(table, tuple(fields))


def _path(fields: Any, field_id: int) -> tuple[int, ...] | None:
    for number, field in enumerate(fields):
        if (field.metadata or {}).get(FIELD_ID) == str(field_id).encode():
            return (number,)
        if pa.types.is_struct(field.type):
            inner = _path(field.type, field_id)
            if inner is not None:
                return (number, *inner)
    return None


def _at(records: pa.RecordBatch, path: Sequence[int]) -> pa.Array:
    column = records.column(path[0])
    return pc.struct_field(column, list(path[1:])) if len(path) > 1 else column


def _transformed(array: pa.Array, field: PartitionField) -> list[Any]:
    """The partition value of each row. Equal values are transformed only once."""
    encoded = array.dictionary_encode() if not pa.types.is_dictionary(array.type) else array
    distinct = encoded.dictionary
    if pa.types.is_timestamp(distinct.type) or pa.types.is_time(distinct.type):
        distinct = distinct.cast(pa.int64())
    elif pa.types.is_date(distinct.type):
        distinct = distinct.cast(pa.int32())
    transform = field.transform.transform(field.type)
    values = [transform(value) for value in distinct.to_pylist()]
    nothing = transform(None)
    return [nothing if index is None else values[index] for index in encoded.indices.to_pylist()]
