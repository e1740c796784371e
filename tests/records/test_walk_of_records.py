"""One pass checks all records of an opened batch. It has the same result as reading each record, but costs
less."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bombs import TINY_RECORD
from moldau.records import InvalidRecordError, Record, build_batch, parse_header
from moldau.records.batch import TIMESTAMP_TYPE_BIT
from moldau.records.builder import encode_record
from moldau.records.record import iter_opened
from moldau.records.walk import FOUND_MAX, RecordWalk, TimestampBounds

BASE_MS = 1_000
BOUNDS = TimestampBounds(900, 1_100)
HEADER = parse_header(build_batch([Record(0, BASE_MS, b"k", b"v")]))

SHAPES = st.builds(
    encode_record,
    st.just(0),
    st.integers(-300, 300) | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.binary(max_size=3),
    st.none() | st.binary(max_size=70),
    st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(tuple),
)


def walked(header, data, step=7, bounds=None, renumbers=False):
    walk = RecordWalk(header, data, bounds, renumbers=renumbers)
    while walk.advance(step):
        pass
    return walk


def read(header, data):
    """The result of reading record by record. If a record cannot be read, it is the class of the error."""
    try:
        return list(iter_opened(header, data))
    except InvalidRecordError as error:
        return type(error)


@st.composite
def rows(draw):
    """Records in one to five groups. In some groups all records have equal sizes. In some groups all records
    have the wrong offset 5."""
    out = bytearray()
    count = 0
    for _ in range(draw(st.integers(1, 5))):
        length = draw(st.sampled_from([1, 2, 7, 9, 40, 70, 200]))
        key = draw(st.none() | st.binary(max_size=3))
        size = draw(st.sampled_from([None, 0, 1, 60, 70]))
        spread = draw(st.sampled_from([0, 1, 63, 300]))
        right = draw(st.booleans())
        for place in range(length):
            number = count if right else 5
            value = None if size is None else bytes([place % 256]) * size
            out += encode_record(number, place % (spread + 1), key, value)
            count += 1
    return bytes(out), count


@given(
    rows(),
    st.integers(1, 100),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=2),
    st.booleans(),
)
@settings(max_examples=400)
def test_a_walk_has_the_same_result_as_reading_each_record(made, step, damages, stamped):
    data, count = made
    damaged = bytearray(data)
    for at, byte in damages:
        damaged[at % len(damaged)] = byte
    compare(bytes(damaged), count, step, stamped)


@given(st.lists(SHAPES, min_size=1, max_size=20), st.integers(1, 30))
def test_a_walk_reads_any_record(records, step):
    compare(b"".join(records), len(records), step, stamped=False)


def compare(data, count, step, stamped):
    header = HEADER._replace(
        records_count=count,
        last_offset_delta=count - 1,
        attributes=TIMESTAMP_TYPE_BIT if stamped else 0,
        max_timestamp=1_050,
    )
    expected = read(header, data)
    if isinstance(expected, type):
        with pytest.raises(expected):
            walked(header, data, step, BOUNDS, renumbers=True)
        return
    walk = walked(header, data, step, BOUNDS, renumbers=True)
    assert walk.max_timestamp == max([-1, *(record.timestamp for record in expected)])
    assert walk.keyless == [n for n, record in enumerate(expected) if record.key is None][:FOUND_MAX]
    if not stamped:
        outside = [
            (n, record.timestamp) for n, record in enumerate(expected) if not BOUNDS.has(record.timestamp)
        ]
        assert walk.misdated == outside[:FOUND_MAX]
    renumbered = read(header, bytes(walk.payload))
    assert renumbered == [record._replace(offset=n) for n, record in enumerate(expected)]
    if renumbered == expected:
        assert walk.payload is data


@pytest.mark.parametrize("shape", ["alike", "numbered rightly", "of two shapes"])
def test_a_walk_makes_few_calls_for_records_of_equal_size(shape):
    """There are twenty thousand records. Reading them one by one would need several calls for each record."""
    count = 20_000
    if shape == "alike":
        data = TINY_RECORD * count
    elif shape == "numbered rightly":
        data = b"".join(encode_record(number, 0, b"k", b"v") for number in range(count))
    else:
        half = count // 2
        data = TINY_RECORD * half + encode_record(0, 0, b"key", b"value") * half
    header = HEADER._replace(records_count=count, last_offset_delta=count - 1)
    walk = RecordWalk(header, data, renumbers=True)
    calls = 0

    def counted(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        while walk.advance(count):
            pass
    finally:
        sys.setprofile(None)
    assert calls < count // 5
    assert [record.offset for record in iter_opened(header, bytes(walk.payload))] == list(range(count))
