"""A node has more partitions than the number of files that its process may have open."""

import os
import pathlib
import resource
import subprocess
import sys
import tempfile

import pytest
from wire_client import WireClient

from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime.errors import ErrorCode
from moldau.testing import Node

OPEN_FILES_MAX = 300
PARTITIONS = 2_000
A_REQUEST = 250
TIMEOUT_S = 500


@pytest.fixture
def few_open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Open files of other tests in this process are not counted.
    taken = max(map(int, os.listdir("/proc/self/fd"))) if os.path.isdir("/proc/self/fd") else 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(taken + 256, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_soft_limit_of_open_files_does_not_bound_the_partitions(few_open_files):
    batch = build_batch([Record(0, 0, None, b"value", ())])
    with Node() as node, WireClient(node.bootstrap_servers) as client:
        created = client.create_topic("wide", partitions=120)
        assert created.error_code is ErrorCode.none
        assert all(client.produce("wide", batch, n).error_code is ErrorCode.none for n in range(120))


def test_hard_limit_of_open_files_does_not_bound_the_partitions():
    # The test runs in a separate process, because a lowered hard limit cannot be raised again.
    program = (
        "import sys; sys.path.insert(1, '..'); from test_many_partitions import *; holds_many_partitions()"
    )
    subprocess.run(
        [sys.executable, "-c", program], cwd=pathlib.Path(__file__).parent, check=True, timeout=TIMEOUT_S
    )


def holds_many_partitions():
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES_MAX, OPEN_FILES_MAX))
    everywhere = dict.fromkeys(range(PARTITIONS), 2)
    with tempfile.TemporaryDirectory() as folder:
        with Node(data=folder) as node, WireClient(node.bootstrap_servers) as client:
            assert client.create_topic("wide", partitions=PARTITIONS).error_code is ErrorCode.none
            for _ in range(2):
                for start in range(0, PARTITIONS, A_REQUEST):
                    _produce(client, range(start, start + A_REQUEST))
            assert _held(client) == everywhere
        with Node(data=folder) as node, WireClient(node.bootstrap_servers) as client:
            assert _held(client) == everywhere
            _produce(client, range(PARTITIONS - A_REQUEST, PARTITIONS))


def _produce(client, partitions):
    rows = [
        PartitionProduceData(index=index, records=build_batch([Record(0, 0, None, b"of %d" % index, ())]))
        for index in partitions
    ]
    topics = [TopicProduceData(name="wide", partition_data=rows)]
    response = client.call((0, 9), ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=topics))
    assert {row.error_code for row in response.responses[0].partition_responses} == {ErrorCode.none}


def _held(client):
    """Read all partitions. Returns the number of batches in each partition."""
    found = {}
    for start in range(0, PARTITIONS, A_REQUEST):
        rows = [
            FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=100_000)
            for index in range(start, start + A_REQUEST)
        ]
        request = FetchRequest(max_wait_ms=0, topics=[FetchTopic(topic="wide", partitions=rows)])
        for row in client.call((1, 12), request).responses[0].partitions:
            assert row.error_code is ErrorCode.none
            found[row.partition_index] = bytes(row.records).count(b"of %d\0" % row.partition_index)
    return found
