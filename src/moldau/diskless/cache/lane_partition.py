"""A partition that a lane follows, and the state of its requests and reads."""

from dataclasses import dataclass
from typing import Final

from moldau.coordinators.diskless.calls import PartitionToFind
from moldau.diskless.cache.partition_cache import PartitionCache
from moldau.diskless.reading.read_round import ReadRound

FIRST_BACKOFF_S: Final = 0.02
"""Pause after the first failure, in seconds."""
MAX_BACKOFF_S: Final = 2.0
"""Maximum pause after a failure, in seconds."""


@dataclass(slots=True)
class LanePartition:
    """A partition in the lane, and the state of its reads."""

    cache: PartitionCache
    reading: ReadRound | None = None
    """The round that reads batches for the cache now. An earlier slow round may still be running for other
    partitions; its end must not end this round for the cache."""
    is_resting: bool = False
    backoff_s: float = 0.0
    asked: PartitionToFind | None = None
    """The row of the last request. It is used again while it does not change, because a lane of an idle
    broker may have thousands of members."""
    asked_end: int = -1
    """The high watermark that was known when the request was sent."""

    @property
    def is_busy(self) -> bool:
        """Whether batches are being read for the cache."""
        return self.reading is not None

    @property
    def may_be_asked_for(self) -> bool:
        """Whether batches may be requested for the cache. There are three conditions: the lane is not reading
        batches for the cache; the cache is not pausing after a failure; no own commits are promised to the
        cache (see :mod:`moldau.diskless.writing.own_commits`)."""
        return not (self.is_busy or self.is_resting or self.cache.is_promised)

    def ask(self, max_bytes: int) -> PartitionToFind:
        """The row of a request for the next batches of the cache."""
        offset, asked = self.cache.local_end_offset, self.asked
        if asked is None or (asked.offset, asked.max_bytes) != (offset, max_bytes):
            asked = self.asked = PartitionToFind(*self.cache.partition_id, offset, max_bytes)
        self.asked_end = self.cache.high_watermark
        return asked

    def back_off(self) -> float:
        """The time to wait before the next attempt. It becomes longer with each failure, up to a maximum."""
        self.backoff_s = min(MAX_BACKOFF_S, max(FIRST_BACKOFF_S, 2 * self.backoff_s))
        self.is_resting = True
        return self.backoff_s
