"""Kafka's producer snapshots. They are files ``<offset>.snapshot`` in the folder of a log. The producers'
state is restored from these files.

Layout, big endian: version (int16, 1), CRC-32C (uint32) of all bytes after it, and number of entries (int32).
An entry has 46 bytes: producer id, epoch (int16), last sequence (int32), last offset, offset delta of the
last batch (int32), last timestamp, coordinator epoch (int32), first offset of the open transaction (-1 if
there is none).

A snapshot of Kafka has one entry for each producer, with its last batch. Here a producer has an entry for
each batch in its state, the last batch at the end. A client whose responses were lost may send up to five
batches again. After a restart these batches are still known, and not refused with
OUT_OF_ORDER_SEQUENCE_NUMBER. Kafka can read the file, because it uses the last entry of each producer.
"""

import contextlib
from collections.abc import Iterable, Iterator
from itertools import count
from struct import Struct

from crc32c import crc32c

from moldau.runtime import Disk
from moldau.storage.folders.file_names import PRODUCER_SNAPSHOT_SUFFIX, base_offset_of, segment_file
from moldau.storage.producers.producer_state import BatchMetadata, ProducerEntry, ProducerState

__all__ = [
    "CorruptSnapshotError",
    "ProducerSnapshots",
    "decode_producer_snapshot",
    "encode_producer_snapshot",
]

_HEAD = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")
_VERSION = 1
_CRC_END = _HEAD.size


class CorruptSnapshotError(Exception):
    """A producer snapshot is invalid. The message names the file."""


def encode_producer_snapshot(entries: Iterable[ProducerEntry], *, last_only: bool = False) -> bytes:
    """Return the content of a snapshot file. With ``last_only``, it has only the last batch of each
    producer, as a snapshot of Kafka."""
    packed = []
    for entry in entries:
        first_offset = entry.current_txn_first_offset
        for batch, timestamp in list(_batches(entry))[-1:] if last_only else _batches(entry):
            packed.append(
                _ENTRY.pack(
                    entry.producer_id,
                    entry.producer_epoch,
                    batch.last_sequence,
                    batch.last_offset,
                    batch.offset_delta,
                    timestamp,
                    entry.coordinator_epoch,
                    -1 if first_offset is None else first_offset,
                )
            )
    body = _COUNT.pack(len(packed)) + b"".join(packed)
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def _batches(entry: ProducerEntry) -> Iterator[tuple[BatchMetadata, int]]:
    """The batches of a producer, each with the timestamp of its entry in the file. The entry of the last
    batch has the producer's last timestamp. This is the timestamp of a marker if the marker is newer than the
    last batch."""
    *earlier, last = entry.batches or (BatchMetadata(-1, -1, 0, -1),)
    for batch in earlier:
        # When Kafka reads the file, it drops each expired entry. It must not drop the last entry of a
        # producer and keep an earlier entry. Therefore no earlier entry has a later timestamp than the last
        # entry.
        yield batch, min(batch.timestamp, entry.last_timestamp)
    yield last, entry.last_timestamp


def decode_producer_snapshot(content: bytes, path: str = "producer snapshot") -> list[ProducerEntry]:
    """The producers of a file. Raises :class:`CorruptSnapshotError` if the content is not valid. The error
    names ``path``."""
    if len(content) < _HEAD.size + _COUNT.size:
        raise CorruptSnapshotError(f"{path}: {len(content)} bytes are too few")
    version, stored = _HEAD.unpack_from(content)
    if version != _VERSION:
        raise CorruptSnapshotError(f"{path}: unknown version {version}")
    computed = crc32c(memoryview(content)[_CRC_END:])
    if stored != computed:
        raise CorruptSnapshotError(f"{path}: stored CRC {stored}, computed {computed}")
    (count,) = _COUNT.unpack_from(content, _CRC_END)
    body = memoryview(content)[_CRC_END + _COUNT.size :]
    if count < 0 or len(body) != count * _ENTRY.size:
        raise CorruptSnapshotError(f"{path}: {count} entries do not fit in {len(body)} bytes")
    found: dict[int, ProducerEntry] = {}
    for fields in _ENTRY.iter_unpack(body):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, first_offset = fields
        earlier = found.get(producer_id)
        batches = earlier.batches if earlier is not None and earlier.producer_epoch == epoch else ()
        found[producer_id] = ProducerEntry(
            producer_id,
            epoch,
            coordinator_epoch,
            timestamp,
            first_offset if first_offset >= 0 else None,
            [*batches, BatchMetadata(sequence, offset, delta, timestamp)] if offset >= 0 else batches,
        )
    return list(found.values())


