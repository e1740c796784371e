"""Prints each record on a line, as bytes or as JSON."""

import base64
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from moldau.client.reader import Fetched
from moldau.records.record import Record


@dataclass(frozen=True, slots=True)
class LineFormat:
    """Prints the value's bytes after the requested fields, with separators between them."""

    key: bool = False
    headers: bool = False
    timestamp: bool = False
    offset: bool = False
    separator: bytes = b"\t"

    def __call__(self, fetched: Fetched) -> bytes:
        record = fetched.record
        parts = []
        if self.timestamp:
            parts.append(str(record.timestamp).encode())
        if self.offset:
            parts.append(f"{fetched.partition}:{record.offset}".encode())
        if self.headers:
            parts.append(b",".join(_header(name, value) for name, value in record.headers))
        if self.key:
            parts.append(_or_null(record.key))
        parts.append(_or_null(record.value))
        return self.separator.join(parts) + b"\n"


def _or_null(content: bytes | None) -> bytes:
    return b"null" if content is None else content


def _header(name: str, value: bytes | None) -> bytes:
    return name.encode("utf-8", "surrogateescape") + b"=" + _or_null(value)


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """Prints a JSON object on each line. Fields that are not UTF-8 are written as ``<name>_base64``."""

    topic: str

    def __call__(self, fetched: Fetched) -> bytes:
        fields = {"topic": self.topic, "partition": fetched.partition, **record_fields(fetched.record)}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def record_fields(record: Record) -> dict[str, Any]:
    """A record for JSON."""
    headers = [
        {
            "name": name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
            **content("value", value),
        }
        for name, value in record.headers
    ]
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        **content("key", record.key),
        **content("value", record.value),
        "headers": headers,
    }


def content(name: str, value: bytes | None) -> dict[str, str | None]:
    """Bytes as a JSON field: as text if they are valid text, otherwise in base64."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def write(lines: Iterable[bytes]) -> None:
    """Write the bytes to stdout without a change, and flush."""
    sys.stdout.flush()
    sys.stdout.buffer.write(b"".join(lines))
    sys.stdout.buffer.flush()
