"""Logs that are moved from one log folder to another (KIP-113): the copy, and the exchange.

A future log is a copy in the folder ``topic-0.<32 hex digits>-future`` of the target. Two renames exchange
the log for the copy. First the old folder gets the same digits and the suffix ``-delete``, then the future
folder gets the log's name. The first rename is durable before the second rename starts. If the node is killed
between them, :func:`finish_exchanges` finds the renamed old folder and the future folder with the same
digits, and makes the second rename. All other future folders are incomplete, and are copied again from the
beginning.
"""

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from moldau.protocol.partitions import TopicPartition
from moldau.runtime import Disk, ErrorCode, KafkaError, Machine
from moldau.storage.folders.directory_failures import DirectoryFailures
from moldau.storage.folders.file_names import (
    PARTITION_METADATA,
    deleted_folder,
    exchanged_for,
    folder_of,
    future_folder,
    is_whole_name,
    partition_of_future,
)
from moldau.storage.folders.log_directory import LogDirectory
from moldau.storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

COPIED_BYTES_MAX: Final = 256 * 1024
"""Number of bytes that are copied in one step. A step takes a millisecond or less."""


@dataclass(slots=True, eq=False)
class LogMove:
    """A log, and its copy in another folder."""

    source: PartitionLog
    home: LogDirectory
    target: LogDirectory
    future: PartitionLog
    unique: uuid.UUID
    truncation_count: int
    """The number of truncations of the source when the copy began."""

    @property
    def name(self) -> TopicPartition:
        return self.source.topic_partition

    @property
    def lag(self) -> int:
        """Number of offsets that are not copied yet."""
        return max(0, self.source.log_end_offset - self.future.log_end_offset)


class FutureLogs:
    """The copies in progress. Use this class on the event loop."""

    def __init__(self, machine: Machine, failures: DirectoryFailures) -> None:
        self._machine = machine
        self._failures = failures
        self.moves: dict[TopicPartition, LogMove] = {}

    async def begin(self, source: PartitionLog, home: LogDirectory, target: LogDirectory) -> LogMove:
        """Create an empty future log. The source is not compacted during the copy. Otherwise the copy could
        have a record but not the record's tombstone.

        Raises ``KafkaError``: invalid_request for a name that is too long, kafka_storage_error.
        """
        name, unique = source.topic_partition, self._machine.entropy.uuid4()
        if not is_whole_name(name):
            raise KafkaError(ErrorCode.invalid_request, f"the name of {name} is too long for a future folder")
        path = f"{target.path}/{future_folder(name, unique)}"
        source.is_being_copied = True
        try:
            future = await self._machine.workers.run(self._open, path, source)
            await future.truncate_fully_and_start_at(source.local_log_start_offset)
            with self._failures.disk_work(target):
                await self._machine.workers.run(self._machine.disk.sync_dir, target.path)
        except (KafkaError, OSError) as error:
            source.is_being_copied = False
            cause = error.__cause__ if isinstance(error, KafkaError) else error
            if isinstance(cause, OSError):
                self._failures.log_failed(target, cause)
            raise KafkaError(ErrorCode.kafka_storage_error, f"{path} cannot be made: {error}") from error
        future.access.on_failure = lambda error: self._failures.log_failed(target, error)
        move = self.moves[name] = LogMove(source, home, target, future, unique, source.truncation_count)
        return move

    def _open(self, path: str, source: PartitionLog) -> PartitionLog:
        return PartitionLog.open(
            self._machine, path, source.topic_partition, source.config, topic_id=source.topic_id
        )

    async def copy(self, move: LogMove, max_bytes: int = COPIED_BYTES_MAX) -> int:
        """Copy the next batches, at least one batch. Returns their size in bytes, or 0 when the future log
        has all batches.

        After a truncation of the source, the copy starts again from the beginning. Raises ``KafkaError`` when
        a disk fails.
        """
        source, future = move.source, move.future
        if source.truncation_count != move.truncation_count or (
            future.log_end_offset < source.local_log_start_offset
        ):
            move.truncation_count = source.truncation_count
            await future.truncate_fully_and_start_at(source.local_log_start_offset)
        found = source.read(future.log_end_offset, min(max_bytes, COPIED_BYTES_MAX))
        content = b"".join(found.views)
        if not content and move.lag:
            raise KafkaError(
                ErrorCode.kafka_storage_error,
                f"{move.name} cannot be read from offset {future.log_end_offset}",
            )
        return future.append_as_follower(content).size_bytes if content else 0

    async def exchange(self, move: LogMove) -> None:
        """Replace the source by the future log, and close both logs. The source must be copied completely. No
        code may write to the source any more. Raises ``OSError`` and ``KafkaError`` if the disk fails."""
        assert not move.lag, f"{move.name} is not copied"
        source, future = move.source, move.future
        future.update_log_start_offset(source.log_start_offset)
        # The source also knows batches whose records were deleted before the copy began. A client may send
        # these batches again. The state is in the snapshot that ``close`` writes.
        future.producers.state.reset(source.log_end_offset, source.producers.state)
        await future.flush()
        await self._machine.workers.run(future.close)
        source.take_offline(f"{move.name} moves to {move.target.path}")
        self.moves.pop(move.name, None)
        async with source.segments.changing:
            await self._machine.workers.run(self._rename, move)

    def _rename(self, move: LogMove) -> None:
        disk, name = self._machine.disk, move.name
        move.source.epochs.end_file()
        move.future.epochs.end_file()
        for directory, before, after in (
            (move.home, folder_of(name), deleted_folder(name, move.unique)),
            (move.target, future_folder(name, move.unique), folder_of(name)),
        ):
            try:
                disk.rename(f"{directory.path}/{before}", f"{directory.path}/{after}")
                disk.sync_dir(directory.path)
            except OSError as error:
                self._failures.log_failed(directory, error)
                raise

    async def drop(self, move: LogMove) -> None:
        """End a move, and delete its copy."""
        self.moves.pop(move.name, None)
        move.source.is_being_copied = False
        move.future.take_offline(f"the move of {move.name} was given up")
        if move.target.is_online:
            path = f"{move.target.path}/{future_folder(move.name, move.unique)}"
            async with move.future.segments.changing:
                with self._failures.disk_work(move.target):
                    if self._machine.disk.is_dir(path):
                        await self._machine.workers.run(self._machine.disk.remove_tree, path)


