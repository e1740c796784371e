"""The hand-written codecs have the same results as the compiled codecs, and never copy records."""

import random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio_twins import kio_bytes, random_message, to_kio

from moldau.protocol import codec
from moldau.protocol.compiler.decoding import decode_leading
from moldau.protocol.compiler.encoding import encoder
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.fast_paths import produce
from moldau.protocol.generate import kio_classes
from moldau.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from moldau.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

TOPIC_ID = UUID("01020304-0506-0708-090a-0b0c0d0e0f10")
SIZES = [0, 1, 60, 126, 127, 128, 1000, 16_382, 16_383, 16_384, 70_000, 2_097_150, 2_097_152]


def one_partition(
    version: int, name: str, records: bytes | None, transactional_id: str | None
) -> ProduceRequest:
    topic = {"topic_id": TOPIC_ID} if version >= 13 else {"name": name}
    partition = PartitionProduceData(index=7, records=records)
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(**topic, partition_data=[partition])],
    )


LONE_VERSIONS = range(produce.FIRST_LONE_VERSION, 14)


def raw_topic(version: int, name: str) -> bytes:
    return TOPIC_ID.bytes if version >= 13 else name.encode()


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("size", SIZES)
def test_a_produce_request_of_one_partition(version: int, size: int) -> None:
    for name in ("t", "", "x" * 126, "y" * 127, "z" * 249, "žluťoučký"):
        request = one_partition(version, name, bytes([size % 251]) * size, None)
        body = memoryview(b"".join(encoder(ProduceRequest, version)(request)))
        decoded = codec.decode_request(0, version, body)
        assert decoded == request
        records = decoded.topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview)
        assert records.obj is body.obj
        if version in LONE_VERSIONS:
            lone = produce.lone_reader(version)(body)
            if 127 <= size < 2_097_151 and (version >= 13 or len(name.encode()) < 127):
                assert lone == (None, -1, 30_000, raw_topic(version, name), 7, records)
                assert lone[5].obj is body.obj
            else:
                assert lone is None
        if size > 70_000:
            break


@pytest.mark.parametrize("version", range(3, 14))
@given(seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None, database=None)
def test_produce_requests_of_every_shape(version: int, seed: int) -> None:
    rng = random.Random(seed)
    request: Any = random_message(rng, ProduceRequest, version)
    if rng.random() < 0.5:
        transactional_id = rng.choice([None, "", "tx", "größe", "x" * 126, "x" * 127])
        request = one_partition(version, "topic", rng.randbytes(200), transactional_id)
    body = b"".join(encoder(ProduceRequest, version)(request))
    assert body == kio_bytes(to_kio(request, kio_classes("produce", "request")[version]))
    assert codec.decode_request(0, version, body) == request
    damaged = bytearray(body)
    for _ in range(30):
        if version in LONE_VERSIONS:
            assert_lone_is_what_it_seems(version, bytes(damaged))
        damaged[rng.randrange(len(damaged))] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        with pytest.raises(ProtocolError):
            codec.decode_request(0, version, body[: rng.randrange(len(body))])


def assert_lone_is_what_it_seems(version: int, body: bytes) -> None:
    """The reader for a single partition may reject any request. If it accepts a request, the result is the
    result of the compiled decoder."""
    lone = produce.lone_reader(version)(memoryview(body))
    if lone is None:
        return
    name, acks, timeout_ms, topic, index, records = lone
    if version < 13 and topic.decode(errors="replace").encode() != topic:
        return  # A name that is not UTF-8 cannot be the name of a topic, so a lookup finds nothing.
    request = decode_leading(ProduceRequest, version, body)
    assert request.transactional_id == name
    assert (request.acks, request.timeout_ms) == (acks, timeout_ms)
    ((one,),) = [topic.partition_data for topic in request.topic_data]
    assert topic == (
        request.topic_data[0].topic_id.bytes if version >= 13 else request.topic_data[0].name.encode()
    )
    assert (one.index, one.records) == (index, records)


