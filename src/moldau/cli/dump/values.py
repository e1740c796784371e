"""Messages, ids and bytes as plain values for rows."""

import base64
import dataclasses
import enum
import uuid
from collections.abc import Sequence
from typing import Any

from moldau.cluster.folders.meta_properties import encode_uuid
from moldau.protocol.schema import Message


def plain(value: Any) -> Any:
    """Any value of a message in a form that JSON supports."""
    match value:
        case Message():
            return message_fields(value)
        case uuid.UUID():
            return encode_uuid(value)
        case enum.Enum():
            return value.name
        case bytes() | bytearray() | memoryview():
            return text_of(bytes(value))
        case str() | int() | float() | bool() | None:
            return value
        case Sequence():
            return [plain(each) for each in value]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            return {field.name: plain(getattr(value, field.name)) for field in fields}
        case _:
            return str(value)


def message_fields(message: Message) -> dict[str, Any]:
    """A message's fields by name."""
    return {name: plain(getattr(message, name)) for name in message.__dataclass_fields__}


def text_of(content: bytes | None) -> str | None:
    """Bytes as text if they are valid text, otherwise in base64 with a prefix."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(content).decode()