class ProducerSnapshots:
    """The snapshot files of one partition's folder. Its methods block."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self.folder = folder
        self._last_offset: int | None = None
        self._writes = count()
        self._unsynced: set[tuple[int, int]] = set()
        """Offsets of snapshots that are not durable yet, each with the number of its pending write."""

    def path(self, offset: int) -> str:
        return f"{self.folder}/{segment_file(offset, PRODUCER_SNAPSHOT_SUFFIX)}"

    def offsets(self) -> list[int]:
        """The offsets of the existing snapshots, ascending."""
        found = (base_offset_of(name, PRODUCER_SNAPSHOT_SUFFIX) for name in self._disk.list(self.folder))
        return sorted(offset for offset in found if offset is not None)

    def take_snapshot(self, state: ProducerState, *, durably: bool = True) -> int:
        """Write a snapshot of ``state`` at its end offset, unless the last snapshot has this offset. Returns
        the offset.

        Without ``durably``, the snapshot becomes durable by :meth:`sync` and a sync of the folder. If a crash
        comes first, the snapshot is missing or has a wrong checksum. The state is then rebuilt from the
        previous snapshot.
        """
        offset = state.end_offset
        if offset != self._last_offset:
            content = encode_producer_snapshot(state)
            if durably:
                self._disk.write_atomically(self.path(offset), content)
            else:
                self._write(self.path(offset), content)
                self._unsynced.add((offset, next(self._writes)))
            self._last_offset = offset
        elif durably:
            self.make_durable()
        return offset

    def _write(self, path: str, content: bytes) -> None:
        file = self._disk.open(path, create=True)
        try:
            if file.size():
                # The file is not truncated to length zero, because ext4 would then write the file to the disk
                # when it is closed.
                file.truncate(0)
            file.write_at(0, [content])
        finally:
            file.close()

    def at(self, offset: int) -> list[ProducerEntry]:
        """The producers at an offset. The result is empty if there is no usable snapshot of that offset."""
        try:
            return decode_producer_snapshot(self._disk.read(self.path(offset)), self.path(offset))
        except (FileNotFoundError, CorruptSnapshotError):
            return []

    @property
    def is_synced(self) -> bool:
        """Whether :meth:`sync` has nothing to do."""
        return not self._unsynced

    def sync(self) -> None:
        """Sync snapshots that were not written durably. This may run while :meth:`take_snapshot` runs."""
        for written in sorted(self._unsynced):
            # The file may have been removed in the meantime.
            with contextlib.suppress(FileNotFoundError):
                file = self._disk.open(self.path(written[0]))
                try:
                    file.sync()
                finally:
                    file.close()
            self._unsynced.discard(written)

    def make_durable(self) -> None:
        """Like :meth:`sync`, but also syncs the folder, so that the files' names are durable. Call this
        before batches are deleted, because only these batches could replace a lost snapshot."""
        if self._unsynced:
            self.sync()
            self._disk.sync_dir(self.folder)

    def load_latest(self, state: ProducerState, first_offset: int, log_end_offset: int, now_ms: int) -> int:
        """Reset ``state`` to the newest usable snapshot within the log. Returns the offset from which the log
        must be replayed.

        ``first_offset`` is the offset at which the first segment begins. A snapshot at this offset has the
        producers whose batches retention has removed. Snapshots below this offset or above the log end are
        deleted. Damaged snapshots are deleted, too. If no snapshot is left, the state is empty and the result
        is ``first_offset``.
        """
        self._last_offset = None
        for offset in reversed(self.offsets()):
            if first_offset <= offset <= log_end_offset:
                try:
                    entries = decode_producer_snapshot(self._disk.read(self.path(offset)), self.path(offset))
                except CorruptSnapshotError:
                    self.remove(offset)
                    continue
                state.reset(offset, entries, now_ms)
                self._last_offset = offset
                self.remove_before(first_offset)
                return offset
            self.remove(offset)
        state.reset(first_offset)
        return first_offset

    def remove(self, offset: int) -> None:
        self._disk.remove(self.path(offset))
        if offset == self._last_offset:
            self._last_offset = None

    def remove_before(self, offset: int) -> None:
        """Remove snapshots below ``offset``. They are not needed after retention has removed their
        batches."""
        for found in self.offsets():
            if found < offset:
                self.remove(found)

    def remove_after(self, offset: int) -> None:
        """Remove snapshots above ``offset``, because a truncation removed their batches."""
        for found in self.offsets():
            if found > offset:
                self.remove(found)
