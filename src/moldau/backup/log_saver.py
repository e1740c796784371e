"""Stores the committed records of logs that this broker leads, for a cut."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from moldau.backup.calls import LogsToSave, LogToSave, SavedLog
from moldau.backup.cut_format import DATA_FOLDER, LogPiece, ObjectPart
from moldau.backup.saved_ends import SavedEnds
from moldau.backup.saved_rounds import SavedRounds
from moldau.cluster.internal_topics import DECISIVE_TOPICS
from moldau.coordinators.log import PartitionCoordinatorLog
from moldau.objects.storage import ObjectStorage, StorageError
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.records.batch import checked_headers
from moldau.replication.classic_partition import ClassicPartition
from moldau.runtime import ErrorCode, KafkaError
from moldau.storage.snapshots.replicated_log import LogPosition

__all__ = ["LogSaver"]

READ_BYTES: Final = 1 << 19
"""Size of a read. After each read, the event loop can run other tasks."""
OBJECT_BYTES: Final = 32 << 20
"""Number of buffered bytes after which an object is stored. It limits the memory that saving a large log
needs."""


class _SavedRange(NamedTuple):
    """The committed records that one call must store."""

    wanted: LogToSave
    partition: ClassicPartition
    end_offset: int
    compacted_end: int
    """Offset before which this replica has compacted the log. Tombstones before it may be missing."""


class LogSaver:
    """Implements :class:`moldau.backup.calls.LogSaving`."""

    def __init__(
        self,
        storage: ObjectStorage,
        partition_of: Callable[[PartitionKey], ClassicPartition | None],
        saved: SavedEnds,
        rounds: SavedRounds,
        compacted_end: Callable[[TopicPartition], int | None] = lambda _: None,
    ) -> None:
        """``partition_of`` returns a partition that has a replica on this broker. ``compacted_end`` returns
        the end of the last compaction of a log.
        """
        self._storage = storage
        self._partition_of = partition_of
        self._saved = saved
        self._rounds = rounds
        self._compacted_end = compacted_end

    @property
    def lag_bytes(self) -> int:
        """Number of bytes in the logs that this broker leads, without the bytes that are in the newest cut.
        The ends of the logs in that cut come from the last request of the broker that makes the cuts."""
        return sum(self._lag_bytes(log_id, end_offset) for log_id, end_offset in self._saved.newest())

    def _lag_bytes(self, log_id: PartitionKey, end_offset: int) -> int:
        partition = self._partition_of(log_id)
        if partition is None or not partition.is_leader:
            return 0
        return partition.log.size_bytes_from(end_offset)

    async def save_logs(self, wanted: LogsToSave) -> Sequence[SavedLog]:
        if not wanted.object_key.startswith(DATA_FOLDER):
            raise KafkaError(ErrorCode.invalid_request, f"{wanted.object_key} is no key of a cut's data")
        self._rounds.see(wanted.maker, wanted.rounds)
        # The ends of all logs are read before the first ``await``. Records that are appended later belong to
        # the next cut.
        ranges = [self._range(log) for log in wanted.logs]
        for log in wanted.logs:
            self._saved.note(log.log_id, log.saved_end_offset, wanted.rounds)
        upload = _Upload(self._storage, wanted.object_key)
        try:
            saved = [await _save(found, upload) for found in ranges]
            await upload.finish()
        except StorageError as error:
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
        return [each.result(upload) for each in saved]

    def _range(self, log: LogToSave) -> _SavedRange:
        """Raises ``KafkaError`` unless this broker leads the partition in the leader epoch of the request."""
        partition = self._partition_of(log.log_id)
        if partition is None or not partition.is_leader:
            raise KafkaError(ErrorCode.not_leader_or_follower, f"{log.log_id} is not led by this broker")
        partition.check_epoch(log.leader_epoch)
        begun = partition.log.leader_epochs.latest
        if begun is not None and partition.high_watermark < begun.start_offset:
            # The high watermark must not be before this leader's epoch. The previous leader may have
            # committed all records before this epoch, and other logs may refer to these records.
            raise KafkaError(ErrorCode.leader_not_available, "the high watermark is not known yet")
        compacted_end = self._compacted_end(partition.log.topic_partition) or 0
        return _SavedRange(log, partition, partition.high_watermark, compacted_end)


class _SavedPart(NamedTuple):
    """The location of a log's bytes in the objects that one call of ``save_logs`` stores: the number of the
    object, and the position of the bytes in this object."""

    number: int
    byte_offset: int
    size_bytes: int
    crc: int


class _Upload:
    """The objects that one call stores. Small logs share an object."""

    def __init__(self, storage: ObjectStorage, object_key: str) -> None:
        self._storage = storage
        self._object_key = object_key
        self._buffer = bytearray()
        self._number = 0

    def add(self, pieces: list["_Found"], content: memoryview, found: "_Found") -> None:
        """Append ``content`` as a new piece. If the last element of ``pieces`` ends where ``content`` begins,
        extend that element instead.

        ``found`` describes the new piece; its ``part`` is replaced.
        """
        last = pieces[-1] if pieces else None
        position = len(self._buffer)
        self._buffer += content
        if (
            last is not None
            and last.is_snapshot == found.is_snapshot
            and (last.part.number, last.part.byte_offset + last.part.size_bytes) == (self._number, position)
        ):
            part = last.part._replace(
                size_bytes=last.part.size_bytes + len(content), crc=crc32c(content, last.part.crc)
            )
            pieces[-1] = last._replace(part=part, end_offset=found.end_offset, epoch=found.epoch)
        else:
            part = _SavedPart(self._number, position, len(content), crc32c(content))
            pieces.append(found._replace(part=part))

    async def make_room(self) -> None:
        """Store the buffered bytes if there are enough of them for an object."""
        if len(self._buffer) >= OBJECT_BYTES:
            await self.finish()

    async def finish(self) -> None:
        """Store the buffered bytes. Raises ``StorageError``."""
        if not self._buffer:
            return
        content, self._buffer = self._buffer, bytearray()
        key = self.key(self._number)
        self._number += 1
        await self._storage.upload(key, content, len(content))

    def key(self, number: int) -> str:
        return f"{self._object_key}-{number}"


class _Found(NamedTuple):
    """A piece of a log whose object is perhaps not stored yet. It has the same fields as :class:`LogPiece`,
    but ``part`` refers to the object by its number in the upload.
    """

    base_offset: int
    end_offset: int
    epoch: int
    is_snapshot: bool = False
    part: _SavedPart = _SavedPart(0, 0, 0, 0)


class _Saved(NamedTuple):
    log_id: PartitionKey
    begins_anew: bool
    pieces: list[_Found]

    def result(self, upload: _Upload) -> SavedLog:
        pieces = [
            LogPiece(ObjectPart(upload.key(each.part.number), *each.part[1:]), *each[:4])
            for each in self.pieces
        ]
        return SavedLog(self.log_id, self.begins_anew, pieces)


async def _save(found: _SavedRange, upload: _Upload) -> _Saved:
    wanted, partition = found.wanted, found.partition
    pieces: list[_Found] = []
    begins_anew = not _continues(found)
    offset = wanted.from_offset
    if begins_anew:
        offset = partition.log.log_start_offset
        snapshot_id = None if partition.snapshots is None else partition.snapshots.latest_snapshot_id()
        if snapshot_id is not None and snapshot_id.offset > 0:
            await _save_snapshot(partition, snapshot_id, upload, pieces)
            offset = snapshot_id.offset
    log = PartitionCoordinatorLog(partition)
    while offset < found.end_offset:
        content = log.read_committed(offset, READ_BYTES)
        headers = checked_headers(content)
        if not headers:
            break
        end_offset, epoch = headers[-1].last_offset + 1, headers[-1].partition_leader_epoch
        upload.add(pieces, content, _Found(headers[0].base_offset, end_offset, epoch))
        offset = end_offset
        await upload.make_room()
        await asyncio.sleep(0)
    return _Saved(wanted.log_id, begins_anew, pieces)


def _continues(found: _SavedRange) -> bool:
    """Whether this leader's log continues the saved log, and still has all records from ``from_offset`` on.

    Raises ``KafkaError`` if a log that must not lose records has lost saved records, or if a new leader does
    not know yet that the saved records are committed.
    """
    wanted, log = found.wanted, found.partition.log
    last = wanted.saved_end_offset - 1
    is_shorter = wanted.saved_end_offset > found.end_offset
    if is_shorter and last < log.log_end_offset and log.epoch_for_offset(last) == wanted.saved_epoch:
        # This broker is a new leader. It has the saved records, but perhaps it does not know yet that they
        # are committed.
        raise KafkaError(ErrorCode.leader_not_available, "the high watermark is not known yet")
    if is_shorter and found.partition.topic in DECISIVE_TOPICS:
        raise KafkaError(
            ErrorCode.kafka_storage_error,
            f"{found.partition.topic}-{wanted.log_id.partition} ends at offset {found.end_offset}, and"
            f" {wanted.saved_end_offset} was saved: it has lost records, so nothing is saved or deleted",
        )
    if wanted.from_offset < log.log_start_offset or is_shorter:
        return False
    if wanted.from_offset < min(found.compacted_end, found.end_offset):
        # Compaction may have removed the tombstone that deletes a record of an earlier piece.
        return False
    return last < log.log_start_offset or log.epoch_for_offset(last) == wanted.saved_epoch


async def _save_snapshot(
    partition: ClassicPartition, snapshot_id: LogPosition, upload: _Upload, pieces: list[_Found]
) -> None:
    assert partition.snapshots is not None
    reader = partition.snapshots.open_snapshot(snapshot_id)
    if reader is None:
        raise KafkaError(ErrorCode.snapshot_not_found, f"{snapshot_id} was deleted in the meantime")
    try:
        begin = end = 0
        for batch in reader.batches():  # the reader checks each batch, so no damaged snapshot is saved
            end += len(batch)
            if end - begin >= READ_BYTES or end == reader.size_bytes:
                content = reader.read(begin, end - begin)
                upload.add(pieces, content, _Found(begin, *snapshot_id, is_snapshot=True))
                begin = end
                await upload.make_room()
                await asyncio.sleep(0)
    finally:
        reader.close()
