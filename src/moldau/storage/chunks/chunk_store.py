"""The inactive chunks in a broker's log directories (KIP-1114). Each chunk is one folder with one log.

Before a chunk ends, its folder is the folder of the partition's log. When the chunk ends, this log is closed
durably and its folder is renamed. Therefore no data is copied. The first read opens the log of a chunk.
Nothing is appended to an inactive chunk.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from moldau.protocol.partitions import TopicPartition
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.storage.folders.file_names import (
    chunk_copy_folder,
    chunk_folder,
    chunk_of,
    deleted_folder,
    is_chunk_copy,
    partition_of,
    stray_folder,
)
from moldau.storage.folders.log_directory import LogDirectory
from moldau.storage.folders.partition_metadata import MalformedMetadataError, read_partition_metadata
from moldau.storage.log.files.disk_steps import run_whole
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.log_manager import LogManager

logger = logging.getLogger(__name__)

OPEN_LOGS_MAX: Final = 500
"""Number of chunks whose logs are open at the same time. When one more log is opened, the least recently used
log is closed."""


class ChunkId(NamedTuple):
    """The identity of a chunk."""

    topic_id: UUID
    partition: int
    start_offset: int


class ChunkSource(Protocol):
    """A chunk on another broker that is copied to this broker. The methods raise ``KafkaError``."""

    async def files(self) -> Mapping[str, int]:
        """The sizes of the chunk's files, by name."""
        ...

    async def read(self, name: str, position: int) -> bytes:
        """Return bytes of a file, beginning at a position. The result is empty at the end of the file."""
        ...


@dataclass(slots=True, eq=False)
class _Folder:
    """The folder of a chunk on this broker."""

    path: str
    directory: LogDirectory
    lock: asyncio.Lock
    """Held while the log is opened, while the files are listed, and while the folder gets another name."""


