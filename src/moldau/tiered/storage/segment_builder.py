"""Makes a Kafka segment with its indexes from batches of WAL objects. Pure.

The consolidating broker or task places the batches of a segment in a buffer one after the other. The batches
may arrive in any order, because their positions are known beforehand. Then :func:`finish_segment` verifies
the batches. It also writes into the batches the values that the coordinator has assigned. Batches are never
decompressed. A batch's checksum does not cover offset and leader epoch, but it covers LogAppendTime. With
LogAppendTime the checksum is therefore computed again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from moldau.cluster.image.log_generations import FIRST_GENERATION, LogGenerations
from moldau.records.batch import (
    CONTROL_BIT,
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    parse_header,
    set_log_append_time,
)
from moldau.records.errors import CorruptRecordError
from moldau.runtime.buffers import Buffer
from moldau.storage.folders.checkpoint import format_checkpoint
from moldau.storage.log.append_info import AbortedEntry
from moldau.storage.producers.producer_snapshot import decode_producer_snapshot, encode_producer_snapshot
from moldau.storage.producers.producer_state import ProducerState
from moldau.storage.segments.offset_index import OffsetIndex
from moldau.storage.segments.time_index import TimeIndex
from moldau.storage.segments.transaction_index import encode_transactions

__all__ = ["MAX_SEGMENT_BYTES", "BatchRun", "BuiltSegment", "build_segment", "finish_segment"]

MAX_SEGMENT_BYTES: Final = 2**31 - 1
"""The maximum position in a segment. An index has positions of 32 bits, and Kafka reads them as signed
numbers."""

_HEADER = Struct(">qiibIhiqqqhii")
_STAMP = Struct(">qii")
_MAX_RELATIVE_OFFSET: Final = 2**31 - 1
_CRC_START: Final = 21
_RELEASE_BYTES: Final = 64 * 1024


class BatchRun(NamedTuple):
    """Batches that have contiguous offsets and are adjacent in a WAL object. They are therefore also adjacent
    in the segment."""

    base_offset: int
    last_offset: int
    size_bytes: int
    append_time_ms: int = NO_TIMESTAMP
    """If the topic uses LogAppendTime, the timestamp of all records in these batches; otherwise -1."""


@dataclass(frozen=True, slots=True)
class BuiltSegment:
    """A segment in Kafka's form. Each field except the numbers is the content of one file."""

    base_offset: int
    end_offset: int
    """Offset of the last record (inclusive, as in remote segment metadata)."""
    max_timestamp_ms: int
    """Largest timestamp; -1 when no record has a timestamp."""
    batches: int
    records: int
    log: memoryview
    """The buffer that the caller gave, or a part of it."""
    offset_index: bytes
    time_index: bytes
    transaction_index: bytes
    """Empty when the segment contains no aborted transaction. In this case Kafka has no transaction index
    file."""
    leader_epoch_checkpoint: bytes
    producer_snapshot: bytes
    """The state of the producers after the last batch."""

    @property
    def size_bytes(self) -> int:
        return len(self.log)


def build_segment(
    parts: Iterable[tuple[BatchRun, Buffer]],
    *,
    index_interval_bytes: int = 4096,
    producers_before: bytes = b"",
    generations: LogGenerations = FIRST_GENERATION,
    into: bytearray | memoryview | None = None,
) -> BuiltSegment:
    """Copy runs, in the order of their offsets, and finish the copy; see :func:`finish_segment`.

    ``into`` is memory for the segment. It is used if the segment fits into it, because reused memory is much
    faster than new memory. The result is then in this memory.
    """
    given = list(parts)
    size_bytes = sum(run.size_bytes for run, _ in given)
    buffer = memoryview(into if into is not None and len(into) >= size_bytes else bytearray(size_bytes))
    buffer = buffer[:size_bytes]
    position = 0
    for run, records in given:
        if len(records) != run.size_bytes:
            raise CorruptRecordError(
                f"{len(records)} bytes came for the batches from offset {run.base_offset} on,"
                f" which have {run.size_bytes}"
            )
        buffer[position : position + run.size_bytes] = records
        position += run.size_bytes
    return finish_segment(
        buffer,
        [run for run, _ in given],
        index_interval_bytes=index_interval_bytes,
        producers_before=producers_before,
        generations=generations,
    )


