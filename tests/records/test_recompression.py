"""Batches that are stored in another codec. The tests check changed fields, unchanged fields, and
refusals."""

import struct

import aiokafka.record.default_records as aiokafka_records
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.records import (
    BatchHeader,
    Compression,
    InvalidRecordError,
    Record,
    build_batch,
    check_batch,
    parse_header,
    read_records,
)
from moldau.records.builder import encode_record
from moldau.records.compression import compress, compress_in_turn, decompress
from moldau.records.recompression import TargetCompression
from moldau.runtime import ErrorCode, KafkaError
from moldau.runtime.buffers import Buffer
from moldau.storage.log.admission import admit
from moldau.storage.log.config import LogConfig

MIB = 1 << 20
CHANGED = {"crc", "batch_length", "attributes"}
TARGETS = [
    TargetCompression(Compression.NONE),
    TargetCompression(Compression.GZIP),
    TargetCompression(Compression.GZIP, 9),
    TargetCompression(Compression.SNAPPY),
    TargetCompression(Compression.LZ4, 0),
    TargetCompression(Compression.LZ4, 12),
    TargetCompression(Compression.ZSTD, -7),
    TargetCompression(Compression.ZSTD, 3),
]
RECORDS = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp=st.integers(0, 2**42),
        key=st.none() | st.binary(max_size=40),
        value=st.none() | st.binary(max_size=300),
        headers=st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3).map(
            tuple
        ),
    ),
    min_size=1,
    max_size=12,
)


def stored(batch: bytes, target: TargetCompression, max_batch_bytes: int = MIB) -> tuple[bytes, BatchHeader]:
    changed, changed_header = admitted(memoryview(batch), target, max_batch_bytes)
    return bytes(changed), changed_header


def admitted(
    batch: memoryview, target: TargetCompression, max_batch_bytes: int
) -> tuple[Buffer, BatchHeader]:
    config = LogConfig(
        compression=target, max_message_bytes=max_batch_bytes, message_timestamp_after_max_ms=2**62
    )
    changed, (changed_header,), _ = admit(config, batch, [parse_header(batch)], 0)
    return changed, changed_header


def assembled(payload: bytes, count: int, codec: Compression = Compression.NONE) -> bytes:
    """A batch that contains these record bytes, which may be invalid."""
    template = bytearray(build_batch([Record(0, 1_000, b"k", b"v")] * count, compression=codec))
    batch = template[:61] + compress(codec, payload)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return bytes(batch)


@given(
    records=RECORDS,
    source=st.sampled_from(Compression),
    target=st.sampled_from(TARGETS),
    producer=st.tuples(st.integers(-1, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1)),
    transactional=st.booleans(),
)
@settings(max_examples=40)
def test_a_batch_keeps_all_but_its_codec(
    records: list[Record],
    source: Compression,
    target: TargetCompression,
    producer: tuple[int, int, int],
    transactional: bool,
) -> None:
    producer_id, epoch, sequence = producer
    batch = build_batch(
        records,
        compression=source,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional and producer_id >= 0,
    )
    before = parse_header(batch)
    changed, after = stored(batch, target)
    assert check_batch(changed) == after
    assert after.compression is target.codec
    assert after.size_bytes == len(changed)
    assert after.attributes & ~7 == before.attributes & ~7
    assert all(getattr(after, f) == getattr(before, f) for f in BatchHeader._fields if f not in CHANGED)
    assert read_records(changed) == read_records(batch)
    theirs = aiokafka_records.DefaultRecordBatch(changed)
    assert theirs.validate_crc()
    assert [(one.offset, one.timestamp) for one in theirs] == [
        (one.offset, one.timestamp) for one in read_records(batch)
    ]
    # The records are converted back to the first codec. All their bytes are unchanged.
    plain = TargetCompression(Compression.NONE)
    assert stored(changed, plain)[0] == stored(batch, plain)[0]


@pytest.mark.parametrize(
    "target",
    [
        TargetCompression(Compression.GZIP, 1),
        TargetCompression(Compression.LZ4, 1),
        TargetCompression(Compression.LZ4, 17),
        TargetCompression(Compression.ZSTD, -131072),
        TargetCompression(Compression.ZSTD, 22),
    ],
)
def test_the_lowest_and_highest_compression_levels_are_accepted(target: TargetCompression) -> None:
    batch = build_batch([Record(n, 1_000, b"k", b"value %d" % n * 20) for n in range(50)])
    assert read_records(stored(batch, target)[0]) == read_records(batch)


@pytest.mark.parametrize("codec", list(Compression))
def test_large_records_are_compressed_in_steps(codec: Compression) -> None:
    data = b"".join(b"%d" % number for number in range(250_000))
    steps = compress_in_turn(codec, data)
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            compressed = done.value
            break
        count += 1
    assert decompress(codec, compressed) == data
    assert count == (0 if codec in (Compression.NONE, Compression.SNAPPY) else 6)


def test_a_batch_that_has_the_codec_is_not_opened() -> None:
    garbage = memoryview(assembled(b"not records at all", 3))
    header = parse_header(garbage)
    same, same_header = admitted(garbage, TargetCompression(Compression.NONE), 1)
    assert same is garbage
    assert same_header == header


@pytest.mark.parametrize("codec", list(Compression))
def test_records_that_do_not_parse_are_refused(codec: Compression) -> None:
    record = encode_record(0, 0, b"k", b"v")
    target = TargetCompression(Compression.NONE if codec is Compression.GZIP else Compression.GZIP)
    for payload, count in ((record, 2), (record + record, 1), (b"\xff" * 9, 1), (record[:-1], 1)):
        with pytest.raises(InvalidRecordError):
            stored(assembled(payload, count, codec), target)


def test_bytes_that_no_codec_made_are_refused() -> None:
    batch = bytearray(assembled(b"x" * 50, 1))
    batch[22] = Compression.ZSTD
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    with pytest.raises(InvalidRecordError):
        stored(bytes(batch), TargetCompression(Compression.LZ4))


def test_records_with_wrong_relative_offsets_get_new_ones() -> None:
    payload = encode_record(7, 5, b"a", b"1") + encode_record(7, 3, None, None, (("h", b"x"),))
    changed, header = stored(assembled(payload, 2, Compression.GZIP), TargetCompression(Compression.ZSTD))
    assert read_records(changed) == [
        Record(0, 1_005, b"a", b"1", ()),
        Record(1, 1_003, None, None, (("h", b"x"),)),
    ]
    assert header.max_timestamp == 1_005


def test_a_batch_that_grows_beyond_the_limit_is_refused() -> None:
    batch = build_batch([Record(0, 1_000, b"k", b"x" * 5_000)], compression=Compression.ZSTD)
    plain = TargetCompression(Compression.NONE)
    size = len(stored(batch, plain)[0])
    assert stored(batch, plain, size)[1].size_bytes == size
    with pytest.raises(KafkaError) as refused:
        stored(batch, plain, size - 1)
    assert refused.value.code is ErrorCode.message_too_large
