"""The interface between the coordinator runtime and a partition log. A replicated partition implements it.

This module also converts the errors of a log to errors that the clients of a coordinator can handle.
"""

from collections.abc import Callable
from typing import Protocol

from moldau.records.batch import iter_headers, parse_header
from moldau.replication.appending.transactions import TransactionGuard
from moldau.replication.classic_partition import ClassicPartition
from moldau.runtime import ErrorCode, KafkaError
from moldau.storage.log.append_info import AppendOrigin
from moldau.storage.snapshots.replicated_log import LogPosition, SnapshotReader, SnapshotWriter

_NOT_AVAILABLE = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.request_timed_out,
    }
)
_NOT_COORDINATOR = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error})
_TOO_LARGE = frozenset(
    {ErrorCode.message_too_large, ErrorCode.record_list_too_large, ErrorCode.invalid_fetch_size}
)


class CoordinatorLog(Protocol):
    """A partition that this node leads. All calls are made on the event loop.

    While the runtime uses the partition, no other code writes to it. Therefore each append begins at
    ``log_end_offset``, and the runtime relies on this fact.
    """

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record."""
        ...

    @property
    def high_watermark(self) -> int:
        """The offset before which all records are committed."""
        ...

    @property
    def max_batch_bytes(self) -> int:
        """Largest batch that :meth:`append` accepts (``max.message.bytes``)."""
        ...

    def append(self, batch: bytearray) -> int:
        """Append one record batch as leader with acks=all; return its base offset.

        The batch's base offset and leader epoch are overwritten in place. Raises
        :class:`moldau.runtime.KafkaError` when the batch was not appended.
        """
        ...

    def check_writable(self) -> None:
        """Raise :class:`moldau.runtime.KafkaError` if an append would be refused now, for example because too
        few replicas are in sync."""
        ...

    async def read(self, offset: int, max_bytes: int) -> bytes | memoryview:
        """Read whole batches up to the log's end. The first batch is the one that contains ``offset``. It is
        returned even if it is larger than ``max_bytes``.

        Raises :class:`moldau.runtime.KafkaError`.
        """
        ...

    def guard(self, producer_id: int, producer_epoch: int) -> TransactionGuard | None:
        """A guard for the producer's next batch. See ``TransactionChecks``."""
        ...

    def withdraw(self, producer_id: int, guard: TransactionGuard) -> None:
        """Remove a guard, because its batch was appended or refused. See ``TransactionChecks``."""
        ...

    def check_transaction(
        self, producer_id: int, producer_epoch: int, guard: TransactionGuard | None
    ) -> None:
        """Raise ``KafkaError`` if a transactional batch must not be appended; see ``TransactionChecks``."""
        ...

    def check_marker(self, producer_id: int, producer_epoch: int, version: int) -> None:
        """Raise ``KafkaError`` for a late copy of a marker; see ``TransactionChecks``."""
        ...

    def follow_watermark(self, listener: Callable[[int], None]) -> Callable[[], None]:
        """Call ``listener`` with the new high watermark after each change. The function that this method
        returns stops these calls."""
        ...


class PartitionCoordinatorLog:
    """The log that every kind of coordinator can use: a partition that this broker leads."""

    def __init__(self, partition: ClassicPartition, *, max_batch_bytes: int | None = None) -> None:
        self._partition = partition
        self._max_batch_bytes = max_batch_bytes

    @property
    def log_start_offset(self) -> int:
        return self._partition.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._partition.log.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self._partition.high_watermark

    @property
    def max_batch_bytes(self) -> int:
        return self._max_batch_bytes or self._partition.log.config.max_message_bytes

    def append(self, batch: bytearray) -> int:
        info = self._partition.append_own(batch, [parse_header(batch)], AppendOrigin.COORDINATOR)
        return info.first_offset

    def check_writable(self) -> None:
        self._partition.check_in_sync()

    def guard(self, producer_id: int, producer_epoch: int) -> TransactionGuard | None:
        return self._partition.guards.guard(producer_id, producer_epoch)

    def withdraw(self, producer_id: int, guard: TransactionGuard) -> None:
        self._partition.guards.withdraw(producer_id, guard)

    def check_transaction(
        self, producer_id: int, producer_epoch: int, guard: TransactionGuard | None
    ) -> None:
        self._partition.guards.check(producer_id, producer_epoch, guard)

    def check_marker(self, producer_id: int, producer_epoch: int, version: int) -> None:
        self._partition.guards.check_marker(producer_id, producer_epoch, version)

    async def read(self, offset: int, max_bytes: int) -> bytes | memoryview:
        views = self._partition.log.read(offset, max_bytes).views
        return views[0] if len(views) == 1 else b"".join(views)

    def follow_watermark(self, listener: Callable[[int], None]) -> Callable[[], None]:
        return self._partition.watermarks.follow(listener)

    @property
    def is_led(self) -> bool:
        """Whether this broker leads the partition now."""
        return self._partition.is_leader

    def read_committed(self, offset: int, max_bytes: int) -> memoryview:
        """Read whole batches up to the high watermark. The first batch is the one that contains ``offset``.
        There are no batches if ``offset`` is the high watermark.

        Raises :class:`moldau.runtime.KafkaError`.
        """
        partition = self._partition
        found = partition.log.read(offset, max_bytes, upper_bound_offset=partition.high_watermark)
        return memoryview(b"".join(found.views))

    async def committed(self, offset: int, timeout_ms: int) -> None:
        """Wait until an append at ``offset`` is committed.

        Raises :class:`moldau.runtime.KafkaError` when the outcome is still unknown after ``timeout_ms``, or
        can never become known.
        """
        outcome = await self._partition.committed(offset, timeout_ms)
        if outcome.error is not ErrorCode.none:
            raise KafkaError(outcome.error, outcome.message or outcome.error.name)

    def epoch_for_offset(self, offset: int) -> int:
        """Return the leader epoch in which the record at ``offset`` was written; -1 when it is not known."""
        return self._partition.log.epoch_for_offset(offset)

    def end_of_epoch(self, epoch: int) -> int:
        """The end offset of a leader epoch; -1 if the log does not have that epoch."""
        found, end_offset = self._partition.log.end_offset_for_epoch(epoch)
        return end_offset if found == epoch >= 0 else -1

    async def settled(self) -> None:
        """Wait until all appended records are durable, or until it is certain that some of them will never
        become durable."""
        await self._partition.settled()


