"""A topic becomes a table: ``python -m bench.spark_export``.

Each row is one round that exports a whole diskless topic in a warm session. A separate column has the cost of
a round with one record of each partition. The benchmark needs PySpark.
"""

import argparse
import pathlib
import shutil
import statistics
import tempfile
import time
from typing import Any, Final

from bench.brokers import Broker
from bench.diskless import DisklessMoldau
from bench.measuring.measure import measure
from bench.measuring.plan import FULL, QUICK, Plan, topic
from bench.measuring.report import Report, environment, rounded

RECORDS: Final = {100: 8_000_000, 1024: 2_000_000}
PARTITIONS: Final = 8
CORES: Final = 2
WARM_UPS: Final = 2
"""Rounds before the measured rounds. The workers start in these rounds."""
FORMATS: Final = ("parquet", "iceberg")


def bench_spark_export(report: Report, folder: pathlib.Path, plan: Plan) -> None:
    """Export a topic of each record size to each kind of table."""
    from moldau.pipeline.session import SparkPool

    broker = DisklessMoldau(folder / "export", ())
    try:
        with SparkPool(f"local[{CORES},4]") as pool:
            for size, records in RECORDS.items():
                count = records // (4 if plan is QUICK else 1)
                with topic(broker, f"export-{size}", PARTITIONS) as name:
                    load = {"topic": name, "partitions": PARTITIONS, "record_size": size}
                    measure(broker, "produce", records=count, **load)
                    for table_format in FORMATS:
                        _export(report, pool, broker, folder, name, table_format, size, count, plan.repeats)
    finally:
        broker.stop()


def _export(
    report: Report,
    pool: Any,
    broker: Broker,
    folder: pathlib.Path,
    name: str,
    table_format: str,
    size: int,
    records: int,
    repeats: int,
) -> None:
    from moldau.pipeline.export.progress import StartAt

    to = folder / f"table-{name}-{table_format}"
    rounds = []
    for _ in range(WARM_UPS + repeats):
        rounds.append(_round(pool, broker, name, to, table_format, records, None))
    wall_s = statistics.median(wall for wall, _ in rounds[WARM_UPS:])
    stored = rounds[-1][1]
    # Each partition has the same number of records.
    last = StartAt(offset=records // PARTITIONS - 1)
    fixed_s = statistics.median(
        _round(pool, broker, name, to, table_format, PARTITIONS, last)[0] for _ in range(repeats)
    )
    row = {
        "table": table_format,
        "record": f"{size} B",
        "rows/s": f"{records / wall_s / 1e6:.2f} M",
        "MB/s": rounded(records * size / wall_s / 1e6),
        "s": f"{wall_s:.2f}",
        "s for 8 rows": f"{fixed_s:.2f}",
        "stored MB": rounded(stored / 1e6),
    }
    report.add(f"Export of a diskless topic, {PARTITIONS} partitions, {CORES} cores", row)


def _round(
    pool: Any, broker: Broker, name: str, to: pathlib.Path, table_format: str, records: int, start_at: Any
) -> tuple[float, int]:
    """Seconds and bytes of a round that creates a table."""
    from moldau.pipeline.export.job import ExportJob, export_once

    job = ExportJob(broker.bootstrap, name, str(to), table_format, start=start_at)
    start = time.perf_counter()
    done = export_once(job, pool.units("export"))
    wall_s = time.perf_counter() - start
    if (done.records, done.lag_records) != (records, 0):
        raise RuntimeError(f"{done.records} of {records} records were exported")
    shutil.rmtree(to)
    return wall_s, done.size_bytes


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_export", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    report = Report("spark-export-quick" if options.quick else "spark-export", environment({}))
    with tempfile.TemporaryDirectory(prefix="moldau-bench-") as made:
        bench_spark_export(report, pathlib.Path(made), plan)
    report.print()
    report.write()


if __name__ == "__main__":
    main()
