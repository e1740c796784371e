"""Progress of jobs. It is shown as bars on a terminal, otherwise as JSON lines. Progress goes to stderr,
because stdout is for results."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, TextIO

from moldau.cli.output import json_line

LINE_INTERVAL_S: Final = 5.0
"""Interval of the lines in seconds. A job that takes less time prints only its result."""


class LineDisplay:
    """Prints a line every few seconds for each job that runs."""

    def __init__(self, stream: TextIO, interval_s: float = LINE_INTERVAL_S) -> None:
        self._stream = stream
        self._interval_s = interval_s
        self._told: dict[str, float] = {}
        self._lock = threading.Lock()

    def show(self, job: str, done: int, total: int, size_bytes: int) -> None:
        with self._lock:
            now = time.monotonic()  # noqa: TID251 - a tool without an event loop
            if now - self._told.setdefault(job, now) < self._interval_s:
                return
            self._told[job] = now
            line = {"progress": job, "done": done, "total": total, "bytes": size_bytes}
            print(json_line(line), file=self._stream, flush=True)

    def end(self, job: str) -> None:
        with self._lock:
            self._told.pop(job, None)


class BarDisplay:
    """Shows a bar for each job that runs."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._bars: dict[str, Any] = {}
        self._lock = threading.Lock()

    def show(self, job: str, done: int, total: int, size_bytes: int) -> None:
        with self._lock:
            if job not in self._bars:
                self._bars[job] = self._progress.add_task(job, total=total, size="")
            self._progress.update(
                self._bars[job], completed=done, total=total, size=f"{size_bytes / 1e6:,.1f} MB"
            )

    def end(self, job: str) -> None:
        with self._lock:
            if job in self._bars:
                self._progress.remove_task(self._bars.pop(job))


@contextlib.contextmanager
def display() -> Iterator[LineDisplay | BarDisplay]:
    """The display for stderr: a bar on a terminal, otherwise lines."""
    if not sys.stderr.isatty():
        yield LineDisplay(sys.stderr)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[size]}"),
        TimeElapsedColumn(),
    )
    # If stdout is a terminal, lines of results must not break the bars, so Rich prints these lines above the
    # bars. If stdout is a file, the lines do not appear on the terminal.
    on_terminal = sys.stdout.isatty()
    with Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=on_terminal
    ) as progress:
        yield BarDisplay(progress)
