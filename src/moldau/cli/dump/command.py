"""``moldau dump-log``."""

import enum
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from moldau.cli.app import new_app
from moldau.cli.dump.file_kind import DETAIL, PROBLEM, DumpedFile, DumpRow, FileKind, opened
from moldau.cli.dump.kinds import dumpable, kind_of
from moldau.cli.dump.wal_objects import WAL_OBJECT
from moldau.cli.errors import CommandError, one_line
from moldau.cli.options import JsonOption, key_values
from moldau.cli.output import print_json_line

app = new_app()


class DecoderName(enum.StrEnum):
    """The decoder of keys and values."""

    NONE = "none"
    OFFSETS = "offsets"
    TRANSACTIONS = "transactions"
    METADATA = "metadata"
    DISKLESS = "diskless"
    REMOTE_LOG_METADATA = "remote-log-metadata"


@app.command("dump-log")
def dump_log(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Files of log folders, whole folders, or URLs of objects."),
    ],
    deep: Annotated[bool, typer.Option("--deep", help="Decode batches and show their records.")] = False,
    decoder: Annotated[
        DecoderName | None,
        typer.Option("--decoder", help="Format of the records; by default it is chosen by the topic's name."),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--storage",
            metavar="KEY=VALUE",
            help=(
                "For URLs: a value that nodes have as diskless.storage.KEY or rsm.config.KEY; may be "
                "repeated."
            ),
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the content of segments, indexes, snapshots, checkpoints and WAL objects, and check it.

    The command reads files, so no node has to run. With --json every line is an object. The exit code is 1
    when a file has an error. To show a WAL object in an object store, give diskless.storage.url, a slash and
    the key that `moldau diskless files` shows. To show a remote segment, give rsm.config.url, a slash and its
    key (see docs/tiered.md).

    \b
    Example:
      moldau dump-log data/orders-0/00000000000000000000.log --deep
      moldau dump-log data/__cluster_metadata-0 --deep --json
    """
    storage = key_values(options, "--storage")
    name = None if decoder is None else decoder.value
    damaged = 0
    for file in files:
        if "://" in file:
            damaged += _show(file, WAL_OBJECT, _remote(file, storage, deep, name), as_json)
            continue
        for path in dumpable([Path(file)]):
            damaged += _show(str(path), kind_of(path), _rows(path, deep, name), as_json)
    if damaged:
        raise CommandError(f"{damaged} file{'' if damaged == 1 else 's'} with problems")


def _show(file: str, kind: FileKind | None, rows: Iterable[DumpRow], as_json: bool) -> bool:
    """Print a file. Returns whether the file has an error."""
    problems = 0
    if not as_json:
        print(f"{file}: {kind.title if kind is not None else 'unknown'}")
    for row in rows:
        problems += PROBLEM in row
        if as_json:
            print_json_line({"file": file, **row, "type": row["type"].removeprefix(DETAIL)})
        else:
            print(as_text(row))
    return problems > 0


def _remote(url: str, storage: dict[str, str], deep: bool, decoder: str | None) -> Iterator[DumpRow]:
    # Clients of object stores are slow to import, so they are imported only here.
    from moldau.cli.dump.remote_objects import fetch

    file = fetch(url, storage, deep=deep, decoder=decoder)
    yield from _dumped(kind_of(file.path) or WAL_OBJECT, file)


def _dumped(kind: FileKind, file: DumpedFile) -> Iterator[DumpRow]:
    try:
        yield from kind.dump(file)
    except Exception as error:
        # Files are often dumped because they are damaged, so the dump continues after an unreadable file.
        yield {"type": "file", PROBLEM: one_line(error)}


def _rows(path: Path, deep: bool, decoder: str | None) -> Iterator[DumpRow]:
    kind = kind_of(path)
    if kind is None:
        raise CommandError(f"{path}: not a kind of file that is known here")
    try:
        with opened(path, deep=deep, decoder=decoder) as file:
            yield from _dumped(kind, file)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error


def as_text(row: DumpRow) -> str:
    """Format a row as text for people: its type, then names and values."""
    words = [f"{name}: {_text(value)}" for name, value in row.items() if name not in ("type", PROBLEM)]
    if PROBLEM in row:
        words.append(f"PROBLEM: {row[PROBLEM]}")
    return " ".join([row["type"], *words])


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
