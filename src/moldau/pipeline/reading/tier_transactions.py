"""Finds the aborted transactions of a range of offsets in the transaction indexes of remote segments.

The records of a transaction may be in other segments than its marker. The index entry of the transaction is
in the segment of the marker. Therefore the indexes of later segments are read, until the last stable offset
of an entry is after the range. All transactions with records before this offset had ended when the entry was
written, so no further index is needed. If there is no such entry, the leader is asked for the transactions
whose markers are on its disk. The records themselves are not read through the leader. An aborted transaction
of a diskless topic is in a single segment, so neither later segments nor the leader are needed.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import Any, Final

from moldau.client.cluster import Client, ClusterTopic
from moldau.objects.storage import StorageError
from moldau.pipeline.reading.object_ranges import RangeReader
from moldau.pipeline.reading.tier_plan import SegmentObject, TierPart
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from moldau.records.batch import BatchHeader
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.storage.log.append_info import AbortedEntry
from moldau.storage.segments.sparse_index import CorruptIndexError
from moldau.storage.segments.transaction_index import decode_transactions

READ_COMMITTED: Final = 1


class AbortedRanges:
    """The aborted transactions that have records in a range."""

    def __init__(self) -> None:
        self._spans: dict[int, list[tuple[int, float]]] = {}
        """The first offset and the marker's offset of each transaction, in order, by producer id."""

    def add(self, producer_id: int, first: int, last: float = float("inf")) -> None:
        """Add a transaction with its first offset and the offset of its marker. Without ``last``, the marker
        is after all offsets of the range."""
        insort(self._spans.setdefault(producer_id, []), (first, last))

    def covers(self, header: BatchHeader) -> bool:
        """Whether a batch belongs to an aborted transaction."""
        spans = self._spans.get(header.producer_id) if header.is_transactional else None
        if not spans:
            return False
        # Transactions of a producer do not overlap.
        before = bisect_right(spans, (header.base_offset, float("inf")))
        return before > 0 and header.base_offset <= spans[before - 1][1]


async def find_in_tier(
    ranges: RangeReader, parts: Iterable[TierPart], end: int, *, is_whole_in_segment: bool
) -> tuple[AbortedRanges, int | None]:
    """Find aborted transactions in the transaction indexes of consecutive parts of the tier.

    The second value is ``None`` if the result contains all aborted transactions with records before ``end``.
    Otherwise the second value is the offset at which the search ended, because no segment begins at this
    offset. With ``is_whole_in_segment``, each transaction is in a single segment. Raises ``StorageError`` if
    an index cannot be read.
    """
    found = AbortedRanges()
    position = 0
    for part in parts:
        if part.segment is None:
            return found, part.start
        stable = 0
        for entry in await _entries(ranges, part.segment):
            if part.start <= entry.last_offset < part.end and entry.first_offset < end:
                found.add(entry.producer_id, entry.first_offset, entry.last_offset)
                stable = max(stable, entry.last_stable_offset)
        position = part.end
        if stable >= end or (is_whole_in_segment and position >= end):
            return found, None
    return found, position


async def _entries(ranges: RangeReader, segment: SegmentObject) -> Sequence[AbortedEntry]:
    if not segment.has_aborted:
        return ()
    place = segment.transaction_index
    if place is None:
        raise StorageError(f"{segment.object_key}: the place of its index is not known", transient=False)
    try:
        return decode_transactions(await ranges.fetch(*place), place.object_key)
    except CorruptIndexError as error:
        raise StorageError(str(error), transient=False) from error


async def find_at_leader(
    client: Client, topic: ClusterTopic, partition: int, offset: int, found: AbortedRanges
) -> bool:
    """Request from the leader the aborted transactions whose markers are at or after ``offset``, and add them
    to ``found``. The response also contains one batch.

    Returns False if the response does not contain all of these transactions. Such a response has no batch,
    and its last stable offset is before ``offset``. For example, a new leader may not know yet that the
    markers before ``offset`` are committed.
    """
    row = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1,
        isolation_level=READ_COMMITTED,
        topics=[FetchTopic(topic_id=topic.topic_id, topic=topic.name, partitions=[row])],
    )

    async def ask() -> PartitionData:
        leader = (await client.topic(topic.name)).leaders[partition]
        response: Any = await client.ask(request, broker=leader)
        data: PartitionData = response.responses[0].partitions[0]
        for code in (response.error_code, data.error_code):
            if code is not ErrorCode.none:
                raise KafkaError(code, f"{topic.name}-{partition}: {code.name.upper()}")
        return data

    data = await client.retrying(ask)
    for transaction in data.aborted_transactions or ():
        found.add(transaction.producer_id, transaction.first_offset)
    return bool(data.records) or data.last_stable_offset >= offset
