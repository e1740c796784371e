"""FindBatches: shares the byte limit between partitions, and waits for enough bytes."""

import asyncio
from collections.abc import Callable

from moldau.coordinators.diskless.calls import FindBatchesCall, FoundPartition, PartitionId
from moldau.coordinators.diskless.reads.reading import StoreReader
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import ErrorCode


class Finder:
    """Answers FindBatches calls; a call may wait for commits."""

    def __init__(self, waiting: WaitingRoom[PartitionId]) -> None:
        """``waiting`` is notified of the partitions that a commit has changed."""
        self._waiting = waiting

    async def find(self, reader: Callable[[], StoreReader], call: FindBatchesCall) -> list[FoundPartition]:
        """Find batches, and wait if necessary. ``reader`` is called again after each wait, because the
        coordinator may have moved."""
        loop, waiting = asyncio.get_running_loop(), self._waiting
        deadline = loop.time() + call.max_wait_ms / 1000
        ids = [PartitionId(wanted.topic_id, wanted.partition_index) for wanted in call.partitions]
        while True:
            found, enough = self.find_now(reader(), call)
            left_s = deadline - loop.time()
            if enough or left_s <= 0:
                return found
            waiter = waiting.wait(ids, left_s)
            try:
                await waiter.future
            finally:
                waiter.finish(False)

    @staticmethod
    def find_now(reader: StoreReader, call: FindBatchesCall) -> tuple[list[FoundPartition], bool]:
        """Find batches now; returns whether they are enough to answer.

        The byte limit is used up in the order of the call. "At least one batch" applies to the call as a
        whole.
        """
        left_bytes, total = call.max_bytes, 0
        found: list[FoundPartition] = []
        at_once = not call.partitions
        for topic_id, index, offset, max_bytes in call.partitions:
            partition = reader.find(
                topic_id,
                index,
                offset,
                min(max_bytes, left_bytes),
                call.max_batches_per_partition,
                at_least_one=total == 0,
            )
            found.append(partition)
            size_bytes = sum(batch.size_bytes for batch in partition.batches)
            total += size_bytes
            left_bytes = max(0, left_bytes - size_bytes)
            at_once = at_once or partition.error is not ErrorCode.none or partition.moved_to_tier
        return found, at_once or total >= call.min_bytes
