"""More partitions than a login shell's limit of open files would allow."""

import os
import resource

import pytest
from wire_client import WireClient

from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime.errors import ErrorCode
from moldau.testing import Node


@pytest.fixture
def few_open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # What other tests of this process still hold open does not count.
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
