"""The restore of a cluster: ``python -m bench.restore [--batches 5000000] [--objects 10000]``.

*Restore*: a coordinator commits batches in files of 500. Its log is stored as in a cut, and a new node is
restored from this log. *Scan*: the footers of WAL objects are read from a store with S3's latency. This
latency has a median of 100 ms and a p99 of 300 ms.
"""

import argparse
import tempfile
import time
from pathlib import Path
from uuid import UUID

from crc32c import crc32c

from bench.diskless_coordinator import PARTITIONS, TOPIC, Bench
from moldau.backup.cut_format import DATA_FOLDER, ClusterCut, LogPiece, LogPieces, ObjectPart
from moldau.backup.image_object import ImageEncoder
from moldau.backup.restore.folders import NewCluster, NewNode
from moldau.backup.restore.recommit import ObjectWindow, RecommitReport, find_objects, list_objects
from moldau.backup.restore.restoring import Restoring
from moldau.backup.stored_cuts import FoundCut
from moldau.cli.serving.serve import run_on_loop
from moldau.cluster.folders.formatter import new_directory_id
from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.coordinators.diskless.calls import PartitionsToCreate
from moldau.diskless.object_keys import new_object_key
from moldau.diskless.wal import footer_size_bytes, write_tail
from moldau.objects import MemoryStorage
from moldau.objects.faults import S3_LATENCY, FaultyStorage, StorageWeather
from moldau.objects.storage import ObjectStorage
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.records import metadata as r
from moldau.quorum.core.voters import ReplicaKey, Voter, VoterSet
from moldau.records.batch import iter_headers, parse_header
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime import Machine

COORDINATORS = UUID(int=0xC0)
READ_BYTES = 1 << 19
FOOTER_BATCHES = 50


async def _save(bench: Bench, storage: ObjectStorage) -> FoundCut:
    """Store the log of the coordinator, and the metadata that belong to it, as a cut."""
    log, pieces, offset = bench.snapshots, [], bench.snapshots.start_offset
    while offset < log.end_offset:
        content = memoryview(b"".join(log.read(offset, READ_BYTES).views))
        headers = [header for _, header in iter_headers(content)]
        key = f"{DATA_FOLDER}{len(pieces):013d}-1-log"
        await storage.upload(key, content, len(content))
        part = ObjectPart(key, 0, len(content), crc32c(content))
        end = headers[-1].last_offset + 1
        pieces.append(LogPiece(part, headers[0].base_offset, end, headers[-1].partition_leader_epoch))
        offset = end
    shared = {"replicas": [1], "isr": [1], "leader": 1, "leader_epoch": bench.epoch}
    records = [
        r.FeatureLevelRecord(name="metadata.version", feature_level=26),
        r.TopicRecord(name=DISKLESS_METADATA_TOPIC, topic_id=COORDINATORS),
        r.PartitionRecord(partition_id=0, topic_id=COORDINATORS, **shared),
        r.TopicRecord(name="bench", topic_id=TOPIC),
        *(
            r.PartitionRecord(partition_id=index, topic_id=TOPIC, owner=0, **shared)
            for index in range(PARTITIONS)
        ),
    ]
    image = await ImageEncoder().encode(MetadataDelta().replay_all(records).apply())
    part = ObjectPart(f"{DATA_FOLDER}{0:013d}-1-image", 0, len(image), crc32c(image))
    await storage.upload(part.object_key, image, len(image))
    cut = ClusterCut(
        cluster_id="bench",
        created_ms=bench.machine.clock.now_ms(),
        metadata=part,
        metadata_offset=100,
        metadata_epoch=1,
        logs={PartitionKey(COORDINATORS, 0): LogPieces(DISKLESS_METADATA_TOPIC, tuple(pieces))},
    )
    return FoundCut(cut, cut.created_ms)


async def bench_restore(folder: Path, batches: int) -> None:
    """Measure the restore of a coordinator's log."""
    bench = Bench(folder / "old")
    await bench.start()
    await bench.service.create_partitions(0, [PartitionsToCreate(TOPIC, "bench", range(PARTITIONS))])
    await bench.commit_many(batches)
    storage = MemoryStorage(bench.machine.clock)
    found = await _save(bench, storage)
    await bench.stop()
    machine = Machine.real()
    node = NewNode(node_id=1, path=str(folder / "new"), directory_id=new_directory_id(machine.entropy))
    voters = VoterSet([Voter(ReplicaKey(1), "127.0.0.1", 1)])
    cluster = NewCluster(cluster_id="bench", nodes=[node], static_voters=voters)
    began, cpu_began = time.perf_counter(), time.process_time()
    await Restoring(machine, storage, found, cluster).run()
    spent, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    size = sum(log.size_bytes for log in found.cut.logs.values())
    print(
        f"restore of {batches:,} batches ({size / 1e6:.0f} MB of log): {spent:.1f} s, {cpu:.1f} cpu-s;"
        f" {batches / spent:,.0f} batches/s"
    )


async def bench_scan(objects: int) -> None:
    """Measure the scan of objects that are newer than a cut."""
    machine = Machine.real()
    storage = MemoryStorage(machine.clock)
    batch = build_batch([Record(0, 0, None, b"x")], producer_id=1, producer_epoch=0, base_sequence=0)
    header = parse_header(memoryview(batch))
    data = bytes(batch) * FOOTER_BATCHES
    content = bytearray(data) + bytearray(footer_size_bytes(1, FOOTER_BATCHES))
    runs = [(TOPIC, 0, 0, [header] * FOOTER_BATCHES)]
    now_ms = machine.clock.now_ms()
    write_tail(content, len(data), runs, created_ms=now_ms, broker_id=1)
    for _ in range(objects):
        await storage.upload(new_object_key(now_ms, 1, machine.entropy), content, len(content))
    slow = FaultyStorage(storage, machine.entropy, StorageWeather(get_latency=S3_LATENCY))
    began, cpu_began = time.perf_counter(), time.process_time()
    found = await find_objects(slow, await list_objects(slow), ObjectWindow(0, 0), RecommitReport())
    spent, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    print(f"scan of {len(found):,} objects of {FOOTER_BATCHES} batches: {spent:.1f} s, {cpu:.1f} cpu-s")


async def _run(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if arguments.objects:
            await bench_scan(arguments.objects)
        if arguments.batches:
            await bench_restore(Path(folder), arguments.batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=5_000_000)
    parser.add_argument("--objects", type=int, default=10_000)
    run_on_loop(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