class ChunkStore:
    """Finds, makes, opens and removes the chunks of a broker. This class is used on the event loop."""

    def __init__(self, machine: Machine, logs: LogManager) -> None:
        self._machine = machine
        self._logs = logs
        self._folders: dict[ChunkId, _Folder] = {}
        self._at: dict[str, ChunkId] = {}
        """The chunks by the paths of their folders."""
        self._leaving: dict[str, _Folder] = {}
        """Folders of removed chunks that still have their names, by path."""
        self._open: OrderedDict[ChunkId, PartitionLog] = OrderedDict()
        self.end_of: Callable[[ChunkId], int | None] = lambda _: None
        """Returns the offset after the last record of a chunk; ``None`` if it is not known."""

    async def load(self) -> None:
        """Find the chunks in the log directories when the node starts. Their logs are not opened.

        A folder without a readable topic id is moved aside, because it would prevent another copy. A second
        folder of the same chunk is moved aside, too.
        """
        for directory in self._logs.directories:
            if directory.is_online:
                for chunk, path in await self._machine.workers.run(self._list, directory):
                    if chunk is None or chunk in self._folders:
                        await self._move_aside(_Folder(path, directory, asyncio.Lock()))
                    else:
                        self._attach(chunk, path, directory)

    def _list(self, directory: LogDirectory) -> list[tuple[ChunkId | None, str]]:
        disk = self._machine.disk
        found: list[tuple[ChunkId | None, str]] = []
        for name in disk.list(directory.path):
            named, path = chunk_of(name), f"{directory.path}/{name}"
            if is_chunk_copy(name):
                disk.remove_tree(path)
            if named is None:
                continue
            try:
                topic_id = read_partition_metadata(disk, path)
            except MalformedMetadataError as error:
                logger.error("the chunk in %s cannot be used: %s", path, error)
                topic_id = None
            found.append((None if topic_id is None else ChunkId(topic_id, *named), path))
        return found

    def __contains__(self, chunk: ChunkId) -> bool:
        """Whether the folder of a chunk is on this broker, in a log directory that is online."""
        folder = self._folders.get(chunk)
        return folder is not None and folder.directory.is_online

    def __len__(self) -> int:
        """The number of chunks in the log directories that are online."""
        return sum(folder.directory.is_online for folder in self._folders.values())

    def __iter__(self) -> Iterator[ChunkId]:
        return iter(tuple(self._folders))

    def directory_of(self, chunk: ChunkId) -> LogDirectory | None:
        """The log directory that contains a chunk; ``None`` if the chunk is not on this broker."""
        folder = self._folders.get(chunk)
        return None if folder is None else folder.directory

    async def carve(self, name: TopicPartition, chunk: ChunkId, end_offset: int) -> None:
        """Turn the partition's log into the log of an inactive chunk that ends before ``end_offset``.

        No code may use the partition's log after this call. A crash leaves the folder under its old name, or
        under the new name with a complete log. Raises ``KafkaError`` if the disk fails.
        """
        log, directory = self._logs.get(name), self._logs.home_of(name)
        assert log is not None, f"{name} has no log"
        assert directory is not None, f"{name} has no log directory"
        if log.log_end_offset > end_offset:
            # Only this broker has the records from ``end_offset`` to the end of its log. It got them from a
            # leader whose records were lost in an unclean election. The present leader never had them.
            await log.truncate_to(end_offset)
        folder = chunk_folder(name, chunk.start_offset)
        await self._make_room(f"{directory.path}/{folder}")
        path = await run_whole(self._logs.release(name, folder))
        assert path is not None, f"{name} has left"
        self._attach(chunk, path, directory)
        logger.info("%s: the chunk from offset %d to %d has ended", name, chunk.start_offset, end_offset - 1)

    async def open(self, name: TopicPartition, chunk: ChunkId) -> PartitionLog:
        """The log of a chunk, for reads. Raises ``KafkaError(kafka_storage_error)`` if the log cannot be
        opened, or if its last records are missing."""
        log = self._open.get(chunk)
        if log is not None and not log.is_offline:
            self._open.move_to_end(chunk)
            return log
        folder = self._folders.get(chunk)
        if folder is None:
            raise KafkaError(ErrorCode.kafka_storage_error, f"{name} has no chunk {chunk.start_offset} here")
        async with folder.lock:
            log = self._open.get(chunk)
            if log is not None and not log.is_offline:
                return log
            self._check_present(chunk, folder)
            log = await self._machine.workers.run(partial(self._open_folder, folder.path, name, chunk))
            try:
                self._check_present(chunk, folder)
            except KafkaError:
                log.take_offline("the chunk is removed")
                raise
            found, end_offset = log.log_end_offset, self.end_of(chunk)
            if end_offset is not None and found != end_offset:
                log.take_offline("the log of a chunk is not complete")
                raise KafkaError(
                    ErrorCode.kafka_storage_error, f"{folder.path} ends at {found}, not at {end_offset}"
                )
            self._open[chunk] = log
        while len(self._open) > OPEN_LOGS_MAX:
            self._open.popitem(last=False)[1].take_offline("the log of a chunk is not used")
        return log

    def _check_present(self, chunk: ChunkId, folder: _Folder) -> None:
        """Raise ``KafkaError`` if the chunk was removed from this folder meanwhile. The path may belong to
        another folder then."""
        if self._folders.get(chunk) is not folder:
            raise KafkaError(ErrorCode.kafka_storage_error, f"{folder.path} is removed")

    def _open_folder(self, path: str, name: TopicPartition, chunk: ChunkId) -> PartitionLog:
        if not self._machine.disk.is_dir(path):
            raise KafkaError(ErrorCode.kafka_storage_error, f"{path} is gone")
        # The log was closed durably, so no batch needs a check. The log is only read, so it does not need the
        # topic's configuration.
        return PartitionLog.open(
            self._machine, path, name, topic_id=chunk.topic_id, clean_shutdown=True, may_be_tiered=True
        )

    async def files(self, chunk: ChunkId) -> dict[str, int]:
        """The sizes of a chunk's files, by name. Raises ``KafkaError`` if the chunk cannot be read."""
        folder = self._folder(chunk)
        # While the log is opened, there are temporary files in the folder.
        async with folder.lock:
            self._check_present(chunk, folder)
            return await self._machine.workers.run(self._sizes, folder.path)

    def _sizes(self, path: str) -> dict[str, int]:
        disk = self._machine.disk
        return {name: disk.size(f"{path}/{name}") for name in disk.list(path)}

    async def read_file(self, chunk: ChunkId, name: str, position: int, size_bytes: int) -> bytes:
        """Bytes of a chunk's file. Raises ``KafkaError``, also if the result of :meth:`files` does not
        contain the name."""
        if name not in await self.files(chunk):
            raise KafkaError(ErrorCode.invalid_request, f"the chunk has no file {name!r}")
        path = f"{self._folder(chunk).path}/{name}"
        return await self._machine.workers.run(self._read_file, path, position, size_bytes)

    def _read_file(self, path: str, position: int, size_bytes: int) -> bytes:
        file = self._machine.disk.open(path, read_only=True)
        try:
            return file.read_at(position, min(size_bytes, max(0, file.size() - position)))
        finally:
            file.close()

    def _folder(self, chunk: ChunkId) -> _Folder:
        folder = self._folders.get(chunk)
        if folder is None or not folder.directory.is_online:
            raise KafkaError(ErrorCode.kafka_storage_error, f"chunk {chunk.start_offset} is not here")
        return folder

    async def copy(self, name: TopicPartition, chunk: ChunkId, end_offset: int, source: ChunkSource) -> None:
        """Copy a chunk that ends before ``end_offset`` into the log directory with the fewest chunks.

        The copy gets the chunk's name only after it is complete and checked. If the chunk is already on this
        broker, the copy is put into the log directory of the existing chunk, and the folder of the existing
        chunk is moved aside. Raises ``KafkaError`` and ``OSError``.
        """
        old = self._folders[chunk] if chunk in self else None
        directory = self._emptiest() if old is None else old.directory
        path = f"{directory.path}/{chunk_copy_folder(name, chunk.start_offset)}"
        run = self._machine.workers.run
        try:
            await self._fetch(path, source)
            await run(self._check_copy, path, name, chunk, end_offset)
        except (KafkaError, OSError):
            # A copy that fails begins again later. The part that was already copied must not fill the disk
            # until then. If the broker stops, the part is removed at the next start.
            with suppress(OSError):
                await run(self._discard, path)
            raise
        target = f"{directory.path}/{chunk_folder(name, chunk.start_offset)}"
        if old is not None:
            # After a crash at this point the chunk is missing, and is copied again.
            await self._put_aside(chunk, old)
        await self._make_room(target)
        await run(self._finish_copy, path, target)
        self._attach(chunk, target, directory)

    async def _fetch(self, path: str, source: ChunkSource) -> None:
        run = self._machine.workers.run
        await run(self._begin_copy, path)
        for file, size_bytes in (await source.files()).items():
            position = 0
            while position < size_bytes or not position:
                piece = await source.read(file, position)
                await run(self._write, f"{path}/{file}", position, piece)
                position += len(piece)
                if not piece:
                    break

    def _emptiest(self) -> LogDirectory:
        """The log directory with the fewest chunks. Raises ``KafkaError`` if every log directory is
        offline."""
        counts = Counter(folder.directory for folder in self._folders.values())
        online = [each for each in self._logs.directories if each.is_online]
        if not online:
            raise KafkaError(ErrorCode.kafka_storage_error, "every log folder is offline")
        return min(online, key=lambda each: counts[each])

    def _begin_copy(self, path: str) -> None:
        self._discard(path)
        self._machine.disk.make_dirs(path)

    def _discard(self, path: str) -> None:
        if self._machine.disk.is_dir(path):
            self._machine.disk.remove_tree(path)

    def _write(self, path: str, position: int, piece: bytes) -> None:
        file = self._machine.disk.open(path, create=True)
        try:
            file.write_at(position, [piece])
            file.sync()
        finally:
            file.close()

    def _check_copy(self, path: str, name: TopicPartition, chunk: ChunkId, end_offset: int) -> None:
        # The copy is opened without a recovery point. Therefore every batch is checked by its own checksum.
        log = PartitionLog.open(self._machine, path, name, topic_id=chunk.topic_id, may_be_tiered=True)
        found = log.log_end_offset
        log.close()
        if found != end_offset:
            raise KafkaError(ErrorCode.corrupt_message, f"{path} ends at {found}, not at {end_offset}")
        self._machine.disk.sync_dir(path)

    def _finish_copy(self, path: str, target: str) -> None:
        disk = self._machine.disk
        disk.rename(path, target)
        disk.sync_dir(target.rpartition("/")[0])

    async def drop(self, name: TopicPartition, chunk: ChunkId) -> None:
        """Remove a chunk from the disk. Raises ``OSError`` if the disk fails."""
        folder = self._detach(chunk)
        if folder is None or not folder.directory.is_online:
            return
        self._leaving[folder.path] = folder
        try:
            async with folder.lock:
                target = f"{folder.directory.path}/{deleted_folder(name, self._machine.entropy.uuid4())}"
                await self._machine.workers.run(self._remove, folder, target)
        finally:
            del self._leaving[folder.path]

    def _attach(self, chunk: ChunkId, path: str, directory: LogDirectory) -> None:
        """Begin the use of a chunk."""
        self._folders[chunk] = _Folder(path, directory, asyncio.Lock())
        self._at[path] = chunk

    def _detach(self, chunk: ChunkId) -> _Folder | None:
        """End the use of a chunk. The log that is open is closed, and no other log of the folder is used."""
        folder, log = self._folders.pop(chunk, None), self._open.pop(chunk, None)
        if folder is not None:
            self._at.pop(folder.path, None)
        if log is not None:
            log.take_offline("the chunk is removed")
        return folder

    def _remove(self, folder: _Folder, target: str) -> None:
        self._rename(folder, target)
        self._machine.disk.remove_tree(target)

    async def put_aside(self, chunk: ChunkId) -> None:
        """Move a chunk aside because it is not in the metadata, or because it is replaced by another copy.
        Its folder is kept for a long time, like the folder of a partition that is not in the metadata. Raises
        ``OSError`` if the disk fails."""
        folder = self._folders.get(chunk)
        if folder is not None:
            await self._put_aside(chunk, folder)

    async def _put_aside(self, chunk: ChunkId, folder: _Folder) -> None:
        async with folder.lock:
            if self._folders.get(chunk) is folder:
                self._detach(chunk)
                await self._move_aside(folder)

    async def _make_room(self, path: str) -> None:
        """Wait until no removed chunk has a folder with this path. Other files are made there next, and they
        may belong to another topic with the same name."""
        leaving = self._leaving.get(path)
        if leaving is not None:
            async with leaving.lock:
                pass
        if (present := self._at.get(path)) is not None:
            await self.put_aside(present)

    async def _move_aside(self, folder: _Folder) -> None:
        old = folder.path.rpartition("/")[2]
        name = partition_of(old.rpartition(".")[0])
        assert name is not None, f"{old} is not the folder of a chunk"
        path = f"{folder.directory.path}/{stray_folder(name, self._machine.entropy.uuid4())}"
        await self._machine.workers.run(self._rename, folder, path)
        self._logs.removals.add_stray(path)
        self._logs.stray_count += 1
        logger.warning("%s is not used: its folder is kept as %s", old, path)

    def _rename(self, folder: _Folder, path: str) -> None:
        self._machine.disk.rename(folder.path, path)
        self._machine.disk.sync_dir(folder.directory.path)

    def close(self) -> None:
        """Close all logs."""
        for log in self._open.values():
            log.take_offline("the broker stops")
        self._open.clear()
