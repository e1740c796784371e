"""Converts the defaults of fields in Avro schemas from JSON to raw values.

The default of a union has the type of the first branch that it matches. The default of bytes is a text whose
code points are below 256. A record's default includes the defaults of its fields. A default of a wrong type
is an error.
"""

from typing import Any, Final, Protocol

from moldau.client.errors import ToolError

_NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")
"""Default values of numbers that JSON cannot express."""


class Types(Protocol):
    """The named types of a schema."""

    def resolve(self, schema: Any, /) -> Any:
        """The name of a primitive type, a union, or the definition of any other type."""
        ...


def default_value(value: Any, declared: Any, schema: Types, name: str) -> Any:
    """The value of a default in a schema's JSON. Raises :class:`ToolError`.

    ``declared`` is the type of the field; ``name`` is the field's name, which is used in the error.
    """
    resolved = schema.resolve(declared)
    if isinstance(resolved, list):
        for branch in resolved:  # the default has the type of the first branch that matches
            if _matches(value, schema.resolve(branch)):
                return default_value(value, branch, schema, name)
        raise _no_default(value, name)
    kind = resolved if isinstance(resolved, str) else resolved["type"]
    if not _matches(value, resolved):
        raise _no_default(value, name)
    match kind:
        case "bytes" | "fixed":
            return value.encode("latin-1")
        case "float" | "double":
            return float(value)
        case "array":
            return [default_value(one, resolved["items"], schema, name) for one in value]
        case "map":
            return {key: default_value(one, resolved["values"], schema, name) for key, one in value.items()}
        case "record" | "error":
            return _default_record(value, resolved, schema, name)
    return value


def _default_record(value: dict[str, Any], record: Any, schema: Types, name: str) -> dict[str, Any]:
    found = {}
    for field in record["fields"]:
        inside = f"{name}.{field['name']}"
        if field["name"] in value:
            found[field["name"]] = default_value(value[field["name"]], field["type"], schema, inside)
        elif "default" in field:
            found[field["name"]] = default_value(field["default"], field["type"], schema, inside)
        else:
            raise ToolError(f"this is no Avro schema: the default of {name} has no value for {inside}")
    return found


def _matches(value: Any, schema: Any) -> bool:
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int":
            return type(value) is int and -(2**31) <= value < 2**31
        case "long":
            return type(value) is int and -(2**63) <= value < 2**63
        case "float" | "double":
            return type(value) in (int, float) or value in _NO_NUMBERS
        case "string":
            return isinstance(value, str)
        case "bytes":
            return isinstance(value, str) and all(ord(one) < 256 for one in value)
        case "fixed":
            return (
                isinstance(value, str)
                and len(value) == schema["size"]
                and all(ord(one) < 256 for one in value)
            )
        case "enum":
            return value in schema["symbols"]
        case "array":
            return isinstance(value, list)
    return isinstance(value, dict)


def _no_default(value: Any, name: str) -> ToolError:
    return ToolError(
        f"this is no Avro schema: field {name} has the default {value!r}, which is not a value of its type"
    )
