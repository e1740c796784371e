"""WriteTxnMarkers writes the marker of each partition once. It writes a limited number of markers in
parallel."""

import asyncio
from types import SimpleNamespace
from typing import Any

from moldau.network.authorization import AllowEveryone
from moldau.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from moldau.protocol.partitions import TopicPartition
from moldau.replication.partition_interface import TransactionMarker
from moldau.runtime import ErrorCode
from moldau.server.handlers.records.transaction_markers import TransactionalHandlers


def test_repeated_partitions_are_written_once_and_many_in_steps() -> None:
    written: list[int] = []
    running = peak = 0

    async def write(marker: TransactionMarker, partition: TopicPartition) -> ErrorCode:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1
        written.append(partition.partition)
        return ErrorCode.unknown_topic_or_partition if partition.partition else ErrorCode.none

    unused: Any = None
    handlers = TransactionalHandlers(unused, write, unused, AllowEveryone())
    indexes = [*range(2500), *[0] * 1000]
    request = WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=1,
                producer_epoch=0,
                transaction_result=True,
                coordinator_epoch=0,
                topics=[WritableTxnMarkerTopic(name="t", partition_indexes=indexes)],
            )
        ]
    )
    context: Any = SimpleNamespace(api_version=2, connection=None)
    answer = asyncio.run(handlers.write_markers(context, request))
    assert sorted(written) == list(range(2500))
    assert peak <= 1000
    results = answer.markers[0].topics[0].partitions
    assert [each.partition_index for each in results] == indexes
    assert results[-1].error_code is ErrorCode.none
    assert results[1].error_code is ErrorCode.unknown_topic_or_partition
