"""The log with snapshots that the KRaft quorum and the coordinators use (KIP-595, KIP-630).

:class:`ReplicatedLog` is the contract; it guarantees:

* An append is visible to :meth:`ReplicatedLog.read` when it returns and durable when a
  :meth:`ReplicatedLog.flush` that began afterwards has returned.
* A snapshot exists, complete and durable, when ``freeze`` of its writer returns. After an earlier crash there
  is only a ``.part`` file, which the next start removes.
* Offsets below :attr:`ReplicatedLog.start_offset` are removed; the latest snapshot covers them.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from moldau.runtime.files.disk import Buffer
from moldau.storage.log.append_info import AppendInfo, ReadResult


class LogPosition(NamedTuple):
    """A position in the log. It also identifies the snapshot that ends at this position (exclusive)."""

    offset: int
    epoch: int


class Divergence(Enum):
    """How a follower's (offset, epoch) relates to this log."""

    VALID = "valid"
    DIVERGING = "diverging"
    SNAPSHOT = "snapshot"


class OffsetValidation(NamedTuple):
    """The answer to :meth:`ReplicatedLog.validate_offset_and_epoch`.

    For ``DIVERGING``, ``position`` is the largest epoch of this log not above the requested epoch, with its
    end offset. For ``SNAPSHOT`` it is the snapshot to fetch, and for ``VALID`` the requested position.
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
        """Raw bytes from ``position`` on (fewer at the end), as FetchSnapshot sends them."""
        ...

    def batches(self) -> Iterator[memoryview]:
        """All record batches in order, including the header and footer control batches.

        Raises ``KafkaError(corrupt_message)`` for a damaged batch.
        """
        ...

    def close(self) -> None: ...


class RawSnapshotWriter(Protocol):
    """A snapshot that is being fetched from the leader, one range of bytes after another."""

    @property
    def snapshot_id(self) -> LogPosition: ...

    @property
    def size_bytes(self) -> int:
        """Bytes written so far: the position of the next FetchSnapshot."""
        ...

    def append(self, content: Buffer) -> None:
        """Append raw bytes at ``size_bytes``."""
        ...

    async def freeze(self) -> None:
        """Make the snapshot durable and visible.

        Raises ``KafkaError(corrupt_message)`` when it is not a complete snapshot.
        """
        ...

    def abandon(self) -> None:
        """Discard the written bytes. After ``freeze`` this has no effect."""
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
        """Sync the written bytes when there are many. Call it from time to time.

        Then ``freeze`` has little left to sync, and other syncs in that time are faster.
        """
        ...

    async def freeze(self) -> None:
        """Write the footer, and make the snapshot durable and visible."""
        ...

    def abandon(self) -> None:
        """Discard the written bytes. After ``freeze`` this has no effect."""
        ...


class ReplicatedLog(Protocol):
    """A partition log with an epoch history and snapshots. I/O failures raise
    ``KafkaError(kafka_storage_error)``. After a failure, every call that writes raises this error."""

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
        """Epoch of the last record, or of the latest snapshot when the log is empty; 0 for a new log."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes of the segments, without indexes and snapshots."""
        ...

    def append_as_leader(self, batches: Buffer, epoch: int) -> AppendInfo:
        """Append one or more batches. Offsets and epoch are assigned; control batches are allowed."""
        ...

    def append_as_follower(self, batches: Buffer) -> AppendInfo:
        """Append fetched batches unchanged; an incomplete batch at the end is ignored.

        Raises ``KafkaError(corrupt_message)`` when the offsets do not follow ``end_offset`` or a checksum is
        wrong.
        """
        ...

    def read(self, offset: int, max_bytes: int, *, upper_bound_offset: int | None = None) -> ReadResult:
        """At least one whole batch from ``offset`` on, unless ``offset`` is the upper bound (by default the
        end).

        Raises ``KafkaError(offset_out_of_range)`` below ``start_offset`` or above ``end_offset``.
        """
        ...

    def initialize_epoch(self, epoch: int) -> None:
        """Begin a leader's epoch at ``end_offset``."""
        ...

    def end_offset_for_epoch(self, epoch: int) -> LogPosition:
        """The largest known epoch not above ``epoch``, and its end offset. Epochs of snapshots are
        included."""
        ...

    def validate_offset_and_epoch(self, offset: int, epoch: int) -> OffsetValidation:
        """Check a follower's fetch position (KIP-595 diverging epoch, KIP-630 snapshot)."""
        ...

    def update_high_watermark(self, offset: int) -> None:
        """Set the high watermark. It never moves back, and it is not stored."""
        ...

    async def truncate_to(self, offset: int) -> None:
        """Drop all records from ``offset`` on, durably. Raises ``ValueError`` below the high watermark."""
        ...

    async def truncate_to_latest_snapshot(self) -> bool:
        """If the latest snapshot ends above ``end_offset``, start over with an empty log at its end.

        As for ``truncate_to``, no appends are allowed before this returns.
        """
        ...

    async def flush(self) -> int:
        """Make all earlier appends durable; return the new ``flushed_offset``."""
        ...

    def create_snapshot(self, snapshot_id: LogPosition, last_log_timestamp_ms: int) -> SnapshotWriter | None:
        """Begin a snapshot of the state up to ``snapshot_id.offset`` (exclusive).

        Returns None when a snapshot with this or a later end exists. Raises ``ValueError`` when the position
        is above the high watermark, or when its epoch does not match the log.
        """
        ...

    def store_snapshot(self, snapshot_id: LogPosition) -> RawSnapshotWriter | None:
        """Begin to store a fetched snapshot; ``None`` when the snapshot already exists."""
        ...

    def latest_snapshot_id(self) -> LogPosition | None: ...

    def earliest_snapshot_id(self) -> LogPosition | None: ...

    def snapshot_ids(self) -> Sequence[LogPosition]:
        """All frozen snapshots, oldest first."""
        ...

    def open_snapshot(self, snapshot_id: LogPosition) -> SnapshotReader | None: ...

    async def delete_before_snapshot(self, snapshot_id: LogPosition) -> bool:
        """Move ``start_offset`` up to the end of this snapshot; drop older segments and snapshots.

        Returns False when there is no such snapshot or nothing to delete.
        """
        ...

    def close(self) -> None:
        """Flush and close; a second call does nothing."""
        ...
