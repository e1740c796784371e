"""Opening batches. Any fault in a batch causes an error with a Kafka error code, and never an unexpected
exception."""

import contextlib
import gzip
import struct
from collections.abc import Callable, Iterator

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.records import (
    Compression,
    InvalidRecordError,
    Record,
    TimestampType,
    build_batch,
    iter_records,
    parse_header,
    read_records,
    set_log_append_time,
)
from moldau.records.compression import compress, decompress
from moldau.records.errors import RecordsRejectedError
from moldau.records.record import RecordCursor, iter_opened, open_batch
from moldau.records.timestamp_search import (
    choose_at_or_after,
    choose_exactly,
    search_batch,
)
from moldau.records.varint import encode_varint, read_varlong
from moldau.runtime import ErrorCode, KafkaError
from moldau.runtime.steps import exhaust
from moldau.storage.log.admission import admit
from moldau.storage.log.config import LogConfig

COMPRESSED = [codec for codec in Compression if codec is not Compression.NONE]


def batch_of(payload: bytes, count: int = 1, codec: Compression = Compression.NONE) -> bytes:
    """A batch with arbitrary bytes instead of records."""
    header = bytearray(build_batch([Record(0, 0, None, None)])[:61])
    struct.pack_into(">i", header, 8, 49 + len(payload))
    struct.pack_into(">h", header, 21, codec)
    struct.pack_into(">i", header, 57, count)
    return bytes(header) + payload


GOOD = encode_varint(6) + bytes([0, 0, 0, 1, 1, 0])


def test_the_smallest_record() -> None:
    assert read_records(batch_of(GOOD)) == [Record(0, 0, None, None)]


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        pytest.param(b"", 1, id="no bytes"),
        pytest.param(GOOD, 2, id="fewer records than counted"),
        pytest.param(GOOD, 2**31 - 1, id="a huge count"),
        pytest.param(GOOD, -1, id="a negative count"),
        pytest.param(GOOD, 0, id="bytes but no records"),
        pytest.param(GOOD + b"\0", 1, id="a byte left over"),
        pytest.param(GOOD[:-1], 1, id="cut off"),
        pytest.param(encode_varint(5) + GOOD[1:], 1, id="length too small"),
        pytest.param(encode_varint(7) + GOOD[1:] + b"\0", 1, id="length too large"),
        pytest.param(encode_varint(0), 1, id="length 0"),
        pytest.param(encode_varint(-1) + GOOD[1:], 1, id="negative length"),
        pytest.param(encode_varint(2**31 - 1) + GOOD[1:], 1, id="a huge length"),
        pytest.param(b"\xff" * 5 + GOOD[1:], 1, id="varint of 35 bits"),
        pytest.param(b"\x80" * 20, 1, id="endless varint"),
        pytest.param(encode_varint(6) + bytes([0, 0, 0, 3, 1, 0]), 1, id="key length -2"),
        pytest.param(encode_varint(6) + bytes([0, 0, 0, 1, 3, 0]), 1, id="value length -2"),
        pytest.param(encode_varint(6) + bytes([0, 0, 0, 1, 20, 0]), 1, id="value beyond the record"),
        pytest.param(encode_varint(6) + bytes([0, 0, 0, 20, 1, 0]), 1, id="key beyond the record"),
        pytest.param(encode_varint(6) + bytes([0, 0, 0, 1, 1, 1]), 1, id="header count -1"),
        pytest.param(encode_varint(6) + bytes([0, 0, 0, 1, 1, 8]), 1, id="headers beyond the record"),
        pytest.param(encode_varint(8) + bytes([0, 0, 0, 1, 1, 2, 1, 1]), 1, id="header without a name"),
        pytest.param(encode_varint(16) + bytes([0] + [0x80] * 15), 1, id="endless timestamp"),
    ],
)
def test_malformed_records_are_invalid(payload: bytes, count: int) -> None:
    with pytest.raises(InvalidRecordError):
        read_records(batch_of(payload, count))


