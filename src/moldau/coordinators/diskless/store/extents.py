"""Extents: the batches of one partition in one file, packed. Pure.

A batch takes 21 bytes. These are byte offset, size and last offset delta (32 bits each), the largest
timestamp (64 bits) and flags (8 bits). Each of them is a column. From these columns the store knows the size
and the timestamp of each batch, and does not have to read objects. A marker is packed as a batch without a
position. The marker's content follows.
"""

import struct
from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

from moldau.coordinators.diskless.calls import MARKER_SIZE_BYTES, TransactionEnd
from moldau.coordinators.diskless.state.records import FLAG_TRANSACTIONAL, FileCommitted, MarkerExtent

BATCH_BYTES: Final = 21
NO_FILE: Final = -1
"""The file id of a marker, which is in no object."""
_MARKER: Final = struct.Struct("=qhib")


class Extent(NamedTuple):
    """One row of the table of extents. Its primary key is (partition, last offset)."""

    partition: int
    """The partition's number."""
    last_offset: int
    first_offset: int
    file_id: int
    """Offset of the file's record in the coordinator's log."""
    size_bytes: int
    max_timestamp_ms: int
    timestamp_bound_ms: int
    """Largest timestamp of this extent and all earlier extents. It never decreases. Therefore a binary search
    can find a timestamp."""
    committed_ms: int
    packed: bytes

    @property
    def batches(self) -> int:
        return len(self.packed) // BATCH_BYTES


class ExtentBatch(NamedTuple):
    """An unpacked batch."""

    base_offset: int
    last_offset: int
    byte_offset: int
    size_bytes: int
    max_timestamp_ms: int
    flags: int


class FileColumns:
    """The columns of all batches of a file, as bytes. They are encoded once. The columns of each extent are
    then cut out of these bytes."""

    __slots__ = ("_deltas", "_flags", "_offsets", "_sizes", "_timestamps")

    def __init__(self, record: FileCommitted) -> None:
        self._offsets = array("I", record.byte_offsets).tobytes()
        self._sizes = array("I", record.sizes_bytes).tobytes()
        self._deltas = array("I", record.offset_deltas).tobytes()
        self._timestamps = struct.pack(f"={len(record.flags)}q", *record.max_timestamps_ms)
        self._flags = bytes(record.flags)

    def packed(self, start: int, end: int) -> bytes:
        """Return the packed descriptions of the file's batches with the indexes ``start`` to ``end - 1``."""
        a, b = 4 * start, 4 * end
        return b"".join(
            (
                self._offsets[a:b],
                self._sizes[a:b],
                self._deltas[a:b],
                self._timestamps[2 * a : 2 * b],
                self._flags[start:end],
            )
        )


def unpack(first_offset: int, packed: bytes) -> Iterator[ExtentBatch]:
    """The batches of an extent, in order."""
    count = len(packed) // BATCH_BYTES
    offsets, sizes, deltas, timestamps = array("I"), array("I"), array("I"), array("q")
    a = 4 * count
    offsets.frombytes(packed[:a])
    sizes.frombytes(packed[a : 2 * a])
    deltas.frombytes(packed[2 * a : 3 * a])
    timestamps.frombytes(packed[3 * a : 5 * a])
    offset = first_offset
    for byte_offset, size, delta, timestamp, flags in zip(
        offsets, sizes, deltas, timestamps, packed[5 * a : 5 * a + count], strict=True
    ):
        yield ExtentBatch(offset, offset + delta, byte_offset, size, timestamp, flags)
        offset += delta + 1


def marker_extent(partition: int, marker: MarkerExtent, timestamp_bound_ms: int, ended_ms: int) -> Extent:
    """The row of a marker."""
    batch = struct.pack("=IIIqB", 0, MARKER_SIZE_BYTES, 0, ended_ms, FLAG_TRANSACTIONAL)
    content = _MARKER.pack(
        marker.producer_id, marker.producer_epoch, marker.coordinator_epoch, marker.committed
    )
    offset = marker.base_offset
    return Extent(
        *(partition, offset, offset, NO_FILE, MARKER_SIZE_BYTES, ended_ms, timestamp_bound_ms, ended_ms),
        batch + content,
    )


def marker_in(extent: Extent) -> TransactionEnd | None:
    """The content of a marker; ``None`` for an extent of batches."""
    if extent.file_id != NO_FILE:
        return None
    producer_id, producer_epoch, coordinator_epoch, committed = _MARKER.unpack_from(
        extent.packed, BATCH_BYTES
    )
    return TransactionEnd(producer_id, producer_epoch, coordinator_epoch, bool(committed))


class Trimmed(NamedTuple):
    """The part of an extent that remains after a trim, and the numbers of freed bytes and batches."""

    left: Extent | None
    freed_batches: int
    freed_bytes: int


def trim(extent: Extent, start_offset: int) -> Trimmed:
    """Drop the batches that are entirely before ``start_offset``. A batch that contains this offset is
    kept."""
    if extent.last_offset < start_offset:
        return Trimmed(None, extent.batches, extent.size_bytes)
    freed = freed_bytes = 0
    first_offset, latest = extent.first_offset, -1
    for batch in unpack(extent.first_offset, extent.packed):
        if batch.last_offset < start_offset:
            freed += 1
            freed_bytes += batch.size_bytes
            first_offset = batch.last_offset + 1
        else:
            latest = max(latest, batch.max_timestamp_ms)
    if not freed:
        return Trimmed(extent, 0, 0)
    packed, a = extent.packed, 4 * extent.batches
    kept = b"".join(
        (
            packed[4 * freed : a],
            packed[a + 4 * freed : 2 * a],
            packed[2 * a + 4 * freed : 3 * a],
            packed[3 * a + 8 * freed : 5 * a],
            packed[5 * a + freed :],
        )
    )
    left = extent._replace(
        first_offset=first_offset,
        size_bytes=extent.size_bytes - freed_bytes,
        max_timestamp_ms=latest,
        packed=kept,
    )
    return Trimmed(left, freed, freed_bytes)
