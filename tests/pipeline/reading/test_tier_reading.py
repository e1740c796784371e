"""Records of topics in the remote tier, read from its objects, on a node in the test's own process."""

import itertools
import pathlib
import re
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("pyiceberg", reason="needs PyIceberg: pip install 'moldau[spark]'")

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from exporting import read_table, run_here

import moldau.testing
from moldau.client.cluster import Client
from moldau.client.errors import ToolError
from moldau.objects.storage import ObjectNotFoundError
from moldau.pipeline.consolidation.job import ConsolidateJob, consolidate_once
from moldau.pipeline.export.job import ExportJob, export_once
from moldau.pipeline.reading import tier as tier_reading
from moldau.pipeline.reading import wal as wal_reading
from moldau.pipeline.reading.decoding import FoundBatch, decode_found
from moldau.pipeline.reading.fetching import fetch_found
from moldau.pipeline.reading.object_ranges import MappedFiles
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.reading.tier import TierPartitionReader
from moldau.pipeline.reading.topic_source import TopicSource
from moldau.pipeline.source.options import parse_options
from moldau.pipeline.source.snapshot import TopicRanges, pin
from moldau.pipeline.source.units import ask
from moldau.records.builder import build_batch
from moldau.records.record import Record

COUNT, RECORD_BYTES = 36, 100_000
"""Ten records of this size fill a segment of the smallest size that Kafka accepts. The records are written in
two leader epochs."""
SMALL = 300
TIMEOUT_S = 120.0
PROPERTIES = {
    "metrics.listener": "127.0.0.1:0",
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "50",
    "log.retention.check.interval.ms": "100",
    "remote.log.metadata.topic.num.partitions": "1",
    "diskless.metadata.topic.num.partitions": "1",
    "diskless.consolidation.enable": "false",
    "diskless.consolidation.segment.bytes": "5000",
    "diskless.consolidation.max.age.ms": "0",
}


def value_of(number: int) -> bytes:
    return b"%08d" % number * (RECORD_BYTES // 8)


def create(node: moldau.testing.Node, name: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    given = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in config.items()}}
    admin.create_topics([NewTopic(name, num_partitions=1, config=given)])[name].result(TIMEOUT_S)


def create_tiered(node: moldau.testing.Node, name: str) -> None:
    options = {"remote_storage_enable": "true", "local_retention_bytes": "1", "diskless_enable": "false"}
    create(node, name, segment_bytes=str(1 << 20), **options)


