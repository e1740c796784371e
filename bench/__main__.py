"""``python -m bench [--quick]``: a node's speed and memory. ``make bench-peers`` compares it with Kafka."""

import argparse
import pathlib
import tempfile
from typing import Any

from bench.brokers import Broker, Moldau
from bench.cluster.measurements import FULL_CLUSTER, QUICK_CLUSTER, bench_cluster
from bench.cluster.replication import FULL_REPLICATION, QUICK_REPLICATION, bench_replication
from bench.consolidation import bench_consolidation
from bench.diskless import DEFAULT_STORES, bench_diskless
from bench.measuring.measure import BUSY_SHARE, Sample, measure, median_sample, watch_idle
from bench.measuring.plan import FULL, LATENCY_LINGER_MS, PARTITION_COUNTS, QUICK, RECORD_SIZES, Plan, topic
from bench.measuring.report import Report, environment, megabytes, rounded
from bench.tiered import bench_tiered

LONG_POLLS = 1000
LONG_POLL_MS = 500


def throughput_row(name: str, size: int, partitions: int, sample: Sample) -> dict[str, Any]:
    return {
        "load": name,
        "record": f"{size} B",
        "partitions": partitions,
        "MB/s": rounded(sample.mb_per_s),
        "records/s": round(sample.records_per_s),
        "MB per broker CPU-s": rounded(sample.mb_per_cpu_s),
        "broker CPU %": round(sample.broker_share * 100),
        "client CPU %": round(sample.client_cpu_s / sample.wall_s * 100),
        "limit": limit_of(sample),
    }


def limit_of(sample: Sample) -> str:
    """The process that was busy nearly all the time. If there is no such process, client and broker both
    waited for a core or for the disk."""
    if sample.broker_share > BUSY_SHARE:
        return "broker"
    return "client" if sample.client_cpu_s / sample.wall_s > BUSY_SHARE else "neither"


def bench_throughput(report: Report, broker: Broker, plan: Plan) -> None:
    """Produce a topic and read it back, several times."""
    for size in RECORD_SIZES:
        for partitions in PARTITION_COUNTS:
            produced, consumed = [], []
            for repeat in range(plan.repeats):
                with topic(broker, f"throughput-{size}-{partitions}-{repeat}", partitions) as name:
                    load = {"topic": name, "partitions": partitions, "record_size": size}
                    records = plan.bytes_by_record_size[size] // size
                    produced.append(measure(broker, "produce", records=records, **load))
                    consumed.append(measure(broker, "consume", **load))
            for kind, samples in (("produce", produced), ("fetch", consumed)):
                row = throughput_row(kind, size, partitions, median_sample(samples))
                report.add("Throughput, librdkafka, acks=all", row, samples)


def bench_latency(report: Report, broker: Broker, plan: Plan) -> None:
    """Measure the latency at a fixed, moderate rate."""
    for size in plan.latency_sizes:
        for partitions in PARTITION_COUNTS:
            with topic(broker, f"latency-{size}-{partitions}", partitions) as name:
                load = {"topic": name, "partitions": partitions, "record_size": size}
                pace = {"rate": plan.latency_rate, "seconds": plan.latency_s, "linger_ms": LATENCY_LINGER_MS}
                sample = measure(broker, "latency", **load, **pace)
            row = {"record": f"{size} B", "partitions": partitions, "records/s": round(sample.records_per_s)}
            for metric, value in sample.detail.items():
                if metric.endswith("_ms"):
                    row[metric.removesuffix("_ms").replace("_", " ") + " ms"] = round(value, 2)
            row["broker CPU %"] = round(sample.broker_share * 100)
            report.add(f"Latency, acks=all, linger.ms={LATENCY_LINGER_MS}", row, [sample])


def bench_requests(report: Report, broker: Broker, plan: Plan) -> None:
    """Produce requests of one 1 KiB record each, whose bytes are encoded before the measurement."""
    for connections in (1, 4):
        samples = []
        for repeat in range(max(1, plan.repeats)):
            with topic(broker, f"requests-{connections}-{repeat}", connections) as name:
                load = {"topic": name, "partitions": connections, "record_size": 1024}
                samples.append(
                    measure(
                        broker, "requests", connections=connections, records=plan.pipelined_requests, **load
                    )
                )
        sample = median_sample(samples)
        row = {
            "connections": connections,
            **sample.request_columns(),
            "client CPU %": round(sample.client_cpu_s / sample.wall_s * 100),
        }
        report.add("Pipelined produce requests of one 1 KiB record, acks=all", row, samples)


