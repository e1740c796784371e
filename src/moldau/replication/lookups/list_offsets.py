"""Offsets of a classic partition by timestamp (ListOffsets). The lookup handles special timestamps, and
searches the local log and the remote tier."""

from moldau.protocol.special_timestamps import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
)
from moldau.replication.core.replica import Replica
from moldau.replication.lookups.record_lookup import RecordLookup
from moldau.replication.lookups.timestamp_lookup import find_max_timestamp, find_timestamp
from moldau.replication.partition_interface import (
    FoundOffset,
)
from moldau.replication.remote import RemoteSlot
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.fair_lane import FairClient
from moldau.runtime.machine import Machine
from moldau.storage.log.partition_log import PartitionLog


class OffsetLookup:
    """Finds offsets in the log that a replica leads."""

    def __init__(self, log: PartitionLog, replica: Replica, machine: Machine, slot: RemoteSlot) -> None:
        self._log = log
        self._replica = replica
        self._machine = machine
        self._slot = slot

    async def find(
        self,
        timestamp_ms: int,
        *,
        read_committed: bool,
        current_leader_epoch: int,
        client: FairClient | None = None,
        is_replica: bool = False,
        deadline_s: float | None = None,
    ) -> FoundOffset:
        error = self._replica.check_epoch(current_leader_epoch)
        if error is not ErrorCode.none:
            raise KafkaError(error)
        log = self._log
        # A follower may read the whole log, also the records that are not committed yet.
        watermark = log.log_end_offset if is_replica else self._replica.high_watermark
        end = log.last_stable_offset(watermark) if read_committed and not is_replica else watermark
        if timestamp_ms == LATEST_TIMESTAMP:
            if watermark < self._term_start():
                raise _not_available_yet(watermark, self._term_start())
            return FoundOffset(end, -1, self._replica.leader_epoch)
        if timestamp_ms in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
            is_local = timestamp_ms == EARLIEST_LOCAL_TIMESTAMP
            start = self._first_local_offset() if is_local else log.log_start_offset
            return FoundOffset(start, -1, log.epoch_for_offset(start))
        if timestamp_ms == LATEST_TIERED_TIMESTAMP:
            remote = self._slot.part
            copied = -1 if remote is None else await remote.highest_offset()
            return FoundOffset() if copied < 0 else FoundOffset(copied, -1, log.epoch_for_offset(copied))
        if timestamp_ms == EARLIEST_PENDING_UPLOAD_TIMESTAMP:
            return await self._find_pending_upload()
        if timestamp_ms < 0 and timestamp_ms != MAX_TIMESTAMP:
            raise KafkaError(
                ErrorCode.unsupported_version, f"{timestamp_ms} is not a timestamp that Kafka defines"
            )
        lookup = RecordLookup(self._machine, client, str(log.topic_partition), deadline_s)
        term_start = self._term_start()
        if watermark >= term_start:
            return await self._search(timestamp_ms, lookup, end)
        # Consumers may read only up to the watermark, which is still below the end of the earlier terms. But
        # the previous leader has perhaps shown these records to clients. If the result is such a record, the
        # client must ask again later (KIP-207).
        found = await self._search(timestamp_ms, lookup, term_start)
        if found.offset >= end:
            raise _not_available_yet(watermark, term_start)
        return found

    async def _search(self, timestamp_ms: int, lookup: RecordLookup, end_offset: int) -> FoundOffset:
        if timestamp_ms == MAX_TIMESTAMP:
            return await find_max_timestamp(self._log, self._slot.part, lookup, end_offset)
        return await find_timestamp(self._log, lambda: self._slot.part, lookup, timestamp_ms, end_offset)

    def _first_local_offset(self) -> int:
        chunks = self._slot.chunks
        return self._log.local_log_start_offset if chunks is None else chunks.first_local_offset()

    def _term_start(self) -> int:
        """First offset of the present leader epoch; 0 if this replica does not lead."""
        leader = self._replica.leader
        return 0 if leader is None else leader.start_offset

    async def _find_pending_upload(self) -> FoundOffset:
        """Return the first offset that is not in the remote tier (KIP-1023)."""
        remote = self._slot.part
        if remote is None:
            return FoundOffset()
        log, copied = self._log, await remote.highest_offset()
        if copied < 0 and log.local_log_start_offset > log.log_start_offset:
            return FoundOffset()  # This leader does not know yet which part of the log was copied.
        offset = max(copied + 1, log.log_start_offset)
        return FoundOffset(offset, -1, log.epoch_for_offset(offset))


def _not_available_yet(watermark: int, term_start: int) -> KafkaError:
    """The refusal of a lookup while the watermark of a new leader may be below a watermark that clients got
    from the previous leader (KIP-207)."""
    return KafkaError(
        ErrorCode.offset_not_available,
        f"the high watermark is {watermark}, and will be {term_start} at least",
    )
