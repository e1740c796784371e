"""``make bench-tansu``: the same load alternates between diskless topics of Moldau and Tansu, on one S3
server.

Tansu is a Kafka-compatible broker in Rust without local state. The S3 server is Versity S3 Gateway, on the
same machine. A third broker is Moldau with the smallest cache. Its fetches read objects, as all fetches of
Tansu do, while a node with the default cache reads recent records from its local segments.
"""

import argparse
import contextlib
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.brokers import Broker
from bench.measuring.measure import Sample
from bench.measuring.plan import topic
from bench.measuring.report import Report, environment, rounded
from bench.peers.on_s3 import KINDS, SERVER, SMALL_CACHE, OnServer, S3Server, Tansu, has_s3, moldau_on_s3

SMALL: Final = "moldau-small-cache"
TANSU: Final = "tansu"
NAMES: Final = ("moldau", SMALL, TANSU)
GIB: Final = 2**30
SHORT_WAIT: Final = {"fetch.wait.max.ms": "1"}
LATENCY_LINGER_MS: Final = 5
"""librdkafka's default."""
WARM_UP_RECORDS: Final = 20_000
COUNTED_RECORD_SIZE: Final = 1024


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes and durations of the measurements. All brokers get the same number of records."""

    bytes_by_record_size: Mapping[int, int]
    partitions: tuple[int, ...]
    repeats: int
    rates: tuple[int, ...]
    """Records per second of the latency rows."""
    latency_s: float
    counted_bytes: int
    rest_s: float
    """How long requests are counted after the load, because brokers rewrite and delete objects later."""


FULL: Final = Plan(
    bytes_by_record_size={100: 100_000_000, 1024: 500_000_000, 10_240: 500_000_000},
    partitions=(1, 12),
    repeats=3,
    rates=(100, 1000),
    latency_s=5,
    counted_bytes=500_000_000,
    rest_s=60,
)
QUICK: Final = Plan(
    bytes_by_record_size={100: 40_000_000, 1024: 200_000_000, 10_240: 200_000_000},
    partitions=(1, 12),
    repeats=1,
    rates=(100, 1000),
    latency_s=5,
    counted_bytes=200_000_000,
    rest_s=35,
)

Contenders = Sequence[OnServer]
Runs = list[Sample | str]


@contextlib.contextmanager
def started(
    folder: pathlib.Path, program: str, names: Sequence[str], *, counts_requests: bool = False
) -> Iterator[Contenders]:
    """An S3 server, and the brokers with these names. ``program`` is Tansu's program."""
    server = S3Server(folder / "s3", names, counts_requests=counts_requests)
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        found = []
        for name in names:
            broker: Broker
            if name == TANSU:
                broker = Tansu(folder / name, server, name, program)
            else:
                broker = moldau_on_s3(folder / name, server, name, (SMALL_CACHE,) if name == SMALL else ())
            stack.callback(broker.stop)
            found.append(OnServer(name, broker, server))
        yield found


def warm_up(contenders: Contenders) -> None:
    for one in contenders:
        with topic(one, "warm-up", 4) as name:
            load = {"topic": name, "partitions": 4, "record_size": 1024, "records": WARM_UP_RECORDS}
            one.run("produce", exact_ends=False, **load)
            one.run("consume", **load)


def throughput(report: Report, contenders: Contenders, plan: Plan) -> None:
    """Produce and fetch. The runs of the brokers alternate."""
    for record_size, size_bytes in plan.bytes_by_record_size.items():
        for partitions in plan.partitions:
            records = size_bytes // record_size
            runs: dict[tuple[str, str], Runs] = {}
            for repeat in range(plan.repeats):
                for one in contenders:
                    load = {"partitions": partitions, "record_size": record_size, "records": records}
                    with topic(one, f"load-{record_size}-{partitions}-{repeat}", partitions) as made:
                        for kind, run in one_round(one, {"topic": made, **load}):
                            runs.setdefault((kind, one.name), []).append(run)
            for kind in ("produce", "fetch", "fetch, wait 1 ms"):
                _add_rows(report, kind, record_size, partitions, runs)


