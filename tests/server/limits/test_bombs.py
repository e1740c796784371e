"""Batches that are expensive to open. Some of these batches are refused by rules. A worker opens the other
batches while the node serves other clients."""

import threading
import time
import uuid

import pytest
from wire_client import METADATA_V12, WireClient

from bombs import large_record, many_headers, tiny_records
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.records import Compression, Record, build_batch
from moldau.records import record as record_module
from moldau.records.batch import RECORDS_PER_BATCH_MAX
from moldau.records.compression import DECOMPRESSED_BYTES_FLOOR
from moldau.runtime.errors import ErrorCode
from moldau.runtime.machine import OPENING
from moldau.testing import Node

CODECS = [codec for codec in Compression if codec is not Compression.NONE]
CONFIGS = {
    "recompressed": {"compression_type": "uncompressed"},
    "compacted": {"cleanup_policy": "compact"},
    "bounded in time": {"message_timestamp_before_max_ms": "3600000"},
}
LIST_OFFSETS = (2, 7)


@pytest.fixture(scope="module")
def node():
    """A node with classic and diskless topics."""
    with Node(diskless=True) as running:
        yield running


@pytest.fixture
def topic():
    return f"t-{uuid.uuid4().hex[:12]}"


def now_ms():
    return int(time.time() * 1000)


@pytest.fixture
def opened_by(monkeypatch):
    """The names of the threads that opened batches of more than a few records."""
    names = set()
    original = record_module.open_batch

    def open_batch(batch, limit=None):
        header, data = original(batch, limit)
        if header.records_count > record_module.QUICK_RECORDS or len(data) > record_module.QUICK_BYTES:
            names.add(threading.current_thread().name.rsplit("_", 1)[0])
        return header, data

    for module in ("records.record", "records.unpacking", "storage.log.admission"):
        monkeypatch.setattr(f"moldau.{module}.open_batch", open_batch)
    return names


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("diskless", ["false", "true"])
def test_long_batches_are_opened_by_a_worker(node, topic, opened_by, codec, config, diskless):
    if diskless == "true" and config == "compacted":
        pytest.skip("diskless topics are not compacted")
    with WireClient(node.bootstrap_servers) as client:
        created = client.create_topic(topic, diskless_enable=diskless, **CONFIGS[config])
        assert created.error_code is ErrorCode.none
        many = client.produce(topic, tiny_records(codec, 20_000, now_ms()))
        large = client.produce(topic, large_record(codec, 900_000, now_ms()))
    refused = ErrorCode.invalid_record if config == "compacted" else ErrorCode.none
    assert many.error_code is refused
    assert large.error_code is ErrorCode.none
    assert opened_by == {OPENING}


@pytest.mark.parametrize("diskless", ["false", "true"])
def test_batches_with_absurdly_many_records_are_too_large(node, topic, diskless):
    batch = tiny_records(Compression.GZIP, RECORDS_PER_BATCH_MAX + 1, now_ms())
    with WireClient(node.bootstrap_servers) as client:
        client.create_topic(topic, diskless_enable=diskless)
        assert client.produce(topic, batch).error_code is ErrorCode.message_too_large


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_records_that_are_too_large_when_decompressed_are_too_large(node, topic, codec):
    batch = large_record(codec, DECOMPRESSED_BYTES_FLOOR, now_ms())
    with WireClient(node.bootstrap_servers) as client:
        client.create_topic(
            topic,
            diskless_enable="false",
            compression_type="uncompressed",
            max_message_bytes=str(128 * 1024 * 1024),
        )
        assert client.produce(topic, batch).error_code is ErrorCode.message_too_large


@pytest.mark.parametrize("config", ["recompressed", "compacted"])
@pytest.mark.parametrize(("records_count", "headers_count"), [(1, 1_000_001), (101, 10_000)])
def test_batches_with_absurdly_many_headers_are_too_large(node, topic, config, records_count, headers_count):
    batch = many_headers(Compression.ZSTD, records_count, headers_count, now_ms())
    with WireClient(node.bootstrap_servers) as client:
        client.create_topic(topic, diskless_enable="false", **CONFIGS[config])
        assert client.produce(topic, batch).error_code is ErrorCode.message_too_large
        few = many_headers(Compression.ZSTD, 10, 10_000, now_ms())
        assert client.produce(topic, few).error_code is ErrorCode.none


def test_records_that_are_produced_after_a_long_batch_stay_after_it(node, topic, opened_by):
    batches = [
        tiny_records(Compression.GZIP, 50_000, now_ms()),
        build_batch([Record(0, now_ms(), b"k", b"second")]),
        tiny_records(Compression.ZSTD, 30_000, now_ms()),
        build_batch([Record(0, now_ms(), b"k", b"fourth")]),
    ]
    with WireClient(node.bootstrap_servers) as client:
        client.create_topic(topic, compression_type="lz4", diskless_enable="false")
        sent = [client.send_produce(topic, batch) for batch in batches]
        answers = [client.receive_produce() for _ in sent]
    assert [number for number, _ in answers] == sent
    assert [row.base_offset for _, row in answers] == [0, 50_000, 50_001, 80_001]


@pytest.mark.parametrize("timestamp", ["beyond", "latest"])
@pytest.mark.parametrize("diskless", ["false", "true"])
def test_a_planted_timestamp_is_looked_for_by_a_worker(node, topic, opened_by, diskless, timestamp):
    """Before the batch with the timestamp there are other batches. Their headers contain this timestamp, but
    none of their records has it."""
    day_ms = 86_400_000
    begin_ms = now_ms()
    planted = tiny_records(Compression.GZIP, 20_000, begin_ms, max_timestamp_ms=begin_ms + 9 * day_ms)
    honest = build_batch([Record(0, begin_ms + 5 * day_ms, b"k", b"v")])
    with WireClient(node.bootstrap_servers) as client:
        client.create_topic(topic, diskless_enable=diskless, message_timestamp_after_max_ms=str(2**62))
        for batch in (planted, planted, honest):
            assert client.produce(topic, batch).error_code is ErrorCode.none
        wanted = begin_ms + 4 * day_ms if timestamp == "beyond" else -3
        part = ListOffsetsPartition(partition_index=0, timestamp=wanted)
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=0, topics=[ListOffsetsTopic(name=topic, partitions=[part])]
        )
        row = client.call(LIST_OFFSETS, request).topics[0].partitions[0]
    assert row.error_code is ErrorCode.none
    if timestamp == "beyond" or diskless == "false":
        assert (row.offset, row.timestamp) == (40_000, begin_ms + 5 * day_ms)
    assert opened_by == {OPENING}


def test_bystanders_are_answered_while_batches_are_opened(node, topic):
    """While a large batch is opened, the node responds to many requests of other clients, because the event
    loop does not open the batch."""
    batch = tiny_records(Compression.GZIP, 100_000, now_ms())
    with (
        WireClient(node.bootstrap_servers) as attacker,
        WireClient(node.bootstrap_servers) as bystander,
    ):
        attacker.create_topic(topic, compression_type="zstd", diskless_enable="false")
        sent = attacker.send_produce(topic, batch)
        answered = 0
        while not attacker.has_answer():
            row = MetadataRequestTopic(name=topic)
            assert bystander.call(METADATA_V12, MetadataRequest(topics=[row])).topics[0].name == topic
            answered += 1
        number, row = attacker.receive_produce()
        assert number == sent
        assert row.error_code is ErrorCode.none
    assert answered > 3
