"""Requests with fields that their version does not allow, and other requests whose rows Kafka refuses one by
one."""

from collections.abc import Iterator
from typing import Any

import pytest
from wire import ask

from moldau.protocol.messages import create_topics as creation
from moldau.protocol.messages import fetch as fetching
from moldau.protocol.messages import list_offsets as listing
from moldau.protocol.messages import produce as producing
from moldau.records import Compression, Record, build_batch
from moldau.runtime import ErrorCode
from moldau.testing import Node

TOPIC = "old"
NONE, UNSUPPORTED = ErrorCode.none, ErrorCode.unsupported_version


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node() as running:
        topic = creation.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
        ask(running, creation.CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
        assert produced(running, Compression.NONE, 12) is NONE
        yield running


def produced(node: Node, codec: Compression, version: int) -> ErrorCode:
    batch = build_batch([Record(0, 1_000, b"k", b"v")], compression=codec)
    data = [producing.PartitionProduceData(index=0, records=batch)]
    topics = [producing.TopicProduceData(name=TOPIC, partition_data=data)]
    answer = ask(node, producing.ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=topics), version)
    code: ErrorCode = answer.responses[0].partition_responses[0].error_code
    return code


def listed(node: Node, *timestamps: int, version: int | None = None) -> list[Any]:
    rows = [listing.ListOffsetsPartition(partition_index=0, timestamp=one) for one in timestamps]
    topics = [listing.ListOffsetsTopic(name=TOPIC, partitions=rows)]
    request = listing.ListOffsetsRequest(replica_id=-1, topics=topics, timeout_ms=60_000)
    found: list[Any] = ask(node, request, version).topics[0].partitions
    return found


@pytest.mark.parametrize("version", [3, 6, 7, 9, 12])
def test_zstd_is_refused_before_version_seven(node: Node, version: int) -> None:
    refused = ErrorCode.unsupported_compression_type
    assert produced(node, Compression.ZSTD, version) is (refused if version < 7 else NONE)
    assert produced(node, Compression.LZ4, version) is NONE


@pytest.mark.parametrize(("timestamp", "since"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11)])
def test_special_timestamps_have_a_first_version(node: Node, timestamp: int, since: int) -> None:
    (before,) = listed(node, timestamp, version=since - 1)
    assert (before.error_code, before.offset) == (UNSUPPORTED, -1)
    for version in (since, 11):
        (row,) = listed(node, timestamp, version=version)
        assert row.error_code is NONE
        assert (row.offset == -1) is (timestamp in (-5, -6)), "nothing is in the remote tier"


def test_an_unknown_special_timestamp_is_refused(node: Node) -> None:
    assert [row.error_code for row in listed(node, -7)] == [UNSUPPORTED]


def test_a_partition_that_is_requested_twice_is_refused(node: Node) -> None:
    assert [row.error_code for row in listed(node, -1, -2)] == [ErrorCode.invalid_request] * 2


def test_an_epoch_that_the_log_has_never_seen(node: Node) -> None:
    def fetched(last_fetched_epoch: int) -> Any:
        row = fetching.FetchPartition(
            partition=0,
            fetch_offset=1,
            last_fetched_epoch=last_fetched_epoch,
            partition_max_bytes=1 << 20,
        )
        request = fetching.FetchRequest(
            max_wait_ms=0, min_bytes=0, topics=[fetching.FetchTopic(topic=TOPIC, partitions=[row])]
        )
        return ask(node, request, 12).responses[0].partitions[0]

    assert fetched(0).error_code is NONE
    assert fetched(99).error_code is ErrorCode.offset_out_of_range