def one_round(one: OnServer, load: Mapping[str, Any]) -> Iterator[tuple[str, Sample | str]]:
    """The runs of one topic. The fetches fail if the broker has lost a record."""
    # Tansu's end offset is the offset after the first record of the last batch.
    produced = one.run("produce", exact_ends=one.name != TANSU, **load)
    yield "produce", produced
    is_there = isinstance(produced, Sample)
    yield "fetch", one.run("consume", **load) if is_there else "-"
    yield "fetch, wait 1 ms", one.run("consume", settings=SHORT_WAIT, **load) if is_there else "-"


def _add_rows(
    report: Report, kind: str, record_size: int, partitions: int, runs: Mapping[tuple[str, str], Runs]
) -> None:
    for name in NAMES:
        if (kind, name) == ("produce", SMALL):
            continue  # the cache has no effect on it
        found = runs[kind, name]
        samples = [run for run in found if isinstance(run, Sample)]
        failed = [run for run in found if isinstance(run, str)]
        row: dict[str, Any] = {
            "load": kind,
            "record": f"{record_size} B",
            "partitions": partitions,
            "broker": name,
            "MB/s": spread([one.mb_per_s for one in samples], failed),
            "MB per broker CPU-s": spread([one.mb_per_cpu_s for one in samples], failed),
            "S3 server CPU-s per GB": spread([_server_cpu_s_per_gb(one) for one in samples], failed),
        }
        report.add("Throughput, librdkafka, acks=all", row, samples)


def _server_cpu_s_per_gb(sample: Sample) -> float:
    return sample.detail["s3_server_cpu_s"] / (sample.size_bytes / 1e9)


def spread(values: Sequence[float], failed: Sequence[str]) -> str:
    """Median, minimum and maximum of the successful runs, and the texts of the others."""
    if not values:
        return failed[0]
    middle = f"{rounded(statistics.median(values))}"
    ends = f" ({rounded(min(values))}-{rounded(max(values))})" if len(values) > 1 else ""
    return ", ".join([middle + ends, *failed])


def latency(report: Report, contenders: Contenders, plan: Plan) -> None:
    """A producer at a fixed rate, and a consumer at the end of the topic."""
    for rate in plan.rates:
        for partitions in plan.partitions:
            runs: dict[str, Runs] = {}
            for repeat in range(plan.repeats):
                for one in contenders:
                    if one.name != SMALL:
                        with topic(one, f"latency-{rate}-{partitions}-{repeat}", partitions) as made:
                            run = paced(one, made, partitions, rate, plan.latency_s)
                        runs.setdefault(one.name, []).append(run)
            for name, found in runs.items():
                samples = [run for run in found if isinstance(run, Sample)]
                failed = [run for run in found if isinstance(run, str)]
                row: dict[str, Any] = {"records/s": rate, "partitions": partitions, "broker": name}
                for metric in ("ack_p50_ms", "ack_p99_ms", "end_to_end_p50_ms", "end_to_end_p99_ms"):
                    column = metric.removesuffix("_ms").replace("_", " ") + " ms"
                    row[column] = spread([one.detail[metric] for one in samples], failed)
                row["reached records/s"] = spread([one.records_per_s for one in samples], failed)
                row["broker CPU %"] = spread([one.broker_share * 100 for one in samples], failed)
                report.add("Latency, 1 KiB records, linger.ms=5, acks=all", row, samples)


def paced(one: OnServer, made: str, partitions: int, rate: int, seconds: float) -> Sample | str:
    """One run at a fixed rate. The cell has no number if records are missing 20 s after the last one."""
    run = one.run(
        "latency",
        topic=made,
        partitions=partitions,
        record_size=COUNTED_RECORD_SIZE,
        rate=rate,
        seconds=seconds,
        linger_ms=LATENCY_LINGER_MS,
    )
    if isinstance(run, str):
        return run
    total = int(rate * seconds)
    if run.records < total or run.detail["received"] < total:
        return f"{run.records} of {total} acknowledged, {run.detail['received']:.0f} received"
    return run