def finish_segment(
    buffer: memoryview,
    runs: Sequence[BatchRun],
    *,
    index_interval_bytes: int = 4096,
    producers_before: bytes = b"",
    generations: LogGenerations = FIRST_GENERATION,
) -> BuiltSegment:
    """Make a segment of the batches in a writable ``buffer``. There, the batches have the same form as in WAL
    objects.

    ``runs`` describe the buffer's content, in order, without gaps in bytes or offsets. ``producers_before``
    is the producer snapshot of the previous segment. It is given when an aborted transaction began in an
    earlier segment, because the new snapshot must then include these producers. The leader epoch of each
    batch is its generation, because the coordinator alone determines the order of records.

    Raises :class:`CorruptRecordError` when the bytes are not the committed batches. Raises ``ValueError``
    when there is no run, or when the runs are too large for a segment.
    """
    if not runs:
        raise ValueError("a segment needs at least one batch")
    if len(buffer) > MAX_SEGMENT_BYTES or runs[-1].last_offset - runs[0].base_offset > _MAX_RELATIVE_OFFSET:
        raise ValueError(
            f"{len(buffer)} bytes and {runs[-1].last_offset - runs[0].base_offset + 1} offsets are more than"
            " a segment holds"
        )
    finisher = _Finisher(buffer, runs[0].base_offset, index_interval_bytes, producers_before)
    for run in runs:
        # The batches of a run were committed together, so they have the same generation.
        finisher.finish(run, generations.epoch_for_offset(run.base_offset))
    return finisher.result(generations.within(runs[0].base_offset, runs[-1].last_offset))


