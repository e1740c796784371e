"""Diskless topics: ``python -m bench --only diskless``, or ``python -m bench.diskless --store file``.

Each store has a node of its own. ``file`` is the store of a development node. ``memory`` keeps objects only
for a moment, and shows the limits of the broker itself. (The broker writes local segments, and does not read
objects that it has just stored.) ``s3`` is ``memory`` with the latency of S3 and a budget for requests to S3.
"""

import argparse
import pathlib
import re
import statistics
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Sequence
from typing import Any, Final

from bench.brokers import JARS, Broker, Moldau, free_ports
from bench.measuring.measure import Sample, measure, median_sample
from bench.measuring.plan import FULL, QUICK, Plan, topic
from bench.measuring.report import Report, environment, megabytes, rounded

PARTITION_COUNTS: Final = (1, 12, 100)
MANY_PRODUCERS: Final = 8
RECORD_SIZE: Final = 1024
COMMIT_INTERVAL_MS: Final = 250
UPLOAD_TIMES: Final = re.compile(
    r'^moldau_diskless_Writer_UploadTimeMs_bucket\{le="([\d.]+)"\} ([\d.e+]+)$', re.MULTILINE
)
PACED_RECORDS_PER_S: Final = 1000
LONG_RUN_BYTES: Final = 250_000_000
"""Size of the records of one idempotent producer at S3's latency. They are enough for about fifty objects."""
SAMPLE_INTERVAL_S: Final = 0.1

BILLED: Final = "diskless.append.early.close.puts.per.second=8"
UNBILLED: Final = "diskless.append.early.close.puts.per.second=100"
STORES: Final[dict[str, tuple[str, ...]]] = {
    "memory": (
        UNBILLED,
        "diskless.storage.class.name=bench.stores.open_forgetful",
    ),
    "file": (),
    "s3": ("diskless.storage.class.name=bench.stores.open_like_s3", BILLED),
}
DEFAULT_STORES: Final = ("file", "memory", "s3")
EARLY_CLOSE_OFF: Final = ("diskless.append.early.close.puts.per.second=0",)