class SnapshottedCoordinatorLog(PartitionCoordinatorLog):
    """A coordinator's log whose start is removed after a snapshot of the coordinator's state."""

    def __init__(self, partition: ClassicPartition, *, max_batch_bytes: int | None = None) -> None:
        super().__init__(partition, max_batch_bytes=max_batch_bytes)
        assert partition.snapshots is not None
        self._snapshots = partition.snapshots

    @property
    def identity(self) -> str:
        """Identity of the log. No other log has the same identity, in this cluster or another cluster."""
        log = self._snapshots.log
        return f"{log.topic_partition} {log.topic_id}"

    @property
    def directory(self) -> str:
        return self._snapshots.log.directory

    @property
    def start_offset(self) -> int:
        return self._snapshots.start_offset

    @property
    def end_offset(self) -> int:
        return self._snapshots.end_offset

    def latest_snapshot_id(self) -> LogPosition | None:
        return self._snapshots.latest_snapshot_id()

    def open_snapshot(self, snapshot_id: LogPosition) -> SnapshotReader | None:
        return self._snapshots.open_snapshot(snapshot_id)

    def create_snapshot(self, snapshot_id: LogPosition, last_log_timestamp_ms: int) -> SnapshotWriter | None:
        return self._snapshots.create_snapshot(snapshot_id, last_log_timestamp_ms)

    async def delete_before_snapshot(self, snapshot_id: LogPosition) -> bool:
        return await self._snapshots.delete_before_snapshot(snapshot_id)


class LogUpTo:
    """A read-only view of the part of a log before an offset, for a replay. The offset must be the end of a
    batch.
    """

    def __init__(self, log: CoordinatorLog, end_offset: int) -> None:
        self._log = log
        self.log_start_offset = log.log_start_offset
        self.log_end_offset = self.high_watermark = end_offset
        self.max_batch_bytes = log.max_batch_bytes

    async def read(self, offset: int, max_bytes: int) -> memoryview:
        """Read up to the offset of the view. The log returns batches up to its own end. This method cuts off
        the batches after the offset of the view, because they may not be committed."""
        chunk = memoryview(await self._log.read(offset, max_bytes))
        for position, header in iter_headers(chunk):
            if header.last_offset >= self.log_end_offset:
                return chunk[:position]
        return chunk

    def append(self, batch: bytearray) -> int:
        raise NotImplementedError

    def check_writable(self) -> None:
        raise NotImplementedError

    def follow_watermark(self, listener: Callable[[int], None]) -> Callable[[], None]:
        raise NotImplementedError

    def guard(self, producer_id: int, producer_epoch: int) -> TransactionGuard | None:
        raise NotImplementedError

    def withdraw(self, producer_id: int, guard: TransactionGuard) -> None:
        raise NotImplementedError

    def check_transaction(
        self, producer_id: int, producer_epoch: int, guard: TransactionGuard | None
    ) -> None:
        raise NotImplementedError

    def check_marker(self, producer_id: int, producer_epoch: int, version: int) -> None:
        raise NotImplementedError


def coordinator_error(error: BaseException) -> KafkaError:
    """Convert an error of the log to an error for a client of the coordinator. After the converted error, the
    client retries, or looks for the coordinator again. The conversion is needed, because clients do not
    handle an error such as NOT_LEADER_OR_FOLLOWER in a JoinGroup response.
    """
    if not isinstance(error, KafkaError):
        return KafkaError(ErrorCode.coordinator_not_available, "The coordinator's log failed.")
    if error.code in _NOT_AVAILABLE:
        return KafkaError(ErrorCode.coordinator_not_available, error.message)
    if error.code in _NOT_COORDINATOR:
        return KafkaError(ErrorCode.not_coordinator, error.message)
    if error.code in _TOO_LARGE:
        return KafkaError(ErrorCode.unknown_server_error, error.message)
    return error
