"""Tiered topics: ``python -m bench.tiered``.

It measures the cost of tiering for producers, and the speed and cost of reading old records from the remote
tier. There are two stores: a store without latency, and files on the same disk as the log.
"""

import argparse
import pathlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.brokers import Broker, Moldau
from bench.loads.rdkafka import BatchProducer
from bench.measuring.measure import measure, median_sample
from bench.measuring.plan import FULL, LATENCY_LINGER_MS, QUICK, Plan
from bench.measuring.report import Report, environment, rounded
from bench.tiered_slices import (
    Slice,
    Steered,
    in_turns,
    median_of,
    produce_for,
    ratios,
    steered,
)

SEGMENT_BYTES: Final = 16 << 20
RECORD_SIZE: Final = 10_240
QUOTA_BYTES_PER_S: Final = 340_000_000
"""Rate limit of reads of old records, if they are limited. The limit is a little above the goal for the speed
of these reads."""
ROUNDS_MIN: Final = 6
WARM_UP_S: Final = 2.0
SETTLE_S: Final = 1.0
"""Pause before a slice. During this pause, the copies and removals of the previous slice end, and the reader
of the next slice starts.
"""
SEGMENT_RECORDS: Final = SEGMENT_BYTES // RECORD_SIZE
PAST_RECORDS: Final = 5 * SEGMENT_RECORDS // 2
"""Minimum number of records in a partition. With this number, two of its segments are remote."""
NOBODY: Final = "nobody reads"
OTHER: Final = "another node is read from"
SAME: Final = "this node is read from"
PARTITION_COUNTS: Final = (1, 12)
PARTS: Final = ("produce", "catch-up", "bounded")
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
"""Stores to which segments are copied. The first store accepts all objects and stores nothing."""
READ: Final = {"memory": ("rsm.config.url=memory://",), "files": ()}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The parts, stores and numbers of partitions to measure. By default all of them are measured."""

    parts: Sequence[str] = PARTS
    stores: Sequence[str] = ()
    partitions: Sequence[int] = PARTITION_COUNTS

    def has(self, part: str, store: str) -> bool:
        return part in self.parts and (not self.stores or store in self.stores)


EVERYTHING: Final = Wanted()


class TieredMoldau(Moldau):
    """A development node with classic topics and short intervals of the remote tier."""

    def __init__(self, folder: pathlib.Path, settings: Sequence[str]) -> None:
        self.settings = (*SETTINGS, *settings)
        super().__init__(folder)

    def arguments(self, data: pathlib.Path) -> list[str]:
        overrides = [argument for setting in self.settings for argument in ("--set", setting)]
        return [*super().arguments(data), *overrides]


@contextmanager
def topic(broker: Broker, name: str, partitions: int, *, tiered: bool) -> Iterator[str]:
    """A topic for one measurement. Segments leave the disk soon after they were copied."""
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


def bench_tiered(report: Report, folder: pathlib.Path, plan: Plan, wanted: Wanted = EVERYTHING) -> None:
    """Measure all parts. Each part uses its own nodes."""
    for store, settings in WRITTEN.items():
        if wanted.has("produce", store):
            with node(folder / f"tiered-to-{store}", settings) as broker:
                for partitions in wanted.partitions:
                    produce_latency(report, broker, plan, store, partitions)
    quota = f"remote.log.manager.fetch.max.bytes.per.second={QUOTA_BYTES_PER_S}"
    for store, settings in READ.items():
        if wanted.has("catch-up", store):
            with nodes(folder / f"tiered-from-{store}", settings) as pair:
                for partitions in wanted.partitions:
                    catch_up(report, pair, plan, store, partitions)
        if wanted.has("bounded", store):
            with nodes(folder / f"tiered-bounded-from-{store}", (*settings, quota)) as pair:
                for partitions in wanted.partitions:
                    catch_up_within_quota(report, pair, plan, store, partitions)


@contextmanager
def node(folder: pathlib.Path, settings: Sequence[str]) -> Iterator[Broker]:
    """A node for one store."""
    broker = TieredMoldau(folder, settings)
    try:
        yield broker
    finally:
        broker.stop()


@contextmanager
def nodes(folder: pathlib.Path, settings: Sequence[str]) -> Iterator[tuple[Broker, Broker]]:
    """Two independent nodes. Requests to one node cause no work on the other node."""
    with node(folder / "one", settings) as one, node(folder / "other", settings) as other:
        yield one, other


def produce_latency(report: Report, broker: Broker, plan: Plan, store: str, partitions: int) -> None:
    """Measure the latency while several segments a second in total are closed, copied and removed, or only
    closed."""
    rate, seconds = 2 * plan.latency_rate, 2 * plan.latency_s
    slices: dict[bool, list[Slice]] = {False: [], True: []}
    with (
        topic(broker, f"plain-{partitions}", partitions, tiered=False) as off,
        topic(broker, f"tiered-{partitions}", partitions, tiered=True) as on,
    ):
        names = {False: off, True: on}
        for name in names.values():
            begin_apart(broker, name, partitions)
        with steady(broker, partitions, rate) as producer:
            for name in names.values():
                produce_for(producer, broker, name, WARM_UP_S)
            for order in in_turns(tuple(names), rounds_of(plan)):
                for tiered in order:
                    time.sleep(SETTLE_S)
                    slices[tiered].append(produce_for(producer, broker, names[tiered], seconds))
    for tiered, found in slices.items():
        row = {
            "store": store,
            "tiering": "on" if tiered else "off",
            "partitions": partitions,
            "records/s": round(median_of(found, "records_per_s")),
            "ack p50 ms": round(median_of(found, "ack_p50_ms"), 2),
            "ack p99 ms": round(median_of(found, "ack_p99_ms"), 2),
            "p99 on/off": str(ratios(found, slices[False])) if tiered else "",
            "goal": "1.2" if tiered and store == "none" else "",
            "broker CPU %": round(median_of(found, "broker_share") * 100),
            "others' CPU %": round(median_of(found, "others_share") * 100),
        }
        report.add(PRODUCE, row, slices=found)


def begin_apart(broker: Broker, name: str, partitions: int) -> None:
    """Close a segment of each partition, because work that occurs only once must not be measured. Then fill a
    part of the next segment of each partition, and a different part for each partition, so that these
    segments do not all close at the same moment.
    """
    producer = BatchProducer(broker.bootstrap, name, RECORD_SIZE, 2 * SEGMENT_RECORDS, {})
    for partition in range(partitions):
        producer.produce(partition, SEGMENT_RECORDS + 1 + SEGMENT_RECORDS * partition // partitions)
    producer.flush(TIMEOUT_S)
    producer.close()


def steady(broker: Broker, partitions: int, rate: int) -> AbstractContextManager[Steered]:
    """A producer at a fixed rate. Its time from send to acknowledgement is measured."""
    return steered(
        "steady",
        bootstrap=broker.bootstrap,
        partitions=partitions,
        record_size=RECORD_SIZE,
        rate=rate,
        linger_ms=LATENCY_LINGER_MS,
    )


@contextmanager
def past(broker: Broker, plan: Plan, partitions: int) -> Iterator[str]:
    """Prepare a topic that is remote except for its last segments."""
    records = max(plan.bytes_by_record_size[RECORD_SIZE] // RECORD_SIZE, partitions * PAST_RECORDS)
    with topic(broker, f"past-{partitions}", partitions, tiered=True) as name:
        load = {"topic": name, "partitions": partitions, "record_size": RECORD_SIZE}
        measure(broker, "produce", records=records, **load)
        until_remote(broker, name)
        yield name


def catch_up(report: Report, pair: tuple[Broker, Broker], plan: Plan, store: str, partitions: int) -> None:
    """Read the remote part at full speed. First no producer runs, and then a producer runs at the
    same time."""
    broker = pair[0]
    with past(broker, plan, partitions) as name, past(pair[1], plan, partitions):
        load = {"topic": name, "partitions": partitions, "record_size": RECORD_SIZE}
        alone = [measure(broker, "consume", **load) for _ in range(max(3, plan.repeats))]
        slices = beside_a_producer(pair, partitions, plan, name, rounds_of(plan) // 2)
    sample = median_sample(alone)
    row = {
        "store": store,
        "partitions": partitions,
        "MB/s": rounded(sample.mb_per_s),
        "goal": "300",
        "MB per broker CPU-s": rounded(sample.mb_per_cpu_s),
        **columns(slices),
    }
    report.add(CATCH_UP, row, alone, slices=list(chain(*slices.values())))


def catch_up_within_quota(
    report: Report, pair: tuple[Broker, Broker], plan: Plan, store: str, partitions: int
) -> None:
    """Read the remote part at a rate limit that an operator would set to protect producers."""
    with past(pair[0], plan, partitions) as name, past(pair[1], plan, partitions):
        slices = beside_a_producer(pair, partitions, plan, name, rounds_of(plan))
    row = {"store": store, "partitions": partitions, **columns(slices), "goal": "300 MB/s, 1.5"}
    report.add(BOUNDED, row, slices=list(chain(*slices.values())))


def columns(slices: dict[str, list[Slice]]) -> dict[str, Any]:
    """The columns of a row: the read bytes per second, the producer's p99 in three cases, and the ratios of
    these p99 values. The cases are: no reader, a reader of the other node, and a reader of the producer's
    node."""
    quiet, elsewhere, here = (slices[kind] for kind in (NOBODY, OTHER, SAME))
    return {
        "MB/s beside a producer": rounded(median_of(here, "mb_per_s")),
        "ack p99 ms, nobody reads": round(median_of(quiet, "ack_p99_ms"), 2),
        "another node read": round(median_of(elsewhere, "ack_p99_ms"), 2),
        "this node read": round(median_of(here, "ack_p99_ms"), 2),
        "another's to nobody": str(ratios(elsewhere, quiet)),
        "this to nobody": str(ratios(here, quiet)),
        "this to another's": str(ratios(here, elsewhere)),
        "broker CPU %": round(median_of(here, "broker_share") * 100),
        "others' CPU %": round(median_of([*quiet, *elsewhere, *here], "others_share") * 100),
    }


def beside_a_producer(
    pair: tuple[Broker, Broker], partitions: int, plan: Plan, name: str, rounds: int
) -> dict[str, list[Slice]]:
    """A steady producer to the first node, in three cases: without a reader, with a reader of the second
    node, and with a reader of the first node.

    The reader of the second node is the control. In this case the machine does the same work, but the
    producer's node does no part of it.
    """
    slices: dict[str, list[Slice]] = {NOBODY: [], OTHER: [], SAME: []}
    past_topic = {"topic": name, "partitions": partitions}
    with (
        topic(pair[0], f"present-{partitions}", partitions, tiered=True) as present,
        steady(pair[0], partitions, plan.latency_rate) as producer,
        steered("catch_up", bootstrap=pair[0].bootstrap, **past_topic) as here,
        steered("catch_up", bootstrap=pair[1].bootstrap, **past_topic) as elsewhere,
    ):
        readers = {NOBODY: None, OTHER: elsewhere, SAME: here}
        begin_apart(pair[0], present, partitions)
        produce_for(producer, pair[0], present, WARM_UP_S)
        for order in in_turns(tuple(slices), rounds):
            for kind in order:
                with reading(readers[kind]) as found:
                    time.sleep(SETTLE_S / 2)
                    found |= produce_for(producer, pair[0], present, 1.5 * plan.latency_s)
                slices[kind].append(found)
    return slices


@contextmanager
def reading(reader: Steered | None) -> Iterator[Slice]:
    """Run a reader during the block. Its result is added at the end of the block."""
    found: Slice = {}
    if reader is not None:
        reader.tell()
    yield found
    if reader is not None:
        reader.tell()
        read = reader.answer()
        found |= {"mb_per_s": read["mb_per_s"], "reader_share": read["client_share"]}


def rounds_of(plan: Plan) -> int:
    """A number of rounds that is enough for a median and its quartiles."""
    return max(ROUNDS_MIN, plan.repeats)


def until_remote(broker: Broker, name: str) -> None:
    """Wait until all segments that can be copied have left the disk."""
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
    parser.add_argument("--part", choices=PARTS, nargs="*", default=PARTS)
    parser.add_argument("--store", choices=sorted({*WRITTEN, *READ}), nargs="*", default=())
    parser.add_argument("--partitions", type=int, nargs="*", default=PARTITION_COUNTS)
    parser.add_argument("--data", type=pathlib.Path, help="where the broker keeps its data meanwhile")
    options = parser.parse_args()
    wanted = Wanted(options.part, options.store, options.partitions)
    with tempfile.TemporaryDirectory(prefix="moldau-bench-", dir=options.data) as folder:
        report = Report("tiered", environment({}))
        bench_tiered(report, pathlib.Path(folder), QUICK if options.quick else FULL, wanted)
    report.print()
    report.write()


if __name__ == "__main__":
    main()
