"""Handles FindBatches. A search divides the byte limit among partitions, and a call waits for enough
bytes."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from moldau.coordinators.diskless.calls import FindBatchesCall, FoundPartition, PartitionToFind
from moldau.coordinators.diskless.reads.store_reader import StoreReader
from moldau.protocol.partitions import PartitionKey
from moldau.replication.waiters import FutureWaiter, WaitingRoom
from moldau.runtime import ErrorCode

ROWS_A_TURN: Final = 1_000
"""Number of partitions that are searched without a break. This takes some milliseconds."""
BATCHES_A_TURN: Final = 1_000
"""When a search has found this number of batches, which takes about 10 ms, it makes a pause for other tasks
of the event loop."""
PARTITION_BATCHES_MAX: Final = 4_000
"""Maximum number of batches of a partition in a response. Finding them takes about 30 ms without a pause."""
ANSWER_BATCHES_MAX: Final = 32_768
"""Maximum number of batches in a response. It limits the memory of the response to about 30 MB. The byte
limit of a request does not limit this memory, because batches may be very small."""


class Finder:
    """Handles FindBatches calls. A call may wait for commits."""

    def __init__(self, waiting: WaitingRoom[PartitionKey]) -> None:
        """``waiting`` contains the waiting calls. The caller notifies it of the changed partitions after each
        commit."""
        self._waiting = waiting

    async def find(self, reader: Callable[[], StoreReader], call: FindBatchesCall) -> list[FoundPartition]:
        """Find batches, and wait if necessary. ``reader`` is called again after each wait, because the
        coordinator may have moved to another broker."""
        loop, waiting = asyncio.get_running_loop(), self._waiting
        deadline = loop.time() + call.max_wait_ms / 1000
        while True:
            waiter: FutureWaiter[PartitionKey] | None = None
            try:
                if len(call.partitions) > ROWS_A_TURN and loop.time() < deadline:
                    # The wait begins before the search, because commits may arrive between two steps of a
                    # long search.
                    waiter = waiting.wait((), deadline - loop.time())
                search = await self._search(reader, call, waiter)
                left_s = deadline - loop.time()
                if search.is_enough or left_s <= 0:
                    return search.found
                if waiter is None:
                    waiter = waiting.wait(_ids(call.partitions), left_s)
                await waiter.future
            finally:
                if waiter is not None:
                    waiter.finish(False)

    @staticmethod
    async def _search(
        reader: Callable[[], StoreReader], call: FindBatchesCall, waiter: FutureWaiter[PartitionKey] | None
    ) -> "_Search":
        """Search all partitions of the call. If ``waiter`` is given, it is notified of all changes of a
        partition from the time when this partition is searched."""
        search = _Search(call)
        for start in range(0, max(1, len(call.partitions)), ROWS_A_TURN):
            if start:
                await asyncio.sleep(0)
            some = call.partitions[start : start + ROWS_A_TURN]
            if waiter is not None:
                waiter.add(_ids(some))
            while some:
                some = some[search.search_next(reader(), some) :]
                if some:
                    await asyncio.sleep(0)
        return search


def _ids(partitions: Iterable[PartitionToFind]) -> list[PartitionKey]:
    return [PartitionKey(wanted.topic_id, wanted.partition_index) for wanted in partitions]


class _Search:
    """One search for the batches of a call, and its results so far.

    The limits for bytes and batches apply to all partitions together, in the order of the call. The first
    batch that is found is returned even if it is larger than the byte limit.
    """

    def __init__(self, call: FindBatchesCall) -> None:
        self.found: list[FoundPartition] = []
        self._call = call
        self._left_bytes = call.max_bytes
        self._left_batches = ANSWER_BATCHES_MAX
        self._total_bytes = 0
        self._at_once = not call.partitions

    @property
    def is_enough(self) -> bool:
        """Whether enough batches were found, so that the response need not wait."""
        return self._at_once or self._total_bytes >= self._call.min_bytes

    def search_next(self, reader: StoreReader, partitions: Sequence[PartitionToFind]) -> int:
        """Search the next partitions of the call, until enough batches were read for one iteration of the
        event loop. Returns the number of partitions that were searched."""
        pause_at = self._left_batches - BATCHES_A_TURN
        most = min(self._call.max_batches_per_partition or PARTITION_BATCHES_MAX, PARTITION_BATCHES_MAX)
        for number, (topic_id, index, offset, max_bytes) in enumerate(partitions, 1):
            partition = reader.find(
                topic_id,
                index,
                offset,
                min(max_bytes, self._left_bytes) if self._left_batches else 0,
                min(most, self._left_batches),
                at_least_one=self._total_bytes == 0,
            )
            self.found.append(partition)
            size_bytes = sum(batch.size_bytes for batch in partition.batches)
            self._total_bytes += size_bytes
            self._left_bytes = max(0, self._left_bytes - size_bytes)
            self._left_batches -= len(partition.batches)
            if (
                partition.error is not ErrorCode.none
                or partition.moved_to_tier
                or len(partition.batches) == most
                or not self._left_batches
            ):
                self._at_once = True
            if self._left_batches <= pause_at:
                return number
        return len(partitions)
