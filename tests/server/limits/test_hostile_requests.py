"""Requests that have a valid form but make no sense. They get Kafka's error codes, and cause no line in the
error log."""

import logging
import time
from uuid import UUID

from wire_client import WireClient

from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.runtime.errors import ErrorCode

FIND_COORDINATOR, METADATA, OFFSET_COMMIT = (10, 2), (3, 11), (8, 4)


def test_topic_id_in_a_version_that_cannot_answer_by_id(moldau_node, caplog):
    topics = [
        MetadataRequestTopic(topic_id=UUID(int=7), name=None),
        MetadataRequestTopic(topic_id=UUID(int=7), name="named"),
        MetadataRequestTopic(name=None),
    ]
    with WireClient(moldau_node.bootstrap_servers) as client:
        answer = client.call(METADATA, MetadataRequest(topics=topics))
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.invalid_request] * 3
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_an_offset_with_the_largest_retention_time_is_committed(moldau_node):
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        retention_time_ms=2**63 - 1,
        topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    with WireClient(moldau_node.bootstrap_servers) as client:
        client.create_topic("t")
        busy = (
            ErrorCode.coordinator_not_available,
            ErrorCode.coordinator_load_in_progress,
            ErrorCode.not_coordinator,
        )
        deadline = time.monotonic() + 60
        while client.call(FIND_COORDINATOR, FindCoordinatorRequest(key="g")).error_code in busy:
            assert time.monotonic() < deadline
        while (code := client.call(OFFSET_COMMIT, request).topics[0].partitions[0].error_code) in busy:
            assert time.monotonic() < deadline
        assert code is ErrorCode.none
