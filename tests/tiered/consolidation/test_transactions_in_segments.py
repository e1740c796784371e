"""Transactions of diskless partitions in remote segments. The tests check markers. They also check that an
aborted transaction is never divided between two segments."""

import asyncio

from consolidation_house import TOPIC

from moldau.coordinators.diskless.calls import (
    MARKER_SIZE_BYTES,
    AbortedRange,
    BatchCoordinate,
    TransactionEnd,
)
from moldau.diskless.reading.batch_conversion import marker_batch
from moldau.objects import MemoryStorage
from moldau.records.batch import iter_headers
from moldau.records.builder import build_batch
from moldau.records.control import EndTransactionMarker, parse_control_record
from moldau.records.record import Record, iter_records
from moldau.runtime import InlineWorkers, SystemClock
from moldau.storage.log.append_info import AbortedEntry
from moldau.storage.segments.transaction_index import encode_transactions
from moldau.tiered.consolidation.building import build_segments
from moldau.tiered.consolidation.markers import batch_of_marker, key_of_marker
from moldau.tiered.consolidation.plan import PlannedSegment, SegmentGathering, SegmentRules

NOW_MS = 1_000_000
COMMITS, ABORTS = True, False


class Wal:
    """Build a partition with consecutive offsets. The partition has markers, and batches of two records. Each
    batch is in a separate object."""

    def __init__(self) -> None:
        self.store = MemoryStorage(SystemClock())
        self.found: list[BatchCoordinate] = []

    async def batch(self, producer_id: int, sequence: int) -> None:
        base = self.found[-1].last_offset + 1 if self.found else 0
        content = bytes(
            build_batch(
                [Record(index, 1_000, b"k", b"v" * 50, ()) for index in range(2)],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            )
        )
        await self.store.upload(f"o{base}", memoryview(content), len(content))
        self.found.append(
            BatchCoordinate(
                *(TOPIC.topic_id, 0, base, base + 1, f"o{base}", 0, len(content), NOW_MS, 1_001, 0), True
            )
        )

    def marker(self, producer_id: int, *, commits: bool) -> None:
        base = self.found[-1].last_offset + 1
        end = TransactionEnd(producer_id, 0, 3, commits)
        self.found.append(
            BatchCoordinate(
                *(TOPIC.topic_id, 0, base, base, "", 0, MARKER_SIZE_BYTES, NOW_MS, NOW_MS, 0), True, end
            )
        )


async def some_transactions() -> Wal:
    """Producer 7 has offsets 0, 1, 4 and 5, and the marker at 6 aborts them. Producer 8 has offsets 2 and 3,
    and the marker at 9 commits them. Producer 7 also has offsets 7 and 8, and the marker at 10 aborts them.
    """
    wal = Wal()
    await wal.batch(7, 0)
    await wal.batch(8, 0)
    await wal.batch(7, 2)
    wal.marker(7, commits=ABORTS)
    await wal.batch(7, 4)
    wal.marker(8, commits=COMMITS)
    wal.marker(7, commits=ABORTS)
    return wal


ABORTED = [AbortedRange(7, 0, 6), AbortedRange(7, 7, 10)]


def test_a_segment_has_a_whole_aborted_transaction_which_its_index_names() -> None:
    async def scene() -> None:
        wal = await some_transactions()
        gathering = SegmentGathering(SegmentRules(segment_bytes=150, max_age_ms=0))
        gathered = gathering.add(wal.found[:4], ABORTED[:1]) + gathering.add(wal.found[4:], ABORTED[1:])
        assert gathering.rest(NOW_MS) is None
        assert [(each.base_offset, each.end_offset) for each in gathered] == [(0, 6), (7, 10)]
        assert all(each.has_aborted for each in gathered)
        planned = [
            PlannedSegment.of(each, TOPIC, TOPIC.topic_id, broker_id=1, now_ms=NOW_MS) for each in gathered
        ]
        assert not any(each.metadata.txn_index_empty for each in planned)
        first, second = await build_segments(planned, wal.store, InlineWorkers())
        assert first.transaction_index == encode_transactions([AbortedEntry(7, 0, 6, 2)])
        assert second.transaction_index == encode_transactions([AbortedEntry(7, 7, 10, 11)])
        ends = [
            parse_control_record(record)
            for built in (first, second)
            for position, header in iter_headers(built.log)
            if header.is_control
            for record in iter_records(built.log[position : position + header.size_bytes])
        ]
        assert ends == [EndTransactionMarker(commits, 3) for commits in (ABORTS, COMMITS, ABORTS)]

    asyncio.run(scene())


def test_the_last_segment_waits_until_it_contains_a_whole_aborted_transaction() -> None:
    async def scene() -> None:
        wal = await some_transactions()
        gathering = SegmentGathering(SegmentRules(segment_bytes=1 << 20, max_age_ms=0))
        assert gathering.add(wal.found[:3], ABORTED[:1]) == []
        assert gathering.rest(NOW_MS) is None
        assert gathering.add(wal.found[3:4], ABORTED[:1]) == []
        rest = gathering.rest(NOW_MS)
        assert rest is not None
        assert (rest.end_offset, rest.has_aborted) == (6, True)

    asyncio.run(scene())


def test_a_plan_and_a_broker_build_the_same_marker() -> None:
    end = TransactionEnd(1 << 40, 3, 7, True)
    coordinate = BatchCoordinate(
        *(TOPIC.topic_id, 0, 5, 5, "", 0, MARKER_SIZE_BYTES, NOW_MS, NOW_MS, 0), True, end
    )
    made = batch_of_marker(key_of_marker(end, NOW_MS))
    assert bytes(marker_batch(coordinate)) == made
    assert len(made) == MARKER_SIZE_BYTES
