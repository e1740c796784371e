"""Options that determine how an export converts values. They come from the command line or a file of jobs."""

import os
from collections.abc import Mapping
from typing import Final

from moldau.client.errors import ToolError
from moldau.pipeline.values.formats import RAW, ValueFormat, ValueKind, avro_format, json_format

FILE_MARK: Final = "@"


def value_format(
    kind: str, schema: str | None, *, framed: bool = False, writers: Mapping[int, str] | None = None
) -> ValueFormat:
    """Return the format of the values. Each schema is a text, or ``@`` and the path of a file. Raises
    :class:`ToolError`."""
    try:
        wanted = ValueKind(kind)
    except ValueError:
        raise ToolError(f"values are {', '.join(ValueKind)}, not {kind!r}") from None
    if wanted is not ValueKind.AVRO and (framed or writers):
        raise ToolError("the header and writers' schemas are Avro's: --value avro")
    if wanted is ValueKind.RAW:
        if schema is not None:
            raise ToolError("a schema is for --value json or avro")
        return RAW
    text = None if schema is None else read_text(schema)
    if wanted is ValueKind.JSON:
        return json_format(text)
    if text is None:
        raise ToolError("--value avro needs the schema: --schema @FILE.avsc")
    given = {number: read_text(one) for number, one in (writers or {}).items()}
    return avro_format(text, given, framed=framed or bool(given))


def read_text(given: str) -> str:
    """The text itself, or the content of the file ``@PATH``."""
    if not given.startswith(FILE_MARK):
        return given
    path = given.removeprefix(FILE_MARK)
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise ToolError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ToolError(f"cannot read {path}: it is not UTF-8 text") from error


def parse_writers(given: Mapping[str, str]) -> dict[int, str]:
    """Return the schemas by their ids. Each schema is a text, or ``@`` and the path of a file. Raises
    :class:`ToolError`."""
    found = {}
    for number, schema in given.items():
        if not (number.isascii() and number.isdigit()) or int(number) >= 2**32:
            raise ToolError(f"{number!r} is no id of a schema")
        found[int(number)] = schema
    return found


def resolved(path: str, folder: str) -> str:
    """Return the option. If it is ``@PATH`` with a relative path, resolve the path from ``folder``."""
    if not path.startswith(FILE_MARK):
        return path
    return FILE_MARK + os.path.join(folder, path.removeprefix(FILE_MARK))
