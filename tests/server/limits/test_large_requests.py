"""Requests with many rows are handled in slices. The responses to the slices together are the response to the
whole request."""

import asyncio
import re
import socket
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_client import METADATA_V12, WireClient

from moldau.cluster.controller.decided_apis import DECIDED_APIS
from moldau.coordinators.groups.handlers import FETCHED_OFFSETS
from moldau.network.context import ConnectionContext, RequestContext
from moldau.network.served import Served, served
from moldau.protocol.api import Scope
from moldau.protocol.codec import (
    decode_response,
    encode_request,
    encode_response,
    request_decoder,
    response_class,
)
from moldau.protocol.decoding_errors import ParsedSizeError
from moldau.protocol.messages import (
    delete_groups,
    describe_configs,
    describe_groups,
    describe_producers,
    describe_transactions,
    metadata,
    offset_fetch,
    write_txn_markers,
)
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from moldau.protocol.rows import Cut
from moldau.protocol.schema import parse_versions
from moldau.runtime.errors import ErrorCode
from moldau.runtime.workers import InlineWorkers
from moldau.server.handlers.records.transaction_markers import MARKERS
from moldau.server.requests.dispatch import Dispatcher
from moldau.server.requests.joined_answers import JoinedAnswer
from moldau.server.requests.large_requests import LargeRequests
from moldau.server.requests.slices import cut_of, slices
from moldau.testing import Node
from request_classes import request_class

LIST_OFFSETS, OFFSET_FETCH, METADATA = 2, 9, 3
DESCRIBE_GROUPS, DELETE_GROUPS, DESCRIBE_CONFIGS, DESCRIBE_PRODUCERS = 15, 42, 32, 61
DESCRIBE_TRANSACTIONS = 65


def answer(request):
    """A response in which the answer to each row depends only on this row."""
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=each.partition_index, offset=each.timestamp)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def joined(api, answers, cut):
    """The response to the whole request, joined from the responses to the slices."""
    api_key, version = api
    whole = JoinedAnswer(api_key, version, cut.answered)
    for each in answers:
        whole.add(each)
    return decode_response(api_key, version, b"".join(whole.encoded(whole.message)))


def sent(api, message):
    """The message as its receiver decodes it."""
    api_key, version = api
    return decode_response(api_key, version, b"".join(encode_response(api_key, version, message)))


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(2, 30), st.sampled_from([1, 5, 6, 11]))
def test_answers_to_slices_are_the_answer_to_the_whole(sizes, most, version):
    request = ListOffsetsRequest(
        topics=[
            ListOffsetsTopic(
                name=f"topic-{number}",
                partitions=[ListOffsetsPartition(partition_index=n, timestamp=n * 7) for n in range(size)],
            )
            for number, size in enumerate(sizes)
        ]
    )
    cut = Cut(("topics", "partitions"), ("topics", "partitions"), rows=most)
    parts = list(slices(request, cut))
    assert all(sum(1 + len(topic.partitions) for topic in part.topics) <= most for part in parts)
    if parts:
        api = (LIST_OFFSETS, version)
        assert joined(api, [answer(part) for part in parts], cut) == sent(api, answer(request))


@given(st.lists(st.lists(st.integers(0, 20), max_size=5), max_size=5), st.integers(3, 15))
def test_requests_with_three_levels_of_rows_are_cut(groups, most):
    request = offset_fetch.OffsetFetchRequest(
        groups=[
            offset_fetch.OffsetFetchRequestGroup(
                group_id=f"group-{number}",
                topics=[
                    offset_fetch.OffsetFetchRequestTopics(name=f"t{n}", partition_indexes=list(range(size)))
                    for n, size in enumerate(sizes)
                ],
            )
            for number, sizes in enumerate(groups)
        ]
    )
    cut = cut_of(FETCHED_OFFSETS, request)
    if cut is not None:
        answers = [answer_to_groups(part) for part in slices(request, cut._replace(rows=most))]
        api = (OFFSET_FETCH, 8)
        assert joined(api, answers, cut) == sent(api, answer_to_groups(request))


def answer_to_groups(request):
    return offset_fetch.OffsetFetchResponse(
        groups=[
            offset_fetch.OffsetFetchResponseGroup(
                group_id=group.group_id,
                topics=[
                    offset_fetch.OffsetFetchResponseTopics(
                        name=topic.name,
                        partitions=[
                            offset_fetch.OffsetFetchResponsePartitions(
                                partition_index=each, committed_offset=each, error_code=ErrorCode.none
                            )
                            for each in topic.partition_indexes
                        ],
                    )
                    for topic in group.topics
                ],
            )
            for group in request.groups
        ]
    )


@pytest.fixture(scope="module")
def node():
    with Node(diskless=True) as running:
        yield running