@pytest.mark.parametrize("version", LONE_VERSIONS)
@given(
    name=st.text(min_size=1, max_size=31),
    index=st.integers(0, 2**31 - 1),
    offsets=st.tuples(*[st.integers(-1, 2**63 - 1)] * 3),
)
@settings(max_examples=25, deadline=None, database=None)
def test_the_answer_to_a_lone_produce_request(
    version: int, name: str, index: int, offsets: tuple[int, int, int]
) -> None:
    base_offset, time_ms, start = offsets
    topic: dict[str, Any] = {"topic_id": TOPIC_ID} if version >= 13 else {"name": name}
    row = PartitionProduceResponse(
        index=index, base_offset=base_offset, log_append_time_ms=time_ms, log_start_offset=start
    )
    response = ProduceResponse(responses=[TopicProduceResponse(**topic, partition_responses=[row])])
    packed = produce.lone_packer(version)(raw_topic(version, name), index, *offsets)
    assert packed == b"".join(encoder(ProduceResponse, version)(response))


def fetched(version: int, **fields: Any) -> FetchResponse:
    topic = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": "orders"}
    partition = PartitionData(
        partition_index=1, high_watermark=9, last_stable_offset=9, log_start_offset=1, **fields
    )
    return FetchResponse(
        throttle_time_ms=1000, responses=[FetchableTopicResponse(**topic, partitions=[partition])]
    )


@pytest.mark.parametrize("version", range(4, 19))
def test_fetched_records_pass_through(version: int) -> None:
    views = [memoryview(b"a" * 100), memoryview(b"b" * 200)]
    whole = b"".join(encoder(FetchResponse, version)(fetched(version, records=b"a" * 100 + b"b" * 200)))
    for records in (views, tuple(views), b"a" * 100 + b"b" * 200, [b"a" * 100 + b"b" * 200]):
        buffers = codec.encode_response(1, version, fetched(version, records=records))
        assert b"".join(buffers) == whole
        if records is views:
            assert all(any(buffer is view for buffer in buffers) for view in views)
    for aborted in (None, [], [AbortedTransaction(producer_id=1, first_offset=2)]):
        response = fetched(version, records=views, aborted_transactions=aborted)
        assert_same_fetch(version, response)
    assert_same_fetch(version, fetched(version, current_leader=LeaderIdAndEpoch(leader_id=4, leader_epoch=2)))
    for records in (None, b"", [], [b""]):
        assert_same_fetch(version, fetched(version, records=records))
    topics = [FetchableTopicResponse(partitions=[PartitionData(partition_index=i) for i in range(130)])]
    assert_same_fetch(version, FetchResponse(responses=topics))
    assert_same_fetch(version, FetchResponse(responses=topics * 130))
    assert_same_fetch(version, FetchResponse())


@pytest.mark.parametrize("version", range(4, 19))
@given(seed=st.integers(0, 2**32))
@settings(max_examples=15, deadline=None, database=None)
def test_fetch_responses_of_every_shape(version: int, seed: int) -> None:
    assert_same_fetch(version, random_message(random.Random(seed), FetchResponse, version))


def assert_same_fetch(version: int, response: FetchResponse) -> None:
    compiled = b"".join(encoder(FetchResponse, version)(response))
    assert b"".join(codec.encode_response(1, version, response)) == compiled


@pytest.mark.parametrize("version", range(4, 19))
def test_a_repeated_fetch_request_is_not_decoded_again(version: int) -> None:
    requests = [random_message(random.Random(seed), FetchRequest, version) for seed in range(20)]
    bodies = [b"".join(encoder(FetchRequest, version)(request)) for request in requests]
    shared = bytearray(max(map(len, bodies)))
    for _ in range(2):
        for request, body in zip(requests, bodies, strict=True):
            # The bytes are in memory that the next request overwrites, as in a connection.
            shared[: len(body)] = body
            assert codec.decode_request(1, version, memoryview(shared)[: len(body)]) == request
    again = [codec.decode_request(1, version, body) for body in bodies]
    for body, decoded in zip(bodies, again, strict=True):
        if len(body) <= 512:
            assert codec.decode_request(1, version, body) is decoded
        with pytest.raises(ProtocolError):
            codec.decode_request(1, version, body[:10])


def test_golden_produce_v9() -> None:
    request = ProduceRequest(
        acks=1,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=b"abc")])
        ],
    )
    golden = "000001000003e8020274020000000004616263000000"
    assert b"".join(codec.encode_request(0, 9, request)).hex() == golden
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(name="t", partition_responses=[PartitionProduceResponse(base_offset=5)])
        ]
    )
    golden = "020274020000000000000000000000000005" + "ff" * 16 + "010000000000000000"
    assert b"".join(codec.encode_response(0, 9, response)).hex() == golden
