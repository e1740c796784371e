"""Committed records of remote segments. The aborted transactions come from the segments' indexes, not from
the leader."""

import asyncio
import pathlib
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")

from confluent_kafka import Producer
from exporting import read_table, run_here
from test_tier_reading import (
    PROPERTIES,
    TIMEOUT_S,
    consolidated,
    create,
    create_tiered,
    decoded,
    eventually,
    fetches,
    local_segments,
    pinned,
    tiered_end,
)

import moldau.testing
from moldau.client.cluster import Client, ClusterTopic, parse_bootstrap
from moldau.pipeline.export.job import ExportJob, export_once
from moldau.pipeline.reading import tier as tier_reading
from moldau.pipeline.reading import tier_transactions
from moldau.pipeline.reading import wal as wal_reading
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.reading.tier_plan import SegmentObject
from moldau.pipeline.reading.tier_transactions import AbortedRanges
from moldau.pipeline.source.snapshot import TopicRanges
from moldau.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from moldau.records.batch import parse_header
from moldau.records.builder import build_batch
from moldau.records.record import Record

COMMITTED = {"kafka.isolation.level": "read_committed"}
FILLER = b"." * 150_000
"""Seven of these records fill a segment of the classic topics."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[moldau.testing.Node]:
    data = str(tmp_path_factory.mktemp("node"))
    with moldau.testing.Node(data=data, properties=PROPERTIES, diskless=True) as running:
        yield running


class Writer:
    """Writes plain records and several transactions at a time to partition 0 of a topic."""

    def __init__(self, node: moldau.testing.Node, topic: str, filler: bytes = FILLER) -> None:
        self._bootstrap = node.bootstrap_servers
        self._topic = topic
        self._filler = filler
        self._plain = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 0})
        self._open: dict[str, Producer] = {}

    def plain(self, count: int) -> None:
        for _ in range(count):
            self._send(self._plain, b"plain" + self._filler)

    def begin(self, name: str) -> None:
        producer = self._open.get(name)
        if producer is None:
            options = {"bootstrap.servers": self._bootstrap, "linger.ms": 0}
            producer = Producer({**options, "transactional.id": f"{self._topic}-{name}"})
            producer.init_transactions(TIMEOUT_S)
            self._open[name] = producer
        producer.begin_transaction()

    def write(self, name: str, value: str) -> None:
        self._send(self._open[name], value.encode() + self._filler)

    def end(self, name: str, *, commit: bool) -> None:
        if commit:
            self._open[name].commit_transaction(TIMEOUT_S)
        else:
            self._open[name].abort_transaction(TIMEOUT_S)

    def _send(self, producer: Producer, value: bytes) -> None:
        producer.produce(self._topic, value, partition=0)
        assert producer.flush(TIMEOUT_S) == 0


def read(found: TopicRanges) -> list[tuple[int, bytes]]:
    return [(offset, value.rstrip(b".")) for offset, value in decoded(found)]


def write_transactions(writer: Writer) -> None:
    """Write transactions that begin and end in different segments, in several orders."""
    writer.begin("long")
    writer.write("long", "aborted at the end")
    for number in range(4):
        writer.begin("short")
        writer.write("short", f"short {number}")
        writer.plain(3)
        writer.begin("other")
        writer.write("other", f"other {number}")
        writer.end("short", commit=number % 2 == 1)
        writer.plain(2)
        writer.end("other", commit=number % 2 == 0)
    writer.write("long", "aborted at the end")
    writer.plain(8)


EXPECTED = {b"other 0", b"short 1", b"other 2", b"short 3"}


def tiered(node: moldau.testing.Node, topic: str, *, ends_in_tier: bool) -> None:
    create_tiered(node, topic)
    writer = Writer(node, topic)
    write_transactions(writer)
    writer.end("long", commit=False)
    writer.plain(9 if ends_in_tier else 2)
    eventually(lambda: local_segments(node, topic) == 1, "all closed segments are remote")


@pytest.mark.parametrize("ends_in_tier", [True, False], ids=["markers-in-the-tier", "marker-on-the-disk"])
def test_aborted_records_of_segments_are_skipped_without_the_leader(
    node: moldau.testing.Node, monkeypatch: pytest.MonkeyPatch, ends_in_tier: bool
) -> None:
    topic = f"tiered-{ends_in_tier}".lower()
    tiered(node, topic, ends_in_tier=ends_in_tier)
    found = pinned(node, topic, **COMMITTED)
    everything = read(pinned(node, topic))
    aborted = [offset for offset, value in everything if value == b"aborted at the end"]
    # The marker of the last aborted transaction shows that all earlier transactions have ended.
    end = aborted[-1] + 1 if ends_in_tier else tiered_end(node, topic)
    assert {b"aborted at the end", b"short 0", b"other 1"} < {value for _, value in everything}
    by_brokers = read(pinned(node, topic, readFrom="brokers", **COMMITTED))
    assert {value for _, value in by_brokers} == {b"plain", *EXPECTED}
    monkeypatch.delattr(tier_reading, "BrokerReader")
    asked: list[int] = []
    find = tier_transactions.find_at_leader

    async def counted(client: object, topic: object, partition: int, offset: int, known: object) -> bool:
        asked.append(offset)
        return await find(client, topic, partition, offset, known)  # type: ignore[arg-type]

    monkeypatch.setattr(tier_reading, "find_at_leader", counted)
    before = fetches(node)
    for first in range(0, end, 5):
        part = TopicRanges(found.source, (OffsetRange(0, first, end),))
        assert read(part) == [row for row in by_brokers if first <= row[0] < end]
    assert fetches(node) - before == len(asked)
    assert not asked if ends_in_tier else asked


def test_aborted_records_after_a_segment_that_is_not_listed_are_skipped(
    node: moldau.testing.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiered(node, "gap", ends_in_tier=True)
    by_brokers = read(pinned(node, "gap", readFrom="brokers", **COMMITTED))
    found = pinned(node, "gap", **COMMITTED)
    list_all = tier_reading.list_segments
    missing = iter(range(3))

    async def list_most(*place: Any) -> list[SegmentObject]:
        segments = await list_all(*place)
        at = next(missing)
        assert len(segments) > at + 1
        return segments[:at] + segments[at + 1 :]

    monkeypatch.setattr(tier_reading, "list_segments", list_most)
    for _ in range(3):
        assert read(found) == by_brokers


@pytest.mark.parametrize(
    ("high_watermark", "last_stable", "is_complete"),
    [
        pytest.param(60, 60, True, id="at-the-end"),
        pytest.param(40, 40, False, id="new-leader"),
        pytest.param(60, 10, False, id="old-leader"),
        pytest.param(90, 10, False, id="open-transaction"),
    ],
)
def test_a_response_without_a_batch_contains_all_transactions_only_if_they_have_ended(
    high_watermark: int, last_stable: int, is_complete: bool
) -> None:
    topic = ClusterTopic("events", UUID(int=1), {0: 1})
    row = PartitionData(
        partition_index=0, high_watermark=high_watermark, last_stable_offset=last_stable, records=None
    )

    class Leader(Client):
        async def topic(self, name: str, *, create: bool = False) -> ClusterTopic:
            return topic

        async def ask(self, message: Any, **options: Any) -> FetchResponse:
            return FetchResponse(responses=[FetchableTopicResponse(topic="events", partitions=[row])])

    async def find() -> bool:
        leader = Leader(parse_bootstrap("127.0.0.1:9092"), TIMEOUT_S)
        return await tier_transactions.find_at_leader(leader, topic, 0, 60, AbortedRanges())

    assert asyncio.run(find()) is is_complete


def test_an_export_skips_aborted_records_of_segments(
    node: moldau.testing.Node, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiered(node, "exported", ends_in_tier=True)
    by_brokers = read(pinned(node, "exported", readFrom="brokers", **COMMITTED))
    job = ExportJob(node.bootstrap_servers, "exported", str(tmp_path), "parquet", unit_records_max=7)
    asked: list[OffsetRange] = []
    real = tier_reading.BrokerReader

    class Counted(real):  # type: ignore[misc, valid-type]
        def __init__(self, client: object, source: object, wanted: OffsetRange) -> None:
            asked.append(wanted)
            super().__init__(client, source, wanted)

    monkeypatch.setattr(tier_reading, "BrokerReader", Counted)
    end = tiered_end(node, "exported")
    export_once(job, run_here)
    assert all(wanted.start >= end for wanted in asked)
    rows = [(row["offset"], row["value"].rstrip(b".")) for row in read_table(job)]
    assert rows == by_brokers


def test_aborted_records_of_a_diskless_topic_are_skipped_in_the_tier(
    node: moldau.testing.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(node, "diskless")
    writer = Writer(node, "diskless", b"." * 1_000)
    for number in range(8):
        writer.begin("short")
        writer.write("short", f"short {number}")
        writer.plain(2)
        writer.end("short", commit=number % 3 == 0)
    assert consolidated(node, "diskless") > 1
    by_brokers = read(pinned(node, "diskless", readFrom="brokers", **COMMITTED))
    assert {value for _, value in by_brokers} == {b"plain", b"short 0", b"short 3", b"short 6"}
    monkeypatch.delattr(tier_reading, "BrokerReader")
    monkeypatch.delattr(wal_reading, "BrokerReader")
    found = pinned(node, "diskless", **COMMITTED)
    before = fetches(node)
    for first in range(0, found.ranges[0].end, 3):
        part = TopicRanges(found.source, (found.ranges[0]._replace(start=first),))
        assert read(part) == [row for row in by_brokers if first <= row[0]]
    assert fetches(node) == before


def test_a_transaction_covers_its_own_batches_only() -> None:
    def batch(offset: int, producer_id: int, *, transactional: bool = True) -> bytes:
        producer = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
        return build_batch(
            [Record(0, 1, None, b"")], base_offset=offset, transactional=transactional, **producer
        )

    aborted = AbortedRanges()
    aborted.add(7, 20, 25)
    aborted.add(7, 10, 12)
    aborted.add(7, 30)
    covered = {offset for offset in range(40) if aborted.covers(parse_header(batch(offset, 7)))}
    assert covered == {10, 11, 12, *range(20, 26), *range(30, 40)}
    assert not aborted.covers(parse_header(batch(11, 8)))
    assert not aborted.covers(parse_header(batch(11, 7, transactional=False)))
