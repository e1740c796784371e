"""Column types as text in DDL, Spark's language for schemas. Pure.

An example is ``total INT, lines ARRAY<STRUCT<sku: STRING>>``.
"""

import re
from typing import Any, Final

import pyarrow as pa

from moldau.client.errors import ToolError

_SIMPLE: Final = {
    "BOOLEAN": pa.bool_(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
_SYNONYMS: Final = {"INTEGER": "INT", "LONG": "BIGINT", "REAL": "FLOAT", "TIMESTAMP_LTZ": "TIMESTAMP"}
_NAMES: Final = {found: name for name, found in _SIMPLE.items()}
_TOKEN: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|([<>(),:]))", re.UNICODE)
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_]\w*")
DECIMAL_DIGITS_MAX: Final = 38


def parse_ddl(text: str) -> pa.DataType:
    """Columns as a struct type. Raises :class:`ToolError` with the position of the syntax error."""
    parser = _DdlParser(text)
    fields = parser.fields("")
    if parser.peek() is not None:
        raise parser.problem("',' or the end")
    return fields


class _DdlParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def peek(self) -> str | None:
        found = self._match()
        return None if found is None else (found[1] or found[2] or found[3])

    def _match(self) -> Any:
        if not self._text[self._position :].strip():
            return None
        found = _TOKEN.match(self._text, self._position)
        if found is None:
            raise self.problem("a name or a type")
        return found

    def problem(self, expected: str) -> ToolError:
        rest = self._text[self._position :].strip()
        where = f"before {rest[:20]!r}" if rest else "at its end"
        return ToolError(f"the schema needs {expected} {where}")

    def _accept(self, symbol: str) -> bool:
        found = self._match()
        if found is None or found[3] != symbol:
            return False
        self._position = found.end()
        return True

    def _expect(self, symbol: str) -> None:
        if not self._accept(symbol):
            raise self.problem(repr(symbol))

    def _word(self, expected: str, *, quoted: bool) -> str:
        found = self._match()
        if found is None or found[3] or (found[1] and not quoted):
            raise self.problem(expected)
        self._position = found.end()
        return found[1].replace("``", "`") if found[1] else str(found[2])

    def fields(self, closing: str) -> pa.DataType:
        """Fields of the form ``name TYPE`` or ``name: TYPE``, separated by commas, up to the closing symbol
        or the end.
        """
        found: list[pa.Field] = []
        while True:
            name = self._word("a column's name", quoted=True)
            self._accept(":")
            if any(name.lower() == other.name.lower() for other in found):
                raise ToolError(f"the schema has column {name!r} twice")
            found.append(pa.field(name, self.type()))
            if not self._accept(","):
                break
        if closing:
            self._expect(closing)
        return pa.struct(found)

    def type(self) -> pa.DataType:
        start = self._position
        name = self._word("a type", quoted=False).upper()
        name = _SYNONYMS.get(name, name)
        if name in _SIMPLE:
            return _SIMPLE[name]
        match name:
            case "ARRAY":
                self._expect("<")
                element = self.type()
                self._expect(">")
                return pa.list_(element)
            case "MAP":
                self._expect("<")
                key = self.type()
                self._expect(",")
                value = self.type()
                self._expect(">")
                return pa.map_(key, value)
            case "STRUCT":
                self._expect("<")
                return self.fields(">")
            case "DECIMAL":
                return self._decimal()
        self._position = start
        known = ", ".join([*_SIMPLE, "DECIMAL(p, s)", "ARRAY<>", "MAP<,>", "STRUCT<>"])
        raise self.problem(f"a type ({known})")

    def _decimal(self) -> pa.DataType:
        if not self._accept("("):
            return pa.decimal128(10, 0)
        precision = self._number()
        scale = self._number() if self._accept(",") else 0
        self._expect(")")
        if not 0 <= scale <= precision <= DECIMAL_DIGITS_MAX or not precision:
            raise ToolError(f"the schema has DECIMAL({precision}, {scale}), which is no decimal type")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        word = self._word("a number", quoted=False)
        if not (word.isascii() and word.isdigit()):
            raise ToolError(f"the schema has {word!r} in place of a number of digits")
        return int(word)


def render_ddl(columns: pa.DataType) -> str:
    """Return the text from which :func:`parse_ddl` makes this type again."""
    return ", ".join(f"{_quoted(field.name)} {render_type(field.type)}" for field in columns)


def render_type(found: pa.DataType) -> str:
    if pa.types.is_struct(found):
        inside = ", ".join(f"{_quoted(field.name)}: {render_type(field.type)}" for field in found)
        return f"STRUCT<{inside}>"
    if pa.types.is_map(found):
        return f"MAP<{render_type(found.key_type)}, {render_type(found.item_type)}>"
    if pa.types.is_list(found) or pa.types.is_large_list(found):
        return f"ARRAY<{render_type(found.value_type)}>"
    if pa.types.is_decimal(found):
        return f"DECIMAL({found.precision}, {found.scale})"
    return _NAMES.get(found, str(found))


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"
