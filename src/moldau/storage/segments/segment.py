"""One segment of a partition log: a log file and its three indexes."""

import contextlib
from collections.abc import Sequence
from typing import Final

from moldau.records.batch import HEADER_SIZE_BYTES, NO_TIMESTAMP
from moldau.runtime.buffers import Buffer
from moldau.runtime.files.disk import Disk, File, FileRange
from moldau.storage.folders.file_names import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    TRANSACTION_SUM_SUFFIX,
    segment_file,
)
from moldau.storage.log.config import LogConfig
from moldau.storage.segments.batch_scan import Sketch, find_fitting_end, find_position, scan, sketch_at
from moldau.storage.segments.offset_index import OffsetIndex
from moldau.storage.segments.sparse_index import CorruptIndexError
from moldau.storage.segments.time_index import TimeIndex
from moldau.storage.segments.transaction_index import TransactionIndex

MAX_RELATIVE_OFFSET: Final = 2**31 - 1
MAX_POSITION: Final = 2**31 - 1
_MAX_REMEMBERED_POSITIONS: Final = 64

RECENT_SIZE_BYTES: Final = 1024 * 1024
"""Size in bytes of the end of the active segment. It is not checked whether this part is in memory, because
it was usually written a short time ago, and most readers read only this part."""


class Segment:
    """One file with the batches of a log that begin at or after ``base_offset``. Batches are written only to
    the last segment of a log.

    The log knows where each batch ends. A segment knows only its number of bytes (``size_bytes``).
    """

    __slots__ = (
        "_bytes_since_index_entry",
        "_disk",
        "_file",
        "_index_interval_bytes",
        "_max_timestamp_ms",
        "_max_timestamp_offset",
        "_remembered",
        "base_offset",
        "created_ms",
        "file_suffix",
        "first_timestamp_ms",
        "folder",
        "is_sealed",
        "offset_index",
        "roll_jitter_ms",
        "size_bytes",
        "time_index",
        "transaction_index",
    )

    def __init__(
        self, disk: Disk, folder: str, base_offset: int, config: LogConfig, *, file_suffix: str = ""
    ) -> None:
        """``file_suffix`` is appended to the names of all files. It is for a segment that is not in use
        yet."""
        self._disk = disk
        self.folder = folder
        self.base_offset = base_offset
        self.file_suffix = file_suffix
        self._index_interval_bytes = config.index_interval_bytes
        self.offset_index = OffsetIndex(
            disk, self.path(OFFSET_INDEX_SUFFIX), base_offset, config.segment_index_bytes
        )
        self.time_index = TimeIndex(
            disk, self.path(TIME_INDEX_SUFFIX), base_offset, config.segment_index_bytes
        )
        self.transaction_index = TransactionIndex(
            disk, self.path(TRANSACTION_INDEX_SUFFIX), self.path(TRANSACTION_SUM_SUFFIX)
        )
        self._file: File | None = None
        self.size_bytes = 0
        self.is_sealed = False
        self.created_ms = 0
        self.first_timestamp_ms = NO_TIMESTAMP
        self.roll_jitter_ms = 0
        self._bytes_since_index_entry = 0
        self._max_timestamp_ms: int | None = NO_TIMESTAMP
        self._max_timestamp_offset = base_offset
        self._remembered: dict[int, int] = {}

    def path(self, suffix: str) -> str:
        """Return the path of the segment's file with this suffix."""
        return f"{self.folder}/{segment_file(self.base_offset, suffix)}{self.file_suffix}"

    @property
    def file(self) -> File:
        """The log file, opened on first use."""
        file = self._file
        if file is None:
            file = self._file = self._disk.open(self.path(LOG_SUFFIX))
        return file

    # -- opening ------------------------------------------------------------------------------

    def create(self, now_ms: int, roll_jitter_ms: int) -> None:
        """Create empty files. If files with these names exist, their content is dropped."""
        self._file = self._disk.open(self.path(LOG_SUFFIX), create=True)
        if self._file.size():
            # Only a file with content is truncated, because ext4 writes a file to the disk at its last close
            # if the file was truncated to length zero.
            self._file.truncate(0)
        self.offset_index.create()
        self.time_index.create()
        self.transaction_index.clear()
        self.created_ms = now_ms
        self.roll_jitter_ms = roll_jitter_ms

    def open_existing(self, *, sealed: bool) -> None:
        """Use the existing files without a check, after a clean stop.

        Raises :class:`CorruptIndexError` when an index is missing or cannot belong to this segment.
        """
        self.size_bytes = self._disk.size(self.path(LOG_SUFFIX))
        self.created_ms = self._disk.modified_ms(self.path(LOG_SUFFIX))
        self.is_sealed = sealed
        try:
            for index in (self.offset_index, self.time_index):
                if sealed:
                    index.open_sealed()
                else:
                    index.load()
            self.transaction_index.load()
        except FileNotFoundError as error:
            raise CorruptIndexError(f"{error.filename}: missing") from error
        count = len(self.offset_index)
        if count and self.offset_index.at(count - 1)[1] >= self.size_bytes:
            raise CorruptIndexError(f"{self.offset_index.path}: points past the end of the log file")
        self._max_timestamp_ms, self._max_timestamp_offset = self.time_index.last
        if not sealed:
            self._catch_up()

    def _catch_up(self) -> None:
        """Read the batches after the last index entry. They restore the state that appends need."""
        start = self.offset_index.boundary_before(self.size_bytes)
        for sketch in scan(self.file, start, self.size_bytes):
            self._note_timestamp(sketch.max_timestamp_ms, sketch.last_offset)
        self._bytes_since_index_entry = self.size_bytes - start
        first = next(scan(self.file, 0, self.size_bytes), None)
        self.first_timestamp_ms = first.max_timestamp_ms if first else NO_TIMESTAMP

    def last_batch_end(self) -> int:
        """The offset after the last batch. It is the base offset when there is no batch. All batches are
        whole."""
        # The file is read and not mapped into memory, because a start of the node reads the segments of all
        # logs.
        position, end_offset = self.offset_index.boundary_before(self.size_bytes), self.base_offset
        while position + HEADER_SIZE_BYTES <= self.size_bytes:
            sketch = sketch_at(self.file.read_at(position, HEADER_SIZE_BYTES), 0, position)
            if sketch.size_bytes < HEADER_SIZE_BYTES:
                break
            position, end_offset = position + sketch.size_bytes, sketch.last_offset + 1
        return end_offset

    def reset_indexes(self, size_bytes: int) -> None:
        """Empty the indexes. The caller then calls :meth:`note_batch` for each valid batch."""
        self.offset_index.create()
        self.time_index.create()
        self.transaction_index.clear()
        self.is_sealed = False
        self.size_bytes = size_bytes
        self.created_ms = self._disk.modified_ms(self.path(LOG_SUFFIX))
        self.first_timestamp_ms = self._max_timestamp_ms = NO_TIMESTAMP
        self._max_timestamp_offset = self.base_offset
        self._bytes_since_index_entry = 0
        self._remembered.clear()

    # -- appending ----------------------------------------------------------------------------

    def write(self, buffers: Sequence[Buffer], size_bytes: int) -> int:
        """Write batches at the end. Returns their position. The caller then calls :meth:`note_batch`."""
        position = self.size_bytes
        file = self._file or self.file
        file.write_at(position, buffers)
        self.size_bytes = position + size_bytes
        return position

    def note_batch(self, position: int, size_bytes: int, last_offset: int, max_timestamp_ms: int) -> None:
        """Update the segment for a batch that was written at ``position``. Add entries to the sparse
        indexes."""
        if max_timestamp_ms > self._max_timestamp_ms:  # type: ignore[operator]  # known while unsealed
            self._max_timestamp_ms = max_timestamp_ms
            self._max_timestamp_offset = last_offset
        if not position:
            self.first_timestamp_ms = max_timestamp_ms
        pending = self._bytes_since_index_entry
        if pending > self._index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(self.max_timestamp_ms, self._max_timestamp_offset)
            pending = 0
        self._bytes_since_index_entry = pending + size_bytes

    def _note_timestamp(self, timestamp_ms: int, last_offset: int) -> None:
        if timestamp_ms > self.max_timestamp_ms:
            self._max_timestamp_ms, self._max_timestamp_offset = timestamp_ms, last_offset

    @property
    def max_timestamp_ms(self) -> int:
        """The largest timestamp of the segment's records. It is -1 when the records have no timestamps."""
        return NO_TIMESTAMP if self._max_timestamp_ms is None else self._max_timestamp_ms

    @property
    def max_timestamp_offset(self) -> int:
        """The last offset of the first batch that has the timestamp :attr:`max_timestamp_ms`."""
        return self._max_timestamp_offset

    @property
    def retention_timestamp_ms(self) -> int:
        """The time that retention uses. It is the largest timestamp. If there is no timestamp, it is the time
        at which the segment was created or, after a restart, its file was last changed."""
        return self.max_timestamp_ms if self.max_timestamp_ms >= 0 else self.created_ms

    def write_indexes(self) -> None:
        """Write the entries that are missing in the index files."""
        self.offset_index.write_out()
        self.time_index.write_out()

    def seal(self) -> None:
        """End appends to this segment. Complete the indexes and free their memory."""
        if not self.is_sealed:
            self._complete_time_index()
            self.offset_index.seal()
            self.time_index.seal()
            self.transaction_index.seal()
            self.is_sealed = True

    def _complete_time_index(self) -> None:
        if not self.is_sealed:
            self.time_index.maybe_append(self.max_timestamp_ms, self._max_timestamp_offset)

    def unseal(self) -> None:
        """Make a sealed segment the active segment again, because later segments were removed."""
        if self.is_sealed:
            self.offset_index.load()
            self.time_index.load()
            self.is_sealed = False
            self._catch_up()

    # -- reading ------------------------------------------------------------------------------

    def find(self, offset: int) -> Sketch | None:
        """Return the batch that contains ``offset``, or the first batch after the offset; ``None`` at the
        end."""
        start = self._remembered.get(offset)
        if start is None:
            start = self.offset_index.lookup(offset)
        for sketch in scan(self.file, start, self.size_bytes):
            if sketch.last_offset >= offset:
                return sketch
        return None

    def position_of(self, offset: int) -> int:
        """Return the position of the batch that contains ``offset``, or of the first batch after the offset.
        At the end, the result is the size of the file."""
        position = self._remembered.get(offset)
        if position is not None:
            return position
        return find_position(self.file, self.offset_index.lookup(offset), self.size_bytes, offset)

    def remember(self, offset: int, position: int) -> None:
        """Cache the position of the batch that begins with ``offset``, for a reader's next request."""
        remembered = self._remembered
        if len(remembered) >= _MAX_REMEMBERED_POSITIONS:
            remembered.clear()
        remembered[offset] = position

    def cold_range(self, offset: int, max_bytes: int) -> FileRange | None:
        """Return bytes that a read of ``max_bytes`` from ``offset`` would have to wait for, because they are
        only on the disk. The result is None if no such bytes were found.

        When these bytes are loaded, the read may need more bytes that are only on the disk.
        """
        recent = 0 if self.is_sealed else RECENT_SIZE_BYTES
        if self.size_bytes <= recent:
            return None
        # The header of the batch after the last whole batch is read, too.
        wanted_bytes = max(0, max_bytes) + HEADER_SIZE_BYTES
        position = self._remembered.get(offset)
        if position is None:
            cold_index = self.offset_index.cold_range()
            if cold_index is not None:
                return cold_index
            position = self.offset_index.lookup(offset)
            wanted_bytes += self._index_interval_bytes
        left = self.size_bytes - position
        if left <= recent:
            return None
        size_bytes = min(left, wanted_bytes)
        file = self.file
        return None if file.is_cached(position, size_bytes) else FileRange(file, position, size_bytes)

    def is_recent(self, offset: int) -> bool:
        """Whether the batches from ``offset`` are in the part at the end that :meth:`cold_range` does not
        check."""
        return not self.is_sealed and self.size_bytes - self.position_of(offset) <= RECENT_SIZE_BYTES

    def whole_batches_end(self, start: int, limit: int) -> tuple[int, int | None]:
        """Returns the end of the last batch that fits into ``[start, limit)``, and the offset after that
        batch.

        The offset is ``None`` when no batch fits.
        """
        boundary = max(start, self.offset_index.boundary_before(limit))
        end, next_offset = find_fitting_end(self.file, boundary, self.size_bytes, limit)
        return end, next_offset if end > start else None

    def batch_view(self, sketch: Sketch) -> memoryview:
        """The bytes of one batch."""
        return self.file.view(sketch.position, sketch.size_bytes)

    # -- truncation and closing ---------------------------------------------------------------

    def end_before(self, offset: int) -> tuple[int, int]:
        """Return the position and offset after the last batch that is completely before ``offset``."""
        end, end_offset = 0, self.base_offset
        for sketch in scan(self.file, self.offset_index.lookup(offset - 1), self.size_bytes):
            if sketch.last_offset >= offset:
                break
            end, end_offset = sketch.position + sketch.size_bytes, sketch.last_offset + 1
        return end, end_offset

    def truncate_to(self, offset: int) -> int:
        """Drop the batches at or after ``offset``. Returns the end of the last remaining batch.

        Batches can be appended to the segment again after :meth:`cut_file` has returned.
        """
        self.unseal()
        end, end_offset = self.end_before(offset)
        self._remembered.clear()
        self.size_bytes = end
        self.offset_index.truncate_to(end)
        self.time_index.truncate_to(end_offset)
        self.transaction_index.truncate_to(end_offset)
        self._max_timestamp_ms, self._max_timestamp_offset = self.time_index.last
        self._catch_up()
        return end_offset

    def cut_file(self) -> None:
        """Truncate the log file to the length that :meth:`truncate_to` determined, durably. Without this
        call, a crash could restore old batches together with the batches that replace them. This call blocks.
        """
        if self.file.size() > self.size_bytes:
            self.file.truncate(self.size_bytes)
            self.file.sync()

    @property
    def has_synced_indexes(self) -> bool:
        """Whether :meth:`sync` needs to sync only the log file."""
        return self.offset_index.is_synced and self.time_index.is_synced and self.transaction_index.is_synced

    def sync(self) -> None:
        """Make the segment durable. Its indexes must be written before this call. This call blocks."""
        self.file.sync()
        self.offset_index.sync()
        self.time_index.sync()
        self.transaction_index.sync()

    def close(self) -> None:
        """Write the indexes to their files and release the files."""
        self._complete_time_index()
        self.offset_index.close()
        self.time_index.close()
        self.transaction_index.seal()
        self._close_file()

    def abandon(self) -> None:
        """Release the files without writing."""
        self.offset_index.abandon()
        self.time_index.abandon()
        self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def hold_files(self) -> None:
        """Open the files, so that readers of this segment can continue after the names of the files are
        removed."""
        self.file  # noqa: B018
        self.offset_index.hold_file()
        self.time_index.hold_file()

    def rename_deleted(self) -> list[str]:
        """Rename the files of a removed segment. Returns the new paths, which must be removed later. Any
        thread may call this.

        The log file is renamed first. If a crash follows, the next start removes the remaining files of the
        segment. A reader of the segment must call :meth:`hold_files` first.
        """
        renamed = []
        for suffix in SEGMENT_SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                self._disk.rename(self.path(suffix), self.path(suffix) + DELETED_SUFFIX)
                renamed.append(self.path(suffix) + DELETED_SUFFIX)
        return renamed
