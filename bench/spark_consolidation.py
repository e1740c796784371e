"""Consolidation on Spark: ``python -m bench.spark_consolidation``.

Batches of 16 KiB in the WAL become segments. The input files are in the page cache, and the output files are
synced. Tasks of a warm session do this work. For comparison, two plain processes call the same functions. For
another comparison, the same processes copy the same objects and sync each copy. The benchmark needs PySpark.
"""

import argparse
import multiprocessing
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from bench.brokers import Broker
from bench.consolidation import BROKER_BATCH_BYTES, SETTINGS, produce
from bench.diskless import DisklessMoldau
from bench.measuring.plan import FULL, QUICK, Plan, topic
from bench.measuring.process_tree import Process, cpu_seconds, processes, spent
from bench.measuring.report import Report, environment, rounded

CORES: Final = 2
PARTITIONS: Final = 16
UNIT_BYTES: Final = 128 * 1024**2
UNITS: Final = 8
TITLE: Final = f"Spark consolidates: files to files, batches of 16 KiB, {CORES} cores"
SPARK, PLAIN, COPY = "Spark", "two processes", "copied by two processes, synced"

RunUnits = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


@dataclass(frozen=True, slots=True)
class Round:
    """The cost of building and copying all units."""

    wall_s: float
    cpu_s: float
    size_bytes: int
    jvm_bytes: int
    """Peak memory of this process so far."""
    python_bytes: int
    """Maximum over all tasks of the peak memory of a task's Python process."""


def bench_spark_consolidation(
    report: Report, folder: pathlib.Path, plan: Plan, units: Sequence[int] = (UNITS,)
) -> None:
    """Measure tasks and plain processes alternately. One session is used for all numbers of units."""
    from moldau.pipeline.session import SparkPool

    broker = DisklessMoldau(folder / "spark-consolidation", SETTINGS)
    try:
        with (
            SparkPool(f"local[{CORES},4]") as pool,
            multiprocessing.get_context("spawn").Pool(CORES) as plain,
        ):

            def in_processes(function: Callable[[Any], Any], given: Sequence[Any]) -> list[Any]:
                return plain.map(function, given, chunksize=1)

            engines: dict[str, RunUnits] = {
                SPARK: pool.units("consolidate"),
                PLAIN: in_processes,
                COPY: lambda function, given: in_processes(Copy(function.wal.url), object_keys(given)),
            }
            for count in units:
                _measure(report, broker, engines, plan.repeats, count)
    finally:
        broker.stop()


def _measure(report: Report, broker: Broker, engines: dict[str, RunUnits], repeats: int, units: int) -> None:
    results: dict[str, list[Round]] = {}
    for repeat in range(repeats + 1):
        # The first round is not counted. In this round, processes import modules, and the JVM compiles its
        # code.
        for engine, run in engines.items():
            name = f"c-{units}-{repeat}-{'-'.join(engine.replace(',', '').split())}"
            results.setdefault(engine, []).append(_consolidate(broker, name, units, run, engine == COPY))
    for engine, (_, *rounds) in results.items():
        wall_s = statistics.median(one.wall_s / one.size_bytes for one in rounds)
        cpu_s = statistics.median(one.cpu_s / one.size_bytes for one in rounds)
        row = {
            "engine": engine,
            "units of 128 MiB": units,
            "MB/s": rounded(1 / wall_s / 1e6),
            "goal": "1000" if engine == SPARK else "",
            "MB per CPU-s": rounded(1 / cpu_s / 1e6),
            "peak of the JVM, MiB": rounded(rounds[-1].jvm_bytes / 2**20) if engine == SPARK else "",
            "peak of a Python task, MiB": rounded(rounds[-1].python_bytes / 2**20) if engine == SPARK else "",
        }
        report.add(TITLE, row)


def _consolidate(broker: Broker, name: str, units: int, run: RunUnits, is_copy: bool) -> Round:
    from moldau.pipeline.consolidation.job import ConsolidateJob, consolidate_once

    rounds: list[Round] = []

    def timed(function: Callable[[Any], Any], given: Sequence[Any]) -> list[Any]:
        for key in object_keys(given):
            pathlib.Path(folder_of(function.wal.url), key).read_bytes()
        before = cpu_seconds([broker.pid])
        start = time.perf_counter()
        done = run(function, given)
        wall_s = time.perf_counter() - start
        cpu_s = spent(before, cpu_seconds([broker.pid]))
        size_bytes = sum(done) if is_copy else sum(unit.size_bytes for unit in given)
        rounds.append(Round(wall_s, cpu_s, size_bytes, *_peaks(processes([broker.pid]))))
        if is_copy:
            raise _Copied
        return done

    with topic(broker, name, PARTITIONS):
        produce(broker, name, PARTITIONS, units * UNIT_BYTES // BROKER_BATCH_BYTES)
        job = ConsolidateJob(broker.bootstrap, (name,), unit_bytes=UNIT_BYTES)
        try:
            done = consolidate_once(job, timed)
        except _Copied:
            return rounds[0]
    if done["failures"] or done["bytes"] < 0.9 * units * UNIT_BYTES:  # batches are not quite full
        raise RuntimeError(f"{name}: {done}")
    wall_s, cpu_s = sum(one.wall_s for one in rounds), sum(one.cpu_s for one in rounds)
    return Round(wall_s, cpu_s, done["bytes"], rounds[-1].jvm_bytes, rounds[-1].python_bytes)


def _peaks(found: Sequence[Process]) -> tuple[int, int]:
    """Peak memory of the JVM, and of the largest Python process of a task."""
    jvms = {one.pid: one.peak_bytes for one in found if one.name == "java"}
    daemons = {one.pid for one in found if one.parent in jvms}
    tasks = [one.peak_bytes for one in found if one.parent in daemons]
    return max(jvms.values(), default=0), max(tasks, default=0)


class _Copied(Exception):
    """Raised after the measured part to end a consolidation, because its later steps are not needed."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy an object with the system's fastest call, and sync the copy. Returns its size."""

    url: str

    def __call__(self, key: str) -> int:
        source = pathlib.Path(folder_of(self.url), key)
        target = pathlib.Path(folder_of(self.url), "copies", source.name)
        target.parent.mkdir(exist_ok=True)
        with source.open("rb") as reader, target.open("xb") as writer:
            size_bytes = os.fstat(reader.fileno()).st_size
            done = 0
            while done < size_bytes:
                done += os.copy_file_range(reader.fileno(), writer.fileno(), size_bytes - done)
            os.fdatasync(writer.fileno())
            os.posix_fadvise(writer.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        target.unlink()
        return size_bytes


def object_keys(units: Sequence[Any]) -> list[str]:
    """Keys of the WAL objects from which units are built."""

    def each() -> Iterator[str]:
        for unit in units:
            for segment in unit.segments:
                for run in segment.runs:
                    yield run.object_key

    return list(dict.fromkeys(each()))


def folder_of(url: str) -> str:
    """The folder of a store of files."""
    return unquote(urlsplit(url).path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_consolidation", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run")
    parser.add_argument(
        "--units", type=int, nargs="*", default=[UNITS], help="of 128 MiB: one measurement for each number"
    )
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    report = Report("spark-consolidation-quick" if options.quick else "spark-consolidation", environment({}))
    with tempfile.TemporaryDirectory(prefix="moldau-bench-") as made:
        bench_spark_consolidation(report, pathlib.Path(made), plan, options.units)
    report.print()
    report.write()


if __name__ == "__main__":
    main()
