"""The local cache of a diskless partition: segments, and copies of the coordinator's offsets.

The coordinator owns log start, WAL start and high watermark. This class has copies of these values from the
last response. Only :meth:`PartitionCache.correct` makes a copy lower. The local log contains a contiguous
range of offsets ``[local start, local end)``. The range may begin anywhere. It is dropped whenever it does
not match the coordinator's offsets.
"""

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from moldau.cluster.image.log_generations import FIRST_GENERATION, LogGenerations
from moldau.coordinators.diskless.calls import AbortedRange, BatchCoordinate
from moldau.diskless.reading.batch_conversion import finish_batch
from moldau.protocol.partitions import PartitionKey
from moldau.records.batch import check_batch, set_base_offset_and_epoch
from moldau.records.errors import CorruptRecordError
from moldau.replication.partition_interface import AbortedTransaction
from moldau.storage.log.append_info import ReadResult
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.log.worker_appends import AsideWrite

UNKNOWN: Final = -1
_WRITE_BYTES_MAX: Final = 4 * 1024 * 1024


class Scratch:
    """A buffer for batches that are being appended to logs. It is reused because using new memory pages would
    cost more than the copy."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def reserve(self, size_bytes: int) -> memoryview:
        """``size_bytes`` writable bytes, which are valid until the next call."""
        if len(self._buffer) < size_bytes:
            self._buffer = bytearray(max(size_bytes, 2 * len(self._buffer)))
        return memoryview(self._buffer)[:size_bytes]


class PartitionCache:
    """The local cache of a partition: the batches of one range of offsets, and copies of the coordinator's
    high watermark and log start offset."""

    log: PartitionLog
    """The local segments. Use them only when :attr:`has_log` is true."""

    notify_readers: Callable[[], None]
    """Called when readers that wait at the end of the partition can read more, although nothing was appended
    to the cache."""

    def __init__(
        self,
        key: PartitionKey,
        topic: str,
        coordinator_id: int,
        log: PartitionLog | None,
        generations: LogGenerations = FIRST_GENERATION,
    ) -> None:
        """Without ``log`` only the coordinator's offsets are kept, and every read is a cold read."""
        self.key = key
        self.topic = topic
        self.coordinator_id = coordinator_id
        self.generations = generations
        self.has_log = log is not None
        if log is not None:
            self.log = log
        self.log_start_offset = UNKNOWN
        self.wal_start_offset = UNKNOWN
        self.remote_metadata_position = UNKNOWN
        """The position up to which a reader must have read the remote metadata. The metadata then contain all
        segments before ``wal_start_offset``."""
        self.high_watermark = UNKNOWN
        self._open_since = UNKNOWN
        """First offset of the oldest open transaction."""
        self._aborted: dict[tuple[int, int], AbortedRange] = {}
        self._is_restarting = False
        self.is_closed = False
        if log is not None and log.holes and not log.is_offline:
            # The local range is dropped, because readers rely on a range without gaps. No record is lost,
            # because the records are also in the object store. This blocking call is made only if the log was
            # damaged.
            log.truncate_fully_now(log.log_end_offset)
        self.is_at_tail = False
        """Whether batches are cached when they are committed. It is False while the cache is catching up."""
        self.is_stuck = False
        """Whether the batch at the local end cannot be cached, because its object no longer exists, or
        because the bytes differ from the committed batch. Readers at this offset then get an error instead of
        waiting.
        """
        self.promised_offset = UNKNOWN
        """The offset up to which this broker's own batches are being appended. During this time no other code
        may append. The value is UNKNOWN when no own batches are being appended. See
        :mod:`moldau.diskless.writing.own_commits`.
        """
        self._inherited_end = UNKNOWN if log is None or log.is_offline else log.log_end_offset
        """End offset of the bytes that an earlier process wrote. The disk may have damaged these bytes later.
        The objects in the store are intact.
        """
        self._verified = (UNKNOWN, UNKNOWN)
        """The range of the earlier process's bytes that was found to be intact."""
        self.must_begin = True
        """Whether the next answer of the coordinator decides where the cache continues. The offsets of the
        coordinator may be old until then."""
        self.read_s = -inf
        """Time of the last read, in seconds of the event loop's clock."""
        self.notify_readers = lambda: None
        self._wake: Callable[[], None] | None = None
        self._on_known: list[Callable[[], None]] = []
        self._on_kept: list[asyncio.Future[None]] = []

    @property
    def partition_id(self) -> PartitionKey:
        return PartitionKey(self.key.topic_id, self.key.partition)

    @property
    def is_known(self) -> bool:
        """Whether the coordinator has sent the partition's offsets."""
        return self.high_watermark >= 0

    @property
    def is_usable(self) -> bool:
        """Whether local segments can be read and written. Without them every read is a cold read."""
        return self.has_log and not (self.log.is_offline or self._is_restarting)

    @property
    def local_start_offset(self) -> int:
        return self.log.offsets.log_start_offset

    @property
    def local_end_offset(self) -> int:
        """The offset of the next batch that will be cached."""
        return self.log.log_end_offset if self.is_usable else max(0, self.high_watermark)

    @property
    def is_caught_up(self) -> bool:
        return self.is_known and self.local_end_offset >= self.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The last stable offset, at which a read_committed read ends. When no transaction is open, it is the
        high watermark."""
        return self.high_watermark if self._open_since < 0 else min(self._open_since, self.high_watermark)

    @property
    def local_stable_offset(self) -> int:
        """The end of a read_committed read of the local segments.

        If a transaction has ended at the coordinator, it still counts as open for these reads until its
        marker is in the segments. From then on, the segments' transaction indexes contain the transaction if
        it was aborted.
        """
        end = self.local_end_offset
        return min(self.last_stable_offset, self.log.last_stable_offset(end), end)

    def local_aborted(self, offset: int, result: ReadResult) -> list[AbortedTransaction]:
        """Aborted transactions that have records in the batches that were read from the local segments."""
        found = dict.fromkeys(self.aborted_within(offset, result.next_offset))
        for entry in self.log.aborted_transactions(offset, result):
            found[AbortedTransaction(entry.producer_id, entry.first_offset)] = None
        return list(found)

    def learn(
        self,
        *,
        log_start_offset: int,
        wal_start_offset: int,
        high_watermark: int,
        last_stable_offset: int = UNKNOWN,
        remote_metadata_position: int = UNKNOWN,
    ) -> None:
        """Update the offsets. Responses that are older than the current values change nothing.

        A caller omits ``last_stable_offset`` if this update begins and ends no transaction.
        """
        before = self.high_watermark
        if last_stable_offset >= 0 and high_watermark >= self.high_watermark:
            is_open = last_stable_offset < high_watermark
            self._open_since = last_stable_offset if is_open else UNKNOWN
        self.log_start_offset = max(self.log_start_offset, log_start_offset)
        self.wal_start_offset = max(self.wal_start_offset, wal_start_offset)
        self.remote_metadata_position = max(self.remote_metadata_position, remote_metadata_position)
        self.high_watermark = max(self.high_watermark, high_watermark)
        if self.is_known and before < 0:
            waiting, self._on_known = self._on_known, []
            for callback in waiting:
                callback()
        if self.high_watermark != before and (before < 0 or not self.is_usable):
            self.notify_readers()

    def learn_promised(self, batches: Sequence[BatchCoordinate]) -> None:
        """Learn that batches of this broker are committed, and will be appended to the cache. They follow the
        last promised batch, or the local end.

        A transactional batch is part of an open transaction. Its marker comes later, and interrupts the
        promises, as it has an offset of its own.
        """
        self.promised_offset = batches[-1].last_offset + 1
        stable = self._open_since
        if stable < 0:
            stable = next((one.base_offset for one in batches if one.is_transactional), UNKNOWN)
        self.learn(
            log_start_offset=UNKNOWN,
            wal_start_offset=UNKNOWN,
            high_watermark=self.promised_offset,
            last_stable_offset=stable,
        )

    def learn_aborted(self, ranges: Sequence[AbortedRange]) -> None:
        """Add aborted transactions. Transactions below the log start are removed."""
        if ranges:
            self._aborted.update({(each.producer_id, each.first_offset): each for each in ranges})
            start = self.log_start_offset
            kept = {at: each for at, each in self._aborted.items() if each.last_offset >= start}
            self._aborted = kept

    def aborted_within(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Known aborted transactions with an offset in the range."""
        return [
            AbortedTransaction(each.producer_id, each.first_offset)
            for each in self._aborted.values()
            if each.last_offset >= start_offset and each.first_offset < end_offset
        ]

    def note_read(self, now_s: float) -> None:
        """Note a read of this partition on this broker. If the broker does not follow the partition, it
        begins to do so. ``now_s`` is a time of the event loop's clock."""
        self.read_s = now_s
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def sleep(self, wake: Callable[[], None]) -> None:
        """Called when this broker stops following the partition, because no client reads it here. ``wake`` is
        called at the next read."""
        self.must_begin, self.is_at_tail, self._wake = True, False, wake

    @property
    def is_asleep(self) -> bool:
        """Whether this broker does not follow the partition now, because no client reads it here."""
        return self._wake is not None

    def when_known(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, as soon as the offsets are known or the partition is closed. If that has
        already happened, this method must not be called.
        """
        self._on_known.append(callback)

    async def until_known(self, timeout_s: float) -> bool:
        """Wait until the offsets are known. Returns False after a timeout or when the partition is closed."""
        if not self.is_known and not self.is_closed:
            known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_known(lambda: None if known.done() else known.set_result(None))
            await asyncio.wait([known], timeout=timeout_s)
            known.cancel()
        return self.is_known and not self.is_closed

    def correct(self, high_watermark: int) -> None:
        """Lower the copies of the coordinator's offsets. Call this only after the coordinator's log was
        restored from a backup, because only then does the coordinator have lower offsets than before.
        """
        self.high_watermark = high_watermark
        self.log_start_offset = min(self.log_start_offset, high_watermark)

    def append(self, batches: Sequence[tuple[BatchCoordinate, memoryview]], scratch: Scratch) -> None:
        """Append batches that begin at the local end.

        Raises :class:`CorruptRecordError` for the first batch that differs from the committed batch. The
        batches before it are appended. Raises ``KafkaError`` when the disk fails.
        """
        position = 0
        while position < len(batches):
            count = _fitting(batches, position)
            self._append_some(batches[position : position + count], scratch)
            position += count

    @property
    def is_promised(self) -> bool:
        """Whether batches that this broker commits are promised to this cache. Then only these batches may be
        appended next (see :mod:`moldau.diskless.writing.own_commits`)."""
        return self.promised_offset >= 0

    async def until_kept(self, offset: int, timeout_s: float) -> bool:
        """Wait for a promised batch. Returns False when it did not arrive in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self.local_end_offset <= offset < self.promised_offset and loop.time() < deadline:
            kept: asyncio.Future[None] = loop.create_future()
            self._on_kept.append(kept)
            await asyncio.wait([kept], timeout=deadline - loop.time())
        return self.local_end_offset > offset

    def note_kept(self) -> None:
        """End the waits for promised batches. The batches are in the cache now, or they will not be appended
        as own commits."""
        waiting, self._on_kept = self._on_kept, []
        for kept in waiting:
            if not kept.done():
                kept.set_result(None)

    def begin_own(self, run: Sequence[BatchCoordinate], content: memoryview) -> AsideWrite | None:
        """Begin to append own batches. They are adjacent in ``content`` and were checked when they were
        produced. Offsets and epochs are written into ``content``. Raises the same errors as :meth:`append`.

        ``None`` means that the batches are appended already. Otherwise the caller must call :meth:`end_own`
        when the write is done.
        """
        position = 0
        epoch = self.generations.latest
        for coordinate in run:
            set_base_offset_and_epoch(content, position, coordinate.base_offset, epoch)
            position += coordinate.size_bytes
        write = self.log.begin_aside(content)
        if write is None:
            self._to_log(content)
        return write

    def end_own(self, write: AsideWrite) -> None:
        """Add the written batches to the log, unless the log was dropped in the meantime. Raises the same
        errors as :meth:`append`."""
        if self.log.end_aside(write):
            self.log.offsets.high_watermark = self.log.segments.end_offset
            self.is_stuck = False

    def _to_log(self, batches: memoryview) -> None:
        self.log.append_as_follower(batches)
        self.log.offsets.high_watermark = self.log.segments.end_offset
        self.is_stuck = False

    def _append_some(self, batches: Sequence[tuple[BatchCoordinate, memoryview]], scratch: Scratch) -> None:
        log = self.log
        expected = log.log_end_offset
        buffer = scratch.reserve(sum(len(view) for _, view in batches))
        end = 0
        error: CorruptRecordError | None = None
        for coordinate, view in batches:
            if coordinate.base_offset != expected:
                error = CorruptRecordError(
                    f"{self.topic}-{self.key.partition}: offset {coordinate.base_offset} came after"
                    f" {expected - 1}"
                )
                break
            buffer[end : end + len(view)] = view
            try:
                finish_batch(buffer, end, coordinate, self.generations)
            except CorruptRecordError as corrupt:
                error = corrupt
                break
            end += len(view)
            expected = coordinate.last_offset + 1
        if end:
            self._to_log(buffer[:end])
        if error is not None:
            raise error

    def verify(self, offset: int, result: ReadResult) -> None:
        """Check the cached bytes, beginning at ``offset``, if an earlier process wrote them. The check is
        made only once.

        Raises :class:`CorruptRecordError` for bytes that have changed since they were written, and for a gap.
        """
        next_offset = result.next_offset
        start, end = self._verified
        if offset >= self._inherited_end or start <= offset <= next_offset <= end or not result.views:
            return
        expected = offset
        for view in result.views:
            position = 0
            while position < len(view):
                header = check_batch(view, position)
                if header.base_offset != expected and not (
                    expected == offset and header.base_offset < offset
                ):
                    raise CorruptRecordError(f"found offset {header.base_offset} in place of {expected}")
                expected = header.next_offset
                position += header.size_bytes
        if expected != next_offset:
            raise CorruptRecordError(f"the batches end at offset {expected}, not at {next_offset}")
        self._verified = (start if start <= offset <= end else offset, next_offset)

    async def drop_inherited(self) -> None:
        """Drop the cached batches because they are damaged. They will be read from objects again."""
        await self.restart_at(self.local_end_offset)

    async def restart_at(self, offset: int) -> None:
        """Drop the cached batches. The next batch to cache begins at ``offset``.

        Until the call has ended there is no cache. Reads then use the objects, and nothing is appended.
        """
        self.is_stuck = False
        self._inherited_end = UNKNOWN
        if self.is_usable:
            self._is_restarting = True
            try:
                await self.log.truncate_fully_and_start_at(offset)
                self.log.high_watermark = offset
            finally:
                self._is_restarting = False

    @property
    def first_segment_bytes(self) -> int:
        """Number of bytes that :meth:`evict_first_segment` frees."""
        segments = self.log.segments.segments
        return self.log.size_bytes if len(segments) == 1 else segments[0].size_bytes

    async def evict_first_segment(self) -> list[str]:
        """Drop the oldest cached batches. Returns the paths of the files to be removed."""
        log = self.log
        segments = log.segments.segments
        if len(segments) == 1:
            if self.is_promised:
                return []  # own commits will be appended to the only segment
            log.roll()
        log.update_log_start_offset(log.segments.segments[1].base_offset)
        return await log.evict_segments_before_start()

    def close(self) -> None:
        """Close the cache, because the partition has left this broker. All waits for the cache end."""
        self.is_closed = True
        self.promised_offset = UNKNOWN
        self.note_kept()
        waiting, self._on_known = self._on_known, []
        for callback in waiting:
            callback()


def _fitting(batches: Sequence[tuple[BatchCoordinate, memoryview]], position: int) -> int:
    size_bytes = 0
    for count, (_, view) in enumerate(batches[position:]):
        size_bytes += len(view)
        if count and size_bytes > _WRITE_BYTES_MAX:
            return count
    return len(batches) - position
