"""The time until a node serves, and the time of commands: ``python -m bench.start [--repeats 9]``.

Each start uses a new folder. The start of a node of Moldau ends when ``moldau dev`` prints that it is ready.
The start of Kafka ends when it answers a client, and does not contain the format of its folder. The commands
are whole processes: help texts, and tools that ask a running node. Kafka's tools are started without their
shell scripts, so their time is only that of the JVM.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Final

from bench.brokers import JARS, Broker, Kafka, Moldau, quiet_logging
from bench.diskless import DisklessMoldau
from bench.measuring.report import Report, environment

REPEATS: Final = 9
PROGRAM: Final = pathlib.Path(sys.executable).with_name("moldau")
START_GOAL_S: Final = 0.5
COMMAND_GOAL_S: Final = 0.15
TOOLS: Final = {
    "topics list": ("topics", "list"),
    "groups list": ("groups", "list"),
    "transactions list": ("transactions", "list"),
}
"""Tools that ask the node."""
KAFKA_TOOLS: Final = {
    "kafka-topics --list": "org.apache.kafka.tools.TopicCommand",
    "kafka-consumer-groups --list": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
}


def timed(command: Sequence[str]) -> float:
    """Seconds until a process has ended. It must succeed. There is no time-out, because a wait with a
    time-out looks at the process only every 50 ms."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def starts(report: Report, folder: pathlib.Path, repeats: int) -> None:
    """Start the nodes in turns."""
    made: dict[str, Callable[[pathlib.Path], Broker]] = {
        "moldau dev": lambda place: DisklessMoldau(place, ()),
        "moldau dev --classic": Moldau,
    }
    if any(JARS.glob("kafka_*.jar")):
        made["kafka"] = Kafka
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for repeat in range(repeats):
        for name, start in made.items():
            broker = start(folder / f"{name}-{repeat}".replace(" ", ""))
            seconds[name].append(broker.start_s)
            broker.stop()
    for name, found in seconds.items():
        add(report, "From the start of a node until it serves", name, found, START_GOAL_S)


def commands(report: Report, folder: pathlib.Path, repeats: int) -> None:
    """Run commands in turns, with a node of Moldau that all tools ask."""
    broker = Moldau(folder / "asked")
    try:
        lines = {
            "moldau --help": [str(PROGRAM), "--help"],
            "moldau dev --help": [str(PROGRAM), "dev", "--help"],
        }
        for name, words in TOOLS.items():
            lines[f"moldau {name}"] = [str(PROGRAM), *words, "--bootstrap-server", broker.bootstrap]
        if any(JARS.glob("kafka_*.jar")):
            java = ["java", "-cp", f"{JARS}/*", f"-Dlog4j2.configurationFile={quiet_logging(folder)}"]
            for name, tool in KAFKA_TOOLS.items():
                lines[name] = [*java, tool, "--list", "--bootstrap-server", broker.bootstrap]
        seconds: dict[str, list[float]] = {name: [] for name in lines}
        for _ in range(repeats):
            for name, command in lines.items():
                seconds[name].append(timed(command))
        for name, found in seconds.items():
            add(report, "Commands, whole processes", name, found, COMMAND_GOAL_S)
    finally:
        broker.stop()


def add(report: Report, title: str, name: str, seconds: Sequence[float], goal_s: float) -> None:
    row = {
        "what": name,
        "s": f"{statistics.median(seconds):.2f}",
        "least s": f"{min(seconds):.2f}",
        "most s": f"{max(seconds):.2f}",
        "goal": f"< {goal_s}" if name.startswith("moldau") else "",
    }
    report.add(title, row, slices=[{"s": value} for value in seconds])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.start", description=__doc__)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    options = parser.parse_args()
    report = Report("start", environment({}))
    with tempfile.TemporaryDirectory(prefix="moldau-bench-") as made:
        folder = pathlib.Path(made)
        starts(report, folder, options.repeats)
        commands(report, folder, options.repeats)
    report.print()
    report.write()


if __name__ == "__main__":
    main()
