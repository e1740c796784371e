"""Creates, removes and releases the folders of partitions outside the event loop. It creates and removes many
folders at a time.

A new partition needs two syncs (of ``partition.metadata`` and of its folder). The log folder, which contains
the names of the partitions' folders, is synced once for all partitions that are created or removed together.
"""

import asyncio
import contextlib
import errno
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from moldau.protocol.partitions import TopicPartition
from moldau.runtime import Disk, ErrorCode, KafkaError, Machine
from moldau.runtime.files.descriptor_cache import LACK_OF_DESCRIPTORS
from moldau.storage.folders.file_names import HIGH_WATERMARKS, PARTITION_METADATA, RECOVERY_POINTS, folder_of
from moldau.storage.folders.log_checkpoints import LogCheckpoints
from moldau.storage.folders.log_directory import LogDirectory
from moldau.storage.folders.log_starts import LogStarts
from moldau.storage.folders.partition_metadata import format_partition_metadata
from moldau.storage.folders.placement import NEW, Assignment
from moldau.storage.log.config import LogConfig
from moldau.storage.log.files.leader_epoch_file import LeaderEpochFile
from moldau.storage.log.partition_log import LogKeeper, PartitionLog

T = TypeVar("T")
R = TypeVar("R")

LANES: Final = 4
"""Number of worker threads. A slow disk can do several syncs at the same time."""

LOGS_A_JOB: Final = 16

RETIRED_A_TURN: Final = 200
"""Number of removed logs that are freed in one iteration of the event loop. This takes some milliseconds."""

NO_ROOM_FOR_MORE: Final = LACK_OF_DESCRIPTORS | {errno.ENOSPC, errno.EDQUOT, errno.EMLINK}
"""After these errors a disk cannot store a new partition, but it can still serve existing partitions."""


class NewLog(NamedTuple):
    """A log that must be created."""

    topic_partition: TopicPartition
    config: LogConfig
    topic_id: uuid.UUID
    assignment: Assignment = NEW


class RetiredLog(NamedTuple):
    """A removed log, and the path of its folder until the folder is deleted."""

    log: PartitionLog
    directory: LogDirectory
    target: str


