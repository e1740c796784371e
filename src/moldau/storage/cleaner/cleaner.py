"""The log cleaner: compacts the logs of topics with ``cleanup.policy=compact``, as Kafka's log cleaner does.

Each round cleans the log with the largest share of dirty bytes, in these steps:

1. Flush the log and write its recovery point, because a gap above the recovery point would count as a loss.
2. In a worker: collect the last offset of each key in the dirty part, until the memory is full.
3. In a worker: write the records that must be kept into ``.cleaned`` segments, and sync them.
4. Check that the old segments are unchanged. Swap them in a worker, while no other code may remove segments
from the log.
5. Write the cleaner's checkpoint. After a crash before this step the round is repeated, which is harmless.

The event loop owns the list of segments, so appends, reads, truncation and deletion continue during a round.
If the segments of a round have changed, the round is abandoned.
"""

import asyncio
import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from moldau.protocol.partitions import TopicPartition
from moldau.runtime import KafkaError, Machine
from moldau.storage.cleaner.candidates import CleanableLog, find_candidate
from moldau.storage.cleaner.offset_map import OffsetMap
from moldau.storage.cleaner.record_filter import BatchFilter, LastRecord
from moldau.storage.cleaner.transactions import CleanedTransactions
from moldau.storage.cleaner.work import (
    Rewriting,
    Source,
    close_sources,
    group_sources,
    learn_offsets,
    open_sources,
)
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.segments.segment_swap import remove_cleaned

logger = logging.getLogger(__name__)

SLICE_SIZE_BYTES: Final = 256 * 1024
"""Number of bytes that a worker reads and writes in one call. Between two calls, other work of the event loop
runs, and the cleaner waits if it is faster than the configured rate."""


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """Kafka's ``log.cleaner.*`` configs."""

    enable: bool = True
    backoff_ms: int = 15_000
    dedupe_buffer_bytes: int = 128 * 1024**2
    io_buffer_load_factor: float = 0.9
    io_max_bytes_per_second: float = float("inf")


class CleanedLogs(Protocol):
    """The logs of a node, with the methods that the cleaner needs."""

    def __iter__(self) -> Iterator[PartitionLog]: ...

    def cleaner_offset(self, topic_partition: TopicPartition) -> int | None:
        """The end of the last cleaning; ``None`` when the log was never cleaned."""
        ...

    async def note_cleaned(self, log: PartitionLog, offset: int) -> None:
        """Write into the cleaner's checkpoint that the log is cleaned before ``offset``."""
        ...

    async def make_recoverable(self, log: PartitionLog) -> None:
        """Write a checkpoint with the log's flushed offset."""
        ...

    def remove_files_later(self, log: PartitionLog, paths: Iterable[str]) -> None:
        """Remove files after ``file.delete.delay.ms``."""
        ...


_NOTICED_MAX: Final = 3


class SegmentsChangedError(Exception):
    """Segments of the round were truncated or deleted during the round, so the round is abandoned."""


