"""The records that ``consume --read-committed`` omits. They are computed from the batches and the aborted
transactions in one Fetch response."""

import asyncio
from uuid import UUID

from moldau.client.cluster import ClusterTopic
from moldau.client.reader import TopicReader
from moldau.protocol.messages.fetch import AbortedTransaction, PartitionData
from moldau.records.builder import build_batch
from moldau.records.control import build_end_transaction_marker
from moldau.records.record import Record


def batch(offset, value, producer_id=-1, transactional=False):
    record = Record(0, 1, None, value, ())
    return build_batch(
        [record], base_offset=offset, producer_id=producer_id, producer_epoch=0, transactional=transactional
    )


def marker(offset, producer_id, committed):
    return build_end_transaction_marker(
        producer_id, 0, committed=committed, coordinator_epoch=0, timestamp=1, base_offset=offset
    )


LOG = b"".join(
    [
        batch(0, b"plain"),
        batch(1, b"aborted", 7, True),
        batch(2, b"committed", 8, True),
        batch(3, b"plain too"),
        marker(4, 7, False),
        batch(5, b"committed later", 7, True),
        marker(6, 8, True),
        marker(7, 7, True),
    ]
)


def read(committed_only, start=0):
    data = PartitionData(
        partition_index=0,
        aborted_transactions=[AbortedTransaction(producer_id=7, first_offset=1)],
        records=memoryview(LOG),
    )
    reader = TopicReader(
        None, ClusterTopic("t", UUID(int=1), {0: 1}), {0: start}, {0: 8}, committed_only=committed_only
    )

    async def values():
        return [each.record.value async for chunk in reader._records_of(data) for each in chunk]

    return asyncio.run(values()), reader.positions[0]


def test_aborted_records_are_left_out_and_control_records_are_passed():
    assert read(True) == ([b"plain", b"committed", b"plain too", b"committed later"], 8)


def test_all_records_are_read_without_the_option():
    assert read(False) == ([b"plain", b"aborted", b"committed", b"plain too", b"committed later"], 8)


def test_records_before_the_position_are_dropped():
    assert read(True, start=3)[0] == [b"plain too", b"committed later"]
