"""Presents several segments as one sequence of batches. It does not interpret the bytes of the partition
log."""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter

from moldau.runtime.files.disk import File, FileRange
from moldau.runtime.machine import Machine
from moldau.storage.log.append_info import ReadResult
from moldau.storage.log.config import LogConfig
from moldau.storage.segments.batch_scan import Sketch
from moldau.storage.segments.segment import MAX_POSITION, MAX_RELATIVE_OFFSET, Segment
from moldau.storage.segments.segment_swap import commit_cleaned, move_in

_base_offset = attrgetter("base_offset")


class SegmentedLog:
    """Segments in the order of their offsets. Batches are written to the last segment, ``active``.

    Methods raise ``OSError`` when the disk fails. The owner then has to :meth:`abandon` the log.
    """

    def __init__(self, machine: Machine, folder: str, config: LogConfig) -> None:
        self._machine = machine
        self._disk = machine.disk
        self.folder = folder
        self.config = config
        self.segments: list[Segment] = []
        self.active: Segment = Segment(machine.disk, folder, 0, config)
        self.end_offset = 0
        self.last_position = -1
        """Position of the last batch in the active segment; -1 when it must be searched."""
        self.keeps_checksum = False
        """Whether appends must store :attr:`last_checksum`, because each sync needs it."""
        self.last_checksum: int | None = None
        """Checksum of the last batch in the active segment; ``None`` when it must be read."""
        self.sealed_size_bytes = 0
        # The names of files that an earlier process created may not be synced yet.
        self.folder_changed = True
        self.holes: list[tuple[int, int]] = []
        """Offsets that were missing between segments when the log was opened."""
        self.changing = asyncio.Lock()
        """A lock for operations on the files of segments that wait for the disk."""
        self.close_beside: Callable[[], None] = lambda: None
        """Closes the log's files that are not files of segments. It is called together with the segments'
        release."""
        self._holders = 0
        self._released: list[Segment] = []

    @property
    def size_bytes(self) -> int:
        """Size of all log files in bytes."""
        return self.sealed_size_bytes + self.active.size_bytes

    def size_bytes_from(self, offset: int) -> int:
        """Size of the batches that end after ``offset``, in bytes."""
        if offset >= self.end_offset:
            return 0
        first, *others = self.segments[self.index_holding(offset) :]
        return first.size_bytes - first.position_of(offset) + sum(each.size_bytes for each in others)

    # -- segments -----------------------------------------------------------------------------

    def adopt(self, segments: list[Segment], end_offset: int) -> None:
        """Use segments that are already open. The last segment is not sealed."""
        self.segments = segments
        self.active = segments[-1]
        self.end_offset = end_offset
        self.sealed_size_bytes = sum(segment.size_bytes for segment in segments[:-1])

    def add_segment(self, base_offset: int) -> Segment:
        """Create an empty segment, which becomes the active segment."""
        jitter_ms = self.config.segment_jitter_ms
        segment = Segment(self._disk, self.folder, base_offset, self.config)
        segment.create(
            self._machine.clock.now_ms(),
            self._machine.entropy.randrange(min(jitter_ms, self.config.segment_ms) + 1) if jitter_ms else 0,
        )
        self.folder_changed = True
        self.segments.append(segment)
        self.active = segment
        return segment

    def must_roll(self, size_bytes: int, last_offset: int, timestamp_ms: int, now_ms: int) -> bool:
        """Whether a new segment is needed before batches of this size can be written."""
        active = self.active
        used = active.size_bytes
        if not used:
            return last_offset - active.base_offset > MAX_RELATIVE_OFFSET
        return (
            used + size_bytes > self.config.segment_bytes
            or used + size_bytes > MAX_POSITION
            or last_offset - active.base_offset > MAX_RELATIVE_OFFSET
            or active.offset_index.is_full
            or active.time_index.is_full
            or self.is_overdue(timestamp_ms, now_ms)
        )

    def is_overdue(self, timestamp_ms: int, now_ms: int) -> bool:
        """Whether the active segment covers more time than ``segment.ms``. The records' timestamps are used
        if possible."""
        active = self.active
        if active.first_timestamp_ms >= 0 and timestamp_ms >= 0:
            waited_ms = timestamp_ms - active.first_timestamp_ms
        else:
            waited_ms = now_ms - active.created_ms
        return waited_ms > self.config.roll_ms - active.roll_jitter_ms

    def roll(self, base_offset: int) -> Segment:
        """Seal the active segment and begin a new segment."""
        old = self.active
        if old.base_offset == base_offset:
            # The active segment was empty, so its files are now the files of the new segment.
            self._release(self.segments.pop())
            return self.add_segment(base_offset)
        old.seal()
        segment = self.add_segment(base_offset)
        self.sealed_size_bytes += old.size_bytes
        return segment

    def index_holding(self, offset: int) -> int:
        """Return the index of the segment that contains an offset. If the offset is below all segments, the
        result is 0, the index of the first segment."""
        return max(0, bisect_right(self.segments, offset, key=_base_offset) - 1)

    def end_of(self, index: int) -> int:
        """Return the offset at which the segment with this ``index`` ends."""
        following = index + 1
        return self.segments[following].base_offset if following < len(self.segments) else self.end_offset

    # -- reading ------------------------------------------------------------------------------

    def cold_range(self, offset: int, max_bytes: int) -> FileRange | None:
        """Return bytes of a segment that :meth:`read` would have to wait for; see
        :meth:`LogReader.cold_range`."""
        active = self.active
        if offset >= active.base_offset:
            return active.cold_range(offset, max_bytes)
        index = self.index_holding(offset)
        while True:
            segment = self.segments[index]
            found = segment.cold_range(offset, max_bytes)
            index += 1
            # After compaction a segment may end before the next segment begins.
            is_last = index == len(self.segments)
            if found is not None or is_last or segment.position_of(offset) < segment.size_bytes:
                return found

    def is_recent(self, offset: int) -> bool:
        """Whether the batches from ``offset`` are at the end of the log, where :meth:`cold_range` does not
        check them."""
        return offset >= self.active.base_offset and self.active.is_recent(offset)

    def read(
        self,
        offset: int,
        max_bytes: int,
        upper_bound_offset: int,
        min_one_batch: bool,
        is_loaded: bool = False,
    ) -> ReadResult:
        """Read whole batches of one segment; see :meth:`LogReader.read`."""
        active = self.active
        if offset >= active.base_offset:
            segment, segment_end = active, self.end_offset
        else:
            index = self.index_holding(offset)
            segment, segment_end = self.segments[index], self.end_of(index)
            # After compaction a segment may end before the next segment begins.
            while index + 1 < len(self.segments) and segment.position_of(offset) >= segment.size_bytes:
                index += 1
                segment, segment_end = self.segments[index], self.end_of(index)
        start = segment.position_of(offset)
        if upper_bound_offset >= segment_end:
            limit, next_offset = segment.size_bytes, segment_end
        else:
            limit, next_offset = segment.position_of(upper_bound_offset), upper_bound_offset
        end = limit
        if limit - start > max_bytes:
            end, fitting = segment.whole_batches_end(start, start + max_bytes)
            if fitting is None:
                first = segment.find(offset) if min_one_batch else None
                if first is None:
                    return ReadResult([], 0, offset, segment.base_offset, start)
                end, fitting = start + first.size_bytes, first.last_offset + 1
            next_offset = fitting
        if end <= start:
            return ReadResult([], 0, offset, segment.base_offset, start)
        segment.remember(next_offset, end)
        size_bytes = end - start
        file = segment.file
        view = file.view_loaded(start, size_bytes) if is_loaded else file.view(start, size_bytes)
        return ReadResult([view], size_bytes, next_offset, segment.base_offset, start)

    def last_batch(self) -> tuple[File, int] | None:
        """Return the file and the position of the last batch; ``None`` while the active segment is empty."""
        active = self.active
        if not active.size_bytes:
            return None
        if self.last_position < 0:
            found = active.find(self.end_offset - 1)
            if found is None:
                return None
            self.last_position = found.position
        return active.file, self.last_position

    def find(self, offset: int) -> tuple[Segment, Sketch] | None:
        """Return the batch that contains ``offset``, or the first batch after it."""
        for segment in self.segments[self.index_holding(offset) :]:
            sketch = segment.find(offset)
            if sketch is not None:
                return segment, sketch
        return None

    # -- removing -----------------------------------------------------------------------------

    def end_before(self, offset: int) -> int:
        """The new end of the log if all batches that contain or follow ``offset`` were dropped."""
        return self.segments[self.index_holding(offset)].end_before(offset)[1]

    def truncate_to(self, offset: int) -> Callable[[], None]:
        """Drop all batches that contain or follow ``offset``. Returns a function that waits for the disk and
        updates the files. No append is allowed before the returned function has ended."""
        keep = self.index_holding(offset) + 1
        dropped = self.segments[keep:]
        del self.segments[keep:]
        active = self.active = self.segments[-1]
        self.sealed_size_bytes = sum(segment.size_bytes for segment in self.segments[:-1])
        self.end_offset, self.last_position = active.truncate_to(offset), -1
        self.last_checksum = None

        def cut_files() -> None:
            self.drop_files(dropped)
            active.cut_file()

        for segment in dropped:
            self._release(segment)
        return cut_files

    def restart_at(self, offset: int) -> None:
        """Begin again with an empty segment at ``offset``. The caller has removed the files of all
        segments."""
        dropped, self.segments = self.segments, []
        for segment in dropped:
            self._release(segment)
        self.sealed_size_bytes = 0
        self.end_offset = offset
        self.last_checksum = None
        self.holes = []
        self.add_segment(offset)

    def drop_files(self, segments: Sequence[Segment]) -> None:
        """Remove the files of the last segments, durably. This call blocks. Any thread may call this
        method."""
        paths: list[str] = []
        # The last file is removed first. A crash then leaves no gap between two segments.
        for segment in segments[::-1]:
            paths += segment.rename_deleted()
        if segments:
            self._disk.sync_dir(self.folder)
        for path in paths:
            self._disk.remove(path)

    def detach_first(self, count: int) -> list[Segment]:
        """Detach the first segments from the log. Their files still exist and are open."""
        removed = self.segments[:count]
        for segment in removed:
            segment.hold_files()
        del self.segments[:count]
        self.sealed_size_bytes -= sum(segment.size_bytes for segment in removed)
        for segment in removed:
            self._release(segment)
        self.folder_changed = True
        return removed

    def swap_files(self, old: Sequence[Segment], base_offset: int) -> tuple[Segment, list[str]]:
        """Replace the files of other segments by the files of the cleaned segment with this base offset. This
        call blocks.

        The files of the cleaned segment are complete and durable under their ``.cleaned`` names. ``old`` are
        adjacent sealed segments whose files are open. Returns the new segment, and the old files, which must
        be removed later.
        """
        commit_cleaned(self._disk, self.folder, base_offset)
        paths: list[str] = []
        for segment in old:
            paths += segment.rename_deleted()
        move_in(self._disk, self.folder, base_offset)
        cleaned = Segment(self._disk, self.folder, base_offset, self.config)
        cleaned.open_existing(sealed=True)
        return cleaned, paths

    def replace(self, old: Sequence[Segment], cleaned: Segment) -> None:
        """Replace the segments in memory, after :meth:`swap_files`."""
        self.folder_changed = True
        first = self.segments.index(old[0])
        self.segments[first : first + len(old)] = [cleaned]
        self.sealed_size_bytes += cleaned.size_bytes - sum(segment.size_bytes for segment in old)
        for segment in old:
            self._release(segment)

    def sync_folder(self) -> None:
        """Make the names of the folder's files durable. This call blocks."""
        self._disk.sync_dir(self.folder)

    def _release(self, segment: Segment) -> None:
        if self._holders:
            self._released.append(segment)
        else:
            segment.abandon()

    def hold_files(self) -> None:
        """Keep all files open until :meth:`release_files`, because a worker thread syncs or writes some of
        the files."""
        self._holders += 1

    def release_files(self) -> None:
        self._holders -= 1
        if not self._holders:
            for segment in self._released:
                segment.abandon()
            self._released.clear()

    # -- durability ---------------------------------------------------------------------------

    async def sync(
        self,
        from_offset: int,
        up_to: int,
        sync_beside: Callable[[], None] | None = None,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Make durable every segment that ends at or above ``from_offset`` and begins below ``up_to``.

        A worker calls ``sync_beside``, and syncs the segments, the oldest first. At the end it calls
        ``then``. A segment that ends exactly at ``from_offset`` is included. It may have been sealed after
        its last sync, and sealing completes its indexes.

        If only one log file must be synced, no worker is needed.
        """
        last = self.index_holding(up_to - 1)
        segments = self.segments[self.index_holding(from_offset - 1) : last + 1]
        for segment in segments:
            segment.write_indexes()
        folder_changed, self.folder_changed = self.folder_changed, False
        self.hold_files()
        try:
            if (
                sync_beside is None
                and not folder_changed
                and len(segments) == 1
                and segments[0].has_synced_indexes
            ):
                await self._machine.syncs.sync(segments[0].file, then)
            else:
                await self._machine.workers.run(self._sync_all, segments, folder_changed, sync_beside, then)
        except BaseException:
            # The caller may be cancelled before a worker begins.
            self.folder_changed = self.folder_changed or folder_changed
            raise
        finally:
            self.release_files()

    def _sync_all(
        self,
        segments: list[Segment],
        folder_changed: bool,
        sync_beside: Callable[[], None] | None = None,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        if sync_beside is not None:
            sync_beside()
        for segment in segments:
            segment.sync()
        if folder_changed:
            self._disk.sync_dir(self.folder)
        then()

    def sync_now(self, from_offset: int) -> None:
        """Does the same as :meth:`sync`, but on the calling thread. This call blocks."""
        segments = self.segments[self.index_holding(from_offset - 1) :]
        for segment in segments:
            segment.write_indexes()
        self._sync_all(segments, True)
        self.folder_changed = False

    def close(self) -> None:
        """Write the indexes to their files and release the files."""
        for segment in self.segments:
            segment.close()
        self.close_beside()

    def abandon(self) -> None:
        """Release the files without writing."""
        self.close_beside()
        for segment in self.segments:
            self._release(segment)