def finish_exchanges(
    disk: Disk, directories: Sequence[LogDirectory], failures: DirectoryFailures
) -> list[tuple[TopicPartition, LogDirectory]]:
    """Finish exchanges that were interrupted by a kill, and delete incomplete copies. This call blocks. The
    folders must be locked.

    Returns the partitions and the target folders of incomplete copies, because their moves must start again.
    The move of a deleted topic does not start again, even if another topic now has the name. While a folder
    is offline, incomplete copies are kept, because the renames in that folder are not known.
    """
    names: dict[LogDirectory, list[str]] = {}
    for directory in directories:
        if directory.is_online:
            with failures.disk_work(directory):
                names[directory] = disk.list(directory.path)
    everything = {name for found in names.values() for name in found}
    unfinished = []
    for directory, found in names.items():
        for name in found:
            topic_partition = partition_of_future(name)
            if topic_partition is None or not directory.is_online:
                continue
            folder = folder_of(topic_partition)
            is_current = folder in everything
            with failures.disk_work(directory):
                if not is_current and exchanged_for(name) in everything:
                    disk.rename(f"{directory.path}/{name}", f"{directory.path}/{folder}")
                    disk.sync_dir(directory.path)
                elif is_current or len(names) == len(directories):
                    copy = f"{directory.path}/{name}"
                    homes = [f"{each.path}/{folder}" for each, entries in names.items() if folder in entries]
                    is_of_topic = any(_have_one_topic(disk, home, copy) for home in homes)
                    disk.remove_tree(copy)
                    if is_of_topic:
                        unfinished.append((topic_partition, directory))
    return unfinished


def _have_one_topic(disk: Disk, home: str, future: str) -> bool:
    """Whether a log and a copy do not belong to different topics with the same name."""
    ids = [f"{folder}/{PARTITION_METADATA}" for folder in (home, future)]
    return not all(map(disk.exists, ids)) or disk.read(ids[0]) == disk.read(ids[1])
