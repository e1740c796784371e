"""``format("moldau")`` compared with Spark's own connector: ``python -m bench.spark_source``.

Each row is a query that reads every value of the same diskless topic, with all columns decoded. The session
is warm, so its code is already compiled. A separate column has the cost of a query for one record of each
partition. CPU is the time of the driver, the JVM and the Python workers, without the CPU time of the broker.
The benchmark needs PySpark. The connector's jars and this project's own jar, which ``tools/fetch_clients.py``
fetches and builds, add readers to the table.
"""

import argparse
import json
import pathlib
import statistics
import tempfile
import time
from typing import Any, Final

from bench.brokers import Broker
from bench.diskless import DisklessMoldau
from bench.measuring.measure import measure
from bench.measuring.plan import FULL, QUICK, Plan, topic
from bench.measuring.process_tree import cpu_seconds, spent
from bench.measuring.report import Report, environment, rounded

CONNECTOR: Final = pathlib.Path(".tools/spark-kafka")
SPARK_JAR: Final = pathlib.Path(".tools/moldau-spark/moldau-spark.jar")
RECORDS: Final = {100: 8_000_000, 1024: 2_000_000}
PARTITIONS: Final = 8
WARM_UPS: Final = 3
"""Runs before the measured runs. The workers start in these runs, and the JVM compiles its code."""
READERS: Final = {
    "moldau, from objects, jvm": ("moldau", {"decodeIn": "jvm"}),
    "moldau, through the broker, jvm": ("moldau", {"decodeIn": "jvm", "readFrom": "brokers"}),
    "moldau, from objects": ("moldau", {"decodeIn": "python"}),
    "moldau, through the broker": ("moldau", {"decodeIn": "python", "readFrom": "brokers"}),
    "kafka": ("kafka", {"startingOffsets": "earliest"}),
}
"""The format and the options of each reader. The first two need ``moldau-spark.jar``."""


def bench_spark_source(report: Report, folder: pathlib.Path, plan: Plan) -> None:
    """For each record size, read a topic with each reader of :data:`READERS`."""
    from moldau.pipeline.session import open_session

    connector = sorted(str(path) for path in CONNECTOR.glob("*.jar"))
    own = [str(SPARK_JAR)] if SPARK_JAR.exists() else []
    jars = connector + own
    readers = {
        name: (source, options)
        for name, (source, options) in READERS.items()
        if (source != "kafka" or connector) and (options.get("decodeIn") != "jvm" or own)
    }
    broker = DisklessMoldau(folder / "spark", ())
    session = open_session(f"local[{CORES},4]", **({"spark.jars": ",".join(jars)} if jars else {}))
    try:
        for size, records in RECORDS.items():
            count = records // (4 if plan is QUICK else 1)
            with topic(broker, f"spark-{size}", PARTITIONS) as name:
                measure(broker, "produce", topic=name, partitions=PARTITIONS, record_size=size, records=count)
                _compare(report, session, broker, name, size, count, readers, plan.repeats)
    finally:
        session.stop()
        broker.stop()


CORES: Final = 2


def _compare(
    report: Report,
    session: Any,
    broker: Broker,
    name: str,
    size: int,
    records: int,
    readers: dict[str, tuple[str, dict[str, str]]],
    repeats: int,
) -> None:
    walls: dict[str, float] = {}
    cpus: dict[str, float] = {}
    fixed: dict[str, float] = {}
    first = json.dumps({name: dict.fromkeys(map(str, range(PARTITIONS)), 1)})
    for reader, (source, options) in readers.items():
        frame = session.read.format(source).option("kafka.bootstrap.servers", broker.bootstrap)
        frame = frame.option("subscribe", name).options(**options)
        for _ in range(WARM_UPS):
            _query(frame, reader, records)
        runs = []
        for _ in range(repeats):
            before = cpu_seconds([broker.pid])
            wall_s = _query(frame, reader, records)
            runs.append((wall_s, spent(before, cpu_seconds([broker.pid]))))
        walls[reader], cpus[reader] = (statistics.median(column) for column in zip(*runs, strict=True))
        # This query is the last one, because ``option`` changes the frame.
        ending = frame.option("endingOffsets", first)
        fixed[reader] = statistics.median(_query(ending, reader, PARTITIONS) for _ in range(repeats))
    for reader, wall_s in walls.items():
        row = {
            "reader": reader,
            "record": f"{size} B",
            "rows/s": f"{records / wall_s / 1e6:.2f} M",
            "MB/s": rounded(records * size / wall_s / 1e6),
            "s": f"{wall_s:.2f}",
            "s for 8 rows": f"{fixed[reader]:.2f}",
            "times kafka": rounded(walls["kafka"] / wall_s) if "kafka" in walls else "",
            "rows per CPU-s": f"{records / cpus[reader] / 1e6:.2f} M",
            "times kafka ": rounded(cpus["kafka"] / cpus[reader]) if "kafka" in cpus else "",
        }
        report.add(f"Spark reads a diskless topic, {PARTITIONS} partitions, {CORES} cores", row)


def _query(frame: Any, reader: str, records: int) -> float:
    """Measure the time from ``load()`` until all records are read."""
    start = time.perf_counter()
    (row,) = frame.load().selectExpr("count(*) AS n", "sum(length(value)) AS size").collect()
    wall_s = time.perf_counter() - start
    if row.n != records:
        raise RuntimeError(f"{reader}: {row.n} of {records} records were read")
    return wall_s


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_source", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    report = Report("spark-quick" if options.quick else "spark", environment({}))
    with tempfile.TemporaryDirectory(prefix="moldau-bench-") as made:
        bench_spark_source(report, pathlib.Path(made), plan)
    report.print()
    report.write()


if __name__ == "__main__":
    main()
