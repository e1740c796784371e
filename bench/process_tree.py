"""CPU time of everything that a process has started: Spark is a JVM and its Python workers."""

import os
import pathlib
from collections.abc import Collection

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_seconds(without: Collection[int] = ()) -> dict[int, float]:
    """User and system seconds of this process and its descendants, by pid; not of ``without``."""
    children: dict[int, list[int]] = {}
    seconds: dict[int, float] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue  # it has ended
        fields = stat[stat.rindex(")") + 2 :].split()
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        seconds[int(entry.name)] = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    found: dict[int, float] = {}
    todo = [os.getpid()]
    while todo:
        pid = todo.pop()
        if pid not in without:
            found[pid] = seconds.get(pid, 0.0)
            todo += children.get(pid, [])
    return found


def spent(before: dict[int, float], after: dict[int, float]) -> float:
    """CPU seconds between two looks."""
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
