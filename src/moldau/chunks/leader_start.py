"""The first offset of a partition, for a broker that has inactive chunks but no replica of the active chunk.

Only the leader knows which records were deleted. The first chunk may have deleted records, because a chunk is
removed only as a whole.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from moldau.cluster.image.partition import PartitionRegistration
from moldau.runtime.errors import KafkaError

FRESH_S: Final = 1.0
"""Time in seconds for which a response of the leader is used."""
RETRY_S: Final = 5.0
"""Time in seconds after which a leader that did not respond is asked again."""


class LeaderStart:
    """Asks the leader of a partition for the first offset, at most once in a second."""

    def __init__(self, ask: Callable[[PartitionRegistration], Awaitable[int]]) -> None:
        """``ask`` requests the first offset from the leader. It raises ``KafkaError``."""
        self._ask = ask
        self._offset = -1
        self._due_s = float("-inf")
        self._asking = asyncio.Lock()

    async def offset(self, partition: PartitionRegistration) -> int:
        """The first offset of the partition; -1 if no leader has responded yet."""
        async with self._asking:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._due_s and partition.leader >= 0:
                try:
                    self._offset = max(self._offset, await self._ask(partition))
                    self._due_s = loop.time() + FRESH_S
                except KafkaError:
                    # The chunk never changes, so consumers can read it although there is no leader.
                    self._due_s = loop.time() + RETRY_S
            return self._offset
