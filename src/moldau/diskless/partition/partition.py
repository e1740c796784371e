"""A diskless partition on this broker. Writes go through the writer; reads use the cache or the objects."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from moldau.coordinators.diskless.calls import OffsetToDelete
from moldau.diskless.cache.partition_cache import PartitionCache
from moldau.diskless.partition.appends import PartitionAppends
from moldau.diskless.partition.client_errors import client_error
from moldau.diskless.partition.remote_part import RemoteRecords
from moldau.diskless.partition.services import PartitionServices
from moldau.diskless.partition.traffic import TopicTraffic
from moldau.diskless.partition.transactions import DisklessTransactions
from moldau.diskless.reading.cold_reads import ColdOutcome
from moldau.protocol.partitions import PartitionKey
from moldau.records.errors import CorruptRecordError
from moldau.replication.partition_interface import (
    AbortedTransaction,
    ActiveProducer,
    FoundOffset,
    PartitionStatus,
    ReadAnswer,
    ReadOutcome,
    ReadRequest,
    WithoutLog,
)
from moldau.runtime import ErrorCode, KafkaError
from moldau.runtime.fair_lane import FairClient
from moldau.storage.log.config import LogConfig

logger = logging.getLogger(__name__)

_KNOWN_TIMEOUT_S: Final = 5.0

_KEPT_TIMEOUT_S: Final = 1.0
"""Timeout for writing this broker's own commits into its cache. Usually this takes milliseconds."""