@given(st.binary(max_size=60), st.integers(-1, 5), st.sampled_from(Compression))
def test_arbitrary_records_never_raise_anything_else(payload: bytes, count: int, codec: Compression) -> None:
    batch = batch_of(payload, count, codec)
    with contextlib.suppress(KafkaError):
        list(iter_records(batch))


@given(st.data())
def test_a_damaged_batch_never_raises_anything_else(data: st.DataObject) -> None:
    records = [Record(0, 10, b"key", b"value" * 30, (("h", b"x"),)), Record(1, 20, None, b"y" * 100)]
    batch = bytearray(build_batch(records, compression=data.draw(st.sampled_from(Compression))))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(KafkaError):
        list(iter_records(batch))


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_round_trip(value: int) -> None:
    encoded = encode_varint(value)
    assert read_varlong(encoded, 0) == (value, len(encoded))
    assert len(encoded) <= 10


def test_header_names_that_are_not_utf8_survive() -> None:
    payload = encode_varint(10) + bytes([0, 0, 0, 1, 1, 2, 2, 0xFF, 2, 0x41])
    [record] = read_records(batch_of(payload))
    assert build_batch([record])[61:] == payload


def test_a_compacted_batch_keeps_its_holes_and_its_end() -> None:
    kept = [Record(12, 5, b"a", b"1"), Record(15, 9, b"b", None)]
    batch = build_batch(kept, base_offset=10, keep_offsets=True, last_offset=19)
    assert read_records(batch) == kept
    assert parse_header(batch).next_offset == 20
    assert read_records(build_batch([], base_offset=10, last_offset=19, compression=Compression.GZIP)) == []
    with pytest.raises(ValueError, match="ascend"):
        build_batch(kept[::-1], base_offset=10, keep_offsets=True)
    with pytest.raises(ValueError, match="last offset"):
        build_batch(kept, base_offset=10, keep_offsets=True, last_offset=13)


# Codecs


@pytest.mark.parametrize("codec", list(Compression))
@given(st.binary(max_size=200), st.integers(0, 600))
def test_codecs_round_trip(codec: Compression, data: bytes, repeat: int) -> None:
    data = data * repeat
    assert decompress(codec, memoryview(compress(codec, data))) == data


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_is_refused_at_the_limit(codec: Compression) -> None:
    bomb = compress(codec, bytes(8 << 20))
    with pytest.raises(InvalidRecordError, match="larger than 1048576 bytes"):
        decompress(codec, bomb, 1 << 20)
    assert len(decompress(codec, bomb, 8 << 20)) == 8 << 20


@pytest.mark.parametrize("codec", COMPRESSED)
def test_data_that_was_cut_off_is_refused(codec: Compression) -> None:
    data = compress(codec, bytes(range(256)) * 40)
    for cut in (1, 5, len(data) // 2):
        with pytest.raises(InvalidRecordError):
            decompress(codec, data[:-cut])


def test_raw_snappy_blocks_are_decompressed() -> None:
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(b"librdkafka"))) == b"librdkafka"


def test_a_raw_snappy_block_cannot_lie_about_its_size() -> None:
    with pytest.raises(InvalidRecordError, match="larger"):
        decompress(Compression.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\0" * 10)


def test_lz4_frames_have_independent_blocks_as_the_java_client_wants() -> None:
    frame = compress(Compression.LZ4, bytes(200_000))
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] & 0b1110_0011 == 0b0110_0000  # flags: version 1, independent blocks, reserved bits 0


def test_gzip_members_may_follow_each_other() -> None:
    assert decompress(Compression.GZIP, gzip.compress(b"a") + gzip.compress(b"b")) == b"ab"


def test_codecs_are_found_by_their_names() -> None:
    assert Compression.of_name("uncompressed") is Compression.NONE
    assert [Compression.of_name(codec.name.lower()) for codec in Compression] == list(Compression)


