"""Output of commands: tables for people, JSON for scripts."""

import contextlib
import datetime
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

GAP = "  "


@contextlib.contextmanager
def work_is_done() -> Iterator[None]:
    """A context in which the results of completed work are printed. If the pipe is closed, the work still
    counts as successful."""
    with contextlib.suppress(BrokenPipeError):
        yield


def print_json(value: Any) -> None:
    """A JSON document with indentation, for people."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def json_line(value: Mapping[str, Any]) -> str:
    """A value as JSON on a single line. It is for output that consists of several such lines."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def print_json_line(value: Mapping[str, Any]) -> None:
    print(json_line(value))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table. On a terminal that is wide enough, the table has borders. Otherwise it has plain columns.

    Columns of numbers are aligned to the right.
    """
    body = [list(row) for row in rows]
    flush_right = [_is_numbers([row[index] for row in body]) for index in range(len(columns))]
    cells = [["-" if cell is None else str(cell) for cell in row] for row in body]
    plain = plain_table(columns, cells, flush_right)
    if sys.stdout is None:
        return  # stdout was already closed when this process started
    # On a narrow terminal, a table with borders would break words or show nothing. A table with borders is
    # wider than a plain table: by one character for each gap between columns, and by the outer borders.
    drawn_width = max(map(len, plain)) + len(columns) + 1
    if sys.stdout.isatty() and drawn_width <= shutil.get_terminal_size().columns:
        _draw(columns, cells, flush_right)
    else:
        print("\n".join(plain))


def _is_numbers(column: Sequence[object]) -> bool:
    present = [cell for cell in column if cell is not None]
    return bool(present) and all(isinstance(cell, int) for cell in present)


def plain_table(
    columns: Sequence[str], cells: Sequence[Sequence[str]], flush_right: Sequence[bool]
) -> list[str]:
    """The lines of a table without borders and colours. Each row is one line and is not truncated."""
    titles = [column.upper() for column in columns]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    lines = []
    for row in (titles, *cells):
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, flush_right, strict=True)
        ]
        lines.append(GAP.join(padded).rstrip())
    return lines


def _draw(columns: Sequence[str], cells: Sequence[Sequence[str]], flush_right: Sequence[bool]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, right in zip(columns, flush_right, strict=True):
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    Console().print(table)


def time_text(timestamp_ms: int) -> str:
    """A timestamp for people, in UTC. It is ``-`` when there is no timestamp."""
    if timestamp_ms < 0:
        return "-"
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
