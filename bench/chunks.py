"""Partition chunks (KIP-1114): ``python -m bench.chunks [image] [reads] [creation] [growth] [--gb 1]``.

*image*: the memory of a metadata image with 100,000 chunks, and the time to load it. *reads*: librdkafka
reads an ordinary partition, and partitions whose records are in chunks, directly and through the leader.
*creation*: the latencies of a producer while chunks are created. *growth*: a fourth broker joins a cluster
and takes half of the new records. Then old chunks move to it at a limited rate.
"""

import argparse
import contextlib
import gc
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import moldau
from bench.cluster.nodes import MoldauNodes, wait_until
from bench.loads.rdkafka import BatchProducer, DrainingConsumer
from bench.measuring.report import Report, environment, megabytes, rounded
from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image import CHUNK_FEATURE
from moldau.protocol.own.chunks.create_chunks import CreateChunksRequest, CreateChunksTopicPartition
from moldau.protocol.records import metadata as records
from moldau.protocol.records.schema import encode_versioned
from moldau.runtime.errors import ErrorCode

CHUNKS: Final = 100_000
PARTITIONS: Final = 1_000
PAYLOAD_BYTES: Final = 1024
BATCH: Final = 10_000
GROWTH_PARTITIONS: Final = 8
LIMIT_S: Final = 600.0
FAST: Final = {"linger.ms": "20", "batch.size": "1000000", "enable.idempotence": "true"}


# -- the image ----------------------------------------------------------------------------------------------


