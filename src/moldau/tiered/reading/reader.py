"""Reads from the remote tier, for any partition. The partition provides its lineage and the offset after its
remote part.

Each read is a job in a pool of limited size. A request waits for the job at most
``remote.fetch.max.wait.ms``, and then gets a response without records. The job continues, and a repeated
request gets its result. Such a read is called *late*.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from moldau.replication.partition_interface import AbortedTransaction, ReadOutcome
from moldau.runtime import ErrorCode
from moldau.runtime.byte_quota import BytePacer, QuotaSettings
from moldau.storage.log.append_info import AbortedEntry
from moldau.storage.segments.transaction_index import ended_from
from moldau.tiered.metadata.manager import RemoteLogMetadataManager
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata
from moldau.tiered.meters import TieredMeters
from moldau.tiered.reading.requests import RemoteIndexes, RemoteRead, segment_at
from moldau.tiered.storage.batch_selection import select_batches
from moldau.tiered.storage.storage_manager import RemoteStorageError, RemoteStorageManager
from moldau.tiered.work_pool import TurnLane, WorkPool

__all__ = ["ReaderSettings", "RemoteBatches", "RemoteReader"]

logger = logging.getLogger(__name__)

READ_MAX_BYTES: Final = 8 * 1024 * 1024
"""A client's size limit above this maximum is reduced to this maximum, because the limit determines the
memory that a response needs. A first batch may be larger."""
INDEX_SLACK_BYTES: Final = 16 * 1024
"""Number of additional bytes to read. They are needed because the index gives a position slightly before the
requested batch."""
KEPT_S: Final = 5.0
"""Time for which the result of a late read is kept for the next request."""
KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum total size of the late results that are kept. The oldest results are dropped first. If a client
requests a dropped result later, the batches are read again."""
REMEMBERED_POSITIONS_MAX: Final = 4_096
READS_A_TURN: Final = 3
"""Maximum number of reads that begin in one iteration of the event loop. If the data are in memory, these
reads take a few tenths of a millisecond."""
WARNING_INTERVAL_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """The settings ``remote.log.reader.threads``, ``...max.pending.tasks``, ``remote.fetch.max.wait.ms``
    etc. of Kafka.
    """

    threads: int = 10
    max_pending_tasks: int = 100
    fetch_max_wait_ms: int = 500
    list_offsets_timeout_ms: int = 30_000
    fetch_quota: QuotaSettings = field(default_factory=QuotaSettings)


class RemoteBatches(NamedTuple):
    """Whole batches, beginning with the batch that contains the requested offset. ``next_offset`` is the
    offset after these batches.

    ``is_exhausted`` means that the remote tier has no batch at or after the offset. Then ``records`` is
    empty, and a repeated read has the same result.
    """

    records: memoryview | bytes
    next_offset: int
    aborted: Sequence[AbortedTransaction] | None = None
    is_exhausted: bool = False


_ReadKey: TypeAlias = tuple[UUID, int, int, int, bool, bool]


