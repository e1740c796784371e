"""Batches whose checksum is valid, but whose records cannot be read. Searches by timestamp skip
such batches."""

import struct
import time
import uuid

import pytest
from crc32c import crc32c
from wire_client import WireClient

from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.protocol.special_timestamps import MAX_TIMESTAMP
from moldau.records import Compression, Record, build_batch
from moldau.records.builder import encode_record
from moldau.records.compression import compress
from moldau.runtime.errors import ErrorCode
from moldau.testing import Node

LIST_OFFSETS = (2, 7)
HOUR_MS = 3_600_000
RECORD = encode_record(0, 0, b"k", b"v")
GARBAGE = {
    "no records": (Compression.NONE, b"\xff" * 60),
    "a record too many": (Compression.GZIP, RECORD * 4),
    "a record too few": (Compression.ZSTD, RECORD * 2),
    "a length beyond the end": (Compression.NONE, b"\x7e" + RECORD * 3),
    "no compressed data": (None, b"not lz4 at all, and never was"),
}


@pytest.fixture(scope="module")
def node():
    with Node(diskless=True) as running:
        yield running


@pytest.fixture
def topic():
    return f"t-{uuid.uuid4().hex[:12]}"


def garbage(kind, timestamp_ms):
    """A batch that has three records according to its header."""
    codec, payload = GARBAGE[kind]
    batch = bytearray(build_batch([Record(n, timestamp_ms, b"k", b"v") for n in range(3)])[:61])
    batch += payload if codec is None else compress(codec, payload)
    batch[22] = Compression.LZ4 if codec is None else codec
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return bytes(batch)


def found(client, topic, timestamp):
    part = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[ListOffsetsTopic(name=topic, partitions=[part])]
    )
    row = client.call(LIST_OFFSETS, request).topics[0].partitions[0]
    assert row.error_code is ErrorCode.none
    return row.offset, row.timestamp


@pytest.mark.parametrize("kind", GARBAGE)
@pytest.mark.parametrize("diskless", ["false", "true"])
def test_a_lookup_uses_the_header_of_an_unreadable_batch(node, topic, kind, diskless):
    now_ms = int(time.time() * 1000)
    with WireClient(node.bootstrap_servers) as client:
        client.create_topic(topic, diskless_enable=diskless)
        for batch in (
            build_batch([Record(0, now_ms - 3 * HOUR_MS, b"k", b"v")]),
            garbage(kind, now_ms - 2 * HOUR_MS),
            build_batch([Record(0, now_ms - HOUR_MS, b"k", b"v")]),
        ):
            assert client.produce(topic, batch).error_code is ErrorCode.none
        assert found(client, topic, now_ms - 3 * HOUR_MS) == (0, now_ms - 3 * HOUR_MS)
        assert found(client, topic, now_ms - 3 * HOUR_MS + 1) == (1, now_ms - 2 * HOUR_MS)
        assert found(client, topic, now_ms - 2 * HOUR_MS + 1) == (4, now_ms - HOUR_MS)
        assert found(client, topic, MAX_TIMESTAMP) == (4, now_ms - HOUR_MS)
        assert client.produce(topic, garbage(kind, now_ms)).error_code is ErrorCode.none
        assert found(client, topic, now_ms) == (5, now_ms)
        # The first records can be read. A later record exceeds the limit.
        assert found(client, topic, MAX_TIMESTAMP) == (5 if kind == "a record too many" else 7, now_ms)
        assert found(client, topic, now_ms + 1) == (-1, -1)
