"""The metadata log as this package uses it. The quorum's driver implements it; tests have a small one."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

Value: TypeAlias = bytes | bytearray | memoryview

RECORDS_A_TURN: Final = 1_000
"""Records encoded or applied without a break: some milliseconds."""


@dataclass(frozen=True, slots=True)
class MetadataBatch:
    """Records that were committed together: ``values[n]`` has the offset ``base_offset + n``."""

    base_offset: int
    epoch: int
    timestamp_ms: int
    values: Sequence[Value]

    @property
    def last_offset(self) -> int:
        return self.base_offset + len(self.values) - 1

    @property
    def size_bytes(self) -> int:
        """Bytes of the records' values."""
        return sum(map(len, self.values))


class MetadataLogListener(Protocol):
    """Receives committed records and leader changes, on the event loop and in the order of the log."""

    def on_snapshot(
        self, end_offset: int, epoch: int, timestamp_ms: int, values: Iterable[Value]
    ) -> Iterator[None] | None:
        """Forget everything: this snapshot has all records below ``end_offset``.

        Many records may be applied in steps, as in ``on_commit``.
        """
        ...

    def on_commit(self, batches: Sequence[MetadataBatch]) -> Iterator[None] | None:
        """The next batches (data records only). Offsets of control records in between are skipped.

        Many records may be applied in steps between turns of the event loop: the steps are the returned
        iterator, and no other call is made before its end.
        """
        ...

    def on_leader(self, leader_id: int, epoch: int) -> None:
        """The leader of an epoch is known (-1: none).

        A node is notified of its *own* leadership only after every record of earlier epochs was passed to
        :meth:`on_commit`: its image is then complete, and it may decide on it.
        """
        ...


class SnapshotTarget(Protocol):
    """A snapshot being written (``moldau.storage.snapshots.replicated_log.SnapshotWriter`` is one)."""

    def append(self, values: Sequence[bytes]) -> None: ...

    async def freeze(self) -> None: ...

    def abandon(self) -> None: ...


class MetadataLog(Protocol):
    """The replicated log of metadata records."""

    def add_listener(self, listener: MetadataLogListener) -> None:
        """Begin to notify ``listener``, from the latest snapshot or the start of the log on."""
        ...

    def next_offset(self) -> int:
        """The offset of this leader's next append."""
        ...

    def append(self, epoch: int, values: Sequence[bytes]) -> asyncio.Future[int]:
        """Append one batch as the leader of ``epoch``; appends keep the order of the calls.

        The future has the last offset once it is committed *and* was passed to the listeners. It fails with
        ``KafkaError(not_controller)`` when this node does not lead ``epoch`` (any more); then it is unknown
        whether the batch will be committed.
        """
        ...

    def resign(self, epoch: int) -> None:
        """Resign the leadership of ``epoch``; does nothing in another epoch."""
        ...

    def create_snapshot(self, end_offset: int, epoch: int, timestamp_ms: int) -> SnapshotTarget | None:
        """Begin a snapshot of everything below ``end_offset``; ``None`` when it exists already."""
        ...
