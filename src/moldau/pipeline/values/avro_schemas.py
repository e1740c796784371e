"""Parsing of Avro schemas, and the known logical types. The module ``avro_defaults.py`` converts defaults to
values.

The library decodes raw values (numbers, bytes, text); logical types are applied to whole columns afterwards
(:mod:`moldau.pipeline.values.avro_columns`). Therefore values and defaults are converted in the same way.
"""

import json
import math
from functools import cache
from typing import Any, Final, NamedTuple

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from moldau.client.errors import ToolError
from moldau.pipeline.values.avro_defaults import default_value

RECORDS: Final = ("record", "error")
_TIMES: Final = {
    ("int", "date"): "date",
    ("int", "time-millis"): "time",
    ("long", "time-micros"): "time",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("long", "timestamp-nanos"): "timestamp",
    ("long", "local-timestamp-millis"): "local timestamp",
    ("long", "local-timestamp-micros"): "local timestamp",
    ("long", "local-timestamp-nanos"): "local timestamp",
}
_UNITS: Final = {"millis": "ms", "micros": "us", "nanos": "ns"}


class Logical(NamedTuple):
    """A logical type: its family, its unit (of times), its precision and scale (of decimals)."""

    family: str
    unit: str = ""
    precision: int = 0
    scale: int = 0


class Schema(NamedTuple):
    """A schema as the library has parsed it, and its named types."""

    root: Any
    names: dict[str, Any]

    def resolve(self, schema: Any) -> Any:
        """The name of a primitive type, a union, or the definition of any other type."""
        while True:
            if isinstance(schema, str):
                if schema not in self.names:
                    return schema
                schema = self.names[schema]
            elif isinstance(schema, dict) and not isinstance(schema["type"], str):
                schema = schema["type"]
            elif isinstance(schema, dict) and schema["type"] in self.names:
                schema = self.names[schema["type"]]
            else:
                return schema


@cache
def parse(text: str) -> Schema:
    """Parse a schema. Raises :class:`ToolError` for a text that is not an Avro schema."""
    return _parse(text, with_logical_types=True)


@cache
def parse_array(text: str) -> Any:
    """The schema with which the library reads an array of values. It has no logical types, and its defaults
    are raw values.

    Names are replaced by their definitions, because the library does not resolve every mixture of names and
    definitions. The names of recursive types are kept. Only writers' schemas may have recursive types.
    """
    schema = _parse(text, with_logical_types=False)
    fields = [one for record in schema.names.values() for one in record.get("fields", ()) if "default" in one]
    # All defaults are converted before any of them is replaced, because a record's default includes the
    # defaults of its fields.
    defaults = [default_value(one["default"], one["type"], schema, one["name"]) for one in fields]
    for field, default in zip(fields, defaults, strict=True):
        field["default"] = default
    root = _inlined(schema.root, schema, ())
    return {"type": "array", "items": root, "__fastavro_parsed": True, "__named_schemas": schema.names}


def _inlined(declared: Any, schema: Schema, open_names: tuple[str, ...]) -> Any:
    found = schema.resolve(declared)
    if isinstance(found, list):
        return [_inlined(one, schema, open_names) for one in found]
    if isinstance(found, str):
        return found
    name = found.get("name")
    if name in open_names:
        return name
    inside = open_names if name is None else (*open_names, name)
    copy = dict(found)
    for part in ("items", "values"):
        if part in copy:
            copy[part] = _inlined(copy[part], schema, inside)
    if "fields" in copy:
        copy["fields"] = [{**one, "type": _inlined(one["type"], schema, inside)} for one in copy["fields"]]
    return copy


def _parse(text: str, *, with_logical_types: bool) -> Schema:
    try:
        root = fastavro.parse_schema(_selected(json.loads(text), with_logical_types))
    except (ValueError, SchemaParseException, UnknownType, KeyError, TypeError, RecursionError) as error:
        raise ToolError(f"this is no Avro schema: {type(error).__name__}: {error}") from error
    names: dict[str, Any] = {}
    _collect_names(root, names)
    return Schema(root, names)


def _collect_names(schema: Any, names: dict[str, Any]) -> None:
    if isinstance(schema, list):
        for one in schema:
            _collect_names(one, names)
    elif isinstance(schema, dict):
        if "name" in schema and isinstance(schema["type"], str):
            names[schema["name"]] = schema
        for field in schema.get("fields", ()):
            _collect_names(field["type"], names)
        for inside in ("type", "items", "values"):
            _collect_names(schema.get(inside), names)


def _selected(schema: Any, with_logical_types: bool) -> Any:
    """The schema without logical types. With ``with_logical_types``, it keeps the valid logical types that
    are known. Avro ignores the other logical types."""
    if isinstance(schema, list):
        return [_selected(one, with_logical_types) for one in schema]
    if not isinstance(schema, dict):
        return schema
    keep = with_logical_types and logical_of(schema) is not None
    return {
        name: _selected(one, with_logical_types) if name in ("type", "items", "values", "fields") else one
        for name, one in schema.items()
        if name != "logicalType" or keep
    }


def logical_of(schema: Any) -> Logical | None:
    """The logical type, if it changes the meaning of the raw value."""
    if not isinstance(schema, dict) or not isinstance(schema.get("type"), str):
        return None
    kind, logical = schema["type"], str(schema.get("logicalType"))
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(schema)
    if (kind, logical) not in _TIMES:
        return None
    unit = _UNITS.get(logical.rpartition("-")[2], "")
    return Logical(_TIMES[kind, logical], unit)


def _decimal(schema: dict[str, Any]) -> Logical | None:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or not precision:
        return None
    if schema["type"] == "fixed":
        size = schema.get("size")
        if type(size) is not int or size < 1 or precision > math.floor(math.log10(2) * (8 * size - 1)):
            return None
    return Logical("decimal", precision=precision, scale=scale)
