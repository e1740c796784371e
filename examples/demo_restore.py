"""A Moldau cluster loses every disk under load, and is restored from its object store. No record is missing.

The demo starts three brokers and three controllers, each in its own process. An idempotent producer writes to
a diskless topic, and a consumer group reads this topic. Both run all the time. Then all six processes are
killed with SIGKILL, and all their folders are deleted. Only the object store is left. Three new brokers and
three new controllers are restored from the object store, at the addresses of the lost nodes. ``demo.py
--restore`` starts this demo.
"""

import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from demo_node import console
from demo_processes import ClusterProcesses, Deadline, Late, ports_in_a_row
from demo_streams import PARTITIONS, GroupReader, OrderStream, read_from_the_beginning
from rich.table import Table

TOPIC = "orders"
UNDER_LOAD_S = 8.0
"""Time between the first acknowledgement and the loss. States are saved every two seconds."""


def run(timeout_s: float) -> int:
    """Run the demo within ``timeout_s``. Returns the exit code, which is 1 if records are missing or the demo
    is late.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    is_right = False
    deadline = Deadline(timeout_s)
    with tempfile.TemporaryDirectory(prefix="moldau-demo-") as name:
        folder = pathlib.Path(name)
        cluster = ClusterProcesses(folder, deadline, ("backup.interval.ms=2000",))
        try:
            cluster.start(ports_in_a_row(3))
            is_right = _lose_and_restore(cluster, folder, deadline)
        except Late as late:
            console.print(f"[red]not within {timeout_s:.0f} s[/]: {late}")
        finally:
            cluster.stop()
    if not is_right:
        console.print("[red]records are missing, doubled or out of order[/]")
    return 0 if is_right else 1


def _lose_and_restore(cluster: ClusterProcesses, folder: pathlib.Path, deadline: Deadline) -> bool:
    _moldau(cluster, "topics", "create", TOPIC, "-p", str(PARTITIONS), "--config", "diskless.enable=true")
    stream, reader = OrderStream(cluster.bootstrap, [TOPIC]), GroupReader(cluster.bootstrap, [TOPIC])
    stream.start()
    _await("the first acknowledgements", deadline, lambda: stream.is_served_since(0))
    reader.start()
    time.sleep(UNDER_LOAD_S)
    before = len(stream.acknowledged[TOPIC])
    begin = time.monotonic()
    store = cluster.lose_all_disks(folder / "store")
    console.print(f"[red]six processes killed, all their folders deleted[/] after {before:,} orders")
    cluster.restore(store)
    _await("acknowledgements after the restore", deadline, lambda: stream.is_served_since(begin))
    console.print(
        f"[green]restored from the object store[/], {time.monotonic() - begin:.1f} s after the loss"
    )
    left = stream.end(deadline)
    found = read_from_the_beginning(cluster.bootstrap, [TOPIC], deadline)[TOPIC]
    reader.end(stream.acknowledged, deadline)
    numbers = [number for part in found.values() for number in part]
    acknowledged = stream.acknowledged[TOPIC]
    missing, doubled = len(acknowledged - set(numbers)), len(numbers) - len(set(numbers))
    disordered = sum(part != sorted(part) for part in found.values())
    table = Table(title="After the loss of all disks")
    for column in (
        "acknowledged",
        "of them before the loss",
        "consumed",
        "missing",
        "doubled",
        "out of order",
    ):
        table.add_column(column, justify="right")
    counts = (len(acknowledged), before, len(numbers), missing, doubled, disordered)
    table.add_row(*(f"{count:,}" for count in counts))
    console.print(table)
    again = len(reader.numbers[TOPIC]) - len(set(reader.numbers[TOPIC]))
    console.print(f"the consumer group went on, and read {again:,} orders once more")
    return not (left or stream.refused or missing or doubled or disordered)


def _moldau(cluster: ClusterProcesses, *arguments: str) -> None:
    command = [sys.executable, "-m", "moldau", *arguments, "--bootstrap", cluster.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Late(f"`moldau {' '.join(arguments)}`: {done.stderr.strip()}")


def _await(awaited: str, deadline: Deadline, is_so: Callable[[], bool]) -> None:
    while not is_so():
        deadline.left_s(awaited)
        time.sleep(0.1)
