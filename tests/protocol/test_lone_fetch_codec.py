"""The reader and the packer for a fetch of one partition have the same results as the compiled codecs."""

import random
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio_twins import random_message

from moldau.protocol.compiler.decoding import decode_leading
from moldau.protocol.compiler.encoding import encoder
from moldau.protocol.fast_paths.lone_fetch import FIRST_LONE_VERSION, lone_packer, lone_reader
from moldau.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)

TOPIC_ID = UUID("01020304-0506-0708-090a-0b0c0d0e0f10")
VERSIONS = range(FIRST_LONE_VERSION, 19)
INT8, INT32, INT64 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 32, 64))


def raw_topic(version: int, name: str) -> bytes:
    return TOPIC_ID.bytes if version >= 13 else name.encode()


def named(version: int, name: str) -> dict[str, Any]:
    return {"topic_id": TOPIC_ID} if version >= 13 else {"topic": name}


def request_of(version: int, name: str, partition: FetchPartition, **fields: Any) -> FetchRequest:
    return FetchRequest(**fields, topics=[FetchTopic(**named(version, name), partitions=[partition])])


def partition_of(
    index: int, leader_epoch: int, offset: int, last_epoch: int, max_bytes: int
) -> FetchPartition:
    return FetchPartition(
        partition=index,
        current_leader_epoch=leader_epoch,
        fetch_offset=offset,
        last_fetched_epoch=last_epoch,
        partition_max_bytes=max_bytes,
    )


def encoded(version: int, request: FetchRequest) -> bytes:
    return b"".join(encoder(FetchRequest, version)(request))


@pytest.mark.parametrize("version", VERSIONS)
@given(
    name=st.text(max_size=31),
    numbers=st.tuples(*[INT32] * 8),
    isolation=INT8,
    offset=INT64,
)
@settings(max_examples=25, deadline=None, database=None)
def test_a_request_of_a_consumer_for_one_partition(
    version: int, name: str, numbers: tuple[int, ...], isolation: int, offset: int
) -> None:
    max_wait_ms, min_bytes, max_bytes, session_id, epoch, index, leader_epoch, limit = numbers
    last_epoch = 3 if version >= 12 else -1
    partition = partition_of(index, leader_epoch, offset, last_epoch, limit)
    request = request_of(
        version,
        name,
        partition,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=session_id,
        session_epoch=epoch,
    )
    assert lone_reader(version)(memoryview(encoded(version, request))) == (
        *(max_wait_ms, min_bytes, max_bytes, isolation, session_id, epoch, raw_topic(version, name)),
        *(index, leader_epoch, offset, last_epoch, limit),
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_names_of_every_size(version: int) -> None:
    for name in ("", "t", "x" * 126, "y" * 127, "z" * 249, "žluťoučký" * 7, "ž" * 128):
        body = encoded(version, request_of(version, name, FetchPartition()))
        lone = lone_reader(version)(memoryview(body))
        if version >= 13 or len(name.encode()) < 127:
            assert lone is not None
            assert lone[6] == raw_topic(version, name)
        else:
            assert lone is None


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_of_another_form_are_left_to_the_compiled_decoder(version: int) -> None:
    partition = FetchPartition()
    lone = request_of(version, "t", partition)
    (topic,) = lone.topics
    others = [
        replace(lone, topics=[]),
        replace(lone, topics=[topic, topic]),
        replace(lone, topics=[replace(topic, partitions=[])]),
        replace(lone, topics=[replace(topic, partitions=[partition, partition])]),
        replace(lone, topics=[replace(topic, partitions=[replace(partition, log_start_offset=0)])]),
        replace(lone, rack_id="a"),
        replace(lone, forgotten_topics_data=[ForgottenTopic(**named(version, "t"), partitions=[1])]),
    ]
    if version >= 15:
        others.append(replace(lone, replica_state=ReplicaState(replica_id=2, replica_epoch=1)))
    else:
        others.append(replace(lone, replica_id=2))
    if version >= 17:
        directory = replace(partition, replica_directory_id=TOPIC_ID)
        others.append(replace(lone, topics=[replace(topic, partitions=[directory])]))
    read = lone_reader(version)
    assert read(memoryview(encoded(version, lone))) is not None
    for other in others:
        assert read(memoryview(encoded(version, other))) is None
    body = encoded(version, lone)
    for size in range(len(body)):
        assert read(memoryview(body[:size])) is None
    assert read(memoryview(body + b"\0")) is None


@pytest.mark.parametrize("version", VERSIONS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None, database=None)
def test_an_accepted_request_is_what_the_compiled_decoder_reads(version: int, seed: int) -> None:
    rng = random.Random(seed)
    request: Any = random_message(rng, FetchRequest, version)
    if rng.random() < 0.8:
        request = request_of(version, "topic", FetchPartition(partition=rng.randrange(9)))
    damaged = bytearray(encoded(version, request))
    for _ in range(40):
        check_what_was_read(version, bytes(damaged))
        damaged[rng.randrange(len(damaged))] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])


def check_what_was_read(version: int, body: bytes) -> None:
    lone = lone_reader(version)(memoryview(body))
    if lone is None:
        return
    max_wait_ms, min_bytes, max_bytes, isolation, session_id, epoch, topic, index = lone[:8]
    leader_epoch, offset, last_epoch, limit = lone[8:]
    if version < 13 and topic.decode(errors="replace").encode() != topic:
        return  # A name that is not UTF-8 cannot be the name of a topic, so a lookup finds nothing.
    partition = partition_of(index, leader_epoch, offset, last_epoch, limit)
    name = {"topic_id": UUID(bytes=topic)} if version >= 13 else {"topic": topic.decode()}
    assert decode_leading(FetchRequest, version, body) == FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(**name, partitions=[partition])],
    )


@pytest.mark.parametrize("version", VERSIONS)
@given(
    name=st.text(max_size=31),
    session_id=INT32,
    index=INT32,
    offsets=st.tuples(INT64, INT64, INT64),
    has_aborted=st.booleans(),
    sizes=st.lists(st.sampled_from([1, 60, 126, 127, 5_000, 20_000]), max_size=3),
)
@settings(max_examples=25, deadline=None, database=None)
def test_a_response_with_one_partition(
    version: int,
    name: str,
    session_id: int,
    index: int,
    offsets: tuple[int, int, int],
    has_aborted: bool,
    sizes: list[int],
) -> None:
    records = [memoryview(bytes([size % 251]) * size) for size in sizes]
    high_watermark, last_stable_offset, log_start_offset = offsets
    row = PartitionData(
        partition_index=index,
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        log_start_offset=log_start_offset,
        aborted_transactions=[] if has_aborted else None,
        records=b"".join(records),
    )
    response = FetchResponse(
        session_id=session_id,
        responses=[FetchableTopicResponse(**named(version, name), partitions=[row])],
    )
    raw = raw_topic(version, name)
    packed = lone_packer(version)(session_id, raw, index, *offsets, has_aborted, records, sum(sizes))
    assert b"".join(packed) == b"".join(encoder(FetchResponse, version)(response))
    assert all(any(part is record for part in packed) for record in records)
