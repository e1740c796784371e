"""Consolidation on Spark: ``python -m bench.spark_consolidation``.

What lies in the WAL as batches of 16 KiB becomes segments, from files to files; once by tasks of a warm
session, once by the same function in two plain processes. It needs PySpark.
"""

import argparse
import multiprocessing
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from bench.brokers import Broker
from bench.consolidation import BROKER_BATCH_BYTES, SETTINGS, produce
from bench.diskless import DisklessMoldau
from bench.plan import FULL, QUICK, Plan, topic
from bench.process_tree import cpu_seconds, spent
from bench.report import Report, environment, rounded

CORES: Final = 2
PARTITIONS: Final = 16
UNITS: Final = 8
SIZE_BYTES: Final = 1024**3
TITLE: Final = f"Spark consolidates: files to files, batches of 16 KiB, {UNITS} units, {CORES} cores"

RunUnits = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


def bench_spark_consolidation(report: Report, folder: pathlib.Path, plan: Plan) -> None:
    """By tasks and by plain processes, in turns."""
    from moldau.pipeline.session import SparkPool

    size_bytes = SIZE_BYTES // (4 if plan is QUICK else 1)
    broker = DisklessMoldau(folder / "spark-consolidation", SETTINGS)
    results: dict[str, list[tuple[float, float]]] = {}
    try:
        with (
            SparkPool(f"local[{CORES},4]") as pool,
            multiprocessing.get_context("spawn").Pool(CORES) as plain,
        ):
            engines: dict[str, RunUnits] = {
                "Spark": pool.units("consolidate"),
                "two processes": lambda function, units: plain.map(function, units, chunksize=1),
            }
            for repeat in range(plan.repeats + 1):
                for engine, run in engines.items():
                    name = f"c-{repeat}-{engine.replace(' ', '-')}"
                    results.setdefault(engine, []).append(_consolidate(broker, name, size_bytes, run))
    finally:
        broker.stop()
    for engine, rounds in results.items():
        wall_s, cpu_s = (statistics.median(column) for column in zip(*rounds[1:], strict=True))
        row = {
            "engine": engine,
            "MB/s": rounded(size_bytes / wall_s / 1e6),
            "goal": "1000" if engine == "Spark" else "",
            "MB per CPU-s": rounded(size_bytes / cpu_s / 1e6),
        }
        report.add(TITLE, row)


def _consolidate(broker: Broker, name: str, size_bytes: int, run: RunUnits) -> tuple[float, float]:
    """Seconds, and CPU seconds, that building and copying all units took."""
    from moldau.pipeline.consolidation.job import ConsolidateJob, consolidate_once

    times: list[tuple[float, float]] = []

    def timed(function: Callable[[Any], Any], units: Sequence[Any]) -> list[Any]:
        before = cpu_seconds([broker.pid])
        start = time.perf_counter()
        done = run(function, units)
        wall_s = time.perf_counter() - start
        times.append((wall_s, spent(before, cpu_seconds([broker.pid]))))
        return done

    with topic(broker, name, PARTITIONS):
        produce(broker, name, PARTITIONS, size_bytes // BROKER_BATCH_BYTES)
        job = ConsolidateJob(broker.bootstrap, (name,), unit_bytes=size_bytes // UNITS)
        done = consolidate_once(job, timed)
    if done["failures"] or done["bytes"] < 0.9 * size_bytes:  # batches are a little smaller
        raise RuntimeError(f"{name}: {done}")
    return sum(wall_s for wall_s, _ in times), sum(cpu_s for _, cpu_s in times)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_consolidation", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    report = Report("spark-consolidation-quick" if options.quick else "spark-consolidation", environment({}))
    with tempfile.TemporaryDirectory(prefix="moldau-bench-") as made:
        bench_spark_consolidation(report, pathlib.Path(made), plan)
    report.print()
    report.write()


if __name__ == "__main__":
    main()
