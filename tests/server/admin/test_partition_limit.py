"""A broker accepts at most ``max.broker.partitions`` partitions."""

import pytest
from wire_client import CREATE_TOPICS, METADATA_V12, WireClient

from moldau.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from moldau.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime.errors import ErrorCode
from moldau.testing import Node

CREATE_PARTITIONS = (37, 3)
REFUSED = ErrorCode.policy_violation


@pytest.fixture
def client(tmp_path):
    properties = {"max.broker.partitions": "5", "num.partitions": "3"}
    with (
        Node(data=str(tmp_path), properties=properties) as node,
        WireClient(node.bootstrap_servers) as client,
    ):
        assert client.create_topic("held", partitions=3).error_code is ErrorCode.none
        yield client


def create(client, validate_only=False, **topic):
    row = CreatableTopic(name="more", **topic)
    request = CreateTopicsRequest(topics=[row], timeout_ms=60_000, validate_only=validate_only)
    return client.call(CREATE_TOPICS, request).topics[0]


def grow(client, count, validate_only=False):
    row = CreatePartitionsTopic(name="held", count=count, assignments=None)
    request = CreatePartitionsRequest(topics=[row], timeout_ms=60_000, validate_only=validate_only)
    return client.call(CREATE_PARTITIONS, request).results[0]


def ask(client, name):
    rows = [MetadataRequestTopic(name=name)]
    request = MetadataRequest(topics=rows, allow_auto_topic_creation=True)
    return client.call(METADATA_V12, request).topics[0]


@pytest.mark.parametrize("validate_only", [False, True])
def test_create_topics_is_refused(client, validate_only):
    refused = create(client, validate_only, num_partitions=3, replication_factor=1)
    assert refused.error_code is REFUSED
    assert refused.error_message == (
        "Broker 1 holds 3 partitions and may hold 5 (max.broker.partitions); 3 more do not fit."
    )
    rows = [CreatableReplicaAssignment(partition_index=index, broker_ids=[1]) for index in range(3)]
    manual = create(client, validate_only, num_partitions=-1, replication_factor=-1, assignments=rows)
    assert (manual.error_code, manual.error_message) == (REFUSED, refused.error_message)
    assert create(client, num_partitions=2, replication_factor=1).error_code is ErrorCode.none


@pytest.mark.parametrize("validate_only", [False, True])
def test_create_partitions_is_refused(client, validate_only):
    refused = grow(client, 6, validate_only)
    assert refused.error_code is REFUSED
    assert "max.broker.partitions" in refused.error_message
    assert grow(client, 5).error_code is ErrorCode.none


def test_auto_creation_is_refused_and_the_rest_is_served(client):
    assert ask(client, "wanted").error_code is REFUSED
    batch = build_batch([Record(0, 0, None, b"value", ())])
    assert client.produce("held", batch).error_code is ErrorCode.none
    assert len(ask(client, "held").partitions) == 3