def requests(report: Report, folder: pathlib.Path, program: str, plan: Plan) -> None:
    """Count the requests to the S3 server. Each broker has a server of its own, because the server writes a
    log, and because idle brokers also make requests."""
    for name in NAMES:
        with started(folder, program, (name,), counts_requests=True) as (one,):
            for partitions in plan.partitions:
                for kind, run, counts in counted(one, partitions, plan):
                    if (name, kind) == (SMALL, "produce"):
                        continue
                    row = {"load": kind, "partitions": partitions, "broker": name}
                    for column in KINDS:
                        row[column] = (
                            run if isinstance(run, str) else rounded(counts[column] * GIB / run.size_bytes)
                        )
                    report.add("Requests to the S3 server per GiB, 1 KiB records", row)


def counted(one: OnServer, partitions: int, plan: Plan) -> Iterator[tuple[str, Sample | str, Counter[str]]]:
    """The loads and their requests. Requests after the loads count as requests for the produced bytes."""
    before = one.server.requests()
    records = plan.counted_bytes // COUNTED_RECORD_SIZE
    load = {"partitions": partitions, "record_size": COUNTED_RECORD_SIZE, "records": records}
    with topic(one, f"counted-{partitions}", partitions) as made:
        produced: Sample | str = ""
        for kind, run in one_round(one, {"topic": made, **load}):
            produced = produced or run
            yield kind, run, (after := one.server.requests()) - before
            before = after
        if one.name == SMALL:
            return  # the cache has an effect only on fetches
        time.sleep(plan.rest_s)
        yield f"next {plan.rest_s:.0f} s", produced, one.server.requests() - before
    with topic(one, f"paced-{partitions}", partitions) as made:
        before = one.server.requests()
        rate = plan.rates[-1]
        run = paced(one, made, partitions, rate, plan.latency_s)
        yield f"{rate} records/s and a consumer", run, one.server.requests() - before


def compare(report: Report, folder: pathlib.Path, program: str, plan: Plan) -> None:
    """Add all tables to the report."""
    with started(folder, program, NAMES) as contenders:
        report.environment |= {one.name: one.broker.version for one in contenders}
        report.environment |= settings(contenders[0].server, plan)
        warm_up(contenders)
        throughput(report, contenders, plan)
        latency(report, contenders, plan)
    requests(report, folder, program, plan)


def settings(server: S3Server, plan: Plan) -> dict[str, str]:
    """The lines of the report that describe the brokers, the S3 server and the loads."""
    sizes = ", ".join(f"{size // 10**6} MB of {each} B" for each, size in plan.bytes_by_record_size.items())
    return {
        "S3 server": f"Versity S3 Gateway {server.version}, files on the local disk, no versions, loopback",
        "settings of moldau": "moldau dev, with the S3 server for diskless and tiered storage",
        f"settings of {SMALL}": f"the same, and {SMALL_CACHE}",
        "settings of tansu": "tansu broker with the storage engine s3 (conditional PUTs)",
        "records of each run": f"{sizes}; the same for all brokers",
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.tansu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run of everything")
    parser.add_argument(
        "--data", type=pathlib.Path, help="where the S3 server and the brokers keep their files"
    )
    parser.add_argument("--tansu", default="tansu", help="Tansu's program; by default it is found in PATH")
    options = parser.parse_args()
    program = shutil.which(options.tansu)
    if program is None or not has_s3(program):
        print(
            "no Tansu with S3 storage: run cargo install tansu --version 0.6.0 --locked --features dynostore",
            file=sys.stderr,
        )
        return 1
    if not SERVER.exists():
        print(f"no S3 server in {SERVER}: run tools/fetch_clients.py (it needs Go)", file=sys.stderr)
        return 1
    plan, name = (QUICK, "tansu-quick") if options.quick else (FULL, "tansu")
    report = Report(name, environment({}))
    with tempfile.TemporaryDirectory(prefix="moldau-bench-", dir=options.data) as folder:
        try:
            compare(report, pathlib.Path(folder), program, plan)
        except BaseException:
            report.print()  # The rows took many minutes.
            raise
    report.print()
    report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
