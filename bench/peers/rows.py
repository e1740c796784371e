"""The throughput rows of ``make bench-peers``: produce, fetch, and both at once, with several record sizes,
numbers of partitions and codecs.

The runs of the brokers alternate, so that other work on the machine affects both. With *cold* memory, the
files of both brokers leave the page cache before each run, and there is a pause, in which the machine takes
back the free memory. The first use of a page then costs more CPU time.
"""

import contextlib
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.brokers import Broker
from bench.measuring.measure import Sample, measure
from bench.measuring.plan import RECORD_SIZES, Plan, topic
from bench.measuring.report import Report, rounded

Brokers = Mapping[str, Broker]
COOLING_S: Final = 2.0
CODEC_RECORD_SIZE: Final = 1024
KINDS: Final = ("produce", "fetch", "both at once")


@dataclass(frozen=True, slots=True)
class Load:
    """The records of a row: their size in bytes, the number of partitions, and the codec of the client."""

    record_size: int
    partitions: int
    codec: str = "none"

    @property
    def name(self) -> str:
        """The record column of the table."""
        return f"{self.record_size} B" + ("" if self.codec == "none" else f", {self.codec}")

    def runs(self, broker: Broker, records: int, name: str) -> Iterator[tuple[str, Callable[[], Sample]]]:
        """The measurements of one round, by kind. Each of them must be called before the next."""
        spec: dict[str, Any] = {"partitions": self.partitions, "record_size": self.record_size}
        settings = {} if self.codec == "none" else {"compression.codec": self.codec}
        sent = {**spec, "records": records, "settings": settings, "compressible": bool(settings)}
        with topic(broker, name, self.partitions) as made:
            yield "produce", lambda: measure(broker, "produce", topic=made, **sent)
            yield "fetch", lambda: measure(broker, "consume", topic=made, **spec)
        with topic(broker, f"{name}-both", self.partitions) as made:
            yield "both at once", lambda: measure(broker, "produce_and_consume", topic=made, **sent)


def loads(plan: Plan) -> list[Load]:
    """All loads of a plan."""
    plain = [Load(size, partitions) for size in RECORD_SIZES for partitions in plan.peer_partitions]
    packed = [
        Load(CODEC_RECORD_SIZE, partitions, codec)
        for codec in plan.peer_codecs
        for partitions in plan.peer_partitions
    ]
    return plain + packed


def throughput(report: Report, brokers: Brokers, plan: Plan) -> None:
    """Measure all loads of the plan, and add a table for each state of the memory."""
    for is_cold in plan.peer_memories:
        table = f"Throughput, librdkafka, acks=all, {'cold' if is_cold else 'warm'} memory"
        for load in loads(plan):
            for kind, samples in _measured(brokers, load, plan, is_cold=is_cold).items():
                report.add(
                    table, _row(kind, load, samples), [one for runs in samples.values() for one in runs]
                )


def _measured(
    brokers: Brokers, load: Load, plan: Plan, *, is_cold: bool
) -> dict[str, dict[str, list[Sample]]]:
    """The samples of one load, by kind and broker."""
    found: dict[str, dict[str, list[Sample]]] = {kind: {name: [] for name in brokers} for kind in KINDS}
    records = plan.bytes_by_record_size[load.record_size] // load.record_size
    for repeat in range(plan.repeats):
        for name, broker in brokers.items():
            made = f"load-{load.record_size}-{load.partitions}-{load.codec}-{repeat}-{int(is_cold)}"
            for kind, run in load.runs(broker, records, made):
                if is_cold:
                    cool(each.folder for each in brokers.values())
                found[kind][name].append(run())
    return found


def cool(folders: Iterator[pathlib.Path]) -> None:
    """Write the files of the folders to the disk, and remove them from the page cache."""
    os.sync()
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(FileNotFoundError), open(os.path.join(parent, name), "rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    time.sleep(COOLING_S)


def _row(kind: str, load: Load, samples: Mapping[str, Sequence[Sample]]) -> dict[str, Any]:
    row: dict[str, Any] = {"load": kind, "record": load.name, "partitions": load.partitions}
    speeds = {name: [run.mb_per_s for run in runs] for name, runs in samples.items()}
    costs = {name: [run.mb_per_cpu_s for run in runs] for name, runs in samples.items()}
    for name in samples:
        row[f"{name} MB/s"] = _spread(speeds[name])
        row[f"{name} MB/CPU-s"] = _spread(costs[name])
    row["ratio MB/s"] = rounded(_ratio(speeds))
    row["ratio MB/CPU-s"] = rounded(_ratio(costs))
    return row


def _ratio(values: Mapping[str, Sequence[float]]) -> float:
    return statistics.median(values["moldau"]) / statistics.median(values["kafka"])


def _spread(values: Sequence[float]) -> str:
    """Median, minimum and maximum."""
    middle = rounded(statistics.median(values))
    return f"{middle} ({rounded(min(values))}-{rounded(max(values))})" if len(values) > 1 else f"{middle}"
