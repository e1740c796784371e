"""Tiered topics: ``python -m bench.tiered``.

What tiering costs producers, and what catching up from the remote tier gives and costs: at stores without
latency, and at files, which share the disk with the log.
"""

import argparse
import pathlib
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.brokers import Broker, Moldau
from bench.measure import Sample, measure, median_sample
from bench.plan import FULL, LATENCY_LINGER_MS, QUICK, Plan
from bench.report import Report, environment, rounded

SEGMENT_BYTES: Final = 16 << 20
RECORD_SIZE: Final = 10_240
QUOTA_BYTES_PER_S: Final = 340_000_000
"""Of catching up, where it is bounded: somewhat above the goal."""
REPEATS_MIN: Final = 5
PARTITION_COUNTS: Final = (1, 12)
TIMEOUT_S: Final = 120.0
SETTINGS: Final = (
    "remote.log.manager.task.interval.ms=200",
    "log.retention.check.interval.ms=500",
)
PRODUCE: Final = (
    f"Tiered topics: produce latency, {RECORD_SIZE} B records, segments of {SEGMENT_BYTES >> 20} MiB"
)
CATCH_UP: Final = "Tiered topics: catching up from the remote tier, alone and beside a producer"
BOUNDED: Final = (
    "Tiered topics: catching up beside a producer, within"
    f" remote.log.manager.fetch.max.bytes.per.second={QUOTA_BYTES_PER_S}"
)
WRITTEN: Final = {
    "none": ("remote.log.storage.manager.class.name=bench.stores.open_bottomless_tier",),
    "files": (),
}
"""Stores to copy to; the first takes everything and keeps nothing."""
READ: Final = {"memory": ("rsm.config.url=memory://",), "files": ()}


class TieredMoldau(Moldau):
    """A development node with classic topics and a remote tier that is quick to act."""

    def __init__(self, folder: pathlib.Path, settings: Sequence[str]) -> None:
        self.settings = (*SETTINGS, *settings)
        super().__init__(folder)

    def arguments(self, data: pathlib.Path) -> list[str]:
        overrides = [argument for setting in self.settings for argument in ("--set", setting)]
        return [*super().arguments(data), *overrides]


@contextmanager
def topic(broker: Broker, name: str, partitions: int, *, tiered: bool) -> Iterator[str]:
    """A topic for one measurement; what is copied leaves the disk soon."""
    config = {"file.delete.delay.ms": "100", "segment.bytes": str(SEGMENT_BYTES)}
    if tiered:
        config |= {"remote.storage.enable": "true", "local.retention.bytes": "1"}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 4})
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
    admin.create_topics([new])[name].result(TIMEOUT_S)
    try:
        yield name
    finally:
        admin.delete_topics([name])[name].result(TIMEOUT_S)


def bench_tiered(report: Report, folder: pathlib.Path, plan: Plan) -> None:
    """Both parts, on nodes of their own."""
    for store, settings in WRITTEN.items():
        with node(folder / f"tiered-to-{store}", settings) as broker:
            for partitions in PARTITION_COUNTS:
                produce_latency(report, broker, plan, store, partitions)
    for store, settings in READ.items():
        with node(folder / f"tiered-from-{store}", settings) as broker:
            for partitions in PARTITION_COUNTS:
                catch_up(report, broker, plan, store, partitions)
        quota = f"remote.log.manager.fetch.max.bytes.per.second={QUOTA_BYTES_PER_S}"
        with node(folder / f"tiered-bounded-from-{store}", (*settings, quota)) as broker:
            for partitions in PARTITION_COUNTS:
                catch_up_within_quota(report, broker, plan, store, partitions)


@contextmanager
def node(folder: pathlib.Path, settings: Sequence[str]) -> Iterator[Broker]:
    """A node for one store."""
    broker = TieredMoldau(folder, settings)
    try:
        yield broker
    finally:
        broker.stop()


def latency(broker: Broker, name: str, partitions: int, seconds: float, rate: int) -> Sample:
    """A producer at a steady rate and a consumer at the end."""
    return measure(
        broker,
        "latency",
        topic=name,
        partitions=partitions,
        record_size=RECORD_SIZE,
        rate=rate,
        seconds=seconds,
        linger_ms=LATENCY_LINGER_MS,
    )


def produce_latency(report: Report, broker: Broker, plan: Plan, store: str, partitions: int) -> None:
    """Several segments a second in all are closed, copied and removed meanwhile, or just closed."""
    rate, seconds = 2 * plan.latency_rate, 2 * plan.latency_s
    samples: dict[bool, list[Sample]] = {False: [], True: []}
    # In turns, so that the machine's moods meet both.
    for repeat in range(max(REPEATS_MIN, plan.repeats)):
        # Each comes first as often as the other.
        for tiered, found in list(samples.items())[:: 1 if repeat % 2 else -1]:
            name = f"latency-{partitions}-{tiered}-{repeat}"
            with topic(broker, name, partitions, tiered=tiered):
                found.append(latency(broker, name, partitions, seconds, rate))
    off, on = (by_p99(found).detail["ack_p99_ms"] for found in samples.values())
    for tiered, found in samples.items():
        sample = by_p99(found)
        row = {
            "store": store,
            "tiering": "on" if tiered else "off",
            "partitions": partitions,
            "records/s": round(sample.records_per_s),
            "ack p50 ms": round(sample.detail["ack_p50_ms"], 2),
            "ack p99 ms": round(sample.detail["ack_p99_ms"], 2),
            "p99 on/off": round(on / off, 2) if tiered else "",
            "goal": "1.2" if tiered and store == "none" else "",
            "broker CPU %": round(sample.broker_share * 100),
        }
        report.add(PRODUCE, row, found)


