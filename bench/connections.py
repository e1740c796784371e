"""Many connections to Moldau and to Apache Kafka, in turns: ``python -m bench.connections``.

* 100 consumers of one partition, and of 12 partitions, while a producer sends 100 records per second;
* 1,000 connections that produce one record of 1 KiB each second;
* 10,000 connections that send nothing.

Apache Kafka is left out if its jars were not fetched.
"""

import argparse
import contextlib
import pathlib
import tempfile
from dataclasses import dataclass
from typing import Any, Final

from bench.brokers import JARS, Broker, Kafka, Moldau
from bench.measuring.measure import Sample, measure, median_sample, watch_idle
from bench.measuring.plan import topic
from bench.measuring.report import Report, environment, megabytes, rounded

MODULE: Final = "bench.loads.connection_load"
RECORD_SIZE: Final = 1024
RATE: Final = 100
"""Records per second of the producer beside many consumers."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The duration of each run, and the number of runs."""

    seconds: int
    repeats: int
    warm_up_s: int


FULL: Final = Sizes(seconds=15, repeats=3, warm_up_s=20)
QUICK: Final = Sizes(seconds=5, repeats=1, warm_up_s=5)

Brokers = dict[str, Broker]


@dataclass(frozen=True, slots=True)
class Load:
    """A number of connections of one kind, and the name of its measured time."""

    title: str
    name: str
    connections: int
    partitions: int = 1
    time: str = ""

    def run(self, broker: Broker, made: str, seconds: int) -> Sample:
        """Run the load once."""
        with topic(broker, made, self.partitions) as name:
            spec: dict[str, Any] = {"connections": self.connections, "partitions": self.partitions}
            spec |= {"topic": name, "record_size": RECORD_SIZE, "rate": RATE, "seconds": seconds}
            return measure(broker, self.name, module=MODULE, **spec)

    def row(self, broker: str, sample: Sample) -> dict[str, Any]:
        """A row of the report."""
        row: dict[str, Any] = {"broker": broker, "CPU %": rounded(sample.broker_share * 100)}
        row["RSS, MB"] = megabytes(sample.broker_rss_bytes)
        if self.time:
            for percent in (50, 99):
                name = f"{self.time}_p{percent}"
                row[f"{name.replace('_', ' ')} ms"] = rounded(sample.detail[f"{name}_ms"])
        return row


LOADS: Final = (
    Load(f"100 consumers of one partition, {RATE} records/s", "fan_out", 100, time="end_to_end"),
    Load(f"100 consumers of 12 partitions, {RATE} records/s", "fan_out", 100, 12, time="end_to_end"),
    Load("1,000 connections, 1 record of 1 KiB each second", "slow_producers", 1000, 12, time="ack"),
    Load("10,000 idle connections", "idle_connections", 10_000),
)


def warm_up(brokers: Brokers, sizes: Sizes) -> None:
    """Run the first three loads until the JVM has compiled its code."""
    for load in LOADS[:3]:
        for broker in brokers.values():
            load.run(broker, f"warm-up-{load.name}-{load.partitions}", sizes.warm_up_s)


def bench_connections(report: Report, brokers: Brokers, sizes: Sizes) -> None:
    """All loads, each with all brokers in turns."""
    for name, broker in brokers.items():
        idle = watch_idle(broker, sizes.seconds)
        row = {"broker": name, "CPU %": rounded(idle.broker_share * 100)}
        report.add("No connections", row | {"RSS, MB": megabytes(idle.broker_rss_bytes)}, [idle])
    for load in LOADS:
        samples: dict[str, list[Sample]] = {name: [] for name in brokers}
        for repeat in range(sizes.repeats):
            for name, broker in brokers.items():
                samples[name].append(
                    load.run(broker, f"{load.name}-{load.partitions}-{repeat}", sizes.seconds)
                )
        for name, runs in samples.items():
            report.add(load.title, load.row(name, median_sample(runs)), runs)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.connections", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run of everything")
    parser.add_argument("--data", type=pathlib.Path, help="where the brokers keep their logs meanwhile")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    kinds: dict[str, type[Broker]] = {"moldau": Moldau}
    if any(JARS.glob("kafka_*.jar")):
        kinds["kafka"] = Kafka
    with (
        tempfile.TemporaryDirectory(prefix="moldau-bench-", dir=options.data) as place,
        contextlib.ExitStack() as running,
    ):
        brokers: Brokers = {}
        for name, kind in kinds.items():
            brokers[name] = kind(pathlib.Path(place) / name)
            running.callback(brokers[name].stop)
        versions = {name: broker.version for name, broker in brokers.items()}
        report = Report("connections-quick" if options.quick else "connections", environment(versions))
        warm_up(brokers, sizes)
        bench_connections(report, brokers, sizes)
    report.print()
    report.write()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
