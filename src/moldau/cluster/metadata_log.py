"""The metadata log as this room uses it. The quorum's driver satisfies it; tests bring a small one."""

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
    """Told, on the event loop and in the order of the log, what was committed and who leads."""

    def on_snapshot(self, end_offset: int, epoch: int, timestamp_ms: int, values: Iterable[Value]) -> None:
        """Forget everything: this snapshot has all records below ``end_offset``."""
        ...

    def on_commit(self, batches: Sequence[MetadataBatch]) -> Iterator[None] | None:
        """The next batches (data records only). Offsets of control records in between are skipped.

        Many records may be applied in steps, with turns of the event loop in between: they are the
        iterator that is returned, and nothing else is told before its end.
        """
        ...

    def on_leader(self, leader_id: int, epoch: int) -> None:
        """A leader (-1: none is known) of an epoch.

        A node is told of its *own* leadership only after every record of earlier epochs was given to
        :meth:`on_commit`: its image is then the whole truth on which it may decide.
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
        """Begin to tell ``listener``, from the latest snapshot or the start of the log on."""
        ...

    def next_offset(self) -> int:
        """Where the next append of this leader lands."""
        ...

    def append(self, epoch: int, values: Sequence[bytes]) -> asyncio.Future[int]:
        """Append one batch as the leader of ``epoch``; appends are in the order of calls.

        The future has the last offset once it is committed *and* was given to the listeners. It fails
        with ``KafkaError(not_controller)`` when this node does not lead ``epoch`` (any more); then
        nobody knows yet whether the batch will be committed.
        """
        ...

    def resign(self, epoch: int) -> None:
        """Stop leading ``epoch``; does nothing when another one runs."""
        ...

    def create_snapshot(self, end_offset: int, epoch: int, timestamp_ms: int) -> SnapshotTarget | None:
        """Begin a snapshot of everything below ``end_offset``; ``None`` when there is one already."""
        ...
