"""Bytes of records in every codec. Our code reads the bytes of aiokafka and kafka-python, and they
read ours."""

from collections.abc import Callable
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import kafka.record.default_records as kafka_python_records
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.records import (
    Compression,
    Record,
    build_batch,
    check_batch,
    iter_records,
    read_records,
    validate_produce,
)

CODECS = list(Compression)
PLAIN = [Compression.NONE, Compression.GZIP]  # codecs of kafka-python that need no further packages
EXAMPLES = settings(max_examples=25)

RECORDS = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp=st.integers(0, 2**42),
        key=st.none() | st.binary(max_size=80),
        value=st.none() | st.binary(max_size=300),
        headers=st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3).map(
            tuple
        ),
    ),
    min_size=1,
    max_size=12,
)


def numbered(records: list[Record], base_offset: int = 0) -> list[Record]:
    return [record._replace(offset=base_offset + index) for index, record in enumerate(records)]


def as_records(batch: Any) -> list[Record]:
    return [
        Record(
            record.offset,
            record.timestamp,
            None if record.key is None else bytes(record.key),
            None if record.value is None else bytes(record.value),
            tuple((name, None if value is None else bytes(value)) for name, value in record.headers),
        )
        for record in batch
    ]


def built_by_aiokafka(records: list[Record], codec: Compression) -> bytes:
    builder = aiokafka_records.DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 24)
    for index, (_, timestamp, key, value, headers) in enumerate(records):
        builder.append(index, timestamp, key, value, list(headers))
    return bytes(builder.build())


def built_by_kafka_python(records: list[Record], codec: Compression) -> bytes:
    builder = kafka_python_records.DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 24)
    for index, (_, timestamp, key, value, headers) in enumerate(records):
        builder.append(index, timestamp, key, value, list(headers))
    return bytes(builder.build())


def read_by_aiokafka(batch: bytes) -> list[Record]:
    parsed = aiokafka_records.DefaultRecordBatch(batch)
    assert parsed.validate_crc()
    return as_records(parsed)


def read_by_kafka_python(batch: bytes) -> list[Record]:
    parsed = kafka_python_records.DefaultRecordBatch(batch)
    assert parsed.validate_crc()
    return as_records(parsed)


BUILDERS = [(built_by_aiokafka, codec) for codec in CODECS]
BUILDERS += [(built_by_kafka_python, codec) for codec in PLAIN]
READERS = [(read_by_aiokafka, codec) for codec in CODECS]
READERS += [(read_by_kafka_python, codec) for codec in PLAIN]


@EXAMPLES
@pytest.mark.parametrize(("read", "codec"), READERS)
@given(records=RECORDS, base_offset=st.integers(0, 2**40))
def test_other_clients_read_our_batches(
    codec: Compression, read: Callable[[bytes], list[Record]], records: list[Record], base_offset: int
) -> None:
    batch = build_batch(records, base_offset=base_offset, compression=codec, producer_id=3, base_sequence=0)
    assert read(batch) == numbered(records, base_offset)
    assert read_records(batch) == numbered(records, base_offset)


@EXAMPLES
@pytest.mark.parametrize(("build", "codec"), BUILDERS)
@given(records=RECORDS)
def test_we_read_batches_of_other_clients(
    codec: Compression, build: Callable[[list[Record], Compression], bytes], records: list[Record]
) -> None:
    batch = build(records, codec)
    assert list(iter_records(memoryview(batch))) == numbered(records)
    [header] = validate_produce(memoryview(batch), max_batch_bytes=len(batch))
    assert header.records_count == len(records)


@EXAMPLES
@pytest.mark.parametrize("build", [built_by_aiokafka, built_by_kafka_python])
@given(records=RECORDS)
def test_uncompressed_bytes_are_the_same(
    build: Callable[[list[Record], Compression], bytes], records: list[Record]
) -> None:
    theirs = build(records, Compression.NONE)
    ours = bytearray(build_batch(records, leader_epoch=check_batch(theirs).partition_leader_epoch))
    assert ours == theirs