def by_p99(samples: Sequence[Sample]) -> Sample:
    """The middle one."""
    return sorted(samples, key=lambda sample: sample.detail["ack_p99_ms"])[len(samples) // 2]


@contextmanager
def past_and_present(broker: Broker, plan: Plan, partitions: int) -> Iterator[tuple[str, str]]:
    """A topic that is remote but for its last segments, and one to produce to."""
    records = plan.bytes_by_record_size[RECORD_SIZE] // RECORD_SIZE
    with (
        topic(broker, f"past-{partitions}", partitions, tiered=True) as past,
        topic(broker, f"present-{partitions}", partitions, tiered=True) as present,
    ):
        measure(
            broker, "produce", topic=past, partitions=partitions, record_size=RECORD_SIZE, records=records
        )
        until_remote(broker, past)
        yield past, present


def catch_up(report: Report, broker: Broker, plan: Plan, store: str, partitions: int) -> None:
    """Read what is remote, alone and beside a producer, as fast as it goes."""
    load = {"partitions": partitions, "record_size": RECORD_SIZE}
    with past_and_present(broker, plan, partitions) as (past, present):
        alone = [measure(broker, "consume", topic=past, **load) for _ in range(max(3, plan.repeats))]
        quiet, busy, beside = in_turns(broker, past, present, partitions, plan, load)
    sample = median_sample(alone)
    row = {
        "store": store,
        "partitions": partitions,
        "MB/s": rounded(sample.mb_per_s),
        "goal": "300",
        "MB per broker CPU-s": rounded(sample.mb_per_cpu_s),
        **beside_a_producer(quiet, busy, beside),
        "its goal": "1.5",
    }
    report.add(CATCH_UP, row, [*alone, *beside, *quiet, *busy])


def catch_up_within_quota(report: Report, broker: Broker, plan: Plan, store: str, partitions: int) -> None:
    """As an operator would have it, who knows how much his producers can bear."""
    load = {"partitions": partitions, "record_size": RECORD_SIZE}
    with past_and_present(broker, plan, partitions) as (past, present):
        quiet, busy, beside = in_turns(broker, past, present, partitions, plan, load)
    row = {
        "store": store,
        "partitions": partitions,
        **beside_a_producer(quiet, busy, beside),
        "goal": "300 MB/s, 1.5",
    }
    report.add(BOUNDED, row, [*beside, *quiet, *busy])


def beside_a_producer(
    quiet: Sequence[Sample], busy: Sequence[Sample], beside: Sequence[Sample]
) -> dict[str, Any]:
    """Columns of a row: what was read, and the producer's p99 without and with it, of the middle runs."""
    before, meanwhile = (by_p99(found).detail["ack_p99_ms"] for found in (quiet, busy))
    return {
        "MB/s beside a producer": rounded(median_sample(list(beside)).mb_per_s),
        "ack p99 ms, nobody reads": round(before, 2),
        "ack p99 ms meanwhile": round(meanwhile, 2),
        "ratio": round(meanwhile / before, 2),
    }


def in_turns(
    broker: Broker, past: str, present: str, partitions: int, plan: Plan, load: dict[str, Any]
) -> tuple[list[Sample], list[Sample], list[Sample]]:
    """A steady producer: with nobody who reads, and with somebody, again and again; what was read."""
    quiet: list[Sample] = []
    busy: list[Sample] = []
    beside: list[Sample] = []
    for _ in range(max(3, plan.repeats)):
        quiet.append(latency(broker, present, partitions, 2 * plan.latency_s, plan.latency_rate))
        meanwhile, found = both(broker, past, present, partitions, plan, load)
        busy.append(meanwhile)
        beside += found
    return quiet, busy, beside


def both(
    broker: Broker, past: str, present: str, partitions: int, plan: Plan, load: dict[str, Any]
) -> tuple[Sample, list[Sample]]:
    """A steady producer, and somebody who reads the past again and again until it has ended."""
    beside: list[Sample] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            beside.append(measure(broker, "consume", topic=past, **load))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        busy = latency(broker, present, partitions, 2 * plan.latency_s, plan.latency_rate)
    finally:
        over.set()
        reader.join()
    return busy, beside


def until_remote(broker: Broker, name: str) -> None:
    """Wait until all that can be copied has left the disk."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        folders = list((broker.folder / "data").glob(f"{name}-*"))
        if folders and all(len(list(each.glob("*.log"))) == 1 for each in folders):
            return
        time.sleep(0.2)
    raise RuntimeError(f"{name} did not leave the disk in {TIMEOUT_S:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tiered", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run")
    parser.add_argument("--data", type=pathlib.Path, help="where the broker keeps its data meanwhile")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="moldau-bench-", dir=options.data) as folder:
        report = Report("tiered", environment({}))
        bench_tiered(report, pathlib.Path(folder), QUICK if options.quick else FULL)
    report.print()
    report.write()


if __name__ == "__main__":
    main()