class LogCleaner:
    """Cleans one log at a time."""

    def __init__(self, machine: Machine, logs: CleanedLogs, settings: CleanerSettings) -> None:
        self._machine = machine
        self._logs = logs
        self.settings = settings
        """The settings; they may be replaced at any time."""
        self.cleaning: PartitionLog | None = None
        """The log of the round in progress."""
        self.uncleanable: dict[tuple[TopicPartition, uuid.UUID | None], str] = {}
        """Logs that could not be cleaned, with the reason. They are skipped until the node is restarted."""

    def notice(self) -> str | None:
        """Names the logs that are not cleaned, with the reason; ``None`` when there are no such logs."""
        found = [
            f"{log.topic_partition} is not compacted until the node is restarted: {reason}"
            for log in self._logs
            if (reason := self.uncleanable.get(_identity(log))) is not None
        ]
        more = len(found) - _NOTICED_MAX
        return "; ".join([*found[:_NOTICED_MAX], *([f"and {more} more"] if more > 0 else [])]) or None

    async def run_forever(self) -> None:
        """Run forever. The cleaner checks the logs every ``log.cleaner.backoff.ms``. It reads the current
        value of this config each time."""
        while True:
            await asyncio.sleep(self.settings.backoff_ms / 1000)
            try:
                await self.run()
            except Exception:
                logger.exception("the log cleaner failed; it will try again")

    async def run(self) -> None:
        """Do rounds until no log needs cleaning."""
        while self.settings.enable and await self.clean_dirtiest():
            pass

    async def clean_dirtiest(self) -> bool:
        """Do one round on the log with the largest share of dirty bytes. Returns False when no log needs
        cleaning."""
        candidates = [found for log in self._logs if (found := await self._candidate(log)) is not None]
        due = [found for found in candidates if found.is_due]
        if not due:
            return False
        chosen = max(due, key=lambda found: found.dirty_ratio)
        if chosen.log.is_being_copied:
            return True
        self.cleaning = chosen.log
        try:
            await self._clean_or_report(chosen)
        finally:
            self.cleaning = None
        return True

    async def _candidate(self, log: PartitionLog) -> CleanableLog | None:
        """Return the cleanable part of a log. The log is flushed first if this is needed. The result is None
        for a log that is not compacted, or that cannot be cleaned now."""
        if not log.config.cleanup_compact or log.is_offline or _identity(log) in self.uncleanable:
            return None
        if log.is_being_copied:
            return None
        try:
            if log.flushed_offset < log.segments.active.base_offset:
                await log.flush()
            with log.disk_work("reading"):
                return find_candidate(
                    log, self._logs.cleaner_offset(log.topic_partition), self._machine.clock.now_ms()
                )
        except KafkaError:
            return None

    async def _clean_or_report(self, candidate: CleanableLog) -> None:
        log = candidate.log
        try:
            await self._clean(candidate)
        except SegmentsChangedError:
            logger.info("%s: the compaction is delayed, because the log has changed", log.topic_partition)
        except OSError as error:
            if not log.is_offline:
                self._fail(log, error)
        except KafkaError as error:
            if not log.is_offline:
                self.uncleanable[_identity(log)] = str(error)
                logger.error("%s cannot be compacted and is left as it is: %s", log.directory, error)

    def _fail(self, log: PartitionLog, error: OSError) -> None:
        try:
            log.fail("compacting", error)
        except KafkaError:
            return

    async def _clean(self, candidate: CleanableLog) -> None:
        log, now_ms = candidate.log, self._machine.clock.now_ms()
        await self._logs.make_recoverable(log)
        view = _SealedSegments(log, candidate.first_uncleanable_offset)
        sources = open_sources(self._machine.disk, view.segments, candidate.first_uncleanable_offset)
        started_s = asyncio.get_running_loop().time()
        try:
            settings = self.settings
            offsets = OffsetMap(int(settings.dedupe_buffer_bytes * settings.io_buffer_load_factor))
            aborted = [found for segment in log.segments.segments for found in segment.transaction_index]
            dirty = [source for source in sources if source.end_offset > candidate.first_dirty_offset]
            begin = candidate.first_dirty_offset
            # Transactions that ended before ``begin`` are left out, because this round does not read their
            # markers. If these transactions were included, their producers would stay in the aborted state
            # until the end of the round.
            ending = CleanedTransactions(found for found in aborted if found.last_offset >= begin)
            await self._work(learn_offsets(offsets, dirty, begin, ending))
            end_offset = offsets.latest_offset + 1 if offsets.is_full else candidate.first_uncleanable_offset
            bytes_before, bytes_after = await self._rewrite(
                view,
                [source for source in sources if source.segment.base_offset < end_offset],
                offsets,
                CleanedTransactions(aborted),
                now_ms,
            )
        finally:
            close_sources(sources)
        await self._logs.note_cleaned(log, end_offset)
        logger.info(
            "%s: compacted up to offset %d, %d bytes to %d in %.1f s",
            log.topic_partition,
            end_offset,
            bytes_before,
            bytes_after,
            asyncio.get_running_loop().time() - started_s,
        )

    async def _rewrite(
        self,
        view: "_SealedSegments",
        sources: Sequence[Source],
        offsets: OffsetMap,
        transactions: CleanedTransactions,
        now_ms: int,
    ) -> tuple[int, int]:
        """Rewrite and swap the segments of each group. Returns the number of bytes before and after."""
        log = view.log
        last_records = {
            entry.producer_id: LastRecord(
                entry.batches[-1].last_offset if entry.batches else None, entry.producer_epoch
            )
            for entry in log.producers.state
        }
        record_filter = BatchFilter(
            offsets,
            transactions,
            last_records,
            now_ms=now_ms,
            delete_retention_ms=log.config.delete_retention_ms,
        )
        bytes_before = bytes_after = 0
        for group in group_sources(sources, log.config):
            rewriting = Rewriting(self._machine.disk, log.config, group, record_filter, now_ms)
            try:
                await self._work(rewriting.run(transactions))
                paths = await view.swap(group, rewriting.base_offset)
            except (SegmentsChangedError, KafkaError):
                await self._machine.workers.run(
                    remove_cleaned, self._machine.disk, rewriting.folder, rewriting.base_offset
                )
                raise
            self._logs.remove_files_later(log, paths)
            bytes_before += sum(source.size_bytes for source in group)
            bytes_after += rewriting.bytes_after
        return bytes_before, bytes_after

    async def _work(self, work: Iterator[int]) -> None:
        """Run blocking work in slices. The work is not faster than the configured rate."""
        loop = asyncio.get_running_loop()
        while True:
            started_s = loop.time()
            slice_ = asyncio.ensure_future(self._machine.workers.run(_advance, work))
            try:
                moved_bytes, is_done = await asyncio.shield(slice_)
            except asyncio.CancelledError:
                # The log may be closed only after the worker has released the files.
                await asyncio.wait([slice_])
                raise
            wanted_s = moved_bytes / self.settings.io_max_bytes_per_second
            await asyncio.sleep(max(0.0, wanted_s - (loop.time() - started_s)))
            if is_done:
                return


