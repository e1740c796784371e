"""Snapshots of a replicated state. They are files ``<end offset>-<epoch>.checkpoint`` (KIP-630).

A snapshot consists of record batches: a control batch with the header, batches with the state, and a control
batch with the footer. Offsets begin at 0, and every batch has the snapshot's epoch. The file is written with
the suffix ``.part``, synced and renamed. A file without the suffix is therefore a complete snapshot.

The header names the log, the offset and the epoch of the snapshot. Therefore an older snapshot, or a snapshot
of another log, is detected. A snapshot of Kafka or of an earlier version has no such field. Then the epoch of
its batches is compared.
"""

import uuid
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import check_batch, parse_header
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.control import (
    ControlType,
    SnapshotFooter,
    SnapshotHeader,
    SnapshotOrigin,
    build_control_batch,
    parse_control_record,
    parse_control_type,
)
from moldau.records.errors import CorruptRecordError
from moldau.records.record import Record, iter_records
from moldau.runtime import KafkaError, Machine
from moldau.runtime.buffers import Buffer
from moldau.runtime.files.disk import File
from moldau.storage.folders.file_names import PART_SUFFIX, SNAPSHOT_SUFFIX
from moldau.storage.snapshots.replicated_log import LogPosition

SETTLE_BYTES: Final = 1024 * 1024
"""Number of bytes of a snapshot that are written before a sync. If all bytes were synced at once, the log's
own syncs would be delayed. With a snapshot of 30 MB, commits then took 55 ms instead of 7 ms."""
_ADVICE: Final = "Restore the folder from a backup, or see 'Damaged files' in docs/operations.md."
_UNKNOWN_ID: Final = uuid.UUID(int=0)
_OFFSET_DIGITS = 20
_EPOCH_DIGITS = 10


def snapshot_file(snapshot_id: LogPosition) -> str:
    """Name of a snapshot's file, for example ``00000000000000000042-0000000003.checkpoint``."""
    return f"{snapshot_id.offset:020d}-{snapshot_id.epoch:010d}{SNAPSHOT_SUFFIX}"


def snapshot_of(name: str) -> LogPosition | None:
    """The snapshot id of a file; ``None`` when the file is not a complete snapshot."""
    stem = name.removesuffix(SNAPSHOT_SUFFIX)
    offset, dash, epoch = stem.partition("-")
    if stem == name or not dash or len(offset) != _OFFSET_DIGITS or len(epoch) != _EPOCH_DIGITS:
        return None
    if not (offset.isascii() and offset.isdigit() and epoch.isascii() and epoch.isdigit()):
        return None
    return LogPosition(int(offset), int(epoch))


class LogName(NamedTuple):
    """The log to which a snapshot must belong. ``topic_id`` is ``None`` when the id is not known."""

    topic_partition: TopicPartition
    topic_id: uuid.UUID | None


def origin_of(log: LogName, snapshot_id: LogPosition) -> SnapshotOrigin:
    """Return the origin that the header of a snapshot of this log must contain."""
    topic, partition = log.topic_partition
    return SnapshotOrigin(topic, partition, log.topic_id or _UNKNOWN_ID, *snapshot_id)


