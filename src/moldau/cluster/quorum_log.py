"""The metadata log on the KRaft quorum. It decodes committed records and predicts the offsets of appends."""

import asyncio
from collections.abc import Generator, Iterable, Iterator, Sequence

from moldau.cluster.metadata_log import (
    RECORDS_A_TURN,
    MetadataBatch,
    MetadataLogListener,
    SnapshotTarget,
    Value,
)
from moldau.quorum.driver import QuorumDriver
from moldau.quorum.subscriptions import Committed
from moldau.records.batch import iter_headers
from moldau.records.record import iter_records
from moldau.storage.snapshots.replicated_log import ReplicatedLog, SnapshotReader, SnapshotWriter


class QuorumMetadataLog:
    """A :class:`moldau.cluster.metadata_log.MetadataLog`."""

    def __init__(self, driver: QuorumDriver, log: ReplicatedLog, node_id: int) -> None:
        self._driver = driver
        self._log = log
        self._node_id = node_id
        self._next_offset = 0
        self._epoch = -1
        self._listeners: list[_Decoding] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._decoded: tuple[tuple[int, int], list[MetadataBatch]] = ((-1, -1), [])

    def add_listener(self, listener: MetadataLogListener) -> None:
        decoding = _Decoding(self, listener)
        self._listeners.append(decoding)
        self._driver.add_listener(decoding)

    @property
    def applied_end_offset(self) -> int:
        """Every listener has received all records before this offset, including control records."""
        return min((each.end_offset for each in self._listeners), default=0)

    def until_applied(self, end_offset: int) -> "asyncio.Future[None]":
        """Return a future that is done when :attr:`applied_end_offset` has reached ``end_offset``."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.applied_end_offset >= end_offset:
            future.set_result(None)
        else:
            self._waiting.append((end_offset, future))
        return future

    def decoded(self, committed: Committed) -> Generator[None, None, list[MetadataBatch]]:
        """Decode the record batches of a commit, in steps. The result is cached, because each listener of the
        log gets the same commit, one listener after another."""
        span = committed.base_offset, committed.end_offset
        if self._decoded[0] != span:
            batches: list[MetadataBatch] = []
            for batch in _batches_in_steps(committed.batches):
                if batch is None:
                    yield
                else:
                    batches.append(batch)
            self._decoded = span, batches
        return self._decoded[1]

    def applied(self) -> None:
        """Called when a listener has applied records. Complete the futures that waited for these records."""
        if not self._waiting:
            return
        end_offset = self.applied_end_offset
        waiting, self._waiting = self._waiting, []
        for wanted, future in waiting:
            if wanted > end_offset:
                self._waiting.append((wanted, future))
            elif not future.done():
                future.set_result(None)

    def next_offset(self) -> int:
        return self._next_offset

    def append(self, epoch: int, values: Sequence[bytes]) -> "asyncio.Future[int]":
        future = self._driver.append(values, epoch=epoch)
        self._next_offset += len(values)
        return future

    def resign(self, epoch: int) -> None:
        self._driver.resign(epoch)

    def create_snapshot(self, end_offset: int, epoch: int, timestamp_ms: int) -> SnapshotTarget | None:
        writer = self._driver.create_snapshot(end_offset, epoch, timestamp_ms)
        return None if writer is None else _Snapshot(self._driver, writer)

    def leader_changed(self, leader_id: int | None, epoch: int) -> None:
        """Set the offset of the next append when this node begins to lead. At this time, the leader-change
        record of the epoch is already in the log. From now on, the log grows only by this object's appends.

        This method is called once for each listener. After the call for the first listener, this listener
        may append immediately. Therefore only the first call for an epoch sets the offset of the next append.
        """
        if leader_id == self._node_id and epoch != self._epoch:
            self._epoch = epoch
            self._next_offset = self._log.end_offset


class _Decoding:
    """A quorum listener that passes decoded records to a listener of the metadata log."""

    def __init__(self, log: QuorumMetadataLog, listener: MetadataLogListener) -> None:
        self._log = log
        self._listener = listener
        self.end_offset = 0

    def on_commit(self, committed: Committed) -> Iterator[None]:
        """Apply the batches immediately, or in steps when there are many records."""
        batches = yield from self._log.decoded(committed)
        steps = self._listener.on_commit(batches) if batches else None
        if steps is not None:
            yield from steps
        self.end_offset = committed.end_offset
        self._log.applied()

    def on_snapshot(self, reader: SnapshotReader) -> Iterator[None]:
        """Apply the snapshot immediately, or in steps when it has many records."""
        batches: list[MetadataBatch] = []
        for batch in _batches_in_steps(reader.batches()):
            if batch is None:
                yield
            else:
                batches.append(batch)
        timestamp_ms = max((batch.timestamp_ms for batch in batches), default=-1)
        end_offset, epoch = reader.snapshot_id
        steps = self._listener.on_snapshot(
            end_offset, epoch, timestamp_ms, (value for batch in batches for value in batch.values)
        )
        if steps is not None:
            yield from steps
        self.end_offset = end_offset
        self._log.applied()

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        self._log.leader_changed(leader_id, epoch)
        self._listener.on_leader(-1 if leader_id is None else leader_id, epoch)


class _Snapshot:
    """A snapshot writer. When the snapshot is frozen, the driver of the quorum is told to delete older
    snapshots and records that are no longer needed."""

    def __init__(self, driver: QuorumDriver, writer: SnapshotWriter) -> None:
        self._driver = driver
        self._writer = writer

    def append(self, values: Sequence[bytes]) -> None:
        self._writer.append(values)

    async def settle(self) -> None:
        await self._writer.settle()

    async def freeze(self) -> None:
        await self._writer.freeze()
        await self._driver.snapshot_created()

    def abandon(self) -> None:
        self._writer.abandon()


def data_batches(views: Iterable[memoryview]) -> Iterator[MetadataBatch]:
    """The batches without control batches."""
    return (batch for batch in _batches_in_steps(views) if batch is not None)


def _batches_in_steps(views: Iterable[memoryview]) -> Iterator[MetadataBatch | None]:
    """Like :func:`data_batches`, but yields ``None`` after each step of :data:`RECORDS_A_TURN` records."""
    count = 0
    for view in views:
        for position, header in iter_headers(view):
            if header.is_control:
                continue
            values: list[Value] = []
            for record in iter_records(view[position : position + header.size_bytes]):
                if record.value is not None:
                    values.append(record.value)
                count += 1
                if count % RECORDS_A_TURN == 0:
                    yield None
            yield MetadataBatch(
                header.base_offset, header.partition_leader_epoch, header.max_timestamp, values
            )
