"""Results of appends, reads and lookups."""

from enum import Enum
from typing import NamedTuple


class AppendOrigin(Enum):
    """The origin of an append. It decides which checks are made."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    RAFT = "raft"


class AppendInfo(NamedTuple):
    """The outcome of an append.

    ``log_append_time_ms`` is -1 unless the topic's timestamps are LogAppendTime. If the batch is a duplicate
    of an idempotent producer's batch, the values are the offsets and the time of the first append.
    """

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    max_timestamp_ms: int
    size_bytes: int
    is_duplicate: bool = False


class AbortedEntry(NamedTuple):
    """An aborted transaction of a producer: its first offset and the offset of its abort marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class ReadResult(NamedTuple):
    """Whole batches of one segment, in order.

    ``views`` together contain ``size_bytes`` bytes of the segment, beginning at ``segment_position``. The
    first batch may begin below the requested offset. All batches end below ``next_offset``.
    """

    views: list[memoryview]
    size_bytes: int
    next_offset: int
    segment_base_offset: int
    segment_position: int


class TimestampOffset(NamedTuple):
    """A record that a search by timestamp found: its offset and its timestamp."""

    offset: int
    timestamp: int


class EpochEndOffset(NamedTuple):
    """An epoch of a log, and the offset after the epoch's last record. The epoch is the requested epoch, or
    the next lower epoch if the log does not have the requested epoch."""

    epoch: int
    end_offset: int
