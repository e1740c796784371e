"""Searches of a classic partition by timestamp. They cover its local log and the earlier part in the remote
tier.

Many batches may have to be opened, so the event loop runs between two batches.
"""

import asyncio
from collections.abc import Callable

from moldau.replication.lookups.record_lookup import RecordLookup
from moldau.replication.partition_interface import FoundOffset
from moldau.replication.remote import RemotePart
from moldau.storage.log.append_info import TimestampOffset
from moldau.storage.log.partition_log import PartitionLog


async def find_timestamp(
    log: PartitionLog,
    remote: Callable[[], RemotePart | None],
    lookup: RecordLookup,
    timestamp_ms: int,
    end_offset: int,
) -> FoundOffset:
    """Return the first record that is at or after a time and below ``end_offset``."""
    searched_to = -1
    # If segments at the start of the local log were removed during the search, search the remote part again.
    # Without this second search, the records of the removed segments would not be found.
    while (part := remote()) is not None and (
        max(searched_to, log.log_start_offset) < log.local_log_start_offset
    ):
        searched_to = log.local_log_start_offset
        found = await part.find_timestamp(timestamp_ms, end_offset, lookup)
        if found is not None:
            return found
    return _as_found(log, await _find_timestamp(log, lookup, timestamp_ms, end_offset))


async def find_max_timestamp(
    log: PartitionLog, remote: RemotePart | None, lookup: RecordLookup, end_offset: int
) -> FoundOffset:
    """Return the first record with the largest timestamp below ``end_offset`` (KIP-734)."""
    local = _as_found(log, await _find_max_timestamp(log, lookup, end_offset))
    if remote is None or log.log_start_offset >= log.local_log_start_offset:
        return local
    return await remote.find_max_timestamp(local.timestamp_ms - 1, end_offset, lookup) or local


def _as_found(log: PartitionLog, found: TimestampOffset | None) -> FoundOffset:
    if found is None:
        return FoundOffset()
    return FoundOffset(found.offset, found.timestamp, log.epoch_for_offset(found.offset))


async def _find_timestamp(
    log: PartitionLog, lookup: RecordLookup, timestamp_ms: int, end_offset: int
) -> TimestampOffset | None:
    start_offset = offset = log.log_start_offset
    while (step := log.timestamp_step(timestamp_ms, offset, end_offset)) is not None:
        if step.batch is not None:
            found = await lookup.at_or_after(step.batch, timestamp_ms, start_offset)
            if found is not None:
                return TimestampOffset(*found) if found[0] < end_offset else None
        offset = max(step.next_offset, log.local_log_start_offset)
        await asyncio.sleep(0)
    return None


async def _find_max_timestamp(
    log: PartitionLog, lookup: RecordLookup, end_offset: int
) -> TimestampOffset | None:
    batch = log.latest_batch(end_offset)
    if batch is None:
        return None
    found = await lookup.of_max_timestamp(batch)
    if found is not None:
        return TimestampOffset(*found)
    # No record has the timestamp in the header. Compaction has removed that record, or there never was such a
    # record.
    best: TimestampOffset | None = None
    offset = log.local_log_start_offset
    least_ms = 0
    while (step := log.timestamp_step(least_ms, offset, end_offset)) is not None:
        if step.batch is not None:
            found = await lookup.of_max_timestamp(step.batch)
            if found is not None and (best is None or found[1] > best.timestamp):
                best = TimestampOffset(*found)
                least_ms = best.timestamp + 1
        offset = max(step.next_offset, log.local_log_start_offset)
        await asyncio.sleep(0)
    return best