def bench_at_rest(report: Report, broker: Broker, plan: Plan) -> None:
    """Measure the start time, the resources of an idle node, and the resources of a node with many waiting
    consumers."""
    idle = watch_idle(broker, plan.idle_s)
    title = "Start and rest"
    report.add(title, {"what": "start to ready, s", "value": round(broker.start_s, 2), "goal": ""})
    report.add(
        title, {"what": "idle RSS, MB", "value": megabytes(idle.broker_rss_bytes), "goal": "< 120"}, [idle]
    )
    report.add(title, {"what": "idle CPU, %", "value": round(idle.broker_share * 100, 2), "goal": "< 1"})
    with topic(broker, "polls", 1) as name:
        polls = measure(
            broker,
            "long_polls",
            topic=name,
            connections=LONG_POLLS,
            max_wait_ms=LONG_POLL_MS,
            seconds=plan.long_polls_s,
        )
    what = f"{LONG_POLLS} idle long polls of {LONG_POLL_MS} ms, CPU %"
    report.add(title, {"what": what, "value": round(polls.broker_share * 100, 1), "goal": "< 10"}, [polls])


PARTS = {
    "rest": bench_at_rest,
    "requests": bench_requests,
    "throughput": bench_throughput,
    "latency": bench_latency,
}
DISKLESS = "diskless"
CONSOLIDATION = "consolidation"
TIERED = "tiered"
SPARK = "spark"
CLUSTER = "cluster"
REPLICATION = "replication"
OF_THEIR_OWN = (DISKLESS, CONSOLIDATION, TIERED, SPARK, CLUSTER, REPLICATION)
"""The parts of the benchmark that start their own nodes."""


def can_run_spark() -> bool:
    from moldau.pipeline.requirements import missing_java, missing_packages

    return missing_packages() is None and missing_java() is None


def bench_spark(report: Report, folder: pathlib.Path, plan: Plan) -> None:
    """Measure reading, exporting and consolidating on Spark. Each of them has its own session."""
    from bench.spark_consolidation import bench_spark_consolidation
    from bench.spark_export import bench_spark_export
    from bench.spark_source import bench_spark_source

    bench_spark_source(report, folder, plan)
    bench_spark_export(report, folder, plan)
    bench_spark_consolidation(report, folder, plan)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run of everything")
    parser.add_argument(
        "--only", choices=[*PARTS, *OF_THEIR_OWN], action="append", help="only this part; may be repeated"
    )
    parser.add_argument("--data", type=pathlib.Path, help="where the broker keeps its logs meanwhile")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    name = "quick" if options.quick else "full"
    with tempfile.TemporaryDirectory(prefix="moldau-bench-", dir=options.data) as made:
        folder = pathlib.Path(made)
        broker = Moldau(folder / "moldau")
        try:
            report = Report(name, environment({"moldau": broker.version}))
            for part in options.only or PARTS:
                if part not in OF_THEIR_OWN:
                    PARTS[part](report, broker, plan)
        finally:
            broker.stop()
        if not options.only or DISKLESS in options.only:
            bench_diskless(report, folder, plan, DEFAULT_STORES)
        if not options.only or CONSOLIDATION in options.only:
            bench_consolidation(report, folder, plan)
        if not options.only or TIERED in options.only:
            bench_tiered(report, folder, plan)
        if (not options.only and can_run_spark()) or SPARK in (options.only or ()):
            bench_spark(report, folder, plan)
        if CLUSTER in (options.only or ()):
            bench_cluster(report, folder, QUICK_CLUSTER if options.quick else FULL_CLUSTER)
        if REPLICATION in (options.only or ()):
            bench_replication(report, folder, QUICK_REPLICATION if options.quick else FULL_REPLICATION)
    report.print()
    report.write()


if __name__ == "__main__":
    main()
