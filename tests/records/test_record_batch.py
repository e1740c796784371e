"""The batch header, the checks of produced batches with Kafka's error codes, and the fields that a leader
overwrites."""

import contextlib
import struct
from collections.abc import Callable

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from moldau.records import (
    Compression,
    CorruptRecordError,
    InvalidRecordError,
    Record,
    TimestampType,
    build_batch,
    check_batch,
    iter_headers,
    parse_header,
    read_records,
    set_base_offset_and_epoch,
    set_log_append_time,
    validate_produce,
)
from moldau.records.batch import BatchHeader, checked_headers, next_sequence
from moldau.runtime import ErrorCode, KafkaError

MIB = 1 << 20


def one_record(**options: object) -> bytearray:
    return bytearray(build_batch([Record(0, 1_000, b"key", b"value")], **options))  # type: ignore[arg-type]


def resealed(batch: bytearray) -> bytearray:
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return batch


def patched(layout: str, position: int, value: int, **options: object) -> bytearray:
    batch = one_record(**options)
    struct.pack_into(layout, batch, position, value)
    return resealed(batch)


def refusal(batch: bytes | bytearray, max_batch_bytes: int = MIB) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        validate_produce(memoryview(batch), max_batch_bytes=max_batch_bytes)
    return caught.value.code


def test_a_good_batch_passes_and_its_header_is_returned() -> None:
    batch = one_record(producer_id=9, producer_epoch=3, base_sequence=2**31 - 1)
    [header] = validate_produce(memoryview(batch), max_batch_bytes=len(batch))
    assert header == parse_header(batch)
    assert header.size_bytes == len(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, 2**31 - 1)
    assert header.last_sequence == 2**31 - 1
    assert header.compression is Compression.NONE
    assert header.timestamp_type is TimestampType.CREATE_TIME


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        pytest.param(b"", ErrorCode.invalid_record, id="no batch"),
        pytest.param(one_record()[:-1], ErrorCode.invalid_record, id="cut off at the end"),
        pytest.param(one_record()[:40], ErrorCode.invalid_record, id="cut off in the header"),
        pytest.param(one_record() + one_record(), ErrorCode.invalid_record, id="two batches"),
        pytest.param(one_record() + b"\0", ErrorCode.invalid_record, id="a byte too much"),
        pytest.param(patched(">b", 16, 1), ErrorCode.invalid_record, id="magic 1"),
        pytest.param(patched(">b", 16, 0)[:30], ErrorCode.invalid_record, id="short and of magic 0"),
        pytest.param(patched(">b", 16, 3), ErrorCode.corrupt_message, id="magic of the future"),
        pytest.param(patched(">b", 16, -1), ErrorCode.corrupt_message, id="negative magic"),
        pytest.param(patched(">i", 8, 48), ErrorCode.corrupt_message, id="length below the header"),
        pytest.param(patched(">i", 8, -1), ErrorCode.corrupt_message, id="negative length"),
        pytest.param(one_record()[:-1] + b"x", ErrorCode.corrupt_message, id="a flipped byte"),
        pytest.param(patched(">q", 0, 7), ErrorCode.invalid_record, id="base offset not 0"),
        pytest.param(patched(">i", 57, 0), ErrorCode.invalid_record, id="no records"),
        pytest.param(patched(">i", 57, -1), ErrorCode.invalid_record, id="negative count"),
        pytest.param(patched(">i", 57, 2), ErrorCode.invalid_record, id="count above the offsets"),
        pytest.param(patched(">i", 23, 1), ErrorCode.invalid_record, id="offsets above the count"),
        pytest.param(patched(">i", 23, -1), ErrorCode.invalid_record, id="negative offset range"),
        pytest.param(one_record(control=True), ErrorCode.invalid_record, id="control batch"),
        pytest.param(one_record(producer_id=1), ErrorCode.invalid_record, id="producer without sequence"),
        pytest.param(patched(">h", 21, 5), ErrorCode.invalid_record, id="unknown codec"),
        pytest.param(
            one_record(timestamp_type=TimestampType.LOG_APPEND_TIME),
            ErrorCode.invalid_timestamp,
            id="LogAppendTime by a producer",
        ),
    ],
)
def test_a_bad_batch_is_refused_with_kafkas_code(batch: bytearray, code: ErrorCode) -> None:
    assert refusal(batch) is code


def test_the_size_limit_counts_the_whole_batch() -> None:
    batch = one_record()
    validate_produce(memoryview(batch), max_batch_bytes=len(batch))
    assert refusal(batch, len(batch) - 1) is ErrorCode.message_too_large


