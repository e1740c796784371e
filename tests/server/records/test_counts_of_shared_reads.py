"""Bytes that many waiting consumers get from one read are counted for each of them."""

import time
import urllib.request

import pytest
from wire_client import WireClient

from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime.errors import ErrorCode
from moldau.testing import Node

pytestmark = pytest.mark.real_time

FETCH = (1, 12)
BYTES_OUT = 'kafka_server_BrokerTopicMetrics_BytesOutPerSec_total{topic="t"}'


def fetch(partition_count: int, offset: int) -> FetchRequest:
    """A request that reads partition 0 from ``offset``, and the other partitions from their starts."""
    rows = [
        FetchPartition(partition=index, fetch_offset=0 if index else offset, partition_max_bytes=1 << 20)
        for index in range(partition_count)
    ]
    return FetchRequest(
        max_wait_ms=30_000,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[FetchTopic(topic="t", partitions=rows)],
    )


def bytes_out(node: Node) -> float:
    with urllib.request.urlopen(f"{node.monitoring_url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    rows = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return float(rows.get(BYTES_OUT, 0))


def records_size(response: FetchResponse) -> int:
    return sum(len(row.records or b"") for topic in response.responses for row in topic.partitions)


@pytest.mark.parametrize("diskless", [False, True])
@pytest.mark.parametrize("partition_count", [1, 2])
def test_each_consumer_counts(diskless: bool, partition_count: int) -> None:
    with Node(properties={"metrics.listener": "127.0.0.1:0"}, diskless=diskless) as node:
        producer = WireClient(node.bootstrap_servers)
        consumers = [WireClient(node.bootstrap_servers) for _ in range(3)]
        created = producer.create_topic("t", partitions=2, diskless_enable=str(diskless).lower())
        assert created.error_code is ErrorCode.none
        batch = build_batch([Record(0, 1_700_000_000_000, None, b"value", ())])
        producer.produce("t", batch)
        assert records_size(producer.call(FETCH, fetch(partition_count, 0))) == len(batch)
        counted = bytes_out(node)
        for consumer in consumers:
            consumer.send(FETCH, fetch(partition_count, 1))
        # No response shows that a request has begun to wait. If one of them comes late, the counts are equal.
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline:
            assert not any(consumer.has_answer() for consumer in consumers)
        producer.produce("t", batch)
        sizes = [records_size(consumer.receive(FETCH)[1]) for consumer in consumers]
        assert sizes == [len(batch)] * 3
        assert bytes_out(node) - counted == 3 * len(batch)
