"""Calls to coordinators that name the epoch of a broker or of a leader.

Without an authorizer, any client can make these calls. If a coordinator accepted an epoch from the future, it
would refuse the true epoch, also after restarts.
"""

import time
from typing import Any

import pytest
from wire_client import METADATA_V12, WireClient

from moldau.coordinators.diskless.calls import BatchToCommit
from moldau.coordinators.diskless.codecs.batch_columns import encode_batches
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.own.diskless import commit_file, commit_parts, prune
from moldau.protocol.schema import parse_versions
from moldau.records import Record, build_batch
from moldau.runtime.errors import ErrorCode
from moldau.testing import Node

NODE_ID = 1
FUTURE = 2**30


@pytest.fixture(scope="module")
def node():
    with Node(diskless=True, properties={"diskless.metadata.topic.num.partitions": "1"}) as running:
        yield running


@pytest.fixture
def client(node):
    with WireClient(node.bootstrap_servers) as connected:
        yield connected


class Topic:
    """A diskless topic with one record."""

    def __init__(self, client: WireClient, name: str) -> None:
        self.name = name
        self._client = client
        client.create_topic(name, diskless_enable="true")
        named = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        self.id = client.call(METADATA_V12, named).topics[0].topic_id
        assert self.produce() is ErrorCode.none

    def produce(self) -> ErrorCode:
        return self._client.produce(self.name, build_batch([Record(0, 1_000, None, b"v")])).error_code

    def columns(self) -> bytes:
        return encode_batches(
            [BatchToCommit(self.id, 0, 0, 0, 100, 0, 1, 5_000, 0, -1, -1, -1, -1, 0)], with_guards=True
        )


def call(client: WireClient, request: Any) -> Any:
    return client.call((request.API_KEY, parse_versions(request.VERSIONS).max), request)


def test_a_commit_with_the_epoch_of_no_broker_changes_nothing(client):
    topic = Topic(client, "future")
    request = commit_file.REQUEST(
        object_key="never-uploaded",
        file_size=100,
        created_ms=int(time.time() * 1_000),
        uploader_broker_id=NODE_ID,
        columns=topic.columns(),
        broker_epoch=FUTURE,
        commit_number=0,
        open_from=0,
    )
    assert call(client, request).error_code is ErrorCode.coordinator_not_available
    assert topic.produce() is ErrorCode.none


def test_parts_of_a_commit_with_the_epoch_of_no_broker_change_nothing(client):
    topic = Topic(client, "future-parts")
    part = commit_parts.DisklessCommitPart(
        coordinator_id=0, columns=topic.columns(), broker_epoch=FUTURE, commit_number=0, open_from=0
    )
    request = commit_parts.REQUEST(
        object_key="never-uploaded-parts",
        file_size=100,
        created_ms=int(time.time() * 1_000),
        uploader_broker_id=NODE_ID,
        parts=[part],
    )
    assert call(client, request).error_code is ErrorCode.coordinator_not_available
    assert topic.produce() is ErrorCode.none


def test_a_prune_with_an_epoch_of_no_leader_changes_nothing(client):
    topic = Topic(client, "pruned")

    def fence(epoch: int) -> Any:
        row = prune.DisklessPrunePartition(
            partition_index=0, from_offset=-1, to_offset=-1, epoch=epoch, remote_metadata_position=-1
        )
        topics = [prune.DisklessPruneTopic(topic_id=topic.id, partitions=[row])]
        return call(client, prune.REQUEST(topics=topics))

    assert fence(FUTURE).error_code is ErrorCode.coordinator_not_available
    true_epoch = fence(0)
    assert true_epoch.error_code is ErrorCode.none
    assert true_epoch.topics[0].partitions[0].error_code is ErrorCode.none


def test_a_broker_continues_after_its_numbers_were_used(node, client):
    """A client can guess the epoch of a broker's registration, and use the broker's commit numbers. The
    broker's first batches may then be refused, but later batches are accepted."""
    topic = Topic(client, "numbers")
    for epoch in range(64):
        request = commit_file.REQUEST(
            object_key=f"never-uploaded-{epoch}",
            file_size=100,
            created_ms=int(time.time() * 1_000),
            uploader_broker_id=NODE_ID,
            columns=topic.columns(),
            broker_epoch=epoch,
            commit_number=2**50,
            open_from=2**50,
        )
        call(client, request)
    codes = [topic.produce() for _ in range(3)]
    assert codes[0] is not ErrorCode.none, "no guess was right"
    assert codes[-1] is ErrorCode.none
