"""The APIs of diskless coordinators over the network. Clients find the coordinators by a special key type.
The APIs are protected, and not advertised."""

import asyncio
import time
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from wire_client import WireClient

import moldau.testing
from moldau.cluster.internal_topics import InternalTopic
from moldau.coordinators.diskless import calls
from moldau.coordinators.diskless.handlers import CALLS, DisklessHandlers
from moldau.coordinators.diskless.service import DisklessCoordinator, coordinator_of_key
from moldau.network.context import ConnectionContext, Principal, RequestContext
from moldau.network.own_serving import check_cluster_action
from moldau.protocol.coordinator_keys import CoordinatorKeyType
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.own import MODULES
from moldau.protocol.own.diskless import (
    commit_file,
    create_partitions,
    delete_records,
    delete_topics,
    describe_coordinator,
    describe_files,
    find_batches,
    list_offsets,
    oldest_file,
)
from moldau.protocol.own.rights import Right
from moldau.protocol.special_timestamps import LATEST_TIMESTAMP
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.server.coordinators.entry import KeyLookup
from moldau.server.handlers.find_coordinator import CoordinatorHandlers
from moldau.server.requests.dispatch import failure

TOPIC_ID = UUID(int=1)
FIND_COORDINATOR, API_VERSIONS = (10, 4), (18, 3)


@pytest.fixture(scope="module")
def node():
    properties = {
        "diskless.system.enable": "true",
        "diskless.metadata.topic.num.partitions": "2",
        "diskless.storage.url": "memory://",
    }
    with moldau.testing.Node(properties=properties) as running:
        for number in (0, 1):
            until_loaded(running, number)
        yield running


def until_loaded(node, coordinator_id):
    """Wait until the coordinator is loaded, because a node accepts clients before that."""
    request = describe_coordinator.DisklessDescribeCoordinatorRequest(coordinator_id=coordinator_id)
    deadline = time.monotonic() + 60
    with WireClient(node.bootstrap_servers) as client:
        while client.call((11655, 0), request).error_code is not ErrorCode.none:
            assert time.monotonic() < deadline


@pytest.fixture
def client(node):
    with WireClient(node.bootstrap_servers) as connected:
        yield connected


def find(client, *keys):
    request = FindCoordinatorRequest(key_type=CoordinatorKeyType.DISKLESS, coordinator_keys=list(keys))
    return client.call(FIND_COORDINATOR, request).coordinators


def test_a_coordinator_is_found_by_its_number(client):
    rows = find(client, "0", "1", "2", "zero", "-1")
    codes = [row.error_code for row in rows]
    assert codes[:2] == [ErrorCode.none, ErrorCode.none]
    assert codes[2] is ErrorCode.coordinator_not_available
    assert codes[3:] == [ErrorCode.invalid_request, ErrorCode.invalid_request]
    assert [row.node_id for row in rows] == [1, 1, -1, -1, -1]


def test_none_of_our_apis_is_advertised(client):
    request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
    keys = {row.api_key for row in client.call(API_VERSIONS, request).api_keys}
    assert keys
    assert not keys & set(MODULES)


def test_every_api_of_ours_has_a_handler():
    assert set(CALLS) == {key for key, row in MODULES.items() if row[0].startswith(".diskless.")}


@pytest.mark.parametrize("version", [0, 1, 3])
def test_a_file_is_committed_found_and_deleted_by_wire(client, version):
    topic_id, key = uuid4(), f"wal/file-of-version-{version}"
    topic = create_partitions.DisklessCreatablePartitions(
        topic_id=topic_id, name=f"remote-{version}", num_partitions=1, partition_indexes=None
    )
    created = client.call(
        (11640, 0), create_partitions.DisklessCreatePartitionsRequest(coordinator_id=1, topics=[topic])
    )
    assert created.topics[0].error_code is ErrorCode.none

    now_ms = Machine.real().clock.now_ms()
    batch = calls.BatchToCommit(topic_id, 0, 1, 0, 100, 4, 5, now_ms, calls.CREATE_TIME)
    call = calls.CommitFileCall(key, 500, now_ms, 1, [batch], (1,))
    answer = client.call((11642, version), commit_message(call, version))
    assert answer.error_code is ErrorCode.none
    if version == 0:
        assert [row.assigned_base_offset for row in answer.batches] == [0]
    else:
        assert [row.base_offset for row in CALLS[11642].read(answer).batches] == [0]

    (found,) = list_end(client, topic_id)
    assert (found.error_code, found.offset) == (ErrorCode.none, 5)
    (partition,) = batches_of(client, topic_id)
    assert [(row.object_key, row.base_offset, row.last_offset) for row in partition.batches] == [(key, 0, 4)]
    assert used_bytes(client, key) == 100

    row = delete_records.DisklessDeleteRecordsPartition(partition_index=0, offset=5)
    rows = [delete_records.DisklessDeleteRecordsTopic(topic_id=topic_id, partitions=[row])]
    deleted = client.call(
        (11643, 0), delete_records.DisklessDeleteRecordsRequest(coordinator_id=1, topics=rows)
    )
    assert deleted.topics[0].partitions[0].low_watermark == 5
    gone = delete_topics.DisklessDeleteTopicsRequest(
        coordinator_id=1, topics=[delete_topics.DisklessDeletableTopicState(topic_id=topic_id)]
    )
    assert client.call((11641, 0), gone).responses[0].error_code is ErrorCode.none


