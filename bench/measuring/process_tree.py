"""CPU time and memory of all descendants of a process. Benchmarks of Spark need both, because Spark is a JVM
with Python workers."""

import os
import pathlib
import re
from collections.abc import Collection
from typing import Final, NamedTuple

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PEAK: Final = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


class Process(NamedTuple):
    """A running process."""

    pid: int
    parent: int
    name: str
    cpu_s: float
    """User and system seconds."""
    peak_bytes: int
    """Peak memory."""


def processes(without: Collection[int] = ()) -> list[Process]:
    """This process and its descendants. The processes in ``without`` and their descendants are left out."""
    children: dict[int, list[Process]] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found = _look(entry)
            except OSError:
                continue  # the process has ended
            children.setdefault(found.parent, []).append(found)
    todo = [one for some in children.values() for one in some if one.pid == os.getpid()]
    done: list[Process] = []
    while todo:
        one = todo.pop()
        if one.pid not in without:
            done.append(one)
            todo += children.get(one.pid, [])
    return done


def _look(entry: pathlib.Path) -> Process:
    stat = (entry / "stat").read_text()
    peak = _PEAK.search((entry / "status").read_text())
    fields = stat[stat.rindex(")") + 2 :].split()
    name = stat[stat.index("(") + 1 : stat.rindex(")")]
    cpu_s = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    return Process(int(entry.name), int(fields[1]), name, cpu_s, int(peak[1]) * 1024 if peak else 0)


def cpu_seconds(without: Collection[int] = ()) -> dict[int, float]:
    """User and system seconds, by pid, of the processes that :func:`processes` returns."""
    return {one.pid: one.cpu_s for one in processes(without)}


def spent(before: dict[int, float], after: dict[int, float]) -> float:
    """CPU seconds between two samples."""
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
