"""The log with snapshots that the KRaft quorum and the coordinators use (KIP-595, KIP-630).

:class:`ReplicatedLog` is the contract; it guarantees:

* An append is visible to :meth:`ReplicatedLog.read` when it returns and durable when a
  :meth:`ReplicatedLog.flush` that began afterwards has returned.
* A snapshot exists from the moment its writer's ``freeze`` returns, whole and durable; a crash
  before leaves nothing but a ``.part`` file, which the next start removes.
* Offsets below :attr:`ReplicatedLog.start_offset` are gone and covered by the latest snapshot.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from moldau.runtime.files.disk import Buffer
from moldau.storage.log.append_info import AppendInfo, ReadResult


class LogPosition(NamedTuple):
    """A position in the log: as an end (exclusive) it also names a snapshot."""

    offset: int
    epoch: int


class Divergence(Enum):
    """Relation of a follower's (offset, epoch) to this log."""

    VALID = "valid"
    DIVERGING = "diverging"
    SNAPSHOT = "snapshot"


class OffsetValidation(NamedTuple):
    """The answer to :meth:`ReplicatedLog.validate_offset_and_epoch`.

    For ``DIVERGING``, ``position`` is the largest epoch of this log not above the requested one and its end
    offset; for ``SNAPSHOT`` it is the snapshot to fetch; for ``VALID`` the requested position.
    """

    divergence: Divergence
    position: LogPosition


class SnapshotReader(Protocol):
    """A frozen snapshot; stays readable after the log has deleted it, until closed."""

    @property
    def snapshot_id(self) -> LogPosition: ...

    @property
    def size_bytes(self) -> int: ...

    def read(self, position: int, max_bytes: int) -> memoryview:
        """Raw bytes from ``position`` (fewer at the end), as FetchSnapshot sends them."""
        ...

    def batches(self) -> Iterator[memoryview]:
        """All record batches in order, including the header and footer control batches.

        Raises ``KafkaError(corrupt_message)`` at a damaged one.
        """
        ...

    def close(self) -> None: ...


class RawSnapshotWriter(Protocol):
    """A snapshot that is being fetched from the leader, byte range by byte range."""

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
        """Make it durable and visible.

        Raises ``KafkaError(corrupt_message)`` when it is not a whole snapshot.
        """
        ...

    def abandon(self) -> None:
        """Discard the written bytes; harmless after ``freeze``."""
        ...


class SnapshotWriter(Protocol):
    """A snapshot of this node's own state."""

    @property
    def snapshot_id(self) -> LogPosition: ...

    def append(self, values: Sequence[bytes]) -> None:
        """Append records with these values (and no keys) as one batch."""
        ...

    def append_control(self, key: bytes, value: bytes) -> None:
        """Append one control record (kraft version, voters) as a control batch of its own."""
        ...

    async def settle(self) -> None:
        """Call it from time to time: it syncs the written bytes when there are many.

        ``freeze`` then has little left to sync, and other syncs meanwhile are faster.
        """
        ...

    async def freeze(self) -> None:
        """Write the footer, make it durable and visible."""
        ...

    def abandon(self) -> None:
        """Discard the written bytes; harmless after ``freeze``."""
        ...


class ReplicatedLog(Protocol):
    """A partition log with an epoch history and snapshots. IO failures raise
    ``KafkaError(kafka_storage_error)``; after one failure, every call that writes raises it.
    """

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int:
        """The offset of the next append."""
        ...

    @property
    def flushed_offset(self) -> int:
        """Everything below is durable."""
        ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def last_epoch(self) -> int:
        """Epoch of the last record, or of the latest snapshot when the log is empty; 0 at first."""
        ...

    def append_as_leader(self, batches: Buffer, epoch: int) -> AppendInfo:
        """Append one or more batches; offsets and epoch are assigned (control batches are fine)."""
        ...

    def append_as_follower(self, batches: Buffer) -> AppendInfo:
        """Append fetched batches as they are; a trailing partial batch is ignored.

        Raises ``KafkaError(corrupt_message)`` when the offsets do not follow ``end_offset`` or a
        checksum is wrong.
        """
        ...

    def read(self, offset: int, max_bytes: int, *, upper_bound_offset: int | None = None) -> ReadResult:
        """At least one whole batch from ``offset`` unless it is the upper bound (default: the end).

        Raises ``KafkaError(offset_out_of_range)`` below ``start_offset`` or above ``end_offset``.
        """
        ...

    def initialize_epoch(self, epoch: int) -> None:
        """A leader's epoch begins at ``end_offset``."""
        ...

    def end_offset_for_epoch(self, epoch: int) -> LogPosition:
        """The largest known epoch not above ``epoch`` and its end offset (snapshots count too)."""
        ...

    def validate_offset_and_epoch(self, offset: int, epoch: int) -> OffsetValidation:
        """Check a follower's fetch position (KIP-595 diverging epoch, KIP-630 snapshot)."""
        ...

    def update_high_watermark(self, offset: int) -> None:
        """It never moves back; it is not stored."""
        ...

    async def truncate_to(self, offset: int) -> None:
        """Drop everything from ``offset`` on, durably. Raises ``ValueError`` below the high watermark."""
        ...

    async def truncate_to_latest_snapshot(self) -> bool:
        """If the latest snapshot ends above ``end_offset``, restart the empty log at its end.

        As for ``truncate_to``, no appends are allowed before this returns.
        """
        ...

    async def flush(self) -> int:
        """Make every append so far durable; return the new ``flushed_offset``."""
        ...

    def create_snapshot(self, snapshot_id: LogPosition, last_log_timestamp_ms: int) -> SnapshotWriter | None:
        """Begin a snapshot of the state up to ``snapshot_id.offset`` (exclusive).

        None when one with this or a later end exists. Raises ``ValueError`` when the position is not
        below or at the high watermark, or its epoch does not match the log.
        """
        ...

    def store_snapshot(self, snapshot_id: LogPosition) -> RawSnapshotWriter | None:
        """Begin to store a fetched snapshot; None when it exists already."""
        ...

    def latest_snapshot_id(self) -> LogPosition | None: ...

    def earliest_snapshot_id(self) -> LogPosition | None: ...

    def open_snapshot(self, snapshot_id: LogPosition) -> SnapshotReader | None: ...

    async def delete_before_snapshot(self, snapshot_id: LogPosition) -> bool:
        """Move ``start_offset`` up to the end of this snapshot; drop older segments and snapshots.

        False when there is no such snapshot or nothing to delete.
        """
        ...

    def close(self) -> None:
        """Flush and close; a second call does nothing."""
        ...