@pytest.fixture(scope="module")
def cuts(node):
    """By API key, the functions that cut large requests of this API into slices."""
    return {api_key: served(handler).cuts for api_key, handler in node._node._extensions.handlers.items()}


def test_every_sliced_api_has_an_answer_that_can_be_joined(cuts):
    assert sum(map(bool, cuts.values())) > 20
    for api_key, cuts_of_api in cuts.items():
        cls = response_class(api_key)
        versions = parse_versions(cls.VERSIONS)
        for cut in cuts_of_api:
            fields = cls.__dataclass_fields__[cut.answered[0]].metadata["wire"]
            for version in range(versions.min, versions.max + 1):
                if version in parse_versions(fields.versions):
                    api = (api_key, version)
                    assert joined(api, [cls(), cls()], cut) == sent(api, cls())


def test_markers_of_transactions_are_cut_by_their_partitions():
    topic = write_txn_markers.WritableTxnMarkerTopic(name="t", partition_indexes=list(range(1_000)))
    marker = write_txn_markers.WritableTxnMarker(producer_id=7, topics=[topic])
    request = write_txn_markers.WriteTxnMarkersRequest(markers=[marker, marker])
    cut = cut_of((MARKERS,), request)
    parts = list(slices(request, cut))
    sizes = [
        sum(len(topic.partition_indexes) for each in part.markers for topic in each.topics) for part in parts
    ]
    assert sum(sizes) == 2_000
    assert max(sizes) <= 128


def resource(number):
    return describe_configs.DescribeConfigsResource(resource_type=4, resource_name=str(number))


REPEATED = {
    "topics": (METADATA, metadata.MetadataRequest, lambda n: metadata.MetadataRequestTopic(name=f"t{n}")),
    "groups": (DESCRIBE_GROUPS, describe_groups.DescribeGroupsRequest, lambda n: f"g{n}"),
    "groups_names": (DELETE_GROUPS, delete_groups.DeleteGroupsRequest, lambda n: f"g{n}"),
    "transactional_ids": (
        DESCRIBE_TRANSACTIONS,
        describe_transactions.DescribeTransactionsRequest,
        lambda n: f"id{n}",
    ),
    "resources": (DESCRIBE_CONFIGS, describe_configs.DescribeConfigsRequest, resource),
}


@pytest.mark.parametrize("field", REPEATED)
def test_equal_rows_are_answered_once(cuts, field):
    """Equal rows get one answer, even if other rows are between them. Otherwise the response could be very
    large, because the answer to a row may be many times as long as the row."""
    api_key, cls, row = REPEATED[field]
    request = cls(**{field: [row(number) for number in (*range(40), *range(40)) for _ in range(300)]})
    parts = list(slices(request, cut_of(cuts[api_key], request)))
    assert [each for part in parts for each in getattr(part, field)] == [row(n) for n in range(40)]


def test_all_offsets_of_a_group_are_answered_once():
    groups = [offset_fetch.OffsetFetchRequestGroup(group_id="g", member_id=str(n)) for n in range(700)]
    whole = [replace(group, topics=None) for group in groups]
    request = offset_fetch.OffsetFetchRequest(groups=[*groups, *whole])
    (*rest, last) = [each for part in slices(request, FETCHED_OFFSETS[0]) for each in part.groups]
    assert rest == groups
    assert last == whole[0]


def test_producers_of_a_partition_are_answered_once(cuts):
    topics = [
        describe_producers.TopicRequest(name=f"t{number % 2}", partition_indexes=[number] * 300)
        for number in (*range(6), *range(6))
    ]
    request = describe_producers.DescribeProducersRequest(topics=topics)
    parts = list(slices(request, cuts[DESCRIBE_PRODUCERS][0]))
    asked = [
        (topic.name, index) for part in parts for topic in part.topics for index in topic.partition_indexes
    ]
    assert asked == [("t0", 0), ("t0", 2), ("t0", 4), ("t1", 1), ("t1", 3), ("t1", 5)]


def test_an_error_about_one_slice_is_the_answer():
    good = metadata.MetadataResponse(topics=[metadata.MetadataResponseTopic(name="t")])
    bad = metadata.MetadataResponse(error_code=ErrorCode.unknown_server_error)
    assert joined((METADATA, 13), [good, bad, good], Cut(("topics",), ("topics",))) == bad


def test_offset_fetch_is_cut_by_the_array_of_its_version():
    old = offset_fetch.OffsetFetchRequest(topics=[offset_fetch.OffsetFetchRequestTopic(name="t")])
    assert cut_of(FETCHED_OFFSETS, old).asked[0] == "topics"
    new = offset_fetch.OffsetFetchRequest(groups=[offset_fetch.OffsetFetchRequestGroup(group_id="g")])
    assert cut_of(FETCHED_OFFSETS, new).asked[0] == "groups"


