"""Records that will be produced, from lines or JSON lines. A thread reads the lines, so that Ctrl-C is
handled."""

import asyncio
import base64
import binascii
import contextlib
import io
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from moldau.cli.errors import CommandError

CHUNK_BYTES: Final = 256 * 1024
CHUNKS_AHEAD: Final = 4


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record that will be produced. If its partition or timestamp is ``None``, this value is chosen
    later."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class Parser(Protocol):
    """Makes a record from a line. Raises ``ValueError`` with the reason."""

    def __call__(self, line: bytes) -> NewRecord: ...


@dataclass(frozen=True, slots=True)
class LineParser:
    """Reads ``KEY<separator>VALUE``, or only a value. A field equal to ``null`` is null."""

    separator: bytes | None = None
    null: bytes | None = None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def __call__(self, line: bytes) -> NewRecord:
        key: bytes | None = self.key
        value: bytes | None = line
        if self.separator is not None:
            key, found, value = line.partition(self.separator)
            if not found:
                raise ValueError(f"there is no key separator {self.separator.decode(errors='replace')!r}")
        if self.null is not None:
            key = None if key == self.null else key
            value = None if value == self.null else value
        return NewRecord(key, value, self.headers)


@dataclass(frozen=True, slots=True)
class JsonParser:
    """Reads lines. Each line is a JSON object, as ``moldau consume --json`` prints it."""

    headers: tuple[tuple[str, bytes | None], ...] = ()

    def __call__(self, line: bytes) -> NewRecord:
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON: {error}") from None
        if not isinstance(fields, dict) or not fields.keys() & {"value", "value_base64"}:
            raise ValueError('not an object with a "value"')
        partition, timestamp = fields.get("partition"), fields.get("timestamp")
        for name, number in (("partition", partition), ("timestamp", timestamp)):
            if number is not None and (type(number) is not int or number < 0):
                raise ValueError(f'"{name}" is not a number from 0 on')
        return NewRecord(
            _content(fields, "key"), _content(fields, "value"), self.headers + _headers(fields),
            partition, timestamp,
        )  # fmt: skip


def _content(fields: dict[str, Any], name: str) -> bytes | None:
    """A field's value. It is given as text, as another JSON value, or as ``<name>_base64``."""
    encoded = fields.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise ValueError(f'"{name}_base64" is malformed') from None
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _headers(fields: dict[str, Any]) -> tuple[tuple[str, bytes | None], ...]:
    given = fields.get("headers") or []
    rows = (
        [{"name": name, "value": value} for name, value in given.items()]
        if isinstance(given, dict)
        else given
    )
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and isinstance(row.get("name"), str) for row in rows
    ):
        raise ValueError('"headers" is neither an object nor a list of objects with a "name"')
    return tuple((row["name"], _content(row, "value")) for row in rows)


class RawReader(Protocol):
    """The source of lines. A read waits until there are bytes. It returns ``b""`` at the end."""

    def read(self, size: int, /) -> bytes | None: ...


def open_input(path: Path | None) -> RawReader:
    """Open the input file, or stdin when ``path`` is None or ``-``. The input is unbuffered, so that a typed
    line arrives at once.
    """
    if path is not None and str(path) != "-":
        try:
            return path.open("rb", buffering=0)
        except OSError as error:
            raise CommandError(f"cannot read {path}: {error.strerror}") from error
    try:
        # The buffer of sys.stdin has a lock. A thread that holds this lock while it waits for input would
        # block the exit of the process.
        return io.FileIO(sys.stdin.fileno(), closefd=False)
    except (OSError, AttributeError, ValueError):
        return sys.stdin.buffer


Chunk: TypeAlias = "list[bytes] | OSError | None"


async def lines(reader: RawReader) -> AsyncIterator[list[bytes]]:
    """The lines without their newlines. When lines arrive fast, several of them are returned together."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[Chunk] = asyncio.Queue()
    places = threading.Semaphore(CHUNKS_AHEAD)

    def put(chunk: Chunk) -> None:
        # A callback is used and not a coroutine, because a coroutine would never be awaited if the event loop
        # ended.
        places.acquire()
        loop.call_soon_threadsafe(chunks.put_nowait, chunk)

    threading.Thread(target=_read_lines, args=(reader, put), name="moldau-input", daemon=True).start()
    while (chunk := await chunks.get()) is not None:
        places.release()
        if isinstance(chunk, OSError):
            raise chunk
        yield chunk


def _read_lines(reader: RawReader, put: Callable[[Chunk], None]) -> None:
    rest = b""
    try:
        while data := reader.read(CHUNK_BYTES):
            *whole, rest = (rest + data).split(b"\n")
            if whole:
                put(whole)
        if rest:
            put([rest])
        put(None)
    except OSError as error:
        with contextlib.suppress(RuntimeError):
            put(error)
    except RuntimeError:
        return  # The event loop is closed, so no more lines are needed.