class _Finisher:
    """Iterates over the batches once. It makes the same index entries that Kafka's log makes on append."""

    def __init__(
        self, buffer: memoryview, base_offset: int, index_interval_bytes: int, producers_before: bytes
    ) -> None:
        self._buffer = buffer
        self._base_offset = self._next_offset = base_offset
        self._interval = index_interval_bytes
        self._position = self._batches = self._records = 0
        self._pending = 0
        self._latest_ms, self._latest_offset = NO_TIMESTAMP, base_offset
        self._offset_entries: list[tuple[int, int]] = []
        self._time_entries: list[tuple[int, int]] = []
        self._aborted: list[AbortedEntry] = []
        self._producers = ProducerState(expiration_ms=0, offset=base_offset)
        self._producers.reset(
            base_offset, decode_producer_snapshot(producers_before) if producers_before else ()
        )
        # The snapshot contains only the last batch of each producer, because the coordinator of a diskless
        # partition knows the earlier batches. Therefore only the last batch of a producer must be recorded,
        # and this is done at the end.
        self._last_batches: dict[int, tuple[int, int]] = {}

    def finish(self, run: BatchRun, leader_epoch: int) -> None:
        buffer, interval, append_time_ms = self._buffer, self._interval, run.append_time_ms
        position, end, offset = self._position, self._position + run.size_bytes, run.base_offset
        if offset != self._next_offset or end > len(buffer):
            raise CorruptRecordError(
                f"batches from offset {offset} on do not follow {self._next_offset - 1}, or not all are there"
            )
        pending, latest_ms, batches, records = self._pending, self._latest_ms, 0, 0
        last_batches, base_offset, unreleased = self._last_batches, self._base_offset, 0
        unpack, restamp = _HEADER.unpack_from, _STAMP.pack_into
        while position < end:
            header = unpack(buffer, position) if end - position >= HEADER_SIZE_BYTES else ()
            size = header[1] + LOG_OVERHEAD_BYTES if header else 0
            if size < HEADER_SIZE_BYTES or position + size > end or header[3] != MAGIC or header[6] < 0:
                raise CorruptRecordError(f"there is no batch at byte {position}, offset {offset}")
            unreleased += size
            # Release the interpreter regularly, because in a broker this code runs in parallel with the event
            # loop.
            release = unreleased >= _RELEASE_BYTES
            unreleased = 0 if release else unreleased
            computed = crc32c(buffer[position + _CRC_START : position + size], 0, int(release))
            if computed != header[4]:
                raise CorruptRecordError(
                    f"batch at byte {position} (offset {offset}): stored CRC {header[4]}, computed {computed}"
                )
            if append_time_ms >= 0:
                set_log_append_time(buffer, position, append_time_ms)
            restamp(buffer, position, offset, header[1], leader_epoch)
            last_offset = offset + header[6]
            timestamp_ms = header[8] if append_time_ms < 0 else append_time_ms
            if timestamp_ms > latest_ms:
                self._latest_ms = latest_ms = timestamp_ms
                self._latest_offset = last_offset
            if pending > interval:
                self._offset_entries.append((last_offset - base_offset, position))
                self._note_time()
                pending = 0
            pending += size
            if header[9] >= 0:
                if header[5] & (TRANSACTIONAL_BIT | CONTROL_BIT):
                    self._note_transaction(position, size)
                else:
                    last_batches[header[9]] = (position, last_offset)
            batches += 1
            records += header[12]
            offset = last_offset + 1
            position += size
        if offset != run.last_offset + 1:
            raise CorruptRecordError(
                f"batches of offsets {run.base_offset} to {run.last_offset} end with offset {offset - 1}"
            )
        self._position, self._next_offset, self._pending = end, offset, pending
        self._batches += batches
        self._records += records

    def _note_time(self) -> None:
        entries = self._time_entries
        if self._latest_ms > (entries[-1][0] if entries else NO_TIMESTAMP):
            entries.append((self._latest_ms, self._latest_offset - self._base_offset))

    def _note_transaction(self, position: int, size_bytes: int) -> None:
        """Record a transactional batch or a marker. The earlier batches are applied first, because the state
        of a transaction depends on their order."""
        self._apply_last_batches()
        batch = self._buffer[position : position + size_bytes]
        completed = self._producers.apply_batch(batch, parse_header(batch))
        if completed is not None and completed.aborted:
            self._aborted.append(
                AbortedEntry(
                    completed.producer_id,
                    completed.first_offset,
                    completed.last_offset,
                    completed.last_stable_offset,
                )
            )

    def _apply_last_batches(self) -> None:
        for position, _ in sorted(self._last_batches.values()):
            header = parse_header(self._buffer, position)
            self._producers.apply(header, header.base_offset, header.max_timestamp)
        self._last_batches.clear()

    def result(self, leader_epochs: Sequence[tuple[int, int]]) -> BuiltSegment:
        if self._position != len(self._buffer):
            raise CorruptRecordError(f"{len(self._buffer) - self._position} bytes are after the last batch")
        self._note_time()
        self._apply_last_batches()
        return BuiltSegment(
            base_offset=self._base_offset,
            end_offset=self._next_offset - 1,
            max_timestamp_ms=self._latest_ms,
            batches=self._batches,
            records=self._records,
            log=self._buffer,
            offset_index=b"".join(OffsetIndex.entry.pack(*entry) for entry in self._offset_entries),
            time_index=b"".join(TimeIndex.entry.pack(*entry) for entry in self._time_entries),
            transaction_index=encode_transactions(self._aborted),
            leader_epoch_checkpoint=format_checkpoint(leader_epochs),
            producer_snapshot=encode_producer_snapshot(self._producers, last_only=True),
        )