def many_names(count):
    return metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=f"nothing-{number}") for number in range(count)],
        allow_auto_topic_creation=False,
    )


def test_ten_thousand_topics_are_answered_in_order_among_other_requests(node):
    with WireClient(node.bootstrap_servers) as client:
        sent = [client.send(METADATA_V12, many_names(count)) for count in (1, 10_000, 2, 3_000, 1)]
        for number, count in zip(sent, (1, 10_000, 2, 3_000, 1), strict=True):
            received, response = client.receive(METADATA_V12)
            assert received == number
            assert [topic.name for topic in response.topics] == [f"nothing-{n}" for n in range(count)]


@pytest.mark.parametrize("count", [25_000, 5_000_000])
def test_empty_names_by_the_million_close_their_connection_only(node, count):
    host, port = node.bootstrap_servers.rsplit(":", 1)
    header = struct.pack(">hhih", METADATA, 4, 1, -1)
    body = struct.pack(">i", count) + b"\0\0" * count + b"\0"
    with WireClient(node.bootstrap_servers) as bystander:
        assert len(bystander.call(METADATA_V12, many_names(1)).topics) == 1
        with socket.create_connection((host, int(port)), timeout=60) as attacker:
            attacker.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
            answered = attacker.recv(4)
        assert (answered == b"") is (count > 1_000_000)
        assert len(bystander.call(METADATA_V12, many_names(1)).topics) == 1


@pytest.mark.parametrize("count", [25_000, 150_000])
def test_distinct_names_and_their_answer_fit_the_allowance_or_are_refused(count):
    """An index is used to find equal names. The memory of this index counts in addition to the memory of the
    rows and of the response."""
    body = struct.pack(">i", count) + b"".join(b"\0\6%06d" % number for number in range(count))

    def handle(context, request):
        rows = [metadata.MetadataResponseTopic(name=row.name) for row in request.topics]
        return metadata.MetadataResponse(topics=rows)

    api = Served(handle, (Cut(("topics",), ("topics",), distinct=dict.fromkeys),))
    context = RequestContext(METADATA, 0, 1, None, ConnectionContext("c", "PLAINTEXT"))
    decode = request_decoder(METADATA, 0)

    async def call(body):
        return await LargeRequests(InlineWorkers()).answer(context, body, decode, api, lambda answer: answer)

    asyncio.run(call(struct.pack(">i", 1) + body[4:12]))  # the first call compiles the encoders
    tracemalloc.start()
    try:
        answered = asyncio.run(call(body))
        is_refused = False
    except ParsedSizeError:
        is_refused = True
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 16 * len(body) + (4 << 20)
    assert is_refused == (count == 150_000)
    assert is_refused or sum(map(len, answered)) > len(body)


class Control:
    """Counts the calls that a dispatcher makes on its connection."""

    def __init__(self):
        self.yields = 0

    def yield_turn(self):
        self.yields += 1


@pytest.mark.parametrize(("count", "yields"), [(1, 0), (300, 1)])
def test_a_request_of_many_rows_ends_the_turn_of_its_connection(count, yields):
    control = Control()
    connection = ConnectionContext("c", "PLAINTEXT", control=control)
    context = RequestContext(METADATA, 12, 1, None, connection)
    dispatch = Dispatcher({METADATA: lambda context, request: metadata.MetadataResponse()}, Scope.BROKER)
    body = b"".join(encode_request(METADATA, 12, many_names(count)))
    assert dispatch(context, memoryview(body))
    assert control.yields == yields


def test_the_page_for_operators_has_every_limit_of_a_parsed_request(node):
    """A table in ``docs/operations.md`` names the limit for the size of each parsed request."""
    limits = {}
    handlers = node._node._extensions.handlers
    found = {api_key: served(handler).parsed_bytes_max for api_key, handler in handlers.items()}
    found |= {api_key: decided.parsed_bytes_max for api_key, decided in DECIDED_APIS.items()}
    for api_key, limit in found.items():
        if limit is not None:
            name = request_class(api_key).__name__.removesuffix("Request")
            limits.setdefault(limit // 1024, set()).add(name)
    page = (Path(__file__).resolve().parents[3] / "docs" / "operations.md").read_text()
    begin = page.index("| limit of a parsed request |")
    table = page[begin : page.index("\n\n", begin)]
    rows = re.findall(r"^\| (\d+) (KiB|MiB) \| ([\w, ]+) \|$", table, re.MULTILINE)
    units = {"KiB": 1, "MiB": 1024}
    described = {int(size) * units[unit]: set(names.split(", ")) for size, unit, names in rows}
    assert described == limits
