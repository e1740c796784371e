"""Transactions on Moldau, classic and diskless, and on Apache Kafka: ``python -m bench.transactions``.

The brokers are measured in turns. Apache Kafka is left out if its jars were not fetched.
"""

import argparse
import pathlib
import tempfile
from dataclasses import dataclass
from typing import Any, Final

from bench.brokers import JARS, Broker, Kafka, Moldau
from bench.diskless import COMMIT_INTERVAL_MS, STORES, DisklessMoldau
from bench.measuring.measure import Sample, measure, median_sample
from bench.measuring.plan import topic
from bench.measuring.report import Report, environment, rounded

MODULE: Final = "bench.loads.transaction_load"
RECORD_SIZE: Final = 1024
BATCH: Final = 100
"""Number of records in a transaction."""
MANY: Final = 100
RATE: Final = 10
"""Transactions per second of each producer in the benchmark with :data:`MANY` producers."""
WRITERS: Final = 8
"""Number of producers that write a topic with aborted transactions."""
ALLOWED_MS: Final = 30
"""Time that a commit may take in addition to the commit interval and a PUT."""
PUT_MS: Final = 100
"""Median time of a PUT in the store ``s3`` of ``bench.stores``."""

Brokers = dict[str, Broker]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size of each part."""

    transactions: int
    paced_s: int
    aborting: int
    records: int
    repeats: int
    warm_up_rounds: int


FULL: Final = Sizes(
    transactions=600, paced_s=10, aborting=1_000, records=300_000, repeats=3, warm_up_rounds=3
)
QUICK: Final = Sizes(transactions=100, paced_s=3, aborting=200, records=100_000, repeats=1, warm_up_rounds=1)


def row_of(name: str, sample: Sample) -> dict[str, Any]:
    return {
        "broker": name,
        "records/s": round(sample.records_per_s),
        "records per CPU-s": round(sample.records / max(sample.broker_cpu_s, 0.01)),
        "transactions/s": round(sample.detail["transactions"] / sample.wall_s, 1),
        "commit p50 ms": rounded(sample.detail["commit_p50_ms"]),
        "commit p99 ms": rounded(sample.detail["commit_p99_ms"]),
        "broker CPU %": round(sample.broker_share * 100),
    }


def run_all(brokers: Brokers, sizes: Sizes, load: str, name: str, **spec: Any) -> dict[str, Sample]:
    """Run a load on each broker in turns. Returns the median of each broker."""
    samples: dict[str, list[Sample]] = {broker: [] for broker in brokers}
    for repeat in range(sizes.repeats):
        for broker_name, broker in brokers.items():
            with topic(broker, f"{name}-{repeat}", spec["partitions"]) as made:
                each = {"topic": made, "record_size": RECORD_SIZE, **spec}
                samples[broker_name].append(measure(broker, load, **{"module": MODULE, **each}))
    return {broker: median_sample(runs) for broker, runs in samples.items()}


def warm_up(brokers: Brokers, sizes: Sizes) -> None:
    """Run transactions until the JVM has compiled its code."""
    spec = {"producers": 8, "partitions": 8, "batch": BATCH, "transactions": 100}
    for number in range(sizes.warm_up_rounds):
        for broker in brokers.values():
            with topic(broker, f"warm-up-{number}", 8) as made:
                measure(broker, "transactions", module=MODULE, topic=made, record_size=RECORD_SIZE, **spec)


def throughput(report: Report, brokers: Brokers, sizes: Sizes) -> None:
    """Several producers, each as fast as it can."""
    spec = {"producers": 8, "partitions": 8, "batch": BATCH, "transactions": sizes.transactions}
    found = run_all(brokers, sizes, "transactions", "fast", **spec)
    for name, sample in found.items():
        row = row_of(name, sample)
        if "kafka" in found:
            theirs = found["kafka"]
            ours = sample.records / max(sample.broker_cpu_s, 0.01)
            ratio = ours / (theirs.records / max(theirs.broker_cpu_s, 0.01))
            row |= {"ratio per CPU-s": rounded(ratio), "goal": ">= 1.5" if name != "kafka" else ""}
        report.add(f"Transactions of {BATCH} records of 1 KiB, 8 producers", row, [sample])


def paced(report: Report, brokers: Brokers, sizes: Sizes) -> None:
    """Many producers with a fixed rate."""
    spec = {
        "producers": MANY,
        "partitions": 12,
        "batch": 1,
        "transactions": sizes.paced_s * RATE,
        "rate": RATE,
    }
    for name, sample in run_all(brokers, sizes, "transactions", "paced", **spec).items():
        row = row_of(name, sample) | {"goal": f"{MANY * RATE} transactions/s"}
        report.add(f"{MANY} producers, {RATE} transactions/s each, 1 record", row, [sample])


def isolation(report: Report, brokers: Brokers, sizes: Sizes) -> None:
    """Consumers of a topic with 10% aborted transactions."""
    spec = {"partitions": 4, "record_size": RECORD_SIZE}
    written = WRITERS * sizes.aborting * BATCH
    for name, broker in brokers.items():
        with topic(broker, "aborts", 4) as made:
            writing = {"producers": WRITERS, "batch": BATCH, "transactions": sizes.aborting, "aborts": True}
            measure(broker, "transactions", module=MODULE, topic=made, **writing, **spec)
            found: dict[str, list[Sample]] = {"read_committed": [], "read_uncommitted": []}
            for _ in range(max(3, sizes.repeats)):
                for level, runs in found.items():
                    count = written if level == "read_uncommitted" else written - written // 10
                    reading = {"records": count, "settings": {"isolation.level": level}}
                    runs.append(measure(broker, "drain", module=MODULE, topic=made, **reading, **spec))
        both = {level: median_sample(runs) for level, runs in found.items()}
        # Both consumers receive the same bytes, so the time to the end of the topic is compared.
        ratio = both["read_committed"].wall_s / both["read_uncommitted"].wall_s
        row = {
            "broker": name,
            "read_committed s": rounded(both["read_committed"].wall_s),
            "read_uncommitted s": rounded(both["read_uncommitted"].wall_s),
            "ratio": rounded(ratio),
            "goal": "<= 1.2",
        }
        report.add("Consumers of a topic with 10% aborted transactions", row, list(both.values()))


def overhead(report: Report, brokers: Brokers, sizes: Sizes) -> None:
    """Produce requests of an idempotent producer, and of a producer in one transaction."""
    spec = {"partitions": 4, "records": sizes.records}
    settings = {"enable.idempotence": "true", "linger.ms": "5"}
    plain = run_all(brokers, sizes, "produce", "plain", module="bench.loads.load", settings=settings, **spec)
    transactional = run_all(brokers, sizes, "one_transaction", "one", **spec)
    for name, sample in transactional.items():
        before, after = (each.broker_cpu_s / each.records * 1e6 for each in (plain[name], sample))
        row = {
            "broker": name,
            "idempotent, CPU µs a record": rounded(before),
            "transactional, CPU µs a record": rounded(after),
            "overhead %": round((after / before - 1) * 100, 1),
            "goal": "< 10",
        }
        report.add("Produce requests in a transaction", row, [plain[name], sample])


def commit_time(report: Report, folder: pathlib.Path, sizes: Sizes) -> None:
    """The time from the last record to the response of the commit, on diskless topics at S3's latency."""
    broker = DisklessMoldau(folder / "s3", STORES["s3"])
    spec = {
        "producers": 1,
        "partitions": 1,
        "batch": BATCH,
        "transactions": max(20, sizes.transactions // 10),
    }
    try:
        (sample,) = run_all({"diskless, s3": broker}, sizes, "transactions", "slow", **spec).values()
    finally:
        broker.stop()
    limit = COMMIT_INTERVAL_MS + PUT_MS + ALLOWED_MS
    row = row_of("diskless, s3", sample) | {"goal": f"p50 <= {limit} ms"}
    report.add("Commit on diskless topics at S3's latency", row, [sample])


PARTS: Final = {"throughput": throughput, "paced": paced, "isolation": isolation, "overhead": overhead}
COMMIT: Final = "commit"


def measure_parts(report: Report, brokers: Brokers, sizes: Sizes, only: str | None) -> None:
    for name, part in PARTS.items():
        if only in (None, name):
            part(report, brokers, sizes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.transactions", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run of everything")
    parser.add_argument("--data", type=pathlib.Path, help="where the brokers keep their logs meanwhile")
    parser.add_argument("--only", choices=(*PARTS, COMMIT), help="measure one part")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="moldau-bench-", dir=options.data) as place:
        folder, brokers = pathlib.Path(place), dict[str, Broker]()
        try:
            brokers["classic"] = Moldau(folder / "classic")
            brokers["diskless"] = DisklessMoldau(folder / "diskless", STORES["memory"])
            if any(JARS.glob("kafka_*.jar")):
                brokers["kafka"] = Kafka(folder / "kafka")
            versions = {name: broker.version for name, broker in brokers.items()}
            name = "transactions-quick" if options.quick else "transactions"
            report = Report(name, environment(versions))
            warm_up(brokers, sizes)
            measure_parts(report, brokers, sizes, options.only)
        finally:
            for broker in brokers.values():
                broker.stop()
        if options.only in (None, COMMIT):
            commit_time(report, folder, sizes)
    report.print()
    report.write()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