class FileSnapshotReader:
    """A frozen snapshot on disk."""

    def __init__(self, file: File, snapshot_id: LogPosition, log: LogName | None = None) -> None:
        """If ``log`` is set, a snapshot of another log counts as damaged."""
        self._file = file
        self._snapshot_id = snapshot_id
        self._log = log
        self._size_bytes = file.size()

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def snapshot_id(self) -> LogPosition:
        return self._snapshot_id

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def read(self, position: int, max_bytes: int) -> memoryview:
        size_bytes = min(max_bytes, self._size_bytes - position)
        return self._file.view(position, size_bytes) if size_bytes > 0 else memoryview(b"")

    def batches(self) -> Iterator[memoryview]:
        """The checked batches. Raises ``KafkaError(corrupt_message)`` if a batch is damaged. The error names
        the file."""
        view = self.read(0, self._size_bytes)
        batch = memoryview(b"")
        position = 0
        while position < len(view):
            try:
                header = check_batch(view, position)
            except CorruptRecordError as error:
                raise CorruptRecordError(f"{self._file.path} is damaged: {error}. {_ADVICE}") from error
            batch = view[position : position + header.size_bytes]
            if not position:
                self._check_origin(batch)
            yield batch
            position += header.size_bytes
        # The file was complete when it was renamed. If it is shorter now, it was damaged later.
        if not batch or _control_type(batch, -1) is not ControlType.SNAPSHOT_FOOTER:
            raise CorruptRecordError(f"{self._file.path} is damaged: it ends without a footer. {_ADVICE}")

    def header(self) -> SnapshotHeader:
        """The checked header. Raises ``KafkaError(corrupt_message)`` if the header is damaged. The error
        names the file."""
        for batch in self.batches():
            found = _header_in(batch)
            if found is not None:
                return found
            break
        raise CorruptRecordError(f"{self._file.path} is damaged: it begins without a header. {_ADVICE}")

    def _check_origin(self, first: memoryview) -> None:
        """Raise an error unless the first batch belongs to the snapshot that the file's name describes."""
        offset, epoch = self._snapshot_id
        found = _header_in(first)
        origin = None if found is None else found.origin
        if origin is None:
            # The batches of a snapshot have the epoch of the snapshot. Only the first snapshot of a formatted
            # folder may have another epoch.
            held = parse_header(first).partition_leader_epoch
            if offset and held != epoch:
                raise CorruptRecordError(
                    f"{self._file.path} is damaged: its batches are of epoch {held}, and its name says epoch"
                    f" {epoch}. {_ADVICE}"
                )
            return
        expected = None if self._log is None else origin_of(self._log, self._snapshot_id)
        topic, partition, topic_id = origin.topic, origin.partition, origin.topic_id
        is_known = expected is None or _UNKNOWN_ID in (topic_id, expected.topic_id)
        same_id = is_known or (expected is not None and expected.topic_id == topic_id)
        same_log = expected is None or (
            (topic, partition) == (expected.topic, expected.partition) and same_id
        )
        if (origin.end_offset, origin.epoch) != (offset, epoch) or not same_log:
            whose = f"{topic}-{partition}" + ("" if same_id else f" with topic id {topic_id}")
            raise CorruptRecordError(
                f"{self._file.path} is damaged: it holds the snapshot of {whose} up to offset"
                f" {origin.end_offset}, epoch {origin.epoch}, so another file was put in its place. {_ADVICE}"
            )

    def close(self) -> None:
        self._file.close()


def _header_in(batch: memoryview) -> SnapshotHeader | None:
    if not parse_header(batch).is_control:
        return None
    parsed = map(parse_control_record, iter_records(batch))
    return next((each for each in parsed if isinstance(each, SnapshotHeader)), None)


def check_snapshot(reader: FileSnapshotReader) -> None:
    """Raise ``KafkaError(corrupt_message)`` unless the snapshot is complete: header, valid batches,
    footer."""
    first = last = None
    for batch in reader.batches():
        first, last = first or batch, batch
    if not (
        first is not None
        and last is not None
        and _control_type(first, 0) is ControlType.SNAPSHOT_HEADER
        and _control_type(last, -1) is ControlType.SNAPSHOT_FOOTER
    ):
        raise CorruptRecordError(f"{reader.path} lacks its header or its footer")


def _control_type(batch: memoryview, index: int) -> ControlType | None:
    if not parse_header(batch).is_control:
        return None
    records = list(iter_records(batch))
    return parse_control_type(records[index].key) if records else None


