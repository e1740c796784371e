"""The diskless coordinator alone: ``python -m bench.diskless_coordinator [--live-batches 5000000]``.

The benchmark commits files of 500 batches over 50 partitions and 10 idempotent producers. The files pass
through log, replay and SQLite, four at a time. Then, while all batches are live, the benchmark measures
FindBatches of 64 batches at random offsets, a snapshot while commits continue, and two restarts. The first
restart is after a clean stop. The second restart is from the snapshot and the log, after the loss of SQLite's
file.
"""

import argparse
import asyncio
import gc
import random
import tempfile
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from moldau.cli.serving.serve import run_on_loop
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.coordinators.diskless.calls import (
    BatchToCommit,
    CommitFileCall,
    FindBatchesCall,
    PartitionsToCreate,
    PartitionToFind,
)
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import Machine
from moldau.runtime.garbage_collection import collect_rarely
from moldau.storage.snapshots.snapshot_log import SnapshotLog
from moldau.testing.lone_partition import lone_metadata_log

PARTITIONS, PRODUCERS = 50, 10
FILE_BATCHES = PARTITIONS * PRODUCERS
IN_FLIGHT = 4
TOPIC = UUID(int=0xBE7C)


class Bench:
    """One coordinator in a folder."""

    def __init__(self, folder: Path) -> None:
        self.machine = Machine.real()
        self.folder = folder
        self.epoch = -1
        self.random = random.Random(1)
        self.sequences: dict[tuple[int, int], int] = {}
        self.files = 0

    async def start(self) -> float:
        """Start the coordinator. Returns the seconds until its state is loaded."""
        began = time.perf_counter()
        self.epoch += 1
        partition = TopicPartition(DISKLESS_METADATA_TOPIC, 0)
        self.snapshots = SnapshotLog.open(self.machine, str(self.folder / str(partition)), partition)
        self.log = lone_metadata_log(self.machine, self.snapshots, self.epoch)
        self.service = DisklessCoordinator(self.machine)
        self.service.load(0, self.epoch, self.log)
        await self.service.until_loaded(0)
        return time.perf_counter() - began

    async def stop(self) -> None:
        await self.service.close()
        await self.log.settled()
        self.snapshots.close()

    def call(self) -> CommitFileCall:
        pick, now_ms = self.random.randrange, self.machine.clock.now_ms()
        batches, end = [], 0
        for index in range(PARTITIONS):
            for producer in range(PRODUCERS):
                count, size = 1 + pick(40), 1000 + pick(60_000)
                sequence = self.sequences.get((index, producer), 0)
                self.sequences[index, producer] = (sequence + count) % 2**31
                batches.append(
                    BatchToCommit(TOPIC, index, producer, end, size, count - 1, count, now_ms - pick(250), 0,
                                  1000 + producer, 0, sequence, (sequence + count - 1) % 2**31)
                )  # fmt: skip
                end += size
        self.files += 1
        return CommitFileCall(f"wal/2026/11/20/{self.files:016x}", end, now_ms, 1, batches)

    async def commit(self, calls: list[CommitFileCall], latencies: list[float]) -> None:
        waiting: Iterator[CommitFileCall] = iter(calls)

        async def sender() -> None:
            for call in waiting:
                began = time.perf_counter()
                await self.service.commit_file(0, call)
                latencies.append(time.perf_counter() - began)

        await asyncio.gather(*(sender() for _ in range(IN_FLIGHT)))

    async def commit_many(self, live_batches: int) -> None:
        latencies: list[float] = []
        spent = cpu = 0.0
        while self.files * FILE_BATCHES < live_batches:
            calls = [self.call() for _ in range(200)]
            gc.collect()
            gc.freeze()  # so that later garbage collections ignore these calls
            began, cpu_began = time.perf_counter(), time.process_time()
            await self.commit(calls, latencies)
            spent += time.perf_counter() - began
            cpu += time.process_time() - cpu_began
            del calls
            gc.unfreeze()
        batches = self.files * FILE_BATCHES
        print(
            f"commit: {batches / spent:,.0f} batches/s, {batches / cpu:,.0f} a cpu-second; {_ms(latencies)}"
        )
        size_bytes = self.snapshots.log.size_bytes
        print(
            f"log: {size_bytes / batches:.2f} bytes a batch; SQLite: {self._database_bytes() / batches:.1f}"
        )

    def _database_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.rglob("state.sqlite*"))

    async def find(self) -> None:
        ends = (await self.service.describe_topics(0))[0].high_watermark
        latencies = []
        for _ in range(5000):
            index, offset = self.random.randrange(PARTITIONS), self.random.randrange(ends // 2)
            call = FindBatchesCall([PartitionToFind(TOPIC, index, offset, 1 << 30)], 1 << 30, 64)
            began = time.perf_counter()
            found = await self.service.find_batches(0, call)
            latencies.append(time.perf_counter() - began)
            assert len(found[0].batches) == 64, found[0]
        print(f"find 64 batches: {_ms(latencies)}")

    async def snapshot(self) -> None:
        """Measure commits at a fixed rate and at the maximum rate, first without a snapshot, then while a
        snapshot is written."""
        for name, pause_s in (("50 files/s", 0.02), ("4 in flight", 0.0)):
            alone = await self._latencies_until(asyncio.sleep(2), pause_s)
            began = time.perf_counter()
            beside = await self._latencies_until(self.service.snapshot(0), pause_s)
            print(
                f"snapshot: {time.perf_counter() - began:.1f} s; {name}: without {_ms(alone)};"
                f" meanwhile {_ms(beside)}"
            )

    async def _latencies_until(self, end: Coroutine[Any, Any, object], pause_s: float) -> list[float]:
        """Measure the durations of commits until ``end`` is complete. If ``pause_s`` is not 0, one commit is
        sent at a time, and each commit is followed by the pause. If it is 0, IN_FLIGHT commits are in
        progress at a time."""
        latencies: list[float] = []
        ending = asyncio.ensure_future(end)
        calls = [self.call() for _ in range(IN_FLIGHT)]

        async def sender(call: CommitFileCall) -> None:
            while not ending.done():
                began = time.perf_counter()
                await self.service.commit_file(0, call)
                latencies.append(time.perf_counter() - began)
                call = self.call()
                await asyncio.sleep(pause_s)

        await asyncio.gather(*(sender(call) for call in calls[: 1 if pause_s else IN_FLIGHT]))
        return latencies

    async def restarts(self) -> None:
        began = time.perf_counter()
        await self.stop()
        print(f"clean stop: {time.perf_counter() - began:.2f} s, start: {await self.start():.2f} s")
        await self.stop()
        for path in self.folder.rglob("state.sqlite*"):
            path.unlink()
        print(f"start from snapshot and log: {await self.start():.2f} s")
        await self.stop()


def _ms(latencies: list[float]) -> str:
    ordered = sorted(latencies) or [0.0]
    p50, p99 = ordered[len(ordered) // 2] * 1000, ordered[int(len(ordered) * 0.99)] * 1000
    return f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, max {ordered[-1] * 1000:.2f} ms"


async def _run(folder: Path, live_batches: int) -> None:
    bench = Bench(folder)
    collect_rarely()  # collect garbage as rarely as a node does
    await bench.start()
    await bench.service.create_partitions(0, [PartitionsToCreate(TOPIC, "bench", range(PARTITIONS))])
    await bench.commit_many(live_batches)
    await bench.find()
    await bench.snapshot()
    await bench.restarts()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--live-batches", type=int, default=5_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_on_loop(_run(Path(folder), arguments.live_batches))


if __name__ == "__main__":
    main()
