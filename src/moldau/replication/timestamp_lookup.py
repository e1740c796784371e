"""Searches of a local log by timestamp that do not keep the event loop: ListOffsets of classic partitions.

What a header says of timestamps is the producer's word. A batch that promises more than it holds must be
opened, and there may be many of them, so a long one is opened by a worker, and the loop turns between two.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from moldau.records.record import opens_quickly
from moldau.records.timestamps import first_offset_at_or_after, first_offset_of_max_timestamp
from moldau.replication.opening import LANE
from moldau.runtime.workers import Workers
from moldau.storage.append_info import TimestampOffset
from moldau.storage.log import PartitionLog

Look = Callable[[bytes | memoryview], tuple[int, int] | None]


async def find_timestamp(
    log: PartitionLog, workers: Workers, timestamp_ms: int, end_offset: int
) -> TimestampOffset | None:
    """As ``PartitionLog.offset_for_timestamp``."""
    start_offset = offset = log.log_start_offset
    look = partial(first_offset_at_or_after, timestamp_ms=timestamp_ms, starting_offset=start_offset)
    while (step := log.timestamp_step(timestamp_ms, offset, end_offset)) is not None:
        if step.batch is not None:
            found = await _open(workers, look, step.batch)
            if found is not None:
                return TimestampOffset(*found) if found[0] < end_offset else None
        offset = max(step.next_offset, log.local_log_start_offset)
        await asyncio.sleep(0)
    return None


async def find_max_timestamp(log: PartitionLog, workers: Workers, end_offset: int) -> TimestampOffset | None:
    """As ``PartitionLog.max_timestamp_offset``."""
    batch = log.latest_batch(end_offset)
    if batch is None:
        return None
    found = await _open(workers, first_offset_of_max_timestamp, batch)
    if found is not None:
        return TimestampOffset(*found)
    # No record has the timestamp that the header tells: what it was told of is compacted, or never was.
    best: TimestampOffset | None = None
    offset = log.local_log_start_offset
    least_ms = 0
    while (step := log.timestamp_step(least_ms, offset, end_offset)) is not None:
        if step.batch is not None:
            found = await _open(workers, first_offset_of_max_timestamp, step.batch)
            if found is not None and (best is None or found[1] > best.timestamp):
                best = TimestampOffset(*found)
                least_ms = best.timestamp + 1
        offset = max(step.next_offset, log.local_log_start_offset)
        await asyncio.sleep(0)
    return best


async def _open(workers: Workers, look: Look, batch: memoryview) -> tuple[int, int] | None:
    if opens_quickly(batch):
        return look(batch)
    return await workers.lane(LANE).run(look, bytes(batch))
