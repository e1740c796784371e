"""Searches of a log by time, as in ListOffsets."""

import asyncio
from typing import Any

from moldau.replication.lookups.record_lookup import RecordLookup
from moldau.replication.lookups.timestamp_lookup import find_max_timestamp, find_timestamp
from moldau.replication.partition_interface import FoundOffset
from moldau.storage.log.partition_log import PartitionLog


class TimesOf:
    """Searches of one log. A result is a pair of offset and timestamp, or None if there is no such record."""

    def __init__(self, box: Any, log: PartitionLog) -> None:
        self._log = log
        self._lookup = RecordLookup(box.machine, None, "t-0")

    def at_or_after(self, timestamp_ms: int, up_to: int | None = None) -> tuple[int, int] | None:
        """The first record at or after a timestamp."""
        end_offset = self._log.log_end_offset if up_to is None else up_to
        search = find_timestamp(self._log, lambda: None, self._lookup, timestamp_ms, end_offset)
        return _position(asyncio.run(search))

    def latest(self, up_to: int | None = None) -> tuple[int, int] | None:
        """The first record with the largest timestamp."""
        end_offset = self._log.log_end_offset if up_to is None else up_to
        return _position(asyncio.run(find_max_timestamp(self._log, None, self._lookup, end_offset)))


def _position(found: FoundOffset) -> tuple[int, int] | None:
    return None if found.offset < 0 else (found.offset, found.timestamp_ms)
