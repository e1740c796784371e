"""The records of ``__consumer_offsets``: encoding results in Kafka's bytes, and decoding returns
the values."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.coordinators.groups.classic.group import subscribed_topics
from moldau.coordinators.groups.codec import ConsumerOffsetsCodec
from moldau.coordinators.groups.records import (
    CommittedOffset,
    ConsumerOffsetsRecord,
    GroupRecord,
    OffsetRecord,
    StoredGroup,
    StoredMember,
)
from moldau.coordinators.partitioning import coordinator_partition, java_string_hash
from moldau.coordinators.pending import KeyValue, batch_size_bytes
from moldau.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from moldau.protocol.records.groups import encode_subscription

CODEC = ConsumerOffsetsCodec()
int32s, int64s = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(codec="utf-8"), max_size=20)
plain_offsets = st.builds(
    CommittedOffset,
    int64s,
    int32s,
    names,
    int64s,
    st.just(-1),
    st.none() | st.uuids().filter(lambda each: each.int),
)
expiring_offsets = st.builds(
    CommittedOffset, int64s, st.just(-1), names, int64s, st.integers(0, 2**63 - 1), st.none()
)
members = st.builds(
    StoredMember,
    names,
    st.none() | names,
    names,
    names,
    int32s,
    int32s,
    st.binary(max_size=30),
    st.binary(max_size=30),
)
groups = st.builds(
    StoredGroup,
    names,
    int32s,
    st.none() | names,
    st.none() | names,
    int64s,
    st.lists(members, max_size=4).map(tuple),
)
records = st.one_of(
    st.builds(OffsetRecord, names, names, int32s, st.none() | plain_offsets | expiring_offsets),
    st.builds(GroupRecord, names, st.none() | groups),
)


@given(records)
def test_written_records_are_read_again(record: ConsumerOffsetsRecord) -> None:
    assert CODEC.decode(*CODEC.encode(record)) == record


@given(names, groups)
def test_the_size_of_a_group_in_the_log_is_known_before_the_write(name: str, group: StoredGroup) -> None:
    """The log must be able to append every record that the shard accepts. If an append fails, the shard is
    lost."""
    written = batch_size_bytes([KeyValue(*CODEC.encode(GroupRecord(name, group)))])
    assert written <= group.batch_size_bytes(name) <= written + 2


def test_an_offset_in_kafkas_bytes() -> None:
    record = OffsetRecord("g", "t", 3, CommittedOffset(7, 2, "m", 1000))
    key, value = CODEC.encode(record)
    assert key == bytes.fromhex("0001 0001 67 0001 74 00000003")
    assert value == bytes.fromhex("0003 0000000000000007 00000002 0001 6d 00000000000003e8")


def test_an_expiring_offset_is_written_in_the_version_that_has_room_for_it() -> None:
    _, value = CODEC.encode(OffsetRecord("g", "t", 3, CommittedOffset(7, 2, "", 1, 9)))
    assert value == bytes.fromhex("0001 0000000000000007 0000 0000000000000001 0000000000000009")


def test_an_offset_with_a_topic_id_carries_it_in_a_tagged_field() -> None:
    topic_id = UUID(int=5)
    _, value = CODEC.encode(OffsetRecord("g", "t", 3, CommittedOffset(7, 2, "", 1, topic_id=topic_id)))
    assert value is not None
    assert value.startswith(b"\x00\x04")
    assert value.endswith(b"\x01\x00\x10" + topic_id.bytes)


def test_a_group_in_kafkas_bytes() -> None:
    stored = StoredGroup(
        "consumer", 4, "range", "m", 5, (StoredMember("m", None, "c", "/h", 6, 7, b"s", b"a"),)
    )
    key, value = CODEC.encode(GroupRecord("g", stored))
    assert key == bytes.fromhex("0002 0001 67")
    assert value == (
        bytes.fromhex("0003 0008")
        + b"consumer"
        + bytes.fromhex("00000004 0005")
        + b"range"
        + bytes.fromhex("0001 6d 0000000000000005 00000001 0001 6d ffff 0001 63 0002 2f68")
        + bytes.fromhex("00000006 00000007 00000001 73 00000001 61")
    )


@pytest.mark.parametrize("key", [bytes.fromhex("0003 0001 67"), bytes.fromhex("7fff 01")])
def test_records_of_other_kinds_are_skipped(key: bytes) -> None:
    assert CODEC.decode(key, b"") is None


def test_an_old_offset_key_is_read() -> None:
    key, value = CODEC.encode(OffsetRecord("g", "t", 3, CommittedOffset(7, 2, "m", 1000)))
    assert key is not None
    assert CODEC.decode(b"\x00\x00" + key[2:], value) == CODEC.decode(key, value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", -(2**31)), ("😀", 1772899)],
)
def test_java_hashes(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected


def test_partition_of_a_group() -> None:
    assert coordinator_partition("polygenelubricants", 50) == 0
    assert coordinator_partition("hello", 50) == 22


@given(st.lists(st.sampled_from(["a", "b", "ünïcode"]), max_size=3), st.integers(0, 3))
def test_topics_are_read_from_every_version_of_a_subscription(topics: list[str], version: int) -> None:
    blob = encode_subscription(ConsumerProtocolSubscription(topics=topics), version)
    assert subscribed_topics([blob]) == frozenset(topics)


@given(st.binary(max_size=20))
def test_invalid_subscriptions_are_unknown_topics_and_no_error(blob: bytes) -> None:
    subscribed_topics([blob])