class FolderWork:
    """The folder operations of one log manager. Each removal is done before the creations that are requested
    after it."""

    def __init__(
        self,
        machine: Machine,
        checkpoints: LogCheckpoints,
        on_retired: Callable[[RetiredLog], None],
        on_failure: Callable[[LogDirectory, OSError], None],
    ) -> None:
        self._machine = machine
        self._disk = machine.disk
        self._checkpoints = checkpoints
        # This pool of workers is separate, because a thousand syncs of new folders must not delay the syncs
        # of the metadata log.
        self._workers = machine.workers.apart(LANES, "moldau-folders")
        self._on_retired = on_retired
        self._on_failure = on_failure
        self._retired: list[RetiredLog] = []
        self._retiring: asyncio.Task[None] | None = None
        self._unsaved: dict[PartitionLog, LogDirectory] = {}
        self._saving: asyncio.Task[None] | None = None
        self._starts: dict[LogDirectory, LogStarts] = {}

    # -- removals -----------------------------------------------------------------------------

    def retire(self, retired: RetiredLog) -> None:
        """Rename a log's folder soon. ``on_retired`` is called when the new name is durable."""
        self._retired.append(retired)
        if self._retiring is None:
            self._retiring = asyncio.get_running_loop().create_task(self._retire_all())

    async def settled(self) -> None:
        """Wait until all earlier removals are durable."""
        while self._retiring is not None:
            await asyncio.wait([self._retiring])

    async def stop(self) -> None:
        """Wait until no work is left."""
        while (running := self._retiring or self._saving) is not None:
            await asyncio.wait([running])

    async def _retire_all(self) -> None:
        try:
            while self._retired:
                batch: dict[LogDirectory, deque[RetiredLog]] = {}
                for each in self._retired:
                    batch.setdefault(each.directory, deque()).append(each)
                self._retired.clear()
                for directory, mine in batch.items():
                    try:
                        await _in_lanes(list(mine), self._retire_some)
                        await self._workers.run(self._disk.sync_dir, directory.path)
                        # The checkpoints are written before the folders are removed. If a checkpoint
                        # contained the name of a missing folder, the next start would report a loss.
                        if any(directory.has_checkpointed(each.log.topic_partition) for each in mine):
                            await self._checkpoints.write(directory, HIGH_WATERMARKS, RECOVERY_POINTS)
                    except OSError as error:
                        self._on_failure(directory, error)
                        continue
                    await self._report_retired(mine)
        finally:
            self._retiring = None

    async def _report_retired(self, logs: deque[RetiredLog]) -> None:
        """Free the logs in groups of :data:`RETIRED_A_TURN`. Other work of the event loop runs between two
        groups. Freeing thousands of logs at once would block the event loop for a tenth of a second."""
        while logs:
            for _ in range(min(len(logs), RETIRED_A_TURN)):
                self._on_retired(logs.popleft())
            await asyncio.sleep(0)

    async def _retire_some(self, some: Sequence[RetiredLog]) -> None:
        async with contextlib.AsyncExitStack() as unchanged:
            for each in some:
                # A step of a truncation may still wait for the disk. A new log may get the same folder name
                # after the renaming, and the step would remove the files of the new log.
                await unchanged.enter_async_context(each.log.segments.changing)
            await self._workers.run(self._retire, some)

    def _retire(self, retired: Sequence[RetiredLog]) -> None:
        for each in retired:
            each.log.epochs.end_file()
            self._disk.rename(each.log.directory, each.target)

    def keeper_of(
        self,
        log: PartitionLog,
        directory: LogDirectory,
        failed: Callable[[LogDirectory, OSError], None],
        truncated: Callable[[LogDirectory, TopicPartition], Callable[[], None]],
    ) -> LogKeeper:
        """Return the object that makes changes of an open log in this folder durable. ``failed`` and
        ``truncated`` are called with the folder as an additional argument."""
        return LogKeeper(
            failed=partial(failed, directory),
            truncated=partial(truncated, directory, log.topic_partition),
            epochs_changed=partial(self.save_epochs, log, directory),
            persist_start=partial(self.persist_start, log, directory),
        )

    # -- leader epochs ------------------------------------------------------------------------

    def save_epochs(self, log: PartitionLog, directory: LogDirectory) -> None:
        """Save the file of a log's leader epochs soon, together with the files of other logs."""
        self._unsaved[log] = directory
        if self._saving is None:
            self._saving = asyncio.get_running_loop().create_task(self._save_all())

    async def _save_all(self) -> None:
        try:
            while self._unsaved:
                batch, self._unsaved = self._unsaved, {}
                for directory in dict.fromkeys(batch.values()):
                    mine = [log for log, home in batch.items() if home is directory and not log.is_offline]
                    try:
                        await self._save_in_lanes(mine)
                    except OSError as error:
                        self._on_failure(directory, error)
        finally:
            self._saving = None

    async def _save_in_lanes(self, logs: Sequence[PartitionLog]) -> None:
        await _in_lanes(logs, self._save_some)

    async def _save_some(self, some: Sequence[PartitionLog]) -> None:
        await self._workers.run(self._save, some)

    def _save(self, some: Sequence[PartitionLog]) -> None:
        LeaderEpochFile.save_all(self._disk, [log.epochs.to_save() for log in some])

    async def persist_start(self, log: PartitionLog, directory: LogDirectory) -> None:
        """Wait until the current start of a log is durable. Raises ``OSError`` if the disk fails."""
        starts = self._starts.get(directory)
        if starts is None:
            starts = LogStarts(self._machine, directory, self._checkpoints, self._save_in_lanes)
            self._starts[directory] = starts
        await starts.persist(log)

    # -- creations ----------------------------------------------------------------------------

    async def make(
        self,
        directory: LogDirectory,
        wanted: Sequence[NewLog],
        open_log: Callable[[NewLog], PartitionLog],
        on_open: Callable[[PartitionLog], None],
    ) -> dict[TopicPartition, KafkaError]:
        """Create and open logs in one log folder. Returns the failures.

        A worker calls ``open_log``. The event loop calls ``on_open`` when the log can be used.
        """
        failed: dict[TopicPartition, KafkaError] = {}
        made: list[NewLog] = []

        async def in_jobs(items: Sequence[NewLog], job: Callable[[Sequence[NewLog]], T]) -> list[T]:
            async def report_failures(some: Sequence[NewLog]) -> T | None:
                try:
                    return await self._workers.run(job, some)
                except OSError as error:
                    failed.update(dict.fromkeys((each.topic_partition for each in some), _refusal(error)))
                    if error.errno not in NO_ROOM_FOR_MORE:
                        self._on_failure(directory, error)
                    return None

            found = await _in_lanes(items, report_failures)
            return [each for each in found if each is not None]

        def make_some(some: Sequence[NewLog]) -> Sequence[NewLog]:
            make_folders(self._disk, directory.path, some)
            return some

        for some in await in_jobs(wanted, make_some):
            made += some
        if not made or not directory.is_online:
            return failed
        try:
            await self._workers.run(self._disk.sync_dir, directory.path)
        except OSError as error:
            self._on_failure(directory, error)
            return failed | {each.topic_partition: _refusal(error) for each in made}

        def open_some(some: Sequence[NewLog]) -> list[tuple[NewLog, PartitionLog | KafkaError]]:
            return [(each, _opened(open_log, each)) for each in some]

        for opened in await in_jobs(made, open_some):
            await asyncio.sleep(0)
            for new, log in opened:
                if isinstance(log, PartitionLog):
                    on_open(log)
                    continue
                failed[new.topic_partition] = log
                cause = log.__cause__
                if isinstance(cause, OSError) and cause.errno not in NO_ROOM_FOR_MORE:
                    self._on_failure(directory, cause)
        return failed