class _PartFile:
    """A snapshot in progress. Its name still has the suffix ``.part``."""

    def __init__(self, machine: Machine, folder: str, snapshot_id: LogPosition) -> None:
        self._machine = machine
        self._folder = folder
        self.snapshot_id = snapshot_id
        self.path = f"{folder}/{snapshot_file(snapshot_id)}"
        self._file: File | None = machine.disk.open(self.path + PART_SUFFIX, create=True)
        self._file.truncate(0)
        self.size_bytes = 0
        self._durable_bytes = 0

    def append(self, content: Buffer) -> None:
        if self._file is None:
            raise ValueError(f"{self.path} is no longer being written")
        self.size_bytes += self._file.write_at(self.size_bytes, [content])

    async def settle(self) -> None:
        if self._file is not None and self.size_bytes - self._durable_bytes >= SETTLE_BYTES:
            size_bytes = self.size_bytes
            await self._machine.workers.run(self._file.sync)
            self._durable_bytes = size_bytes

    async def freeze(self, *, check: bool) -> None:
        file = self._file
        if file is None:
            raise ValueError(f"{self.path} is no longer being written")
        self._file = None
        await self._machine.workers.run(self._finish, file, check)

    def _finish(self, file: File, check: bool) -> None:
        disk = self._machine.disk
        try:
            if check:
                try:
                    check_snapshot(FileSnapshotReader(file, self.snapshot_id))
                except KafkaError:
                    disk.remove(self.path + PART_SUFFIX)
                    raise
            file.sync()
        finally:
            file.close()
        disk.rename(self.path + PART_SUFFIX, self.path)
        disk.sync_dir(self._folder)

    def abandon(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._machine.disk.remove(self.path + PART_SUFFIX)


class FileRawSnapshotWriter:
    """A snapshot that is fetched from the leader. Its bytes are written as they arrive."""

    def __init__(self, machine: Machine, folder: str, snapshot_id: LogPosition) -> None:
        self._part = _PartFile(machine, folder, snapshot_id)

    @property
    def snapshot_id(self) -> LogPosition:
        return self._part.snapshot_id

    @property
    def size_bytes(self) -> int:
        return self._part.size_bytes

    def append(self, content: Buffer) -> None:
        self._part.append(content)

    async def freeze(self) -> None:
        await self._part.freeze(check=True)

    def abandon(self) -> None:
        self._part.abandon()


class FileSnapshotWriter:
    """A snapshot of this node's own state, written batch by batch."""

    def __init__(
        self,
        machine: Machine,
        folder: str,
        snapshot_id: LogPosition,
        last_log_timestamp_ms: int,
        compression: Compression = Compression.NONE,
        origin: SnapshotOrigin | None = None,
    ) -> None:
        self._clock = machine.clock
        self._part = _PartFile(machine, folder, snapshot_id)
        self._compression = compression
        self._next_offset = 0
        header = SnapshotHeader(last_log_timestamp_ms, origin=origin)
        self._add(
            build_control_batch(
                [header], timestamp=self._clock.now_ms(), leader_epoch=snapshot_id.epoch, base_offset=0
            ),
            1,
        )

    @property
    def snapshot_id(self) -> LogPosition:
        return self._part.snapshot_id

    def append(self, values: Sequence[bytes]) -> None:
        if values:
            now_ms = self._clock.now_ms()
            records = [Record(0, now_ms, None, value, ()) for value in values]
            self._add_records(records, control=False)

    def append_control(self, key: bytes, value: bytes) -> None:
        self._add_records([Record(0, self._clock.now_ms(), key, value, ())], control=True)

    def _add_records(self, records: list[Record], *, control: bool) -> None:
        batch = build_batch(
            records,
            base_offset=self._next_offset,
            leader_epoch=self.snapshot_id.epoch,
            compression=Compression.NONE if control else self._compression,
            control=control,
        )
        self._add(batch, len(records))

    async def settle(self) -> None:
        await self._part.settle()

    def _add(self, batch: bytes, count: int) -> None:
        self._part.append(batch)
        self._next_offset += count

    async def freeze(self) -> None:
        footer = build_control_batch(
            [SnapshotFooter()],
            timestamp=self._clock.now_ms(),
            base_offset=self._next_offset,
            leader_epoch=self.snapshot_id.epoch,
        )
        self._add(footer, 1)
        await self._part.freeze(check=False)

    def abandon(self) -> None:
        self._part.abandon()
