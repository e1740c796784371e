"""Remote storage for a diskless partition: the records before the start of the partition's WAL."""

from collections.abc import Awaitable
from typing import Protocol

from moldau.replication.lookups.record_lookup import RecordLookup
from moldau.replication.partition_interface import FoundOffset, ReadOutcome, ReadRequest

__all__ = ["RemoteRecords"]


class RemoteRecords(Protocol):
    """A partition's records between its log start and its WAL's start."""

    def read(self, request: ReadRequest, known: ReadOutcome) -> Awaitable[ReadOutcome]:
        """Read batches, beginning at the requested offset. The result has the batches and the offsets in
        ``known``.

        This method never raises. The result has UNKNOWN_SERVER_ERROR when remote storage fails or does not
        contain the offset. The result has no records when the read takes too long.
        """
        ...

    async def find_timestamp(
        self, timestamp_ms: int, start: int, end: int, lookup: RecordLookup
    ) -> FoundOffset | None:
        """The first record of ``[start, end)`` at or after a time. Raises ``KafkaError``."""
        ...

    async def find_max_timestamp(
        self, above_ms: int, start: int, end: int, lookup: RecordLookup
    ) -> FoundOffset | None:
        """The first record with the largest timestamp of ``[start, end)``, if this timestamp is greater than
        ``above_ms``."""
        ...