@given(st.integers(0, 200), st.integers(1, 255))
def test_a_flipped_byte_never_passes(position: int, flip: int) -> None:
    batch = bytearray(build_batch([Record(0, 5, b"k" * 40, b"v" * 90)], producer_id=1, base_sequence=0))
    position %= len(batch)
    batch[position] ^= flip
    if 12 <= position < 16:  # the broker sets the leader epoch, so it is not checked
        return
    with pytest.raises(KafkaError):
        validate_produce(memoryview(batch), max_batch_bytes=MIB)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_with_a_code(data: bytes) -> None:
    with pytest.raises(KafkaError):
        validate_produce(memoryview(data), max_batch_bytes=MIB)
    with pytest.raises(CorruptRecordError):
        check_batch(data)
    with contextlib.suppress(CorruptRecordError):
        list(iter_headers(data))


def test_stamping_offset_and_epoch_leaves_the_crc_right() -> None:
    buffer = bytearray(b"front") + one_record()
    set_base_offset_and_epoch(buffer, 5, 2**62, 17)
    header = check_batch(buffer, 5)
    assert (header.base_offset, header.partition_leader_epoch) == (2**62, 17)


@pytest.mark.parametrize("codec", list(Compression))
def test_log_append_time_is_the_time_of_every_record(codec: Compression) -> None:
    records = [Record(0, 100, None, b"a"), Record(1, 50, None, b"b")]
    front = one_record()
    buffer = front + build_batch(records, compression=codec) + one_record()
    set_log_append_time(memoryview(buffer), len(front), 777)
    header = check_batch(buffer, len(front))
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.max_timestamp == 777
    assert header.compression is codec
    assert [record.timestamp for record in read_records(buffer[len(front) :])] == [777, 777]
    assert buffer[: len(front)] == front


def test_iterating_stops_at_a_partial_batch() -> None:
    first, second = one_record(), one_record(base_offset=1)
    whole = bytes(first + second)
    for cut in range(len(first), len(whole)):
        assert [position for position, _ in iter_headers(whole[:cut])] == [0]
    assert [(position, header.base_offset) for position, header in iter_headers(whole)] == [
        (0, 0),
        (len(first), 1),
    ]


def headers_or_error(headers: Callable[[], list[BatchHeader]]) -> list[BatchHeader] | str:
    try:
        return headers()
    except CorruptRecordError as error:
        return str(error)


@given(
    st.lists(st.binary(max_size=20), max_size=4),
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 255)), max_size=2),
    st.integers(0, 80),
)
def test_many_batches_are_checked_like_single_ones(
    values: list[bytes], changes: list[tuple[int, int]], missing_bytes: int
) -> None:
    data = bytearray().join(
        build_batch([Record(0, 1_000, None, value)], base_offset=offset)
        for offset, value in enumerate(values)
    )
    for position, change in changes:
        if data:
            data[position % len(data)] ^= change
    data = data[: max(0, len(data) - missing_bytes)]
    one_by_one = headers_or_error(lambda: [check_batch(data, at) for at, _ in iter_headers(data)])
    assert headers_or_error(lambda: checked_headers(data)) == one_by_one


def test_iterating_over_bytes_that_are_no_batch_reports_corruption() -> None:
    with pytest.raises(CorruptRecordError, match="length 0"):
        list(iter_headers(one_record() + bytes(100)))
    with pytest.raises(CorruptRecordError, match="magic 1"):
        list(iter_headers(patched(">b", 16, 1)))


def test_a_header_needs_61_bytes() -> None:
    with pytest.raises(CorruptRecordError):
        parse_header(one_record(), 20)
    with pytest.raises(CorruptRecordError):
        parse_header(one_record(), -1)


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_sequences_wrap_to_zero(sequence: int, increment: int) -> None:
    later = next_sequence(sequence, increment)
    assert 0 <= later < 2**31
    assert (later - sequence - increment) % 2**31 == 0


def test_the_sequence_after_the_largest_is_zero() -> None:
    assert next_sequence(2**31 - 1, 1) == 0
    batch = build_batch([Record(0, 0, None, b"")] * 3, producer_id=1, base_sequence=2**31 - 2)
    assert parse_header(batch).last_sequence == 0


def test_the_error_classes_carry_kafkas_codes() -> None:
    assert InvalidRecordError("x").code is ErrorCode.invalid_record
    assert CorruptRecordError("x").code is ErrorCode.corrupt_message


@pytest.mark.parametrize("claimed", [1, 5])
def test_a_wrong_record_count_is_detected_when_the_batch_is_opened(claimed: int) -> None:
    """The broker does not detect this error, because it does not open batches (docs/decisions/0014). It
    assigns as many offsets as the header specifies."""
    batch = bytearray(build_batch([Record(0, 1_000, None, b"value")] * 3))
    struct.pack_into(">i", batch, 23, claimed - 1)
    struct.pack_into(">i", batch, 57, claimed)
    (header,) = validate_produce(resealed(batch), max_batch_bytes=MIB)
    assert header.last_offset_delta == claimed - 1
    with pytest.raises(InvalidRecordError):
        read_records(batch)
