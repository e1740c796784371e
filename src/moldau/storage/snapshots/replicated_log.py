"""The log with snapshots that the KRaft quorum and the coordinators use (KIP-595, KIP-630).

:class:`ReplicatedLog` is the contract. It has these guarantees:

* When an append returns, :meth:`ReplicatedLog.read` can read the records. They are durable when a
  :meth:`ReplicatedLog.flush` that began after the append has returned.
* When ``freeze`` of a snapshot's writer returns, the snapshot is complete and durable. If a crash comes
  before that, there is only a ``.part`` file, which the next start removes.
* Offsets below :attr:`ReplicatedLog.start_offset` are removed. The latest snapshot contains their state.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from moldau.runtime.buffers import Buffer
from moldau.storage.log.append_info import AppendInfo, ReadResult


class LogPosition(NamedTuple):
    """A position in the log. It also identifies the snapshot that ends at this position (exclusive)."""

    offset: int
    epoch: int


class Divergence(Enum):
    """The result of comparing a follower's (offset, epoch) with this log."""

    VALID = "valid"
    DIVERGING = "diverging"
    SNAPSHOT = "snapshot"


class OffsetValidation(NamedTuple):
    """The result of :meth:`ReplicatedLog.validate_offset_and_epoch`.

    For ``VALID``, ``position`` is the requested position. For ``SNAPSHOT``, it is the snapshot that must be
    fetched. For ``DIVERGING``, it is an epoch of this log with the epoch's end offset. The epoch is the
    requested epoch, or the next lower epoch if this log does not have the requested epoch.
    """

    divergence: Divergence
    position: LogPosition


class SnapshotReader(Protocol):
    """A frozen snapshot. It stays readable until it is closed, even after the log has deleted it."""

    @property
    def snapshot_id(self) -> LogPosition: ...

    @property
    def size_bytes(self) -> int: ...

    def read(self, position: int, max_bytes: int) -> memoryview:
        """Return raw bytes of the snapshot, beginning at ``position``, for FetchSnapshot. At the end of the
        snapshot there may be fewer bytes."""
        ...

    def batches(self) -> Iterator[memoryview]:
        """Return all record batches in order, including the control batches of the header and the footer.

        Raises ``KafkaError(corrupt_message)`` for a damaged batch.
        """
        ...

    def close(self) -> None: ...


class RawSnapshotWriter(Protocol):
    """A snapshot that is being fetched from the leader, one byte range after another."""

    @property
    def snapshot_id(self) -> LogPosition: ...

    @property
    def size_bytes(self) -> int:
        """Number of bytes written so far. The next FetchSnapshot begins at this position."""
        ...

    def append(self, content: Buffer) -> None:
        """Append raw bytes at the position ``size_bytes``."""
        ...

    async def freeze(self) -> None:
        """Make the snapshot durable and visible.

        Raises ``KafkaError(corrupt_message)`` when it is not a complete snapshot.
        """
        ...

    def abandon(self) -> None:
        """Discard the written bytes. After ``freeze`` this call has no effect."""
        ...


class SnapshotWriter(Protocol):
    """A snapshot of this node's own state."""

    @property
    def snapshot_id(self) -> LogPosition: ...

    def append(self, values: Sequence[bytes]) -> None:
        """Append records with these values, without keys, as one batch."""
        ...

    def append_control(self, key: bytes, value: bytes) -> None:
        """Append one control record (kraft version, voters) as a separate control batch."""
        ...

    async def settle(self) -> None:
        """Sync the written bytes when there are many of them. Call this method from time to time.

        Then ``freeze`` has little left to sync, and delays other syncs less.
        """
        ...

    async def freeze(self) -> None:
        """Write the footer, and make the snapshot durable and visible."""
        ...

    def abandon(self) -> None:
        """Discard the written bytes. After ``freeze`` this call has no effect."""
        ...


