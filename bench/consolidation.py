"""From WAL objects to Kafka segments: ``python -m bench.consolidation``.

The first part measures the code that builds segments, with batches in memory. The second part measures a
broker that consolidates earlier records.
"""

import argparse
import asyncio
import os
import pathlib
import tempfile
import time
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from bench.brokers import Broker
from bench.diskless import DisklessMoldau
from bench.measuring.measure import MEGABYTE, Sample
from bench.measuring.plan import FULL, QUICK, Plan, topic
from bench.measuring.report import Report, environment, rounded
from moldau.client.cluster import Client, with_client
from moldau.network.client.node_connection import NodeAddress
from moldau.protocol.own.diskless.describe_topics import DisklessDescribeTopicsRequest
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.tiered.storage.segment_builder import BatchRun, build_segment

SEGMENT_BYTES: Final = 64 << 20
RUN_BATCHES: Final = 8
"""Number of adjacent batches of a partition in an object."""
BATCH_SIZES: Final = (1024, 16 << 10, 128 << 10)
BROKER_BATCH_BYTES: Final = 16 << 10
PARTITION_COUNTS: Final = (1, 12)
TIMEOUT_S: Final = 120.0
SETTINGS: Final = (
    "remote.log.storage.system.enable=true",
    "remote.log.metadata.topic.num.partitions=2",
    "remote.log.metadata.topic.replication.factor=1",
    "diskless.consolidation.enable=false",
    "diskless.consolidation.interval.ms=50",
    "diskless.consolidation.max.age.ms=0",
)
BUILDER: Final = "Consolidation: the builder alone, one core, memory that was used before"
BROKER: Final = "Consolidation in the broker: files to files, batches of 16 KiB"


def bench_consolidation(report: Report, folder: pathlib.Path, plan: Plan) -> None:
    """Measure both parts."""
    for batch_size in BATCH_SIZES:
        report.add(BUILDER, build(batch_size, max(3, plan.repeats)))
    broker = DisklessMoldau(folder / "consolidation", SETTINGS)
    try:
        for partitions in PARTITION_COUNTS:
            samples = [
                consolidate(broker, f"c-{partitions}-{repeat}", partitions, plan)
                for repeat in range(plan.repeats)
            ]
            sample = sorted(samples, key=lambda one: one.wall_s)[len(samples) // 2]
            row = {
                "partitions": partitions,
                "MB/s": rounded(sample.mb_per_s),
                "goal": "300",
                "broker CPU %": round(sample.broker_share * 100),
                "MB per broker CPU-s": rounded(sample.mb_per_cpu_s),
            }
            report.add(BROKER, row, samples)
    finally:
        broker.stop()


def build(batch_size: int, repeats: int) -> dict[str, Any]:
    """Copy, check and index one segment. Returns the best of several runs."""
    value = os.urandom(batch_size - 90)
    batch = build_batch(
        [Record(0, 1_700_000_000_000, None, value, ())], producer_id=7, producer_epoch=0, base_sequence=0
    )
    count = SEGMENT_BYTES // len(batch) // RUN_BATCHES * RUN_BATCHES
    source = memoryview(batch * count)
    step = RUN_BATCHES * len(batch)
    parts = [
        (BatchRun(at * RUN_BATCHES, (at + 1) * RUN_BATCHES - 1, step), source[at * step : (at + 1) * step])
        for at in range(count // RUN_BATCHES)
    ]
    buffer = bytearray(len(source))
    best_s = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        built = build_segment(parts, into=buffer)
        best_s = min(best_s, time.perf_counter() - began)
    assert built.batches == count
    return {
        "batch": f"{batch_size} B",
        "MB/s": round(len(source) / best_s / MEGABYTE),
        "µs per batch": round(best_s / count * 1e6, 2),
    }


def consolidate(broker: Broker, name: str, partitions: int, plan: Plan) -> Sample:
    """Produce records. Then let the broker consolidate them. Returns the cost."""
    with topic(broker, name, partitions):
        size_bytes = plan.bytes_by_record_size[10_240]
        records = size_bytes // BROKER_BATCH_BYTES
        produce(broker, name, partitions, records)
        before, began = broker.usage(), time.perf_counter()
        switch(broker, "true")
        left = with_client(broker.bootstrap, TIMEOUT_S, lambda client: until_empty(client, broker, name))
        wall_s, after = time.perf_counter() - began, broker.usage()
        switch(broker, "false")
    assert left == records
    return Sample(
        wall_s,
        records,
        size_bytes,
        after.cpu_s - before.cpu_s,
        after.system_s - before.system_s,
        0.0,
        after.rss_bytes,
        {},
    )


def produce(broker: Broker, name: str, partitions: int, records: int) -> None:
    """Produce one record in each batch."""
    value = os.urandom(BROKER_BATCH_BYTES - 90)
    sender = Producer(
        {"bootstrap.servers": broker.bootstrap, "batch.num.messages": 1, "linger.ms": 0, "acks": "all"}
    )
    for number in range(records):
        while True:
            try:
                sender.produce(name, value, partition=number % partitions)
                break
            except BufferError:
                sender.poll(0.1)
    assert sender.flush(TIMEOUT_S) == 0


def switch(broker: Broker, value: str) -> None:
    """Switch the brokers' own consolidation on or off."""
    entry = ConfigEntry("diskless.consolidation.enable", value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for changed in admin.incremental_alter_configs([resource]).values():
        changed.result(TIMEOUT_S)


async def until_empty(client: Client, broker: Broker, name: str) -> int:
    """Wait until the WAL contains no records of the topic. Returns the number of the topic's records."""

    host, _, port = broker.bootstrap.rpartition(":")
    while True:
        answer = await client.ask(
            DisklessDescribeTopicsRequest(), broker=NodeAddress(host, int(port)), version=0
        )
        rows = [row for found in answer.topics if found.name == name for row in found.partitions]
        if rows and all(row.wal_start_offset == row.high_watermark for row in rows):
            return sum(row.high_watermark for row in rows)
        await asyncio.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.consolidation", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run")
    parser.add_argument("--data", type=pathlib.Path, help="where the broker keeps its data meanwhile")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="moldau-bench-", dir=options.data) as folder:
        report = Report("consolidation", environment({}))
        bench_consolidation(report, pathlib.Path(folder), QUICK if options.quick else FULL)
    report.print()
    report.write()


if __name__ == "__main__":
    main()
