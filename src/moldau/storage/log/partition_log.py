"""One partition's log: what a replica stores, in Kafka's file formats.

:class:`PartitionLog` gives the bytes of a :class:`SegmentedLog` their meaning: offsets are assigned
or checked, idempotent producers are judged, epochs and transactions are kept. Its calls are
made from one thread (the event loop's). None that is synchronous waits for a disk, but for ``close`` and
those that say so: ``flush`` and operations on segments go through ``Workers``, one at a time.

**Failure.** When the disk refuses an operation, the call raises ``KafkaError(kafka_storage_error)``,
``on_failure`` is told once, and from then on every call that needs the disk raises the same: what the
file holds past the last success is unknown until the log is opened (and recovered) again.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from moldau.runtime import ErrorCode, KafkaError
from moldau.storage.log.append_info import AbortedEntry, EpochEndOffset, ReadResult
from moldau.storage.log.aside import AsideLog
from moldau.storage.log.auxiliary_state import AuxiliaryState
from moldau.storage.log.retention import retention_due
from moldau.storage.log.steps import FileSteps, run_steps, run_whole
from moldau.storage.producers.producer_state import ProducerEntry
from moldau.storage.segments.segment import Segment
from moldau.storage.segments.timestamp_search import (
    Step,
    latest_batch,
    search_step,
)

T = TypeVar("T")

FILES_HELD_TOGETHER: Final = 64
"""Segments whose files are opened without a break: some milliseconds."""


class PartitionLog(AsideLog):
    """The log of one partition on one disk; made by :meth:`open`."""

    # -- reading ------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        upper_bound_offset: int | None = None,
        min_one_batch: bool = True,
    ) -> ReadResult:
        """Whole batches from the one that holds ``offset``, all below the upper bound.

        At most ``max_bytes``, but with ``min_one_batch`` the first batch even if it is larger. The
        views stay valid for as long as they are held, provided that what they show is not truncated:
        whoever reads above the high watermark copies them before the next truncation.

        Raises ``KafkaError(offset_out_of_range)`` below the log's start or above its end, and
        ``KafkaError(offset_moved_to_tiered_storage)`` for what is in the remote tier only.
        """
        if self._failure is not None:
            self._check_online()
        segments = self._segments
        end_offset = segments.end_offset
        if not self.log_start_offset <= offset <= end_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{self.topic_partition}: {offset} is not in [{self.log_start_offset}, {end_offset}]",
            )
        if offset < segments.segments[0].base_offset:
            raise KafkaError(ErrorCode.offset_moved_to_tiered_storage, f"{self.topic_partition}: {offset}")
        if upper_bound_offset is None or upper_bound_offset > end_offset:
            upper_bound_offset = end_offset
        if offset >= upper_bound_offset:
            return ReadResult([], 0, offset, segments.active.base_offset, segments.active.size_bytes)
        try:
            return segments.read(offset, max_bytes, upper_bound_offset, min_one_batch)
        except OSError as error:
            self.check_descriptors("reading", error)
            self.fail("reading", error)

    def aborted_transactions(self, offset: int, result: ReadResult) -> list[AbortedEntry]:
        """The aborted transactions with records in what a read from ``offset`` returned."""
        found: list[AbortedEntry] = []
        segments = self._segments
        for segment in segments.segments[segments.index_holding(offset) :]:
            for transaction in segment.transaction_index.ended_from(offset):
                if transaction.first_offset < result.next_offset:
                    found.append(transaction)
                if transaction.last_stable_offset >= result.next_offset:
                    return found
        return found

    def timestamp_step(self, timestamp_ms: int, start_offset: int, end_offset: int) -> Step | None:
        """A step of a search by timestamp; its batch is valid until the log is touched."""
        with self.guarded("reading"):
            return search_step(self._segments, timestamp_ms, start_offset, end_offset)

    def latest_batch(self, end_offset: int) -> memoryview | None:
        """The batch with the largest timestamp below ``end_offset``, by headers; valid as that of a step."""
        with self.guarded("reading"):
            return latest_batch(self._segments, self.log_start_offset, end_offset)

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset:
        """The largest epoch not above ``leader_epoch`` and its end offset; (-1, -1) when unknown."""
        return self.leader_epochs.end_offset_for(leader_epoch, self.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        """The leader epoch that an offset was, or will be, written in; -1 when unknown."""
        epoch = self.leader_epochs.epoch_for_offset(offset)
        return -1 if epoch is None else epoch

    def active_producers(self) -> list[tuple[int, int, int, int, int, int]]:
        """For DescribeProducers: id, epoch, last sequence, last timestamp, coordinator epoch, txn start."""
        return self.producers.active()

    # -- segments -----------------------------------------------------------------------------

    def roll(self, base_offset: int | None = None) -> None:
        """Begin a new segment, at the end unless said otherwise."""
        with self.guarded("rolling"):
            segments = self._segments
            if segments.active.size_bytes:
                # Producers wait for this: the flush of the closed segment makes it durable.
                self.producers.write_snapshot(segments.end_offset, durably=False)
            segments.roll(segments.end_offset if base_offset is None else base_offset)

    def update_log_start_offset(self, offset: int) -> bool:
        """Move the log's start up (DeleteRecords); it may lie inside a batch and never moves back.

        Bytes go with the next retention pass. Raises ``KafkaError(offset_out_of_range)`` above the end.
        """
        self._check_online()
        if offset > self.log_end_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{self.topic_partition}: cannot begin at {offset}, it ends at {self.log_end_offset}",
            )
        if offset <= self.log_start_offset:
            return False
        with self.guarded("writing the leader epochs of"):
            self._move_start(offset)
        return True

    async def delete_old_segments(
        self, now_ms: int, high_watermark: int | None = None, *, max_segments: int | None = None
    ) -> list[str]:
        """Take segments past their retention out of the log, durably, at most ``max_segments`` of them.

        What has been copied to the remote tier leaves the disk only: the log still begins where it did.
        Returns the paths of their renamed files, to be removed after ``file.delete.delay.ms``.
        """
        steps = self._deleting_old(now_ms, high_watermark, max_segments)
        return await self._do("deleting segments of", steps)

    def _deleting_old(
        self, now_ms: int, high_watermark: int | None, max_segments: int | None
    ) -> FileSteps[list[str]]:
        segments = self._segments
        due = retention_due(
            segments,
            self._config,
            now_ms=now_ms,
            high_watermark=self.high_watermark if high_watermark is None else high_watermark,
            log_start_offset=self.log_start_offset,
            highest_copied_offset=self.highest_copied_offset,
        )
        count = due.deletable if max_segments is None else min(due.deletable, max_segments)
        if count == len(segments.segments) or due.must_roll:
            self.roll()
        if not count:
            return []
        start_offset = segments.segments[count].base_offset
        is_copied = self._config.remote_storage_enable and start_offset <= self.highest_copied_offset + 1
        if start_offset > self.log_start_offset and not is_copied:
            self._move_start(start_offset)
        return (yield from self._removing_first(count))

    async def delete_segments_before_start(self) -> list[str]:
        """As :meth:`delete_old_segments`, for those below the log's start only."""
        return await self._do("deleting segments of", self._deleting_before_start())

    def _deleting_before_start(self) -> FileSteps[list[str]]:
        count = self._segments.index_holding(self.log_start_offset)
        return (yield from self._removing_first(count)) if count else []

    def _removing_first(self, count: int) -> FileSteps[list[str]]:
        segments, snapshots = self._segments, self.producers.snapshots
        start_offset = segments.segments[count].base_offset
        removed = segments.take_first(count)

        def remove() -> list[str]:
            self.save_epochs()
            # Before the batches go from which it could be made again.
            snapshots.make_durable()
            paths = [path for segment in removed for path in segment.rename_deleted()]
            snapshots.remove_before(start_offset)
            self._machine.disk.sync_dir(self.directory)
            return paths

        paths: list[str] = yield remove
        return paths

    async def evict_segments_before_start(self) -> list[str]:
        """As :meth:`delete_segments_before_start`, of a cache: a crash may bring them back."""
        return await self._do("deleting segments of", self._evicting())

    def _evicting(self) -> FileSteps[list[str]]:
        segments, snapshots = self._segments, self.producers.snapshots
        count = segments.index_holding(self.log_start_offset)
        if not count:
            return []
        start_offset = segments.segments[count].base_offset
        removed = segments.take_first(count)

        def rename() -> list[str]:
            snapshots.remove_before(start_offset)
            return [path for segment in removed for path in segment.rename_deleted()]

        paths: list[str] = yield rename
        return paths

    async def replace_segments(
        self, old: Sequence[Segment], base_offset: int, check: Callable[[], None]
    ) -> list[str]:
        """Put the cleaned segment of this base offset in the place of sealed ones that stand in a row.

        ``check`` raises when they do not any more. Its files are whole and durable under their ``.cleaned``
        names. Returns the old files, to be removed later.
        """
        return await self._do("compacting", self._replacing(old, base_offset, check))

    def _replacing(
        self, old: Sequence[Segment], base_offset: int, check: Callable[[], None]
    ) -> FileSteps[list[str]]:
        yield from _holding_files(old)
        check()
        segments, snapshots = self._segments, self.producers.snapshots
        cleaned, paths = yield partial(segments.swap_files, old, base_offset)
        segments.replace(old, cleaned)
        for segment in old[1:]:
            snapshots.remove(segment.base_offset)
        return list(paths)

    # -- truncation ---------------------------------------------------------------------------

    async def truncate_to(self, offset: int) -> None:
        """Drop every batch that holds or follows ``offset``, durably; nothing happens at or above the end.

        The log then ends with its last batch: below ``offset``, where compaction had left a hole. Nobody
        appends before this returns.
        """
        await self._do("truncating", self._truncating(offset))

    async def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the log goes on, empty, at ``offset``. Nobody appends before this returns."""
        await self._do("truncating", self._restarting(offset))

    async def begin_behind_remote(self, state: AuxiliaryState) -> None:
        """Drop everything; the log goes on, empty, behind offsets that are in the remote tier.

        Nobody appends before this returns.
        """
        await self._do("beginning anew", self._beginning_behind(state))

    def truncate_fully_now(self, offset: int) -> None:
        """As :meth:`truncate_fully_and_start_at`, on this thread. Blocking."""
        with self.guarded("truncating"):
            run_steps(self._restarting(offset))

    def _truncating(self, offset: int) -> FileSteps[None]:
        segments = self._segments
        if offset >= self.log_end_offset:
            return
        if offset <= self.log_start_offset:
            yield from self._restarting(offset)
        elif offset <= segments.segments[0].base_offset:
            # What lies before is in the remote tier, and stays.
            producers = yield partial(self.producers.snapshots.at, offset)
            yield from self._emptying(offset, producers)
            yield from self._truncated(offset)
        elif segments.end_before(offset) < self.log_start_offset:
            yield from self._restarting(self.log_start_offset)
        else:
            self._truncations += 1
            yield partial(self._lower_durable, offset)
            cut_files = segments.truncate_to(offset)
            self._forget_from(segments.end_offset)
            yield from self._lower_checkpoints()
            self.producers.truncate_to(
                segments, log_start_offset=self.log_start_offset, now_ms=self._now_ms()
            )
            yield cut_files
            yield from self._truncated(segments.end_offset)

    def _restarting(self, offset: int) -> FileSteps[None]:
        yield from self._emptying(offset)
        self.log_start_offset = offset
        self.holes = []
        self.leader_epochs.clear()
        yield from self._truncated(offset)

    def _beginning_behind(self, state: AuxiliaryState) -> FileSteps[None]:
        offset, epochs = state.offset, self.leader_epochs
        yield from self._emptying(offset, state.producers)
        self.log_start_offset = min(state.log_start_offset, offset)
        self.highest_copied_offset = offset - 1
        self.holes = []
        epochs.clear()
        for entry in state.leader_epochs:
            epochs.assign(entry.epoch, entry.start_offset)
        epochs.truncate_from_start(self.log_start_offset)
        self._epochs_are_lost = False
        yield from self._truncated(offset)

    def _emptying(self, offset: int, producers: Sequence[ProducerEntry] = ()) -> FileSteps[None]:
        """Drop everything local; ``producers`` are those as of ``offset``."""
        segments = self._segments
        self._truncations += 1
        yield partial(self._lower_durable, 0)
        if self._guard is not None:
            self.flushed_offset = 0
        yield from self._lower_checkpoints()
        yield from _holding_files(segments.segments)
        yield partial(segments.drop_files, segments.segments)
        segments.restart_at(offset)
        self.producers.restart_at(offset, producers, self._now_ms())
        if producers:
            yield partial(self.producers.snapshots.take, self.producers.state)

    def _forget_from(self, end_offset: int) -> None:
        self.leader_epochs.truncate_from_end(end_offset)
        self._note_epochs()
        self._last_epoch = self._latest_epoch()
        self.flushed_offset = min(self.flushed_offset, end_offset)
        self.highest_copied_offset = min(self.highest_copied_offset, end_offset - 1)
        self.high_watermark = max(min(self.high_watermark, end_offset), self.log_start_offset)

    def _truncated(self, end_offset: int) -> FileSteps[None]:
        self._forget_from(end_offset)
        yield self.save_epochs
        if self.on_truncation is not None:
            yield self.on_truncation()

    def _lower_checkpoints(self) -> FileSteps[None]:
        """Before files are cut: a start after a crash must not hold a guarded log to what they held."""
        if self._guard is not None and self.on_truncation is not None:
            yield self.on_truncation()

    def forget_empty_epochs(self) -> None:
        """Drop the epochs in which nothing was appended: a new leader may have records of earlier ones."""
        epochs, end_offset = self.leader_epochs, self.log_end_offset
        if not epochs.truncate_from_end(end_offset):
            return
        if not len(epochs) and end_offset:
            epochs.assign(0, end_offset)  # the start of a log whose records were deleted is known here alone
        self._last_epoch = self._latest_epoch()
        self._note_epochs()  # soon enough: a start drops such epochs, too
        if self.on_epochs is not None and not self.epochs_are_saved:
            self.on_epochs()

    # -- operations on files ------------------------------------------------------------------

    async def _do(self, doing: str, steps: FileSteps[T]) -> T:
        """Carry out an operation, one at a time; it goes to its end though the caller is cancelled."""
        return await run_whole(self._in_turn(doing, steps))

    async def _in_turn(self, doing: str, steps: FileSteps[T]) -> T:
        async with self._files:
            with self.guarded(doing):
                return await self._with_workers(steps)

    async def _with_workers(self, steps: FileSteps[T]) -> T:
        found: Any = None
        self._segments.hold_files()
        try:
            while True:
                try:
                    job = steps.send(found)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                found = await self._machine.workers.run(job)
                # Meanwhile it may have been deleted, or another log of its disk may have failed.
                self._check_online()
        finally:
            self._segments.release_files()

    # -- durability ---------------------------------------------------------------------------

    async def flush(self, up_to: int | None = None) -> int:
        """Make every append so far durable, or those below ``up_to``; return the offset below which all is.

        Calls that meet share one sync: whoever comes while one runs is served by the next. A closed
        segment is synced without the active one, to which producers write.
        """
        wanted = self.log_end_offset if up_to is None else up_to
        while True:
            async with self._files:
                self._check_online()
                if self._is_durable(min(wanted, self.log_end_offset)):
                    return self.flushed_offset
                end_offset, truncations = self.log_end_offset, self._truncations
                if up_to is not None:
                    end_offset = min(up_to, end_offset)
                try:
                    await self._segments.sync(
                        self.flushed_offset,
                        end_offset,
                        self._sync_beside,
                        self._noting_durable(end_offset),
                    )
                except OSError as error:
                    self.fail("syncing", error)
                self._last_flush_ms = self._now_ms()
                if truncations == self._truncations:
                    self.flushed_offset = max(self.flushed_offset, end_offset)

    def is_flush_due(self) -> bool:
        """Whether a segment was sealed since the last flush, or ``flush.ms`` has passed."""
        segments = self._segments
        if self._failure is not None or self.flushed_offset >= segments.end_offset:
            return False
        return (
            self.flushed_offset < segments.active.base_offset
            or self._now_ms() - self._last_flush_ms >= self._config.flush_ms
        )

    def _is_durable(self, offset: int) -> bool:
        return self.flushed_offset >= offset and not self._segments.folder_changed

    def _noting_durable(self, offset: int) -> Callable[[], None]:
        """To be called when everything below ``offset`` is synced."""
        if self._durable is None:
            return _nothing
        return partial(self._durable.note, offset, self._durable.generation)

    def _sync_beside(self) -> None:
        """Sync the epochs and producer snapshots, which the durability of batches needs. Blocking."""
        self.save_epochs()
        self.producers.snapshots.sync()

    async def persist_start(self) -> None:
        """Return when the log's start is durable as it is now, as far as the owner of the log sees to it.

        Raises ``KafkaError(kafka_storage_error)``.
        """
        self._check_online()
        try:
            if self.checkpoint_start is not None:
                await self.checkpoint_start()
            elif not self.epochs_are_saved:
                await self._machine.workers.run(self.save_epochs)
        except OSError as error:
            self.check_descriptors("writing the start of", error)
            self.fail("writing the start of", error)
        self._check_online()

    def _flush_now(self) -> None:
        self._sync_beside()
        self._segments.sync_now(self.flushed_offset)
        self.flushed_offset = self.log_end_offset
        self._noting_durable(self.flushed_offset)()

    def close(self) -> None:
        """Make all durable and release the files; blocking. A second call does nothing."""
        if self._closed or self._failure is not None:
            self._closed = True
            return
        self._closed = True
        with self.guarded("closing"):
            self.producers.write_snapshot(self.log_end_offset)
            self._flush_now()
            self._segments.close()
        self._failure = KafkaError(ErrorCode.kafka_storage_error, f"{self.directory} is closed")


def _nothing() -> None: ...


def _holding_files(segments: Sequence[Segment]) -> FileSteps[None]:
    """Open their files, for readers that go on while they get other names."""
    for start in range(0, len(segments), FILES_HELD_TOGETHER):
        for segment in segments[start : start + FILES_HELD_TOGETHER]:
            segment.hold_files()
        if start + FILES_HELD_TOGETHER < len(segments):
            yield _nothing
