"""The remote tier (KIP-405) of a classic partition. It contains the part of the log that is no longer
local."""

import asyncio
from typing import Protocol

from moldau.replication.lookups.record_lookup import RecordLookup
from moldau.replication.partition_interface import FoundOffset, ReadOutcome, ReadRequest
from moldau.storage.log.auxiliary_state import AuxiliaryState

__all__ = ["EarlierChunks", "RemotePart", "RemoteSlot"]


class RemotePart(Protocol):
    """The remote part of one partition."""

    def read(self, request: ReadRequest, known: ReadOutcome) -> "asyncio.Future[ReadOutcome]":
        """Read batches that begin at ``request.offset``, which is in the remote part. The result is ``known``
        with these batches. ``known`` contains the partition's offsets."""
        ...

    async def highest_offset(self) -> int:
        """The last offset that has been copied; -1 when no offset has been copied."""
        ...

    async def auxiliary_state(
        self, leader_epoch: int, end_offset: int, log_start_offset: int
    ) -> AuxiliaryState:
        """The state at the end of a remote segment. This segment contains the record before ``end_offset``,
        which must have the given leader epoch.

        Raises ``KafkaError`` while the state is not available.
        """
        ...

    async def state_before(self, offset: int) -> AuxiliaryState | None:
        """The newest known state at or before ``offset``, which is inside the remote part: at the end of a
        remote segment, or at the start of the log. ``None`` if no such state is known.

        Raises ``KafkaError`` if the remote tier cannot be read.
        """
        ...

    async def find_timestamp(
        self, timestamp_ms: int, before_offset: int, lookup: RecordLookup
    ) -> FoundOffset | None:
        """Return the first record in the remote part that has at least this timestamp and is below
        ``before_offset``.

        Raises ``KafkaError`` if the remote tier cannot be read.
        """
        ...

    async def find_max_timestamp(
        self, above_ms: int, before_offset: int, lookup: RecordLookup
    ) -> FoundOffset | None:
        """Return the first record with the largest timestamp of the remote part. The timestamp must be above
        ``above_ms``.

        Raises ``KafkaError`` if the remote tier cannot be read.
        """
        ...


class EarlierChunks(Protocol):
    """The inactive chunks of a partition (KIP-1114), which are before its log."""

    def first_local_offset(self) -> int:
        """The first offset on the disks of the partition's brokers. It is the start of the leader's local log
        if no inactive chunk is left."""
        ...

    def border(self) -> int:
        """The first offset of the active chunk. The log of a replica begins at this offset or later."""
        ...


class RemoteSlot:
    """Contains the remote part of a log. The remote part is before the first local segment. The remote part
    exists while the partition's topic is tiered.

    A topic may become tiered, or stop being tiered, while its partitions are served.
    """

    __slots__ = ("chunks", "is_tiered", "part")

    def __init__(self) -> None:
        self.part: RemotePart | None = None
        self.is_tiered = False
        """Whether the remote part has records in the remote tier, or will have such records. If not, all
        records of the remote part are in inactive chunks."""
        self.chunks: EarlierChunks | None = None
        """The inactive chunks; ``None`` if the partition never had inactive chunks."""

    def begin(self, part: RemotePart, *, is_tiered: bool = True, chunks: EarlierChunks | None = None) -> None:
        """Set the remote part of the log."""
        self.part = part
        self.is_tiered = is_tiered
        self.chunks = chunks

    def end(self) -> None:
        """Remove the remote part, because the topic is no longer tiered or the partition is closed. It is
        allowed to call this method again."""
        self.part, self.is_tiered, self.chunks = None, False, None
