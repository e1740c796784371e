"""The remote part of a classic partition. It gives the remote reader the lineage and the offsets of the
partition's log."""

import asyncio
from collections.abc import Callable, Sequence

from moldau.replication.lookups.record_lookup import RecordLookup
from moldau.replication.partition_interface import AbortedTransaction, FoundOffset, ReadOutcome, ReadRequest
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.storage.log.append_info import AbortedEntry, ReadResult
from moldau.storage.log.auxiliary_state import AuxiliaryState
from moldau.storage.log.partition_log import PartitionLog
from moldau.tiered.copied_end import copied_until, find_highest_copied
from moldau.tiered.metadata.lineage import LogLineage
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.reading.list_offsets import RemoteOffsetSearch
from moldau.tiered.reading.reader import RemoteReader
from moldau.tiered.reading.requests import RemoteRange, RemoteRead
from moldau.tiered.restoring import fetch_auxiliary_state
from moldau.tiered.storage.storage_manager import RemoteStorageError


class ClassicRemotePart:
    """Reads the remote part of a classic partition. Implements
    :class:`moldau.replication.remote.RemotePart`."""

    def __init__(
        self,
        partition: TopicIdPartition,
        log: PartitionLog,
        reader: RemoteReader,
        read_local: Callable[[ReadRequest], "ReadOutcome | asyncio.Future[ReadOutcome]"],
    ) -> None:
        self._partition = partition
        self._log = log
        self._reader = reader
        self._search = RemoteOffsetSearch(reader)
        self._read_local = read_local
        self._lineage = LogLineage(log.leader_epochs)

    def read(self, request: ReadRequest, known: ReadOutcome) -> "asyncio.Future[ReadOutcome]":
        # The start of the local part at this moment. It may rise during the read, so it is read only once.
        end_offset = self._log.local_log_start_offset
        aborted_behind = self._aborted_locally(request.offset, end_offset) if request.read_committed else []

        def read_behind() -> ReadOutcome:
            answer = self._read_local(request._replace(offset=end_offset))
            return answer if isinstance(answer, ReadOutcome) else known

        return self._read_before(request, known, end_offset, aborted_behind, read_behind)

    def _read_before(
        self,
        request: ReadRequest,
        known: ReadOutcome,
        end_offset: int,
        aborted_behind: Sequence[AbortedEntry],
        read_behind: Callable[[], ReadOutcome],
    ) -> "asyncio.Future[ReadOutcome]":
        log = self._log
        wanted = RemoteRead(
            partition=self._partition,
            lineage=self._lineage,
            end_offset=end_offset,
            log_start=lambda: log.log_start_offset,
            offset=request.offset,
            max_bytes=request.max_bytes,
            min_one_batch=request.min_one_batch,
            read_committed=request.read_committed,
            aborted_behind=lambda _, next_offset: [
                each for each in aborted_behind if each.first_offset < next_offset
            ],
            read_behind=read_behind,
        )
        return self._reader.read(wanted, known)

    def _aborted_locally(self, offset: int, next_offset: int) -> list[AbortedEntry]:
        return self._log.aborted_transactions(offset, ReadResult([], 0, next_offset, 0, 0))

    # -- below the chunks of a partition: a moldau.chunks.tiered_part.TierBelow ---------------------

    def read_below_chunks(
        self,
        request: ReadRequest,
        known: ReadOutcome,
        end_offset: int,
        aborted_behind: Sequence[AbortedTransaction],
        exhausted: ReadOutcome,
    ) -> "asyncio.Future[ReadOutcome]":
        entries = [
            AbortedEntry(each.producer_id, each.first_offset, end_offset, end_offset)
            for each in aborted_behind
        ]
        return self._read_before(request, known, end_offset, entries, lambda: exhausted)

    async def until_ready(self) -> None:
        try:
            await self._reader.metadata.wait_ready(self._partition)
        except RemoteStorageError as error:
            raise KafkaError(ErrorCode.unknown_server_error, str(error)) from error

    def copied_until(self, offset: int, end_offset: int) -> int:
        metadata = self._reader.metadata
        if not metadata.is_ready(self._partition):
            return offset
        return copied_until(metadata, self._partition, self._lineage, offset, end_offset)

    # -- the whole part before the local log ---------------------------------------------------------

    async def highest_offset(self) -> int:
        metadata, log = self._reader.metadata, self._log
        try:
            await metadata.wait_ready(self._partition)
            return max(log.highest_copied_offset, find_highest_copied(metadata, self._partition, log))
        except RemoteStorageError as error:
            raise KafkaError(ErrorCode.unknown_server_error, str(error)) from error

    async def auxiliary_state(
        self, leader_epoch: int, end_offset: int, log_start_offset: int
    ) -> AuxiliaryState:
        metadata, last_offset = self._reader.metadata, end_offset - 1
        try:
            await metadata.wait_ready(self._partition)
            segment = metadata.remote_log_segment_metadata(self._partition, leader_epoch, last_offset)
            if segment is None:
                raise KafkaError(
                    ErrorCode.offset_moved_to_tiered_storage,
                    f"no remote segment is known with offset {last_offset} of epoch {leader_epoch}",
                )
            return await fetch_auxiliary_state(self._reader.storage, segment, log_start_offset)
        except RemoteStorageError as error:
            raise KafkaError(ErrorCode.unknown_server_error, str(error)) from error

    async def state_before(self, offset: int) -> AuxiliaryState | None:
        metadata, start_offset = self._reader.metadata, self._log.log_start_offset
        end_offset = offset
        try:
            await metadata.wait_ready(self._partition)
            while end_offset > start_offset:
                epoch = self._lineage.epoch_for_offset(end_offset - 1)
                if epoch is None:
                    return None
                segment = metadata.remote_log_segment_metadata(self._partition, epoch, end_offset - 1)
                if segment is None:
                    return None
                last_offset = segment.end_offset
                # The last records of a segment may be those of a leader that an unclean election replaced.
                if (
                    last_offset < offset
                    and self._lineage.epoch_for_offset(last_offset) == segment.leader_epochs[-1].epoch
                ):
                    return await fetch_auxiliary_state(self._reader.storage, segment, start_offset)
                end_offset = segment.start_offset
        except RemoteStorageError as error:
            raise KafkaError(ErrorCode.unknown_server_error, str(error)) from error
        return AuxiliaryState(start_offset, start_offset, (), ())

    async def find_timestamp(
        self, timestamp_ms: int, before_offset: int, lookup: RecordLookup
    ) -> FoundOffset | None:
        return await self._search.find_timestamp(
            self._range(before_offset), self._log.log_start_offset, timestamp_ms, lookup
        )

    async def find_max_timestamp(
        self, above_ms: int, before_offset: int, lookup: RecordLookup
    ) -> FoundOffset | None:
        return await self._search.find_max_timestamp(
            self._range(before_offset), self._log.log_start_offset, above_ms, lookup
        )

    def _range(self, before_offset: int) -> RemoteRange:
        log = self._log
        return RemoteRange(
            partition=self._partition,
            lineage=self._lineage,
            end_offset=min(before_offset, log.local_log_start_offset),
            log_start=lambda: log.log_start_offset,
        )
