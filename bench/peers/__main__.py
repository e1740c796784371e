"""``make bench-peers``: the same load alternates between Moldau and Apache Kafka on the same machine."""

import argparse
import pathlib
import sys
import tempfile
from collections.abc import Mapping

from bench.brokers import JARS, Broker, Kafka, Moldau
from bench.measuring.measure import Sample, measure, median_sample, watch_idle
from bench.measuring.plan import FULL, LATENCY_LINGER_MS, PARTITION_COUNTS, QUICK, RECORD_SIZES, Plan, topic
from bench.measuring.report import Report, environment, megabytes
from bench.peers.rows import throughput

WARM_UP_BYTES = 500_000_000
Brokers = Mapping[str, Broker]
Samples = dict[str, list[Sample]]


def warm_up(broker: Broker, plan: Plan) -> None:
    """Run the load until the JVM has compiled its code."""
    for number in range(plan.warm_up_rounds):
        size = RECORD_SIZES[number % len(RECORD_SIZES)]
        with topic(broker, f"warm-up-{number}", 4) as name:
            load = {"topic": name, "partitions": 4, "record_size": size}
            measure(broker, "produce", records=min(WARM_UP_BYTES // size, 2_000_000), **load)
            for _ in range(2):
                measure(broker, "consume", **load)
            measure(broker, "requests", connections=4, records=50_000, **(load | {"record_size": 1024}))


def pipelined(report: Report, brokers: Brokers, plan: Plan) -> None:
    samples: Samples = {name: [] for name in brokers}
    for repeat in range(plan.repeats):
        for name, broker in brokers.items():
            with topic(broker, f"requests-{repeat}", 4) as made:
                load = {"topic": made, "partitions": 4, "record_size": 1024, "connections": 4}
                samples[name].append(measure(broker, "requests", records=plan.pipelined_requests, **load))
    for name, runs in samples.items():
        row = {"broker": name, **median_sample(runs).request_columns()}
        report.add("Pipelined produce requests of one 1 KiB record, 4 connections", row, runs)


def latency(report: Report, brokers: Brokers, plan: Plan) -> None:
    for size in plan.latency_sizes:
        for partitions in PARTITION_COUNTS:
            for name, broker in brokers.items():
                with topic(broker, f"latency-{size}-{partitions}", partitions) as made:
                    load = {"topic": made, "partitions": partitions, "record_size": size}
                    pace = {"rate": plan.latency_rate, "seconds": plan.latency_s}
                    sample = measure(broker, "latency", **load, **pace, linger_ms=LATENCY_LINGER_MS)
                row = {"broker": name, "record": f"{size} B", "partitions": partitions}
                for metric in ("ack_p50_ms", "ack_p99_ms", "end_to_end_p50_ms", "end_to_end_p99_ms"):
                    row[metric.removesuffix("_ms").replace("_", " ") + " ms"] = round(
                        sample.detail[metric], 2
                    )
                row["broker CPU %"] = round(sample.broker_share * 100)
                report.add(f"Latency at {plan.latency_rate} records/s, acks=all", row, [sample])


def at_rest(report: Report, brokers: Brokers, plan: Plan, title: str) -> None:
    for name, broker in brokers.items():
        idle = watch_idle(broker, plan.idle_s)
        row = {
            "broker": name,
            "start to ready, s": round(broker.start_s, 2),
            "RSS, MB": megabytes(idle.broker_rss_bytes),
            "idle CPU %": round(idle.broker_share * 100, 2),
        }
        report.add(title, row, [idle])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run of everything")
    parser.add_argument("--data", type=pathlib.Path, help="where the brokers keep their logs meanwhile")
    options = parser.parse_args()
    if not any(JARS.glob("kafka_*.jar")):
        print(f"no Kafka in {JARS}: run tools/fetch_clients.py (it needs Maven)", file=sys.stderr)
        return 1
    plan = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="moldau-bench-", dir=options.data) as folder:
        brokers: dict[str, Broker] = {}
        try:
            for made in (Moldau, Kafka):
                brokers[made.name] = made(pathlib.Path(folder) / made.name)
            versions = {name: broker.version for name, broker in brokers.items()}
            report = Report("peers-quick" if options.quick else "peers", environment(versions))
            at_rest(report, brokers, plan, "After the start")
            for broker in brokers.values():
                warm_up(broker, plan)
            throughput(report, brokers, plan)
            pipelined(report, brokers, plan)
            latency(report, brokers, plan)
            at_rest(report, brokers, plan, "After the load")
        except BaseException:
            report.print()  # The rows took many minutes.
            raise
        finally:
            for broker in brokers.values():
                broker.stop()
    report.print()
    report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