def commit_message(call, version):
    if version:
        return CALLS[11642].ask(1, call, version, 1000)
    batch = call.batches[0]
    return commit_file.DisklessCommitFileRequest(
        coordinator_id=1,
        object_key=call.object_key,
        file_size=call.size_bytes,
        created_ms=call.created_ms,
        uploader_broker_id=1,
        owner_ids=[1],
        batches=[
            commit_file.DisklessCommitBatch(
                topic_id=batch.topic_id,
                partition_index=0,
                request_id=1,
                byte_offset=0,
                size=batch.size_bytes,
                base_offset=0,
                last_offset=batch.last_offset_delta,
                batch_max_timestamp=batch.max_timestamp_ms,
                timestamp_type=0,
                producer_id=-1,
                producer_epoch=-1,
                base_sequence=-1,
                last_sequence=-1,
            )
        ],
    )


def list_end(client, topic_id):
    row = list_offsets.DisklessListOffsetsPartition(partition_index=0, timestamp=LATEST_TIMESTAMP)
    topics = [list_offsets.DisklessListOffsetsTopic(topic_id=topic_id, partitions=[row])]
    request = list_offsets.DisklessListOffsetsRequest(coordinator_id=1, topics=topics)
    return client.call((11644, 0), request).topics[0].partitions


def batches_of(client, topic_id):
    row = find_batches.DisklessFindBatchesPartition(
        partition_index=0, offset=0, max_partition_fetch_bytes=1000
    )
    topics = [find_batches.DisklessFindBatchesTopic(topic_id=topic_id, partitions=[row])]
    request = find_batches.DisklessFindBatchesRequest(coordinator_id=1, topics=topics, fetch_max_bytes=1000)
    return client.call((11645, 0), request).topics[0].partitions


def used_bytes(client, key):
    request = describe_files.DisklessDescribeFilesRequest(
        coordinator_id=1, files=[describe_files.DisklessDescribeFileEntry(object_key=key)]
    )
    return client.call((11647, 0), request).files[0].used_bytes


def test_a_call_to_a_coordinator_of_another_broker_fails(client):
    for api, request in (
        (11650, oldest_file.DisklessOldestFileRequest(coordinator_id=7)),
        (11655, describe_coordinator.DisklessDescribeCoordinatorRequest(coordinator_id=7)),
    ):
        assert client.call((api, 0), request).error_code is ErrorCode.not_coordinator


class NodesOnly:
    """Allows all operations to the principal ``node``, and no operations to other principals."""

    def allows(self, context, operation, resource, name):
        return context.connection.principal.name == "node"


def test_cluster_action_is_required():
    async def check():
        handlers = DisklessHandlers(DisklessCoordinator(Machine.real()), NodesOnly(), {TOPIC_ID: "t"}.get)
        for api_key, call in CALLS.items():
            context = context_of(api_key, "somebody")
            request, code = None, ErrorCode.cluster_authorization_failed
            if call.right is Right.READ_TOPIC:
                rows = [SimpleNamespace(topic_id=TOPIC_ID)]
                request, code = SimpleNamespace(topics=rows), ErrorCode.topic_authorization_failed
            with pytest.raises(KafkaError) as refused:
                handlers.table()[api_key](context, request)
            answer: Any = failure(context, refused.value)
            assert answer.error_code is code
        request = oldest_file.DisklessOldestFileRequest(coordinator_id=0)
        context = context_of(11650, "node")
        context.received_at = asyncio.get_running_loop().time()
        answer = await handlers.handle(context, request)
        assert answer.error_code is ErrorCode.not_coordinator

    asyncio.run(check())


def test_only_principals_with_the_right_can_look_up_a_coordinator():
    lookup = KeyLookup(
        key_type=CoordinatorKeyType.DISKLESS,
        partition_of=lambda key, count: coordinator_of_key(key),
        check=partial(check_cluster_action, NodesOnly()),
    )
    topic = InternalTopic("t", 1, 1, "")
    handlers = CoordinatorHandlers(None, None, lambda: {CoordinatorKeyType.DISKLESS: (topic, lookup)})
    context = context_of(FIND_COORDINATOR[0], "somebody", FIND_COORDINATOR[1])
    request = FindCoordinatorRequest(key_type=CoordinatorKeyType.DISKLESS, coordinator_keys=["0"])
    (row,) = asyncio.run(handlers.find_coordinator(context, request)).coordinators
    assert row.error_code is ErrorCode.cluster_authorization_failed


def context_of(api_key, principal, version=0):
    connection = ConnectionContext("1", "EXTERNAL", principal=Principal("User", principal))
    return RequestContext(api_key, version, 1, "test", connection)


@pytest.mark.parametrize("key", ["", "x", "-1", "1.5", "٣", "9999999999"])
def test_keys_that_name_no_coordinator(key):
    with pytest.raises(KafkaError, match="not the number"):
        coordinator_of_key(key)
