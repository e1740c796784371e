"""Removes segments from a log. They are past their retention, below the log's start, evicted from a cache, or
replaced by cleaned segments."""

from collections.abc import Callable, Sequence
from functools import partial

from moldau.storage.log.files.disk_steps import FileOperations, FileSteps, holding_files
from moldau.storage.log.local_retention import retention_due
from moldau.storage.log.state.log_state import LogState
from moldau.storage.log.state.start import LogStart
from moldau.storage.segments.segment import Segment


class SegmentRemoval:
    """Takes segments out of a log and renames their files.

    Each method returns the paths of the renamed files, which the caller removes later. :meth:`delete_old` and
    :meth:`delete_before_start` make the log's start durable before they rename files. They also sync the
    state that could be computed again only from the removed batches.
    """

    def __init__(
        self,
        operations: FileOperations,
        state: LogState,
        start: LogStart,
        roll: Callable[[], None],
    ) -> None:
        """``roll`` is a function that begins a new segment."""
        self._operations = operations
        self._state = state
        self._start = start
        self._roll = roll

    async def delete_old(
        self, now_ms: int, high_watermark: int | None = None, *, max_segments: int | None = None
    ) -> list[str]:
        """Remove segments past their retention from the log, durably, at most ``max_segments`` of them.

        Segments that were copied to the remote tier are removed only from the disk, and the log start does
        not move. Returns the paths of the renamed files, which must be removed after
        ``file.delete.delay.ms``.
        """
        steps = self._deleting_old(now_ms, high_watermark, max_segments)
        return await self._operations.do("deleting segments of", steps)

    def _deleting_old(
        self, now_ms: int, high_watermark: int | None, max_segments: int | None
    ) -> FileSteps[list[str]]:
        segments, offsets = self._state.segments, self._state.offsets
        config = segments.config
        is_behind_chunks = self._start.has_chunks and not config.copies_to_remote
        if is_behind_chunks and offsets.log_start_offset < segments.segments[0].base_offset:
            return []  # The inactive chunks are older than this log, so they expire first.
        due = retention_due(
            segments,
            config,
            now_ms=now_ms,
            high_watermark=offsets.high_watermark if high_watermark is None else high_watermark,
            log_start_offset=offsets.log_start_offset,
            highest_copied_offset=offsets.highest_copied_offset,
        )
        count = due.deletable if max_segments is None else min(due.deletable, max_segments)
        if count == len(segments.segments) or due.must_roll:
            self._roll()
        if not count:
            return []
        start_offset = segments.segments[count].base_offset
        is_copied = config.remote_storage_enable and start_offset <= offsets.highest_copied_offset + 1
        if start_offset > offsets.log_start_offset and not is_copied:
            self._start.move(start_offset)
        return (yield from self._removing_first(count))

    async def delete_before_start(self) -> list[str]:
        """Remove the segments below the log's start, durably. Returns the paths of the renamed files, like
        :meth:`delete_old`."""
        return await self._operations.do("deleting segments of", self._deleting_before_start())

    def _deleting_before_start(self) -> FileSteps[list[str]]:
        count = self._state.segments.index_holding(self._state.offsets.log_start_offset)
        return (yield from self._removing_first(count)) if count else []

    def _removing_first(self, count: int) -> FileSteps[list[str]]:
        segments, snapshots = self._state.segments, self._state.producers.snapshots
        start_offset = segments.segments[count].base_offset
        removed = segments.detach_first(count)

        def remove() -> list[str]:
            self._state.epochs.save()
            # The snapshots must be durable before the batches are removed, because only these batches could
            # replace a lost snapshot.
            snapshots.make_durable()
            paths = [path for segment in removed for path in segment.rename_deleted()]
            snapshots.remove_before(start_offset)
            segments.sync_folder()
            return paths

        paths: list[str] = yield remove
        return paths

    async def evict_before_start(self) -> list[str]:
        """Does the same as :meth:`delete_before_start`, but for a cache. After a crash the segments may exist
        again."""
        return await self._operations.do("deleting segments of", self._evicting())

    def _evicting(self) -> FileSteps[list[str]]:
        segments, snapshots = self._state.segments, self._state.producers.snapshots
        count = segments.index_holding(self._state.offsets.log_start_offset)
        if not count:
            return []
        start_offset = segments.segments[count].base_offset
        removed = segments.detach_first(count)

        def rename() -> list[str]:
            snapshots.remove_before(start_offset)
            return [path for segment in removed for path in segment.rename_deleted()]

        paths: list[str] = yield rename
        return paths

    async def replace(self, old: Sequence[Segment], base_offset: int, check: Callable[[], None]) -> list[str]:
        """Replace adjacent sealed segments by the cleaned segment with this base offset.

        ``check`` raises an error if the old segments are not adjacent any more. The files of the cleaned
        segment are complete and durable under their ``.cleaned`` names. Returns the old files, which must be
        removed later.
        """
        return await self._operations.do("compacting", self._replacing(old, base_offset, check))

    def _replacing(
        self, old: Sequence[Segment], base_offset: int, check: Callable[[], None]
    ) -> FileSteps[list[str]]:
        yield from holding_files(old)
        check()
        segments, snapshots = self._state.segments, self._state.producers.snapshots
        cleaned, paths = yield partial(segments.swap_files, old, base_offset)
        segments.replace(old, cleaned)
        for segment in old[1:]:
            snapshots.remove(segment.base_offset)
        return list(paths)
