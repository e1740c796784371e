"""The blocking work of compaction: collecting the last offset of each key, and rewriting segments.

Each of these two steps is a generator that yields the number of bytes that were moved since its last yield.
The caller, a worker thread, can therefore pause or stop between two batches. The generators use their own
file handles. The log may change its segments during the work, so the caller must check for changes before it
uses the result.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from moldau.records.batch import BatchHeader
from moldau.records.errors import CorruptRecordError
from moldau.records.record import iter_records
from moldau.runtime.files.disk import Disk, File
from moldau.storage.cleaner.offset_map import OffsetMap
from moldau.storage.cleaner.record_filter import BatchFilter, kind_of_control
from moldau.storage.cleaner.transactions import CleanedTransactions
from moldau.storage.folders.file_names import CLEANED_SUFFIX, LOG_SUFFIX
from moldau.storage.log.config import LogConfig
from moldau.storage.segments.batch_scan import scan_checked
from moldau.storage.segments.segment import MAX_POSITION, MAX_RELATIVE_OFFSET, Segment

_WRITE_SIZE_BYTES: Final = 256 * 1024


class Source(NamedTuple):
    """A sealed segment in its state when the work begins, with its own file handle."""

    segment: Segment
    file: File
    size_bytes: int
    end_offset: int


def open_sources(disk: Disk, segments: Sequence[Segment], end_offset: int) -> list[Source]:
    """Open consecutive segments. The last of them ends at ``end_offset``."""
    ends = [segment.base_offset for segment in segments[1:]] + [end_offset]
    return [
        Source(segment, disk.open(segment.path(LOG_SUFFIX), read_only=True), segment.size_bytes, end)
        for segment, end in zip(segments, ends, strict=True)
    ]


def close_sources(sources: Sequence[Source]) -> None:
    for source in sources:
        source.file.close()


def group_sources(sources: Sequence[Source], config: LogConfig) -> list[list[Source]]:
    """Groups of adjacent segments. Each group is merged into one segment, which is not larger than Kafka
    allows."""
    groups: list[list[Source]] = []
    log_bytes = index_bytes = time_index_bytes = 0
    max_log_bytes = min(config.segment_bytes, MAX_POSITION)
    for source in sources:
        segment = source.segment
        sizes = (
            source.size_bytes,
            len(segment.offset_index) * segment.offset_index.entry.size,
            len(segment.time_index) * segment.time_index.entry.size,
        )
        log_bytes += sizes[0]
        index_bytes += sizes[1]
        time_index_bytes += sizes[2]
        fits = (
            groups
            and log_bytes <= max_log_bytes
            and index_bytes <= config.segment_index_bytes
            and time_index_bytes <= config.segment_index_bytes
            and source.end_offset - 1 - groups[-1][0].segment.base_offset <= MAX_RELATIVE_OFFSET
        )
        if fits:
            groups[-1].append(source)
        else:
            groups.append([source])
            log_bytes, index_bytes, time_index_bytes = sizes
    return groups


def _batches(source: Source) -> Iterator[tuple[BatchHeader, memoryview]]:
    end = 0
    for position, header, batch in scan_checked(source.file, 0, source.size_bytes):
        yield header, batch
        end = position + header.size_bytes
    if end != source.size_bytes:
        raise CorruptRecordError(f"{source.file.path}: no valid batch at byte {end}")


def learn_offsets(
    offsets: OffsetMap, sources: Sequence[Source], first_offset: int, transactions: CleanedTransactions
) -> Iterator[int]:
    """Store the last offset of each key, beginning at ``first_offset``. The work ends after the last segment,
    or when the map is full.

    Records of aborted transactions are ignored.
    """
    for source in sources:
        for header, batch in _batches(source):
            if header.last_offset < first_offset:
                continue
            if header.is_control:
                transactions.is_needless(header, kind_of_control(batch))
            elif not transactions.is_aborted(header):
                for record in iter_records(batch):
                    if record.key is None or record.offset < first_offset:
                        continue
                    if not offsets.put(record.key, record.offset):
                        return
            offsets.latest_offset = header.last_offset
            yield header.size_bytes


class Rewriting:
    """Makes one ``.cleaned`` segment from a group of segments."""

    def __init__(
        self, disk: Disk, config: LogConfig, group: Sequence[Source], record_filter: BatchFilter, now_ms: int
    ) -> None:
        self._disk = disk
        self._config = config
        self.group = group
        self._filter = record_filter
        self._now_ms = now_ms
        first = group[0].segment
        self.folder = first.folder
        self.base_offset = first.base_offset
        self.bytes_after = 0

    def run(self, transactions: CleanedTransactions) -> Iterator[int]:
        """Write the remaining batches of the group, durably."""
        cleaned = Segment(self._disk, self.folder, self.base_offset, self._config, file_suffix=CLEANED_SUFFIX)
        cleaned.create(self._now_ms, 0)
        try:
            waiting = _GatheredBatches(cleaned)
            for source in self.group:
                for header, batch in _batches(source):
                    kept = self._filter.filter(header, batch)
                    written = waiting.add(header, kept) if kept is not None else 0
                    yield header.size_bytes + written
            waiting.write()
            for aborted in transactions.still_indexed:
                cleaned.transaction_index.append(aborted)
            transactions.still_indexed.clear()
            cleaned.seal()
            cleaned.sync()
            self.bytes_after = cleaned.size_bytes
        finally:
            cleaned.abandon()
        self._disk.sync_dir(self.folder)


class _GatheredBatches:
    """Batches for a segment. They are collected, so that many are written together."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._batches: list[tuple[BatchHeader, bytes]] = []
        self._size_bytes = 0

    def add(self, header: BatchHeader, batch: bytes | memoryview) -> int:
        """Add a batch. Returns the batch's size."""
        size_bytes = len(batch)
        self._batches.append((header, bytes(batch)))
        self._size_bytes += size_bytes
        if self._size_bytes >= _WRITE_SIZE_BYTES:
            self.write()
        return size_bytes

    def write(self) -> None:
        """Write the collected batches."""
        if not self._batches:
            return
        segment = self._segment
        position = segment.write([b"".join(batch for _, batch in self._batches)], self._size_bytes)
        for header, batch in self._batches:
            timestamp_ms = int.from_bytes(batch[35:43], "big", signed=True)
            segment.note_batch(position, len(batch), header.last_offset, timestamp_ms)
            position += len(batch)
        self._batches.clear()
        self._size_bytes = 0
