"""The latency of produce requests on a busy broker: ``python -m bench.busy [--quick]``.

Two kinds of other work are measured: another producer at half of the maximal throughput, and a consumer that
reads records which are only on the disk, as fast as it can. Moldau and Apache Kafka are measured in turns.
"""

import argparse
import contextlib
import os
import pathlib
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bench.brokers import JARS, Broker, Kafka, Moldau
from bench.measuring.measure import Sample, measure
from bench.measuring.plan import PARTITION_COUNTS, topic
from bench.measuring.report import Report, environment
from bench.peers.rows import cool

MODULE: Final = "bench.loads.busy_load"
RECORD_SIZE: Final = 1024
NOBODY: Final = "none"
SETTLE_S: Final = 2.0
RATE: Final = 1000
"""Number of single records per second whose latency is measured."""

Brokers = Mapping[str, Broker]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size of each part."""

    records: int
    """Number of records whose throughput is measured."""
    cold_records: int
    """Number of records that are read from the disk. Their read must take longer than ``seconds``."""
    seconds: float
    repeats: int


FULL: Final = Sizes(records=600_000, cold_records=3_000_000, seconds=4.0, repeats=3)
QUICK: Final = Sizes(records=200_000, cold_records=1_000_000, seconds=1.0, repeats=1)


def latency(broker: Broker, name: str, partitions: int, sizes: Sizes, other_rate: int = 0) -> Sample:
    """Measure the latency of single records of a new topic."""
    with topic(broker, name, partitions) as made:
        spec = {"topic": made, "partitions": partitions, "record_size": RECORD_SIZE}
        pace = {"rate": RATE, "seconds": sizes.seconds, "other_rate": other_rate}
        return measure(broker, "single_records", module=MODULE, **spec, **pace)


def half_throughput(report: Report, brokers: Brokers, partitions: int, sizes: Sizes) -> None:
    """The other producer has half of the throughput of the slower broker."""
    spec: dict[str, Any] = {"partitions": partitions, "record_size": RECORD_SIZE, "records": sizes.records}
    speeds: dict[str, list[float]] = {name: [] for name in brokers}
    for repeat in range(2 * sizes.repeats):
        for name, broker in brokers.items():
            with topic(broker, f"most-{partitions}-{repeat}", partitions) as made:
                speeds[name].append(measure(broker, "produce", topic=made, **spec).records_per_s)
    rate = round(min(map(statistics.median, speeds.values())) / 2)
    found: dict[str, list[Sample]] = {name: [] for name in brokers}
    for repeat in range(sizes.repeats):
        for name, broker in brokers.items():
            # The system still writes the records of the last measurement to the disk.
            os.sync()
            time.sleep(SETTLE_S)
            found[name].append(latency(broker, f"half-{partitions}-{repeat}", partitions, sizes, rate))
    for name, runs in found.items():
        row: dict[str, Any] = {"broker": name, "partitions": partitions}
        row["other records, MB/s"] = round(rate * RECORD_SIZE / 1e6)
        row |= _waits(runs)
        row["broker CPU %"] = round(100 * statistics.median(run.broker_share for run in runs))
        report.add(f"{RATE} records/s beside another producer", row, runs)


def cold_reads(report: Report, brokers: Brokers, partitions: int, sizes: Sizes) -> None:
    """A consumer reads another topic, whose files are not in the page cache. Then it reads the same topic of
    the other broker, which shows the part of the machine in the latency."""
    spec: dict[str, Any] = {"partitions": partitions, "record_size": RECORD_SIZE}
    name = f"cold-{partitions}"
    with contextlib.ExitStack() as topics:
        for broker in brokers.values():
            topics.enter_context(topic(broker, name, partitions))
            measure(broker, "produce", topic=name, records=sizes.cold_records, **spec)
        found: dict[tuple[str, str], list[Sample]] = {}
        speeds: dict[tuple[str, str], list[float]] = {}
        for repeat in range(sizes.repeats):
            for measured, broker in brokers.items():
                made = f"{measured}-{partitions}-{repeat}"
                found.setdefault((measured, NOBODY), []).append(
                    latency(broker, f"{made}-alone", partitions, sizes)
                )
                for read, other in brokers.items():
                    cool(each.folder for each in brokers.values())
                    read_all = partial(measure, other, "consume", topic=name, **spec)
                    with Beside(read_all) as reader:
                        sample = latency(broker, f"{made}-beside-{read}", partitions, sizes)
                    found.setdefault((measured, read), []).append(sample)
                    speeds.setdefault((measured, read), []).append(reader.sample.mb_per_s)
    for (measured, read), runs in found.items():
        alone = found[measured, NOBODY]
        ratios = [
            run.detail["ack_p99_ms"] / without.detail["ack_p99_ms"]
            for run, without in zip(runs, alone, strict=True)
        ]
        row: dict[str, Any] = {"broker": measured, "partitions": partitions, "consumer of": read}
        row["consumer MB/s"] = round(statistics.median(speeds[measured, read])) if read != NOBODY else ""
        row |= _waits(runs)
        row["p99 to p99 alone"] = _spread(ratios) if read != NOBODY else ""
        row["goal"] = "<= 1.5" if measured == read == Moldau.name else ""
        row["broker CPU %"] = round(100 * statistics.median(run.broker_share for run in runs))
        report.add(f"{RATE} records/s beside a consumer of records on the disk", row, runs)


class Beside:
    """A context in which a load runs in a thread. At the end of the block its result is in ``sample``."""

    sample: Sample

    def __init__(self, load: Callable[[], Sample]) -> None:
        self._load = load
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.sample = self._load()

    def __enter__(self) -> "Beside":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()


def _waits(runs: list[Sample]) -> dict[str, str]:
    return {
        "ack p50 ms": _spread([run.detail["ack_p50_ms"] for run in runs]),
        "ack p99 ms": _spread([run.detail["ack_p99_ms"] for run in runs]),
    }


def _spread(values: list[float]) -> str:
    """Median, minimum and maximum."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


PARTS: Final = {"half": half_throughput, "cold": cold_reads}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.busy", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run of everything")
    parser.add_argument("--data", type=pathlib.Path, help="where the brokers keep their logs meanwhile")
    parser.add_argument("--only", choices=PARTS, help="measure one part")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="moldau-bench-", dir=options.data) as made:
        folder, brokers = pathlib.Path(made), dict[str, Broker]()
        try:
            brokers["moldau"] = Moldau(folder / "moldau")
            if any(JARS.glob("kafka_*.jar")):
                brokers["kafka"] = Kafka(folder / "kafka")
            report = Report("busy", environment({name: each.version for name, each in brokers.items()}))
            for name, part in PARTS.items():
                for partitions in PARTITION_COUNTS:
                    if options.only in (None, name):
                        part(report, brokers, partitions, sizes)
        finally:
            for broker in brokers.values():
                broker.stop()
    report.print()
    report.write()


if __name__ == "__main__":
    main()
