"""Decoding records to Arrow has the same result as reading them one by one."""

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")

from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.pipeline.reading.decoding import SCHEMA, decode
from moldau.pipeline.reading.planning import OffsetRange
from moldau.records.batch import TimestampType, parse_header, set_log_append_time
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.control import build_end_transaction_marker
from moldau.records.errors import CorruptRecordError, InvalidRecordError
from moldau.records.record import Record, read_records
from moldau.runtime.errors import KafkaError

EVERYTHING = OffsetRange(3, 0, 2**63 - 1)
field = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=4)


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    """Records whose offsets have gaps, as after compaction."""
    steps = draw(st.lists(st.integers(1, 200), max_size=30))
    offset = draw(st.integers(0, 2**40))
    found = []
    for step in steps:
        timestamp = draw(st.integers(-1, 2**42))
        found.append(Record(offset, timestamp, draw(field), draw(field), tuple(draw(headers))))
        offset += step
    return found


def batch_of(records: Sequence[Record], codec: Compression = Compression.NONE) -> bytearray:
    return bytearray(build_batch(records, base_offset=records[0].offset, compression=codec))


def expected(batches: Sequence[bytes | bytearray], wanted: OffsetRange = EVERYTHING) -> list[dict[str, Any]]:
    rows = []
    for batch in batches:
        kind = parse_header(batch).timestamp_type
        for record in read_records(batch):
            if wanted.start <= record.offset < wanted.end:
                rows.append(
                    {
                        "key": record.key,
                        "value": record.value,
                        "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
                        "partition": wanted.partition,
                        "offset": record.offset,
                        "timestamp": record.timestamp * 1000,
                        "timestampType": int(kind),
                    }
                )
    return rows


def decoded(
    batches: Sequence[bytes | bytearray], wanted: OffsetRange = EVERYTHING, **options: int
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for table in decode(batches, wanted, **options):
        assert table.schema == SCHEMA
        table.validate(full=True)
        at = table.schema.get_field_index("timestamp")
        rows += table.set_column(at, "timestamp", table["timestamp"].cast("int64")).to_pylist()
    return rows


@settings(deadline=None)
@given(st.lists(record_lists().filter(bool), max_size=5), st.sampled_from(Compression))
def test_decoding_has_the_same_result_as_a_walk_through_the_records(
    lists: list[list[Record]], codec: Compression
) -> None:
    batches = [batch_of(records, codec) for records in lists]
    assert decoded(batches) == expected(batches)
    assert decoded(batches, chunk_bytes=1) == expected(batches)


@settings(deadline=None)
@given(record_lists().filter(bool), st.data())
def test_a_range_may_begin_and_end_inside_a_batch(records: list[Record], data: st.DataObject) -> None:
    bounds = st.integers(records[0].offset - 2, records[-1].offset + 2)
    start, end = sorted((data.draw(bounds), data.draw(bounds)))
    wanted = OffsetRange(0, start, end)
    assert decoded([batch_of(records)], wanted) == expected([batch_of(records)], wanted)


def outcome(batch: bytearray) -> list[dict[str, Any]] | None:
    try:
        return expected([batch])
    except InvalidRecordError:
        return None


@settings(deadline=None, max_examples=300)
@given(record_lists().filter(bool), st.data())
def test_damage_that_a_checksum_hides_is_refused_as_by_the_walk(
    records: list[Record], data: st.DataObject
) -> None:
    batch = batch_of(records)
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(61, len(batch) - 1))] = data.draw(st.integers(0, 255))
    # This function also computes the checksum again. So the checksum does not show the damage, and the
    # decoder itself must find it.
    set_log_append_time(batch, 0, 1_000)
    wanted = outcome(batch)
    try:
        found: list[dict[str, Any]] | None = decoded([batch])
    except InvalidRecordError:
        found = None
    if found is not None and wanted is not None:
        # If a header name is not UTF-8, one result has replacement characters and the other has escapes.
        found, wanted = [[{**row, "headers": None} for row in rows] for rows in (found, wanted)]
    assert found == wanted


def test_log_append_time_holds_for_every_record() -> None:
    batch = batch_of([Record(5, 100, b"k", b"v"), Record(6, 200, None, None)])
    set_log_append_time(batch, 0, 9_000)
    rows = decoded([batch])
    assert [row["timestamp"] for row in rows] == [9_000_000, 9_000_000]
    assert [row["timestampType"] for row in rows] == [TimestampType.LOG_APPEND_TIME] * 2


def test_control_batches_hold_no_records_of_the_topic() -> None:
    marker = build_end_transaction_marker(
        7, 0, committed=True, coordinator_epoch=0, timestamp=1, base_offset=1
    )
    batches = [batch_of([Record(0, 1, None, b"a")]), marker, batch_of([Record(2, 1, None, b"b")])]
    assert [row["offset"] for row in decoded(batches)] == [0, 2]


def test_a_wrong_checksum_is_refused() -> None:
    batch = batch_of([Record(0, 1, b"key", b"value")])
    batch[-3] ^= 1
    with pytest.raises((CorruptRecordError, KafkaError)):
        list(decode([batch], EVERYTHING))


def test_a_timestamp_that_no_table_can_hold_is_named() -> None:
    batch = batch_of([Record(8, 2**62, None, b"")])
    with pytest.raises(InvalidRecordError, match="offset 8 has timestamp"):
        list(decode([batch], EVERYTHING))


def test_very_many_headers_and_names_that_are_not_text() -> None:
    many = tuple((f"h{number}", None if number % 3 else b"x") for number in range(500))
    records = [Record(0, 1, None, b"", many), Record(1, 1, None, b"", (("ok", b"1"),))]
    assert decoded([batch_of(records)]) == expected([batch_of(records)])
    strange = batch_of([Record(0, 1, None, b"", (("\udcff", b"1"),))])
    assert decoded([strange])[0]["headers"] == [{"key": "\N{REPLACEMENT CHARACTER}", "value": b"1"}]


def test_a_hundred_thousand_records() -> None:
    records = [Record(offset, offset, b"key-%07d" % offset, b"v" * 100) for offset in range(10_000)]
    assert sum(table.num_rows for table in decode([batch_of(records)] * 10, EVERYTHING)) == 100_000