class DisklessMoldau(Moldau):
    """A development node whose topics are diskless."""

    def __init__(self, folder: pathlib.Path, settings: Sequence[str]) -> None:
        self.settings = settings
        (self._metrics_port,) = free_ports(1)
        super().__init__(folder)

    def upload_times(self) -> dict[float, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics") as page:
            return upload_times_of(page.read().decode())

    def arguments(self, data: pathlib.Path) -> list[str]:
        settings = (*self.settings, f"metrics.listener=127.0.0.1:{self._metrics_port}")
        overrides = [argument for setting in settings for argument in ("--set", setting)]
        return ["--data", str(data), "--port", "0", *overrides]


class MemoryWatch:
    """The highest memory (VmRSS) that a broker used during the ``with`` block."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.peak_bytes = 0

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_INTERVAL_S):
            self.peak_bytes = max(self.peak_bytes, self._broker.usage().rss_bytes)


def bench_diskless(report: Report, folder: pathlib.Path, plan: Plan, stores: Sequence[str]) -> None:
    """Measure one store after the other."""
    for store in stores:
        broker = DisklessMoldau(folder / store, STORES[store])
        try:
            throughput(report, broker, plan, store)
            one_idempotent_producer(report, broker, plan, store)
            java_producer(report, broker, plan, store)
            latency(report, broker, plan, store, "on")
        finally:
            broker.stop()
        broker = DisklessMoldau(folder / f"{store}-steady", (*STORES[store], *EARLY_CLOSE_OFF))
        try:
            latency(report, broker, plan, store, "off")
        finally:
            broker.stop()


def records_of(plan: Plan, store: str) -> int:
    size_bytes = plan.bytes_by_record_size[RECORD_SIZE]
    return size_bytes // RECORD_SIZE // (4 if store == "s3" else 1)


def throughput(report: Report, broker: Broker, plan: Plan, store: str) -> None:
    """Produce a topic, first with one producer and then with many producers. Read it back."""
    for partitions in PARTITION_COUNTS:
        load = {"partitions": partitions, "record_size": RECORD_SIZE}
        for producers in (1, MANY_PRODUCERS):
            produced, consumed, peaks = [], [], []
            for repeat in range(plan.repeats):
                with (
                    topic(broker, f"load-{partitions}-{producers}-{repeat}", partitions) as name,
                    MemoryWatch(broker) as memory,
                ):
                    sample = measure(
                        broker,
                        "produce_by_many",
                        module="bench.loads.diskless_load",
                        topic=name,
                        producers=producers,
                        records=records_of(plan, store),
                        **load,
                    )
                    produced.append(sample)
                    consumed.append(measure(broker, "consume", topic=name, **load))
                peaks.append(memory.peak_bytes)
            title = "Diskless throughput, librdkafka's defaults, 1 KiB records"
            row = throughput_row(store, partitions, f"{producers} x produce", produced)
            report.add(title, row | {"peak RSS, MB": megabytes(max(peaks))}, produced)
            if producers == 1:
                row = throughput_row(store, partitions, "fetch", consumed)
                report.add(title, row | {"peak RSS, MB": ""}, consumed)


def throughput_row(store: str, partitions: int, what: str, samples: list[Sample]) -> dict[str, Any]:
    sample = median_sample(samples)
    speeds = sorted(each.mb_per_s for each in samples)
    return {
        "store": store,
        "partitions": partitions,
        "load": what,
        "MB/s": rounded(sample.mb_per_s),
        "lowest to highest": f"{rounded(speeds[0])}-{rounded(speeds[-1])}",
        "MB per broker CPU-s": rounded(sample.mb_per_cpu_s),
        "broker CPU %": round(sample.broker_share * 100),
        "client CPU %": round(sample.client_cpu_s / sample.wall_s * 100),
    }


def one_idempotent_producer(report: Report, broker: Broker, plan: Plan, store: str) -> None:
    """One producer with five requests in flight. This number and the store's latency limit the throughput."""
    for partitions in PARTITION_COUNTS:
        records = records_of(plan, store)
        if store == "s3":
            # A run needs many objects. Otherwise the result would depend mostly on a few random latencies,
            # and on the start and end of the run.
            records = records // 2 if partitions == 1 else LONG_RUN_BYTES // RECORD_SIZE
        samples = []
        for repeat in range(plan.repeats):
            with topic(broker, f"idempotent-{partitions}-{repeat}", partitions) as name:
                sample = measure(
                    broker,
                    "produce",
                    topic=name,
                    partitions=partitions,
                    record_size=RECORD_SIZE,
                    records=records,
                    settings={"enable.idempotence": "true"},
                )
                samples.append(sample)
        title = "Diskless throughput, librdkafka's defaults, 1 KiB records"
        row = throughput_row(store, partitions, "1 x produce, idempotent", samples)
        report.add(title, row | {"peak RSS, MB": ""}, samples)


def java_producer(report: Report, broker: Broker, plan: Plan, store: str) -> None:
    """Kafka's own ProducerPerformance with its defaults. It is idempotent and sends batches of 16 KiB."""
    if not any(JARS.glob("kafka-tools-*.jar")):
        return
    for partitions in PARTITION_COUNTS:
        runs = []
        for repeat in range(max(1, plan.repeats // 2)):
            with topic(broker, f"java-{partitions}-{repeat}", partitions) as name:
                records = records_of(plan, store) // (40 if store == "s3" else 4)
                runs.append(producer_performance(broker.bootstrap, name, records))
        row: dict[str, Any] = {"store": store, "partitions": partitions}
        for column in runs[0]:
            row[column] = rounded(statistics.median(run[column] for run in runs))
        report.add("Diskless, the Java producer's defaults (ProducerPerformance, unlimited)", row)


def producer_performance(bootstrap: str, name: str, records: int) -> dict[str, float]:
    command = ["java", "-cp", f"{JARS}/*", "org.apache.kafka.tools.ProducerPerformance", "--topic", name]
    command += ["--num-records", str(records), "--record-size", str(RECORD_SIZE), "--throughput", "-1"]
    command += ["--command-property", f"bootstrap.servers={bootstrap}"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    last = [line for line in printed.splitlines() if "99th" in line][-1]
    rate = float(re.findall(r"([\d.]+) records/sec", last)[0])
    median = float(re.findall(r"([\d.]+) ms 50th", last)[0])
    tail = float(re.findall(r"([\d.]+) ms 99th", last)[0])
    return {"MB/s": rate * RECORD_SIZE / 1e6, "ack p50 ms": median, "ack p99 ms": tail}


def upload_times_of(metrics: str) -> dict[float, float]:
    """The number of uploads up to each duration in milliseconds, from the histogram in a node's metrics."""
    return {float(bound): float(count) for bound, count in UPLOAD_TIMES.findall(metrics)}


def p50_ms(before: dict[float, float], after: dict[float, float]) -> float:
    """The median of the values that a histogram counted between two reads of it. The result is only as exact
    as the histogram's buckets."""
    counts = {bound: after[bound] - before.get(bound, 0.0) for bound in sorted(after)}
    half, below, low = max(counts.values(), default=0.0) / 2, 0.0, 0.0
    for bound, count in counts.items():
        if count >= half:
            return low + (bound - low) * (half - below) / max(1.0, count - below)
        below, low = count, bound
    return low


def latency(report: Report, broker: DisklessMoldau, plan: Plan, store: str, early_close: str) -> None:
    """A steady load, far below the node's limit, so that the latency does not include waiting in queues
    behind other records.

    The goal for the median latency is half the commit interval, plus the median of a PUT, plus 5 ms. The node
    measures the duration of the PUT, because a disk adds to S3's latency.
    """
    for partitions in PARTITION_COUNTS:
        with topic(broker, f"latency-{partitions}-{early_close}", partitions) as name:
            load = {"topic": name, "partitions": partitions, "record_size": RECORD_SIZE}
            # The first batch of a partition opens the partition's files. On a busy disk this takes a second
            # for all partitions together.
            measure(broker, "produce", records=500 * partitions, **load)
            before = broker.upload_times()
            sample = measure(
                broker,
                "latency",
                rate=PACED_RECORDS_PER_S,
                seconds=2 * plan.latency_s,
                linger_ms=0,
                **load,
            )
        put_ms = p50_ms(before, broker.upload_times())
        goal_ms = COMMIT_INTERVAL_MS / 2 + put_ms + 5
        row: dict[str, Any] = {"store": store, "early close": early_close, "partitions": partitions}
        for metric, value in sample.detail.items():
            if metric.endswith("_ms"):
                row[metric.removesuffix("_ms").replace("_", " ") + " ms"] = rounded(value)
        row["PUT p50 ms"] = rounded(put_ms)
        row["goal of ack p50 ms"] = f"{'<= 1.1 x' if early_close == 'off' else '<'} {goal_ms:.0f}"
        row["broker CPU %"] = round(sample.broker_share * 100)
        report.add(f"Diskless latency at {PACED_RECORDS_PER_S} records/s of 1 KiB", row, [sample])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.diskless", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run of everything")
    parser.add_argument("--store", choices=STORES, action="append", help="only this store; may be repeated")
    parser.add_argument("--data", type=pathlib.Path, help="where the node keeps its files meanwhile")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="moldau-bench-", dir=options.data) as folder:
        name = "diskless-quick" if options.quick else "diskless"
        report = Report(name, environment({}))
        plan = QUICK if options.quick else FULL
        bench_diskless(report, pathlib.Path(folder), plan, options.store or DEFAULT_STORES)
    report.print()
    report.write()


if __name__ == "__main__":
    main()
