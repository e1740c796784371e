"""The interface of the metadata log that this package needs. The driver of the quorum implements it, and
tests have a small implementation."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

Value: TypeAlias = bytes | bytearray | memoryview

RECORDS_A_TURN: Final = 1_000
"""Number of records that are encoded or applied in one iteration of the event loop. This takes some
milliseconds.
"""


@dataclass(frozen=True, slots=True)
class MetadataBatch:
    """Records that were committed together. ``values[n]`` has the offset ``base_offset + n``."""

    base_offset: int
    epoch: int
    timestamp_ms: int
    values: Sequence[Value]

    @property
    def last_offset(self) -> int:
        return self.base_offset + len(self.values) - 1

    @property
    def size_bytes(self) -> int:
        """Size of the records' values in bytes."""
        return sum(map(len, self.values))


class MetadataLogListener(Protocol):
    """Receives committed records and changes of the leader, on the event loop and in log order."""

    def on_snapshot(
        self, end_offset: int, epoch: int, timestamp_ms: int, values: Iterable[Value]
    ) -> Iterator[None] | None:
        """Drop all state and load this snapshot, which contains the state after all records below
        ``end_offset``.

        Many records may be applied in steps, as in ``on_commit``.
        """
        ...

    def on_commit(self, batches: Sequence[MetadataBatch]) -> Iterator[None] | None:
        """Apply the next batches, which contain only data records. The offsets of control records between the
        batches are skipped.

        If there are many records, they may be applied in steps, over several iterations of the event loop.
        Then an iterator is returned, which makes the steps. No other method is called before the iterator
        ends.
        """
        ...

    def on_leader(self, leader_id: int, epoch: int) -> None:
        """Called when the leader or the epoch of the quorum changes. The id -1 means that there is no leader.

        A node is notified of its *own* leadership only after every record of earlier epochs was passed to
        :meth:`on_commit`. The node's image is then complete, so the node may make decisions.
        """
        ...


class SnapshotTarget(Protocol):
    """A snapshot that is being written (``moldau.storage.snapshots.replicated_log.SnapshotWriter`` implements
    it)."""

    def append(self, values: Sequence[bytes]) -> None: ...

    async def settle(self) -> None:
        """Sync the written bytes if there are many of them. Without these syncs, a later sync of the log
        would have to wait until all these bytes are on the disk."""
        ...

    async def freeze(self) -> None: ...

    def abandon(self) -> None: ...


class MetadataLog(Protocol):
    """The replicated log of metadata records."""

    def add_listener(self, listener: MetadataLogListener) -> None:
        """Begin to notify ``listener``, starting with the latest snapshot or the start of the log."""
        ...

    def next_offset(self) -> int:
        """The offset of this leader's next append."""
        ...

    def append(self, epoch: int, values: Sequence[bytes]) -> asyncio.Future[int]:
        """Append one batch as the leader of ``epoch``. Appends keep the order of the calls.

        The future gets the last offset of the batch, when the batch is committed *and* was passed to the
        listeners. It fails with ``KafkaError(not_controller)`` when this node does not lead ``epoch``, or
        loses the leadership before the commit. If the leadership was lost after the append, it is unknown
        whether the batch will be committed.
        """
        ...

    def resign(self, epoch: int) -> None:
        """Resign the leadership of ``epoch``. If this node leads in another epoch, nothing happens."""
        ...

    def create_snapshot(self, end_offset: int, epoch: int, timestamp_ms: int) -> SnapshotTarget | None:
        """Begin a snapshot of all records below ``end_offset``. Returns ``None`` when this snapshot already
        exists."""
        ...