def _resident_bytes() -> int:
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def _image_records(chunk_count: int, partition_count: int) -> Iterator[Any]:
    topic_id = uuid.UUID(int=1)
    yield records.FeatureLevelRecord(name="metadata.version", feature_level=29)
    yield records.FeatureLevelRecord(name=CHUNK_FEATURE, feature_level=1)
    yield records.TopicRecord(name="t", topic_id=topic_id)
    for index in range(partition_count):
        yield records.PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=[1, 2, 3],
            isr=[1, 2, 3],
            leader=1,
            leader_epoch=1,
            directories=[uuid.UUID(int=100 + each) for each in (1, 2, 3)],
            start_offset=10**9,
        )
    for index in range(partition_count):
        for number in range(chunk_count // partition_count):
            yield records.ChunkRecord(
                partition_id=index,
                topic_id=topic_id,
                start_offset=number * 10_000,
                start_timestamp=1_700_000_000_000,
                stop_offset=number * 10_000 + 9_999,
                end_offset=number * 10_000 + 9_999,
                chunk_epoch=0,
                replicas=[1, 2, 3],
                directories=[uuid.UUID(int=100 + each) for each in (1, 2, 3)],
                isr=[1, 2, 3],
                max_timestamp=1_700_000_000_000,
                size_bytes=10**9,
            )


def measure_image(report: Report) -> None:
    """Memory and CPU time of images with many chunks. Each image is loaded from encoded records."""
    for partition_count in (PARTITIONS, 10):
        encoded = [(type(each), encode_versioned(each)) for each in _image_records(CHUNKS, partition_count)]
        size_bytes = sum(len(body) for kind, body in encoded if kind is records.ChunkRecord)
        plain = [each for each in encoded if each[0] is not records.ChunkRecord]
        _load(plain)
        gc.collect()
        before = _resident_bytes()
        plain_s, base = _load(plain)
        loaded_s, image = _load(encoded)
        gc.collect()
        held = _resident_bytes() - before
        report.add(
            "100,000 chunks in the image",
            {
                "partitions": partition_count,
                "chunks": CHUNKS,
                "bytes of a record": round(size_bytes / CHUNKS),
                "bytes of memory for each chunk": round(held / CHUNKS),
                "CPU s more at a start": rounded(loaded_s - plain_s),
            },
        )
        del image, base


def _load(encoded: list[tuple[Any, bytes]]) -> tuple[float, Any]:
    from moldau.protocol.records.schema import decode_versioned

    start = time.process_time()
    image = MetadataDelta().replay_all(decode_versioned(kind, body) for kind, body in encoded).apply()
    return time.process_time() - start, image


# -- clusters -----------------------------------------------------------------------------------------------


def command(nodes: MoldauNodes, *words: str) -> str:
    """The output of a command of ``moldau`` about a cluster."""
    arguments = [sys.executable, "-m", "moldau", *words, "--bootstrap", nodes.address(1)]
    return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def cluster(brokers: tuple[int, ...], started: tuple[int, ...]) -> Iterator[MoldauNodes]:
    """A cluster of one controller and some brokers, which may have chunks."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        properties = {"offsets.topic.replication.factor": "1", "log.retention.check.interval.ms": "1000"}
        nodes = MoldauNodes(
            pathlib.Path(folder) / "nodes", controllers=(101,), brokers=brokers, properties=properties
        )
        try:
            nodes.start(101, *started)
            nodes.brokers = started
            nodes.wait_for_brokers(*started)
            command(nodes, "cluster", "upgrade", f"{CHUNK_FEATURE}=1")
            yield nodes
        finally:
            nodes.stop()


def create_topic(nodes: MoldauNodes, name: str, assignment: list[list[int]], **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
    topic = NewTopic(name, len(assignment), replica_assignment=assignment, config=config)
    admin.create_topics([topic])[name].result(60)


def produce(nodes: MoldauNodes, topic: str, size_bytes: int, partitions: int = 1) -> int:
    """Produce records of 1 KiB. Returns their number."""
    producer = BatchProducer(nodes.bootstrap, topic, PAYLOAD_BYTES, BATCH, FAST)
    count = max(1, size_bytes // PAYLOAD_BYTES // BATCH) * BATCH
    for number in range(0, count, BATCH):
        producer.produce(number // BATCH % partitions, BATCH)
    producer.flush(LIMIT_S)
    producer.close()
    return count


def new_chunk(nodes: MoldauNodes, topic: str, index: int, *brokers: int) -> None:
    chosen = ",".join(map(str, brokers))
    where = ["--topic", topic, "--partition", str(index), "--replicas", chosen]
    command(nodes, "chunks", "create", *where)


def chunks_of(nodes: MoldauNodes, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(command(nodes, "chunks", "list", "--topic", topic, "--json"))
    return found


# -- reads --------------------------------------------------------------------------------------------------


def measure_reads(report: Report, size_bytes: int) -> None:
    """Read the same number of bytes from an ordinary partition and from chunks, several times each."""
    with cluster((1, 2), (1, 2)) as nodes:
        count = 0
        for topic, chunk_count in (("ordinary", 0), ("one", 1), ("hundred", 100)):
            create_topic(nodes, topic, [[1]])
            for _ in range(max(1, chunk_count)):
                count = produce(nodes, topic, size_bytes // max(1, chunk_count))
                if chunk_count:
                    new_chunk(nodes, topic, 0, 1)
            count *= max(1, chunk_count)
            if chunk_count:
                # The chunks are on broker 1, and broker 2 leads.
                count += produce(nodes, topic, BATCH * PAYLOAD_BYTES)
                new_chunk(nodes, topic, 0, 2)
            ways = {"ordinary": {"": {}}}.get(
                topic, {"by the broker of the chunks": {"client.rack": "a"}, "by the leader": {}}
            )
            if topic == "hundred":
                ways = {"by the leader": {}}
            for way, settings in ways.items():
                rows = sorted(_read(nodes, topic, count, settings) for _ in range(3))
                seconds, cpu_s, peak_s = rows[1]
                row = {
                    "records": {"ordinary": "in no chunk", "one": "in 1 chunk"}.get(topic, "in 100 chunks"),
                    "read": way or "from the leader",
                    "MB/s": rounded(count * PAYLOAD_BYTES / 1e6 / seconds),
                    "CPU s of all brokers for each GB": rounded(cpu_s / (count * PAYLOAD_BYTES / 1e9)),
                    "MB for each CPU s of the busier broker": megabytes(count * PAYLOAD_BYTES / peak_s),
                }
                print(row, flush=True)
                report.add("Reads", row)


def _read(nodes: MoldauNodes, topic: str, count: int, settings: dict[str, str]) -> tuple[float, float, float]:
    """The duration of a read in seconds, the CPU seconds of all brokers, and the CPU seconds of the broker
    that used the most."""
    before = {each: nodes.usage(each).cpu_s for each in nodes.brokers}
    start = time.perf_counter()
    common = {"fetch.message.max.bytes": str(8 << 20), "queued.max.messages.kbytes": "1000000"}
    consumer = DrainingConsumer(nodes.bootstrap, topic, {**common, **settings})
    consumer.drain(1, count, LIMIT_S)
    seconds = time.perf_counter() - start
    consumer.close()
    spent = [nodes.usage(each).cpu_s - before[each] for each in nodes.brokers]
    return seconds, sum(spent), max(spent)


# -- creation -----------------------------------------------------------------------------------------------


def measure_creation(report: Report, count: int = 100) -> None:
    """The latency of a producer with acks=all while chunks are created between two pairs of brokers."""
    with cluster((1, 2, 3), (1, 2, 3)) as nodes:
        create_topic(nodes, "t", [[1, 2]], **{"min.insync.replicas": "2"})
        for label, chunk_count in (("without new chunks", 0), ("with new chunks", count)):
            latencies: list[float] = []
            stopped = threading.Event()
            thread = threading.Thread(
                target=partial(_produce_steadily, nodes, latencies, stopped), daemon=True
            )
            thread.start()
            worst, leader, pairs = [], 1, ((2, 3), (3, 1), (1, 2))
            for number in range(max(chunk_count, 1)):
                seen = len(latencies)
                if chunk_count:
                    _create_at(nodes, leader, pairs[number % 3])
                    leader = pairs[number % 3][0]
                else:
                    time.sleep(10)
                time.sleep(0.2)
                worst.append(max(latencies[seen:], default=0.0))
            stopped.set()
            thread.join()
            worst.sort()
            latencies.sort()
            report.add(
                "Latency of a producer (ms)",
                {
                    "load": f"100 records/s, acks=all, {label}",
                    "p50": rounded(latencies[len(latencies) // 2]),
                    "p99": rounded(latencies[len(latencies) * 99 // 100]),
                    "p50 of the longest for each chunk": rounded(worst[len(worst) // 2]),
                    "p99 of the longest for each chunk": rounded(worst[max(0, len(worst) * 99 // 100 - 1)]),
                },
            )


def _create_at(nodes: MoldauNodes, leader: int, brokers: tuple[int, int]) -> None:
    """Create a chunk by a request from this process. A separate process for the command would use CPU time
    that the brokers need."""
    row = CreateChunksTopicPartition(topic_name="t", partition_id=0, broker_ids=brokers)
    request = CreateChunksRequest(topic_partitions=[row])

    def is_created() -> bool:
        answer = nodes.ask(leader, (CreateChunksRequest.API_KEY, 0), request)
        return bool(answer.results[0].error_code is ErrorCode.none)

    # The new leader refuses requests until it has applied the previous chunk.
    wait_until(is_created)


def _produce_steadily(nodes: MoldauNodes, latencies: list[float], stopped: threading.Event) -> None:
    settings = {"bootstrap.servers": nodes.bootstrap, "enable.idempotence": True, "linger.ms": 0}
    producer = Producer({**settings, "retry.backoff.ms": 10, "retry.backoff.max.ms": 50})

    def delivered(start: float, error: object, message: object) -> None:
        assert error is None, error
        latencies.append((time.perf_counter() - start) * 1000)

    # The first record waits until the client has a connection and a producer id, so it is not measured.
    producer.produce("t", b"v" * 100, partition=0)
    producer.flush(60)
    while not stopped.is_set():
        producer.produce("t", b"v" * 100, partition=0, on_delivery=partial(delivered, time.perf_counter()))
        producer.poll(0.01)
    producer.flush(60)


# -- growth -------------------------------------------------------------------------------------------------


def measure_growth(report: Report, size_bytes: int) -> None:
    """A fourth broker joins three brokers that have old records, while a producer writes."""
    with cluster((1, 2, 3, 4), (1, 2, 3)) as nodes:
        assignment = [[1 + index % 3] for index in range(GROWTH_PARTITIONS)]
        rolling = {"chunk.roll.bytes": str(8 << 20)}
        create_topic(nodes, "t", assignment)
        produce(nodes, "t", size_bytes, GROWTH_PARTITIONS)
        stopped = threading.Event()
        thread = threading.Thread(target=partial(_write, nodes, stopped))
        thread.start()
        nodes.start(4)
        nodes.brokers = (1, 2, 3, 4)
        nodes.wait_for_brokers(1, 2, 3, 4)
        joined = time.perf_counter()
        key, value = next(iter(rolling.items()))
        command(nodes, "configs", "alter", "topic", "t", "--set", f"{key}={value}")
        wait_until(lambda: _led(nodes)[4] >= GROWTH_PARTITIONS // 2)
        took_s = time.perf_counter() - joined
        command(nodes, "configs", "alter", "topic", "t", "--unset", key)
        stopped.set()
        thread.join()
        old = [each for each in chunks_of(nodes, "t") if not each["active"] and 4 not in each["isr"]]
        moved = [each for each in chunks_of(nodes, "t") if not each["active"] and 4 in each["adding"]]
        report.add(
            "A fourth broker joins",
            {
                "step": "it leads half of the partitions",
                "seconds": rounded(took_s),
                "MB of old records that moved": megabytes(sum(each["bytes"] for each in moved)),
            },
        )
        _drain(report, nodes, sorted(old, key=lambda each: -each["bytes"])[:2])


def _drain(report: Report, nodes: MoldauNodes, chosen: list[dict[str, Any]]) -> None:
    """Move two chunks to the new broker at a limited rate."""
    size_bytes = sum(each["bytes"] for each in chosen)
    rate = max(1_000_000, size_bytes // 15)
    limit = f"chunk.copy.max.bytes.per.second={rate}"
    command(nodes, "configs", "alter", "broker", "default", "--set", limit)
    time.sleep(1)
    start = time.perf_counter()
    for each in chosen:
        where = ["--partition", str(each["partition"]), "--start-offset", str(each["start_offset"])]
        command(nodes, "chunks", "alter", "--topic", "t", *where, "--replicas", "4")
    starts = {(each["partition"], each["start_offset"]) for each in chosen}

    def is_done() -> bool:
        time.sleep(0.5)
        found = {(each["partition"], each["start_offset"]): each for each in chunks_of(nodes, "t")}
        return all(found[each]["replicas"] == [4] for each in starts)

    wait_until(is_done)
    seconds = time.perf_counter() - start
    report.add(
        "A fourth broker joins",
        {
            "step": f"two old chunks move to it, at most {megabytes(rate)} MB/s",
            "seconds": rounded(seconds),
            "MB of old records that moved": megabytes(size_bytes),
        },
    )


def _led(nodes: MoldauNodes) -> Counter[int]:
    time.sleep(0.2)
    topic = AdminClient({"bootstrap.servers": nodes.address(1)}).list_topics("t", timeout=30).topics["t"]
    return Counter(each.leader for each in topic.partitions.values())


def _write(nodes: MoldauNodes, stopped: threading.Event) -> None:
    """Produce about 20 MB/s in total to all partitions, until ``stopped`` is set."""
    producer = BatchProducer(nodes.bootstrap, "t", PAYLOAD_BYTES, BATCH, FAST)
    while not stopped.is_set():
        for index in range(GROWTH_PARTITIONS):
            producer.produce(index, 250)
        time.sleep(0.1)
    producer.flush(LIMIT_S)
    producer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=[])
    parser.add_argument("--gb", type=float, default=1.0, help="size of the partitions, in GB")
    parser.add_argument("--count", type=int, default=100, help="number of chunks that are created")
    options = parser.parse_args()
    parts = options.parts or ["image", "reads", "creation", "growth"]
    report = Report("chunks", environment({"moldau": moldau.__version__}))
    size_bytes = int(options.gb * 1e9)
    if "image" in parts:
        measure_image(report)
    if "reads" in parts:
        measure_reads(report, size_bytes)
    if "creation" in parts:
        measure_creation(report, options.count)
    if "growth" in parts:
        measure_growth(report, size_bytes)
    report.print()
    report.write()


if __name__ == "__main__":
    main()