# Timestamps


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=8),
    st.integers(-5, 60),
    st.integers(95, 110),
    st.sampled_from(Compression),
)
def test_the_first_record_in_time_is_found(
    timestamps: list[int], target: int, start: int, codec: Compression
) -> None:
    records = [Record(0, timestamp, b"k" * 70, b"v" * 70) for timestamp in timestamps]
    batch = build_batch(records, base_offset=100, compression=codec)
    wanted = [
        (100 + index, timestamp)
        for index, timestamp in enumerate(timestamps)
        if timestamp >= target and 100 + index >= start
    ]
    assert exhaust(search_batch(batch, choose_at_or_after(target, start))) == (wanted[0] if wanted else None)
    largest = max(timestamps)
    assert exhaust(search_batch(batch, choose_exactly(largest))) == (100 + timestamps.index(largest), largest)


def test_with_log_append_time_the_first_record_is_the_answer() -> None:
    batch = bytearray(build_batch([Record(0, 5, None, b""), Record(1, 9, None, b"")], base_offset=7))
    set_log_append_time(batch, 0, 1_000)
    assert exhaust(search_batch(batch, choose_at_or_after(500, 0))) == (7, 1_000)
    assert exhaust(search_batch(batch, choose_at_or_after(1_001, 0))) is None


# Checks that open batches


def check(batch: bytes, **config: int) -> None:
    admit(LogConfig(**config), batch, [parse_header(batch)], 1_000)


def rejected(batch: bytes, before: int = 2**63 - 1, after: int = 2**63 - 1) -> list[int]:
    with pytest.raises(RecordsRejectedError) as caught:
        check(batch, message_timestamp_before_max_ms=before, message_timestamp_after_max_ms=after)
    assert caught.value.code is ErrorCode.invalid_timestamp
    return [error.batch_index for error in caught.value.record_errors]


def test_records_too_old_or_too_new_are_named() -> None:
    batch = build_batch([Record(0, timestamp, None, b"") for timestamp in (1_000, 880, -1, 1_200, 900)])
    forever = 2**63 - 1
    check(batch, message_timestamp_before_max_ms=forever, message_timestamp_after_max_ms=forever)
    assert rejected(batch, before=100) == [1]
    assert rejected(batch, after=100) == [3]
    assert rejected(batch, before=50, after=100) == [1, 3, 4]


def test_a_header_that_claims_the_future_is_refused() -> None:
    batch = bytearray(build_batch([Record(0, 1_000, None, b"")]))
    struct.pack_into(">q", batch, 35, 9_999)
    assert rejected(bytes(batch), after=100) == [0]


def test_a_compacted_topic_needs_keys() -> None:
    check(build_batch([Record(0, 0, b"", None)]), cleanup_compact=True)
    with pytest.raises(RecordsRejectedError) as caught:
        check(build_batch([Record(0, 0, b"k", b""), Record(1, 0, None, b"")]), cleanup_compact=True)
    assert caught.value.code is ErrorCode.invalid_record
    assert [error.batch_index for error in caught.value.record_errors] == [1]


def outcome_of(read: Callable[[], Iterator[Record]]) -> tuple[list[Record], str | None]:
    """The records before the first error, and the error."""
    records = []
    try:
        for record in read():
            records.append(record)
    except KafkaError as error:
        return records, repr(error)
    return records, None


@given(
    st.lists(st.tuples(st.none() | st.binary(max_size=80), st.binary(max_size=200)), max_size=5),
    st.lists(st.tuples(st.integers(0, 1_500), st.integers(0, 255)), max_size=2),
    st.integers(-6, 2),
    st.sampled_from(TimestampType),
)
def test_a_cursor_reads_the_same_records(
    pairs: list[tuple[bytes | None, bytes]],
    changes: list[tuple[int, int]],
    more_records: int,
    timestamp_type: TimestampType,
) -> None:
    records = [Record(at, at, key, value, (("name", value),)) for at, (key, value) in enumerate(pairs)]
    header, data = open_batch(build_batch(records, timestamp_type=timestamp_type))
    header = header._replace(records_count=header.records_count + more_records)
    changed = bytearray(data)
    for at, byte in changes:
        if at < len(changed):
            changed[at] = byte

    def read_by_cursor() -> Iterator[Record]:
        cursor = RecordCursor(header, bytes(changed))
        while cursor.left:
            yield cursor.read()
        cursor.end()

    assert outcome_of(read_by_cursor) == outcome_of(lambda: iter_opened(header, bytes(changed)))