def produce(node: moldau.testing.Node, topic: str, first: int, behind: int) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "batch.size": 250_000})
    for number in range(first, behind):
        producer.produce(topic, value_of(number), partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def eventually(probe: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not probe():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def local_segments(node: moldau.testing.Node, topic: str) -> int:
    return len(list(pathlib.Path(node.data, f"{topic}-0").glob("*.log")))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[moldau.testing.Node]:
    """The node was started twice, so the topic ``past`` has two leader epochs. The closed segments of
    ``past`` are not on the disk any more."""
    data = str(tmp_path_factory.mktemp("node"))
    with moldau.testing.Node(data=data, properties=PROPERTIES, diskless=True) as first:
        create_tiered(first, "past")
        produce(first, "past", 0, COUNT // 2)
    with moldau.testing.Node(data=data, properties=PROPERTIES, diskless=True) as running:
        produce(running, "past", COUNT // 2, COUNT)
        eventually(lambda: local_segments(running, "past") == 1, "all closed segments are remote")
        yield running


def pinned(node: moldau.testing.Node, topic: str, **options: str) -> TopicRanges:
    given = {"kafka.bootstrap.servers": node.bootstrap_servers, "subscribe": topic, **options}
    (found,) = ask(node.bootstrap_servers, lambda client: pin(client, parse_options(given)))
    assert isinstance(found, TopicRanges)
    return found


def decoded(found: TopicRanges, batches: Iterator[FoundBatch] | None = None) -> list[tuple[int, bytes]]:
    tables = decode_found(batches or fetch_found(found.source, found.ranges), found.ranges)
    return [(row["offset"], row["value"]) for table in tables for row in table.to_pylist()]


def expected(first: int, behind: int) -> list[tuple[int, bytes]]:
    return [(number, value_of(number)) for number in range(first, behind)]


def fetches(node: moldau.testing.Node) -> int:
    """Number of Fetch requests to which the node has responded."""
    with urllib.request.urlopen(f"{node.monitoring_url}/metrics", timeout=TIMEOUT_S) as answer:
        found = re.search(r'RequestsPerSec_total\{request="Fetch"[^}]*\} (\S+)', answer.read().decode())
    return int(float(found[1])) if found else 0


def tiered_end(node: moldau.testing.Node, topic: str) -> int:
    """The first offset that is on the local disk."""
    (only,) = pathlib.Path(node.data, f"{topic}-0").glob("*.log")
    return int(only.stem)


def test_segments_are_read_from_their_objects(node: moldau.testing.Node) -> None:
    end, before = tiered_end(node, "past"), fetches(node)
    found = pinned(node, "past")
    assert found.source.tier is not None
    assert end >= 2 * COUNT // 3
    part = TopicRanges(found.source, (OffsetRange(0, 0, end),))
    assert decoded(part) == expected(0, end)
    assert fetches(node) == before
    assert decoded(found) == expected(0, COUNT)  # the tail is read from the broker
    assert fetches(node) > before


def test_only_what_a_unit_needs_is_read(node: moldau.testing.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment is read in pieces, which end inside batches. A unit begins and ends in the middle of a
    segment."""
    monkeypatch.setattr(tier_reading, "CHUNK_BYTES", 130_000)
    monkeypatch.delattr(tier_reading, "BrokerReader")
    sizes: list[int] = []
    fetch = MappedFiles.fetch

    async def counted(files: MappedFiles, key: str, offset: int, size: int) -> memoryview:
        sizes.append(size)
        return await fetch(files, key, offset, size)

    monkeypatch.setattr(MappedFiles, "fetch", counted)
    found = pinned(node, "past")
    for first, behind in ((0, 1), (3, 5), (5, 17), (9, 21)):
        sizes.clear()
        part = TopicRanges(found.source, (OffsetRange(0, first, behind),))
        assert decoded(part) == expected(first, behind)
        # There is an index entry for every two records. So one batch before the unit and one batch after it
        # may be read, too.
        assert sum(sizes) < (behind - first + 8) * RECORD_BYTES
        assert max(sizes) <= 130_000


def test_segments_with_deleted_objects_are_looked_up_again(
    node: moldau.testing.Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tier_reading, "RETRY_BACKOFF_S", 0)
    found = pinned(node, "past")
    fetch, calls = MappedFiles.fetch, itertools.count()

    async def shaky(files: MappedFiles, key: str, offset: int, size: int) -> memoryview:
        if next(calls) % 2:
            raise ObjectNotFoundError(key)
        return await fetch(files, key, offset, size)

    before = fetches(node)
    part = TopicRanges(found.source, (OffsetRange(0, 0, tiered_end(node, "past")),))
    with monkeypatch.context() as patch:
        patch.setattr(MappedFiles, "fetch", shaky)
        assert decoded(part) == expected(0, tiered_end(node, "past"))
    assert fetches(node) == before

    async def never(files: MappedFiles, key: str, offset: int, size: int) -> memoryview:
        raise ObjectNotFoundError(key)

    monkeypatch.setattr(MappedFiles, "fetch", never)
    assert decoded(part) == expected(0, tiered_end(node, "past"))
    assert "are read through the broker: no object tiered/past-" in caplog.text
    assert fetches(node) > before


def test_deleted_segments_are_a_loss_unless_it_is_allowed(node: moldau.testing.Node) -> None:
    create_tiered(node, "shrinking")
    produce(node, "shrinking", 0, COUNT)
    eventually(lambda: local_segments(node, "shrinking") == 1, "all closed segments are remote")
    strict = pinned(node, "shrinking")
    loose = pinned(node, "shrinking", failOnDataLoss="false")
    reading = fetch_found(loose.source, loose.ranges)
    first = next(reading)
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    (done,) = admin.delete_records([TopicPartition("shrinking", 0, 25)]).values()
    done.result(TIMEOUT_S)
    folder = pathlib.Path(node.data, "objects", "tiered")
    eventually(lambda: len(list(folder.glob("shrinking-*/0/*.log"))) < 2, "the segments are gone")
    # Batches that are already in memory may still be returned. All other batches are skipped, and no batch is
    # returned twice.
    rows = decoded(loose, itertools.chain([first], reading))
    assert rows[-(COUNT - 25) :] == expected(25, COUNT)
    assert [offset for offset, _ in rows] == sorted({offset for offset, _ in rows})
    assert decoded(loose) == expected(25, COUNT)
    with pytest.raises(ToolError, match="shrinking-0: offsets 0 to 24 were deleted meanwhile"):
        decoded(strict)


def test_an_export_reads_objects_too(node: moldau.testing.Node, tmp_path: pathlib.Path) -> None:
    job = ExportJob(node.bootstrap_servers, "past", str(tmp_path), "parquet", unit_records_max=7)
    before = fetches(node)
    assert export_once(job, run_here).records == COUNT
    tail = COUNT - tiered_end(node, "past")
    assert fetches(node) - before <= 2 * tail
    assert [(row["offset"], row["value"]) for row in read_table(job)] == expected(0, COUNT)


def test_transactional_batches_are_left_for_the_leader() -> None:
    def batch(offset: int, transactional: bool) -> memoryview:
        record = Record(offset, 1, None, b"value")
        sequence = {"producer_id": 1, "producer_epoch": 0, "base_sequence": offset}
        return memoryview(build_batch([record], base_offset=offset, transactional=transactional, **sequence))

    batches = [batch(offset, offset == 3) for offset in range(5)]
    for committed_only, taken in ((True, 3), (False, 5)):
        source = TopicSource("", "t", "", committed_only=committed_only)
        reader = TierPartitionReader(Client([], 1), source, OffsetRange(0, 0, 9))
        found, is_plain = reader._taken(batches, 9)
        assert [one.data for one in found] == batches[:taken]
        assert is_plain is not committed_only


def diskless(node: moldau.testing.Node, name: str) -> None:
    create(node, name)
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "batch.num.messages": 10})
    for number in range(SMALL):
        producer.produce(name, b"%d" % number + b"v" * 50, partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def consolidated(node: moldau.testing.Node, name: str) -> int:
    job = ConsolidateJob(node.bootstrap_servers, (name,), unit_bytes=20_000, timeout_s=TIMEOUT_S)
    found: int = consolidate_once(job, run_here)["segments"]
    return found


@pytest.fixture
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every read of records from a broker fail."""
    monkeypatch.delattr(wal_reading, "BrokerReader")
    monkeypatch.delattr(tier_reading, "BrokerReader")


@pytest.mark.usefixtures("no_broker")
def test_records_that_have_left_the_wal_need_no_broker(node: moldau.testing.Node) -> None:
    diskless(node, "moved")
    assert consolidated(node, "moved") > 1
    producer = Producer({"bootstrap.servers": node.bootstrap_servers})
    producer.produce("moved", b"in the WAL", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    rows = decoded(pinned(node, "moved"))
    assert [offset for offset, _ in rows] == list(range(SMALL + 1))
    assert rows[-1][1] == b"in the WAL"


@pytest.mark.usefixtures("no_broker")
def test_records_that_leave_the_wal_during_a_job_are_found_in_the_tier(
    node: moldau.testing.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_reading, "FIRST_BATCHES", 2)
    monkeypatch.setattr(wal_reading, "ROUND_BATCHES", 4)
    objects = pathlib.Path(node.data, "objects", "wal")
    before = set(objects.rglob("*"))
    diskless(node, "moving")
    found = pinned(node, "moving")
    reading = fetch_found(found.source, found.ranges)
    first = next(reading)
    assert consolidated(node, "moving") > 1
    # Delete the objects in advance, which a coordinator would delete after an hour.
    for path in set(objects.rglob("*")) - before:
        if path.is_file():
            path.unlink()
    rows = decoded(found, itertools.chain([first], reading))
    assert [offset for offset, _ in rows] == list(range(SMALL))