class RemoteReader:
    """The reader of a broker. It serves every partition, classic or diskless."""

    def __init__(
        self,
        metadata: RemoteLogMetadataManager,
        storage: RemoteStorageManager,
        indexes: RemoteIndexes,
        settings: ReaderSettings,
        meters: TieredMeters,
    ) -> None:
        self.metadata = metadata
        self.storage = storage
        self.indexes = indexes
        self.meters = meters
        self.pool = WorkPool(settings.threads)
        self._lane = TurnLane(READS_A_TURN)
        self._pacer = BytePacer(settings.fetch_quota)
        self._paced_count = 0
        self._settings = settings
        self._under_way: dict[_ReadKey, asyncio.Task[RemoteBatches]] = {}
        self._late: OrderedDict[_ReadKey, int] = OrderedDict()
        """The bytes of finished reads whose result no request has fetched yet."""
        self._late_bytes = 0
        self._positions: OrderedDict[tuple[UUID, int], int] = OrderedDict()
        self._last_warning_s = float("-inf")
        meters.watch_reader(self.pool)

    @property
    def settings(self) -> ReaderSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: ReaderSettings) -> None:
        self._settings = settings
        self.pool.size = settings.threads
        if settings.fetch_quota != self._pacer.settings:
            self._pacer = BytePacer(settings.fetch_quota)

    # -- answering ----------------------------------------------------------------------------

    def read(self, wanted: RemoteRead, known: ReadOutcome) -> "asyncio.Future[ReadOutcome]":
        """Read batches from the remote tier, and return them together with ``known``, the partition's own
        offsets.

        This method never raises. The result is ``unknown_server_error`` when the tier fails, as in Kafka, and
        ``offset_out_of_range`` for deleted records. The result has neither records nor an error when the pool
        is full, the quota is used up, or the time is over. The client then repeats the request.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[ReadOutcome] = loop.create_future()
        has_room = wanted.max_bytes > 0 or wanted.min_one_batch
        task = self._join(wanted) if has_room else None
        if task is None:
            answer.set_result(known)
            return answer
        timer = loop.call_later(self._settings.fetch_max_wait_ms / 1000, self._give_up, answer, known)

        def finish(done: "asyncio.Task[RemoteBatches]") -> None:
            timer.cancel()
            if not answer.done():
                outcome = known._replace(error=ErrorCode.unknown_server_error)
                try:
                    self._drop(_key_of(wanted))
                    outcome = self._outcome(wanted, known, done)
                except Exception:
                    logger.exception("a remote read of %s could not be completed", wanted.partition)
                answer.set_result(outcome)

        task.add_done_callback(finish)
        return answer

    def _give_up(self, answer: "asyncio.Future[ReadOutcome]", known: ReadOutcome) -> None:
        if not answer.done():
            self.meters.expired_fetch()
            answer.set_result(known)

    def _join(self, wanted: RemoteRead) -> "asyncio.Task[RemoteBatches] | None":
        """The read in progress for an equal request, or else a new read. The result is ``None`` if no new
        read may begin, because the queue of the pool is full or the quota is used up."""
        loop = asyncio.get_running_loop()
        key = _key_of(wanted)
        task = self._under_way.get(key)
        if task is not None:
            return task
        wait_s = self._pacer.wait_s(loop.time())
        if wait_s > 0:
            self.meters.fetch_throttle_ms.update(wait_s * 1000)
        if wait_s > self._settings.fetch_max_wait_ms / 1000:
            return None
        if self.pool.waiting_count + self._paced_count >= self._settings.max_pending_tasks:
            self.meters.failed_fetch(wanted.partition.topic)
            return None
        taken_bytes = min(wanted.max_bytes, READ_MAX_BYTES)
        self._pacer.reserve(taken_bytes, loop.time())
        task = self._under_way[key] = loop.create_task(self._work(wanted, wait_s, taken_bytes))
        # When ``_keep`` runs, the requests that waited have already used the result.
        task.add_done_callback(lambda done: loop.call_soon(self._keep, key, done))
        return task

    def _keep(self, key: _ReadKey, task: "asyncio.Task[RemoteBatches]") -> None:
        """Handle the end of a read. If the read was late, its result is kept for the next request."""
        if self._under_way.get(key) is not task:
            return
        failed = task.cancelled() or task.exception() is not None
        self._late[key] = size_bytes = 0 if failed else len(task.result().records)
        self._late_bytes += size_bytes
        while self._late_bytes > KEPT_BYTES_MAX:
            self._drop(next(iter(self._late)))
        asyncio.get_running_loop().call_later(KEPT_S, self._forget, key, task)

    def _forget(self, key: _ReadKey, task: "asyncio.Task[RemoteBatches]") -> None:
        if self._under_way.get(key) is task:
            self._drop(key)

    def _drop(self, key: _ReadKey) -> None:
        self._under_way.pop(key, None)
        self._late_bytes -= self._late.pop(key, 0)

    def _outcome(
        self, wanted: RemoteRead, known: ReadOutcome, task: "asyncio.Task[RemoteBatches]"
    ) -> ReadOutcome:
        if task.cancelled():
            return known
        error = task.exception()
        if error is not None:
            return known._replace(error=self._error_code(wanted, error))
        found = task.result()
        if found.is_exhausted and wanted.read_behind is not None:
            return wanted.read_behind()
        size_bytes = len(found.records)
        views = (found.records,) if size_bytes else ()
        # The known offsets stay valid, because the remote part cannot become larger.
        return known._replace(
            views=views, size_bytes=size_bytes, aborted=found.aborted, is_cut=size_bytes > 0
        )

    def _error_code(self, wanted: RemoteRead, error: BaseException) -> ErrorCode:
        if wanted.offset < wanted.log_start():
            return ErrorCode.offset_out_of_range
        now_s = asyncio.get_running_loop().time()
        if not isinstance(error, RemoteStorageError):
            logger.error("a remote read of %s failed", wanted.partition, exc_info=error)
        elif now_s - self._last_warning_s >= WARNING_INTERVAL_S:
            self._last_warning_s = now_s
            logger.warning("a remote read of %s at %d failed: %s", wanted.partition, wanted.offset, error)
        return ErrorCode.unknown_server_error

    @property
    def kept_bytes(self) -> int:
        """Size of the late results that no request has fetched yet."""
        return self._late_bytes

    async def idle(self) -> None:
        """Wait until no read is in progress."""
        while tasks := [task for task in self._under_way.values() if not task.done()]:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Cancel the reads in progress."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- reading ------------------------------------------------------------------------------

    async def _work(self, wanted: RemoteRead, wait_s: float, taken_bytes: int) -> RemoteBatches:
        """Carry out a read. ``taken_bytes`` of the quota are reserved for the read, which may begin in
        ``wait_s`` seconds."""
        loop, pacer = asyncio.get_running_loop(), self._pacer
        topic, size_bytes = wanted.partition.topic, 0
        try:
            if wait_s > 0:
                await self._wait(wait_s)
            # A request for many partitions begins one read for each partition. ``_lane`` spreads these reads
            # over several iterations of the event loop.
            await self._lane.turn()
            started_s = loop.time()
            self.meters.fetch_request(topic)
            await self.metadata.wait_ready(wanted.partition)
            await self.metadata.wait_applied(wanted.metadata_position)
            async with self.pool.place():
                found = await self.fetch(wanted)
            size_bytes = len(found.records)
        except Exception:
            self.meters.failed_fetch(topic)
            raise
        finally:
            pacer.settle(taken_bytes, size_bytes)
        self.meters.fetched(topic, size_bytes, (loop.time() - started_s) * 1000)
        return found

    async def _wait(self, seconds: float) -> None:
        self._paced_count += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._paced_count -= 1

    async def fetch(self, wanted: RemoteRead) -> RemoteBatches:
        """Read without using the pool, the quota and the time limit. Raises ``RemoteStorageError`` if the
        remote tier fails."""
        offset = wanted.offset
        while offset < wanted.end_offset:
            segment = segment_at(self.metadata, wanted, offset)
            bound = wanted.bound_at(offset, segment)
            found = await self._fetch_from(segment, offset, bound, wanted)
            if found is not None:
                if wanted.read_committed:
                    aborted = await self._aborted(wanted, offset, found.next_offset)
                    return found._replace(aborted=aborted)
                return found
            offset = bound
        return RemoteBatches(b"", wanted.end_offset, [] if wanted.read_committed else None, is_exhausted=True)

    async def _fetch_from(
        self, segment: RemoteLogSegmentMetadata, offset: int, bound: int, wanted: RemoteRead
    ) -> RemoteBatches | None:
        """Batches of a segment; ``None`` when the segment has no batch in ``[offset, bound)``."""
        max_bytes = min(wanted.max_bytes, READ_MAX_BYTES)
        position = self._positions.pop((segment.id.id, offset), None)
        size_bytes = max_bytes
        if position is None:
            position = await self.indexes.lookup_offset(segment, offset)
            size_bytes += INDEX_SLACK_BYTES
        while position < segment.segment_size_bytes:
            piece = await self.storage.fetch_log_segment(
                segment, position, min(segment.segment_size_bytes, position + size_bytes)
            )
            if not piece:
                break
            chosen = select_batches(piece, offset, bound, max_bytes, min_one_batch=wanted.min_one_batch)
            if chosen.end > chosen.start or not chosen.missing_bytes:
                if chosen.end == chosen.start and self._is_behind(piece, chosen.start, bound):
                    return None
                self._remember(segment.id.id, chosen.next_offset, position + chosen.end)
                return RemoteBatches(piece[chosen.start : chosen.end], chosen.next_offset)
            position += chosen.start
            size_bytes = max(max_bytes, chosen.missing_bytes)
        return None

    @staticmethod
    def _is_behind(piece: memoryview, start: int, bound: int) -> bool:
        return int.from_bytes(piece[start : start + 8], "big") >= bound

    def _remember(self, segment_id: UUID, offset: int, position: int) -> None:
        self._positions[segment_id, offset] = position
        if len(self._positions) > REMEMBERED_POSITIONS_MAX:
            self._positions.popitem(last=False)

    async def _aborted(
        self, wanted: RemoteRead, offset: int, next_offset: int
    ) -> Sequence[AbortedTransaction]:
        """The aborted transactions with records in ``[offset, next_offset)``.

        Their markers may be in any later segment. The indexes show when the search is complete.
        """
        found: dict[AbortedEntry, None] = {}
        cursor = offset
        while cursor < wanted.end_offset:
            epoch = wanted.lineage.epoch_for_offset(cursor)
            if epoch is None:
                break
            segment = self.metadata.next_segment_with_txn_index(wanted.partition, epoch, cursor)
            if segment is None:
                epoch_end = wanted.lineage.end_of_epoch(epoch)
                if epoch_end is None:
                    break
                cursor = epoch_end
                continue
            for transaction in ended_from(await self.indexes.aborted_transactions(segment), offset):
                if transaction.first_offset < next_offset:
                    found[transaction] = None
                if transaction.last_stable_offset >= next_offset:
                    return _for_clients(found)
            cursor = segment.end_offset + 1
        if wanted.aborted_behind is not None:
            found.update(dict.fromkeys(wanted.aborted_behind(offset, next_offset)))
        return _for_clients(found)


def _key_of(wanted: RemoteRead) -> _ReadKey:
    partition = wanted.partition
    return (
        partition.topic_id,
        partition.partition,
        wanted.offset,
        wanted.max_bytes,
        wanted.min_one_batch,
        wanted.read_committed,
    )


def _for_clients(found: dict[AbortedEntry, None]) -> list[AbortedTransaction]:
    return [AbortedTransaction(each.producer_id, each.first_offset) for each in found]
