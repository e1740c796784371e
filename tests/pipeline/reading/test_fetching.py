"""Selection of batches from a fetched range."""

from moldau.client.cluster import Client
from moldau.network.client.node_connection import NodeAddress
from moldau.pipeline.reading.broker import BrokerReader
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.reading.topic_source import TopicSource
from moldau.protocol.messages.fetch import AbortedTransaction, PartitionData
from moldau.records.batch import parse_header
from moldau.records.builder import build_batch
from moldau.records.control import build_end_transaction_marker
from moldau.records.record import Record

ABORTED, COMMITTED = 7, 8


def transactional(offset: int, producer_id: int) -> bytes:
    record = Record(offset, 1, None, b"value")
    return build_batch(
        [record],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def marker(offset: int, producer_id: int, committed: bool) -> bytes:
    return build_end_transaction_marker(
        producer_id, 0, committed=committed, coordinator_epoch=0, timestamp=1, base_offset=offset
    )


def taken(committed_only: bool, end: int = 100, first: int = 0) -> list[int]:
    batches = [
        transactional(0, ABORTED),
        transactional(1, COMMITTED),
        marker(2, ABORTED, False),
        transactional(3, ABORTED),
        marker(4, COMMITTED, True),
        build_batch([Record(5, 1, None, b"")], base_offset=5),
    ]
    records = b"".join(batches[first:])
    data = PartitionData(
        records=memoryview(records),
        aborted_transactions=[AbortedTransaction(producer_id=ABORTED, first_offset=0)],
    )
    source = TopicSource("localhost:1", "t", "id", committed_only=committed_only)
    reader = BrokerReader(Client([NodeAddress("localhost", 1)], 1.0), source, OffsetRange(0, 0, end))
    return [parse_header(batch).base_offset for batch in reader._batches_to_decode(data)]


def test_aborted_transactions_and_markers_are_left_out() -> None:
    """A producer's first transaction was aborted, so it is left out. Its next transaction, at offset 3, is
    read."""
    assert taken(committed_only=True) == [1, 3, 5]


def test_without_isolation_only_markers_are_left_out() -> None:
    assert taken(committed_only=False) == [0, 1, 3, 5]


def test_a_response_may_begin_with_a_marker() -> None:
    """The aborted transaction begins before the response, and ends with the first batch of the response."""
    assert taken(committed_only=True, first=2) == [3, 5]


def test_no_batch_after_the_end_is_read() -> None:
    assert taken(committed_only=True, end=2) == [1]
