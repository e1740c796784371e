"""Waiters for commits, indexed by partition. They are used on the event loop only."""

import asyncio
from collections.abc import Iterable

from moldau.coordinators.diskless.calls import PartitionId


class CommitWaiters:
    """FindBatches calls that wait for their partitions to change."""

    def __init__(self) -> None:
        self._waiting: dict[PartitionId, dict[asyncio.Future[None], None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, partitions: Iterable[PartitionId], timeout_s: float) -> bool:
        """Wait until one of the partitions changes. Returns False when the time is over."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        ids = tuple(partitions)
        for partition_id in ids:
            self._waiting.setdefault(partition_id, {})[future] = None
        handle = loop.call_later(timeout_s, future.cancel)
        try:
            await asyncio.wait([future])
            return not future.cancelled()
        finally:
            handle.cancel()
            for partition_id in ids:
                waiting = self._waiting.get(partition_id)
                if waiting is not None:
                    waiting.pop(future, None)
                    if not waiting:
                        del self._waiting[partition_id]

    def wake(self, partitions: Iterable[PartitionId]) -> None:
        """Wake the waiters of these partitions, which have changed."""
        if not self._waiting:
            return
        for partition_id in partitions:
            for future in self._waiting.pop(partition_id, ()):
                if not future.done():
                    future.set_result(None)

    def wake_all(self) -> None:
        """Wake all waiters."""
        self.wake(tuple(self._waiting))