def _identity(log: PartitionLog) -> tuple[TopicPartition, uuid.UUID | None]:
    """The identity of a log. A log that is deleted and created again has another identity."""
    return log.topic_partition, log.topic_id


def _advance(work: Iterator[int]) -> tuple[int, bool]:
    """Run one slice of the work. Returns the number of moved bytes, and whether the work is done."""
    moved_bytes = 0
    for size_bytes in work:
        moved_bytes += size_bytes
        if moved_bytes >= SLICE_SIZE_BYTES:
            return moved_bytes, False
    return moved_bytes, True


class _SealedSegments:
    """The sealed segments of a log as they were when a round began."""

    def __init__(self, log: PartitionLog, end_offset: int) -> None:
        self.log = log
        self._truncations = log.truncation_count
        self.segments = [segment for segment in log.segments.segments if segment.base_offset < end_offset]

    def check(self, group: Sequence[Source]) -> None:
        """Check that a group of segments is unchanged in the log. Otherwise raises
        :class:`SegmentsChangedError`."""
        log = self.log
        segments = log.segments.segments
        first = log.segments.index_holding(group[0].segment.base_offset)
        found = segments[first : first + len(group)]
        same = len(found) == len(group) and all(
            mine.segment is theirs for mine, theirs in zip(group, found, strict=True)
        )
        if log.is_offline or not same or log.truncation_count != self._truncations:
            raise SegmentsChangedError

    async def swap(self, group: Sequence[Source], base_offset: int) -> list[str]:
        """Replace a group by its cleaned segment. Returns the files that must be removed."""
        segments = [source.segment for source in group]
        return await self.log.replace_segments(segments, base_offset, partial(self.check, group))