class DisklessPartition(WithoutLog):
    """A diskless partition with the common interface of partitions.

    Every broker may serve the partition. Leader epochs in requests are not checked, because the order of a
    diskless partition does not depend on its leader. The leader epoch of a batch is its generation.
    """

    def __init__(
        self,
        cache: PartitionCache,
        services: PartitionServices,
        config: LogConfig,
        traffic: TopicTraffic,
    ) -> None:
        """``services`` belong to all partitions of the broker; ``config`` and ``traffic`` belong to the
        topic.
        """
        self.cache = cache
        self.leader_epoch_in_metadata = 0
        self.is_leader_in_metadata = False
        self._remote: RemoteRecords | None = None
        self._key = cache.key
        self._deadlines = services.deadlines
        self._deleter = services.deleter
        self._moving = services.moving
        self._cold_reads = services.cold_reads
        self._lookup = services.lookup
        self._meters = services.meters
        self._traffic = traffic
        self._nearest_broker = services.racks.nearest_broker
        self._appends = PartitionAppends(cache.key, cache, services, config, traffic)
        self.append = self._appends.append
        self.transactions = DisklessTransactions(
            cache.key, services.transactions, services.guards, self.append
        )

    def begin_remote(self, part: RemoteRecords) -> None:
        """From now on, use ``part`` to read records that have left the WAL."""
        self._remote = part

    def end_remote(self) -> None:
        """From now on, this broker cannot read records that have left the WAL. Other brokers can still read
        them."""
        self._remote = None

    @property
    def waiting_bytes(self) -> int:
        """Bytes of batches that wait until it is certain that the coordinator has the partition."""
        return self._appends.waiting_bytes

    def refuse_waiting(self) -> None:
        """The broker stops, so refuse the batches that wait until it is certain that the coordinator has the
        partition."""
        self._appends.refuse_waiting()

    @property
    def config(self) -> LogConfig:
        """The topic's own config. The log of the cache has other limits."""
        return self._appends.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._appends.config = config

    @property
    def key(self) -> PartitionKey:
        return self._key

    @property
    def topic(self) -> str:
        return self.cache.topic

    @property
    def leader_epoch(self) -> int:
        """The partition's epoch in the metadata. Clients compare it with their own epoch."""
        return self.leader_epoch_in_metadata

    @property
    def is_leader(self) -> bool:
        return self.is_leader_in_metadata

    @property
    def is_under_replicated(self) -> bool:
        """Always False, because the object store keeps the copies."""
        return False

    # -- consume ------------------------------------------------------------------------------

    def read(self, request: ReadRequest) -> ReadAnswer:
        cache = self.cache
        offset = request.offset
        if cache.is_closed:
            return ReadOutcome(error=ErrorCode.not_leader_or_follower)
        if not cache.is_known:
            return asyncio.ensure_future(self._read_when_known(request))
        if offset < cache.log_start_offset:
            return self._known(error=ErrorCode.offset_out_of_range)
        if request.client_rack:
            nearer = self._nearest_broker(self._key, request.client_rack)
            if nearer >= 0:
                return self._known(read_committed=request.read_committed)._replace(
                    preferred_read_replica=nearer
                )
        cache.note_read(self._deadlines.loop.time())
        local_end = cache.local_end_offset
        is_local = cache.is_usable and cache.local_start_offset <= offset < local_end
        if cache.must_begin and not is_local:
            # This broker did not follow the partition, so only the coordinator knows the newest records.
            return asyncio.ensure_future(self._read_cold(request))
        if request.read_committed and cache.last_stable_offset <= offset < cache.high_watermark:
            return self._known(read_committed=True, readable_end=local_end)
        if is_local:
            return self._read_local(request, local_end)
        if local_end <= offset < cache.promised_offset:
            return asyncio.ensure_future(self._read_when_kept(request))
        if offset < cache.wal_start_offset and self._remote is not None:
            return asyncio.ensure_future(self._read_remote(request, self._remote))
        if offset == cache.high_watermark or (offset == local_end and cache.is_usable and not cache.is_stuck):
            return self._known(readable_end=local_end)
        return asyncio.ensure_future(self._read_cold(request))

    def count_shared_reads(self, size_bytes: int, reader_rack: str | None, times: int) -> None:
        self._traffic.read(size_bytes * times, reader_rack)

    def _known(
        self,
        *,
        error: ErrorCode = ErrorCode.none,
        views: Sequence[memoryview] = (),
        size_bytes: int = 0,
        read_committed: bool = False,
        aborted: Sequence[AbortedTransaction] = (),
        readable_end: int | None = None,
    ) -> ReadOutcome:
        """For reads that use the cache, ``readable_end`` is the end of the cache. Committed records after
        this end arrive very soon. The result must not contain a high watermark after this end, because the
        consumer could not read up to such a watermark."""
        cache = self.cache
        high_watermark = cache.high_watermark
        if readable_end is not None and cache.is_at_tail:
            high_watermark = min(high_watermark, readable_end)
        return ReadOutcome(
            error=error,
            views=views,
            size_bytes=size_bytes,
            high_watermark=high_watermark,
            last_stable_offset=min(cache.last_stable_offset, high_watermark),
            log_start_offset=cache.log_start_offset,
            aborted=aborted if read_committed and error is ErrorCode.none else None,
        )

    def _read_local(self, request: ReadRequest, local_end: int) -> ReadAnswer:
        cache = self.cache
        committed = request.read_committed
        try:
            result = cache.log.read(
                request.offset,
                request.max_bytes,
                upper_bound_offset=cache.local_stable_offset if committed else local_end,
                min_one_batch=request.min_one_batch,
            )
            cache.verify(request.offset, result)
        except CorruptRecordError as damage:
            self._meters.errors.value += 1
            logger.error(
                "the cache of %s-%d is damaged at offset %d and is emptied: %s",
                *(cache.topic, cache.key.partition, request.offset, damage),
            )
            return asyncio.ensure_future(self._read_without_cache(request))
        except KafkaError as failure:
            self._meters.errors.value += 1
            return self._known(error=failure.code)
        self._meters.cache_hits.value += 1
        self._meters.cache_hit_bytes.value += result.size_bytes
        self._traffic.read(result.size_bytes, request.reader_rack)
        return self._known(
            views=result.views,
            size_bytes=result.size_bytes,
            read_committed=committed,
            aborted=cache.local_aborted(request.offset, result) if committed else (),
            readable_end=local_end,
        )

    async def _read_without_cache(self, request: ReadRequest) -> ReadOutcome:
        try:
            await self.cache.drop_inherited()
        except KafkaError as failure:
            return self._known(error=failure.code)
        answer = self.read(request)
        return answer if isinstance(answer, ReadOutcome) else await answer

    async def _read_when_known(self, request: ReadRequest) -> ReadOutcome:
        self.cache.note_read(self._deadlines.loop.time())
        if not await self.cache.until_known(_KNOWN_TIMEOUT_S):
            closed = self.cache.is_closed
            return ReadOutcome(
                error=ErrorCode.not_leader_or_follower if closed else ErrorCode.kafka_storage_error
            )
        answer = self.read(request)
        return answer if isinstance(answer, ReadOutcome) else await answer

    async def _read_when_kept(self, request: ReadRequest) -> ReadOutcome:
        """Wait until the records that are being cached can be read. The producer of these records may already
        have its response, so a consumer must be able to read them."""
        if not await self.cache.until_kept(request.offset, _KEPT_TIMEOUT_S) and self.cache.is_promised:
            return self._known(readable_end=self.cache.local_end_offset)
        answer = self.read(request)
        return answer if isinstance(answer, ReadOutcome) else await answer

    async def _read_cold(self, request: ReadRequest) -> ReadOutcome:
        outcome = await self._cold_reads.read(self.cache, request.offset, request.max_bytes)
        if outcome.moved_to_tier and self._remote is not None:
            return await self._read_remote(request, self._remote)
        if outcome.failure is not None:
            self._meters.errors.value += outcome.failure.code is not ErrorCode.offset_out_of_range
            return self._known(error=outcome.failure.code)
        if request.read_committed:
            outcome = outcome.committed()
        too_large = outcome.batches and outcome.batches[0][0].size_bytes > request.max_bytes
        if not outcome.batches or (too_large and not request.min_one_batch):
            return self._known(read_committed=request.read_committed)
        return self._cold_result(request, outcome)

    async def _read_remote(self, request: ReadRequest, remote: RemoteRecords) -> ReadOutcome:
        """Read records that have moved from the WAL to remote storage."""
        outcome = await remote.read(request, self._known(read_committed=request.read_committed))
        if outcome.error is ErrorCode.none:
            self._traffic.read(outcome.size_bytes, request.reader_rack)
            return outcome
        # Perhaps the records were deleted during the read. The coordinator's response shows whether this is
        # the case.
        resolved = await self._cold_reads.read(self.cache, request.offset, request.max_bytes)
        deleted = resolved.failure is not None and resolved.failure.code is ErrorCode.offset_out_of_range
        self._meters.errors.value += not deleted
        return self._known(error=ErrorCode.offset_out_of_range if deleted else outcome.error)

    def _cold_result(self, request: ReadRequest, outcome: ColdOutcome) -> ReadOutcome:
        try:
            view = outcome.finished(self.cache.generations)
        except CorruptRecordError:
            self._meters.errors.value += 1
            return self._known(error=ErrorCode.corrupt_message)
        self._meters.cold_reads.value += 1
        self._meters.cold_bytes.value += len(view)
        self._traffic.read(len(view), request.reader_rack)
        end = outcome.batches[-1][0].last_offset + 1
        return self._known(
            views=(view,),
            size_bytes=len(view),
            read_committed=request.read_committed,
            aborted=self.cache.aborted_within(request.offset, end) if request.read_committed else (),
        )

    # -- offsets ------------------------------------------------------------------------------

    async def find_offset(
        self,
        timestamp_ms: int,
        *,
        read_committed: bool,
        current_leader_epoch: int,
        client: FairClient | None = None,
        is_replica: bool = False,
        deadline_s: float | None = None,
    ) -> FoundOffset:
        return await self._lookup.find(
            self.cache,
            timestamp_ms,
            self._remote,
            read_committed=read_committed,
            client=client,
            deadline_s=deadline_s,
        )

    async def delete_records(self, before_offset: int, timeout_s: float | None = None) -> int:
        wanted = [OffsetToDelete(*self.cache.partition_id, before_offset)]
        until_s = None if timeout_s is None else self._deadlines.loop.time() + timeout_s
        deleted = await self._moving.ask(
            self.cache.coordinator_id, lambda: self._deleter.delete_records(wanted), until_s
        )
        if deleted.error is not ErrorCode.none:
            raise client_error(deleted.error, deleted.message, ErrorCode.leader_not_available)
        self.cache.learn(log_start_offset=deleted.low_watermark, wal_start_offset=-1, high_watermark=-1)
        return deleted.low_watermark

    def end_offset_for_epoch(self, leader_epoch: int, current_leader_epoch: int) -> tuple[int, int]:
        self.cache.note_read(self._deadlines.loop.time())
        if not self.cache.is_known or self.cache.must_begin:
            raise KafkaError(ErrorCode.offset_not_available)
        if leader_epoch < 0:
            return -1, -1
        generations = self.cache.generations
        found = min(leader_epoch, generations.latest)
        end_offset = generations.end_of_epoch(found)
        return found, self.cache.high_watermark if end_offset is None else end_offset

    def state(self) -> PartitionStatus:
        cache = self.cache
        return PartitionStatus(
            cache.high_watermark,
            cache.log_start_offset,
            cache.high_watermark,
            cache.log.size_bytes if cache.is_usable else 0,
            cache.log.directory if cache.has_log else "",
            tuple(ActiveProducer(*producer) for producer in cache.log.active_producers())
            if cache.has_log
            else (),
        )
