"""Deleted partitions are not parts of reference cycles. If there were 10,000 such cycles, their garbage
collection would take a second."""

import gc
import time

import pytest
from wire_client import WireClient

from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.replication.classic_partition import ClassicPartition
from moldau.runtime.errors import ErrorCode
from moldau.storage.log.partition_log import PartitionLog
from moldau.testing import Node

DELETE_TOPICS = (20, 6)
KINDS = {
    "classic": {"diskless_enable": "false"},
    "diskless": {"diskless_enable": "true"},
    "tiered": {"diskless_enable": "false", "remote_storage_enable": "true"},
}


@pytest.fixture
def no_collections():
    """Switch garbage collections off, and exclude objects of earlier tests from the search."""
    enabled = gc.isenabled()
    gc.disable()
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    if enabled:
        gc.enable()


def alive(topic):
    """Objects of the topic's partitions, by class."""
    return [
        type(each).__name__
        for each in gc.get_objects()
        if (isinstance(each, PartitionLog) and each.topic_partition.topic == topic)
        or (isinstance(each, ClassicPartition) and each.topic == topic)
    ]


def test_deleted_partitions_are_freed_without_a_collection(no_collections):
    with Node(diskless=True) as node, WireClient(node.bootstrap_servers) as client:
        for kind, configs in KINDS.items():
            assert client.create_topic(kind, partitions=2, **configs).error_code is ErrorCode.none
        deadline = time.monotonic() + 60
        while not all(alive(kind) for kind in KINDS):
            assert time.monotonic() < deadline, [kind for kind in KINDS if not alive(kind)]
        topics = [DeleteTopicState(name=kind) for kind in KINDS]
        client.call(DELETE_TOPICS, DeleteTopicsRequest(topics=topics, timeout_ms=60_000))
        while any(alive(kind) for kind in KINDS):
            assert time.monotonic() < deadline, {kind: alive(kind) for kind in KINDS}
