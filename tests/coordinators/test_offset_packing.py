"""Committed offsets are packed for the memory, and unpacked when they are read."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from moldau.coordinators.groups.offsets.packing import is_later, pack, times_ms, unpack
from moldau.coordinators.groups.records import CommittedOffset

INT64 = st.integers(-(2**63), 2**63 - 1)
RECORD_OFFSETS = st.integers(0, 2**63 - 1)
COMMITS = st.builds(
    CommittedOffset,
    INT64,
    st.integers(-(2**31), 2**31 - 1),
    st.just("") | st.text(max_size=30),
    INT64,
    st.just(-1) | INT64,
    st.none() | st.uuids().filter(lambda topic_id: topic_id != UUID(int=0)),
)


@given(COMMITS, RECORD_OFFSETS)
def test_a_packed_offset_is_unpacked_unchanged(value: CommittedOffset, record_offset: int) -> None:
    packed = pack(value, record_offset)
    assert unpack(packed) == value
    assert times_ms(packed) == (value.commit_timestamp_ms, value.expire_timestamp_ms)


@given(COMMITS, COMMITS, RECORD_OFFSETS, RECORD_OFFSETS)
def test_the_offset_of_the_later_record_is_later(
    value: CommittedOffset, other: CommittedOffset, record_offset: int, other_offset: int
) -> None:
    assert is_later(pack(value, record_offset), pack(other, other_offset)) == (record_offset > other_offset)


def test_offsets_without_metadata_take_few_bytes() -> None:
    assert len(pack(CommittedOffset(7, -1, "", 1), 0)) == 28
    assert len(pack(CommittedOffset(7, -1, "", 1, topic_id=UUID(int=5)), 0)) == 44