async def _in_lanes(items: Sequence[T], work: Callable[[Sequence[T]], Coroutine[Any, Any, R]]) -> list[R]:
    """Apply ``work`` to groups of items, with :data:`LANES` groups at a time. Returns the results for the
    groups."""
    waiting = iter([items[start : start + LOGS_A_JOB] for start in range(0, len(items), LOGS_A_JOB)])
    results: list[R] = []

    async def lane() -> None:
        for some in waiting:
            results.append(await work(some))

    await asyncio.gather(*(lane() for _ in range(LANES)))
    return results


def make_folders(disk: Disk, parent: str, wanted: Iterable[NewLog]) -> None:
    """Create partition folders with their metadata. The caller makes them durable by a sync of ``parent``.
    This call blocks."""
    files: dict[str, bytes] = {}
    for new in wanted:
        folder = f"{parent}/{folder_of(new.topic_partition)}"
        if not disk.is_dir(folder):
            disk.make_dirs(folder)
        path = f"{folder}/{PARTITION_METADATA}"
        if not disk.exists(path):
            files[path] = format_partition_metadata(new.topic_id)
    disk.write_all_atomically(files)


def _opened(open_log: Callable[[NewLog], PartitionLog], new: NewLog) -> PartitionLog | KafkaError:
    try:
        return open_log(new)
    except KafkaError as error:
        return error


def _refusal(error: OSError) -> KafkaError:
    refusal = KafkaError(
        ErrorCode.kafka_storage_error,
        f"making {error.filename or 'a folder'} failed: {error.strerror or error}",
    )
    refusal.__cause__ = error
    return refusal


async def release_log(machine: Machine, log: PartitionLog, path: str) -> str:
    """Close a log and rename its folder to ``path`` in the same log directory. Both changes are durable.

    Operations that already use the log's files are completed first, and later operations fail. Raises
    ``KafkaError``, caused by an ``OSError``, when the disk fails.
    """

    def release() -> None:
        log.close()
        log.epochs.end_file()
        try:
            machine.disk.rename(log.directory, path)
            machine.disk.sync_dir(path.rpartition("/")[0])
        except OSError as error:
            reason = f"renaming {log.directory} failed: {error.strerror or error}"
            raise KafkaError(ErrorCode.kafka_storage_error, reason) from error

    await log.flush()
    async with log.segments.changing:
        await machine.workers.run(release)
    return path