class ReplicatedLog(Protocol):
    """A partition log with epochs and snapshots. I/O failures raise ``KafkaError(kafka_storage_error)``.
    After a failure, every call that writes raises this error."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int:
        """The offset of the next append."""
        ...

    @property
    def flushed_offset(self) -> int:
        """All records below this offset are durable."""
        ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def last_epoch(self) -> int:
        """Epoch of the last record. When the log is empty, it is the epoch of the latest snapshot. It is 0
        for a new log."""
        ...

    @property
    def size_bytes(self) -> int:
        """Size of the segments in bytes, without indexes and snapshots."""
        ...

    def append_as_leader(self, batches: Buffer, epoch: int) -> AppendInfo:
        """Append one or more batches. The log assigns offsets and epoch. Control batches are allowed."""
        ...

    def append_as_follower(self, batches: Buffer) -> AppendInfo:
        """Append fetched batches unchanged. An incomplete batch at the end is ignored.

        Raises ``KafkaError(corrupt_message)`` when an offset is below ``end_offset`` or a checksum is wrong.
        """
        ...

    def read(self, offset: int, max_bytes: int, *, upper_bound_offset: int | None = None) -> ReadResult:
        """Read whole batches, beginning at ``offset``. The first batch is returned even if it is larger than
        ``max_bytes``. There is no batch if ``offset`` is the upper bound (by default the end).

        Raises ``KafkaError(offset_out_of_range)`` below ``start_offset`` or above ``end_offset``.
        """
        ...

    def initialize_epoch(self, epoch: int) -> None:
        """Begin a leader's epoch at ``end_offset``."""
        ...

    def end_offset_for_epoch(self, epoch: int) -> LogPosition:
        """Find ``epoch``, or the next lower known epoch. Returns that epoch and its end offset. Epochs of
        snapshots are included."""
        ...

    def validate_offset_and_epoch(self, offset: int, epoch: int) -> OffsetValidation:
        """Check a follower's fetch position (KIP-595 for a diverging epoch, KIP-630 for a snapshot)."""
        ...

    def update_high_watermark(self, offset: int) -> None:
        """Set the high watermark. It never moves back, and it is not stored on disk."""
        ...

    async def truncate_to(self, offset: int) -> None:
        """Drop all records at or after ``offset``, durably. Raises ``ValueError`` if ``offset`` is below the
        high watermark."""
        ...

    async def truncate_to_latest_snapshot(self) -> bool:
        """If the latest snapshot ends above ``end_offset``, or at ``end_offset`` with a newer epoch than the
        last record, drop all records. The empty log then begins at the end of that snapshot.

        As for ``truncate_to``, no appends are allowed before this method returns.
        """
        ...

    async def flush(self) -> int:
        """Make all earlier appends durable. Returns the new ``flushed_offset``."""
        ...

    def create_snapshot(self, snapshot_id: LogPosition, last_log_timestamp_ms: int) -> SnapshotWriter | None:
        """Begin a snapshot of the state up to ``snapshot_id.offset`` (exclusive).

        Returns None when there is already a snapshot with this end or a later end. Raises ``ValueError`` when
        the position is above the high watermark or below the log's start, or when its epoch does not match
        the log.
        """
        ...

    def store_snapshot(self, snapshot_id: LogPosition) -> RawSnapshotWriter | None:
        """Begin to store a fetched snapshot; ``None`` when the snapshot already exists."""
        ...

    def latest_snapshot_id(self) -> LogPosition | None: ...

    def earliest_snapshot_id(self) -> LogPosition | None: ...

    def snapshot_ids(self) -> Sequence[LogPosition]:
        """All frozen snapshots, the oldest first."""
        ...

    def open_snapshot(self, snapshot_id: LogPosition) -> SnapshotReader | None: ...

    async def delete_before_snapshot(self, snapshot_id: LogPosition) -> bool:
        """Move ``start_offset`` up to the end of this snapshot, and drop older segments and snapshots.

        Returns False when there is no such snapshot or when there is nothing to delete.
        """
        ...

    def close(self) -> None:
        """Flush and close the log. A second call does nothing."""
        ...
