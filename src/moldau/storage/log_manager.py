"""All partition logs of a node, in one or more log folders, and the chores that keep them in order."""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.runtime.descriptors import LACK_OF_DESCRIPTORS
from moldau.storage.checkpoint import CheckpointError
from moldau.storage.cleaner import LogCleaner
from moldau.storage.file_names import (
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    deleted_folder,
    folder_of,
    is_deleted_folder,
    is_stray_folder,
    partition_of,
    stray_folder,
)
from moldau.storage.late_removals import LateRemovals
from moldau.storage.log import PartitionLog
from moldau.storage.log_config import LogConfig
from moldau.storage.log_directory import LogDirectory, LogDirectoryError
from moldau.storage.log_guards import GuardedTopic, check_no_folder_is_missing, guard_of
from moldau.storage.log_manager_settings import LogManagerSettings
from moldau.storage.partition_metadata import MalformedMetadataError
from moldau.storage.recovery_report import RecoveryReport
from moldau.storage.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

ConfigOfTopic = Callable[[str], LogConfig]
_OTHER_FOLDERS = frozenset(
    {"__cluster_metadata-0", "objects", "remote-log-metadata", "remote-log-index-cache"}
)
"""What may lie beside the partitions: the quorum's log, a development node's object store, and caches of
the remote tier."""


class LogManager:
    """Opens, makes, deletes, checkpoints, flushes and shortens logs.

    A log folder whose disk fails goes offline as a whole: one error line, ``on_offline`` once, and all
    its logs refuse work; the other folders go on.
    """

    def __init__(
        self,
        machine: Machine,
        log_dirs: list[str],
        settings: LogManagerSettings | None = None,
        *,
        on_offline: Callable[[str, str], None] | None = None,
        guarded: Mapping[str, GuardedTopic] | None = None,
    ) -> None:
        """``on_offline`` gets a folder's path and the reason; ``guarded``: see :mod:`.guarding`."""
        self._machine = machine
        self._disk = machine.disk
        self._settings = settings or LogManagerSettings()
        self._on_offline = on_offline
        self._guarded = guarded or {}
        self.report = RecoveryReport()
        self.directories = [
            LogDirectory(machine.disk, path.rstrip("/"), machine.boot_id, self.report) for path in log_dirs
        ]
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._homes: dict[TopicPartition, LogDirectory] = {}
        self._removals = LateRemovals(machine)
        self._tasks: list[asyncio.Task[None]] = []
        self.stray_count = 0
        """Folders of partitions that are not in the metadata, put aside since the start."""
        self.cleaner = LogCleaner(machine, self, self._settings.cleaner)

    # -- life ---------------------------------------------------------------------------------

    async def start(self, config_of: ConfigOfTopic) -> None:
        """Lock the folders, load every partition in them, begin the chores.

        Raises :class:`LogDirectoryError`, which names the folder; then nothing stays locked.
        """
        try:
            for directory in self.directories:
                await self._open_directory(directory, config_of)
            check_no_folder_is_missing(self._disk, self.directories, self._guarded)
        except BaseException:
            self._unlock()
            raise
        if not any(directory.is_online for directory in self.directories):
            self._unlock()
            raise LogDirectoryError(
                "no log folder can be used: "
                + "; ".join(f"{directory.path}: {directory.offline_reason}" for directory in self.directories)
            )
        settings = self._settings
        chores: list[tuple[Callable[[], Coroutine[Any, Any, None]], int, int]] = [
            (
                self.clean_up,
                settings.log_retention_initial_delay_ms,
                settings.log_retention_check_interval_ms,
            ),
            (
                self.flush_due,
                settings.log_flush_scheduler_interval_ms,
                settings.log_flush_scheduler_interval_ms,
            ),
            (
                self.checkpoint,
                settings.log_flush_offset_checkpoint_interval_ms,
                settings.log_flush_offset_checkpoint_interval_ms,
            ),
            (
                self.checkpoint_high_watermarks,
                settings.replica_high_watermark_checkpoint_interval_ms,
                settings.replica_high_watermark_checkpoint_interval_ms,
            ),
            (
                self._expire_producers,
                settings.producer_id_expiration_check_interval_ms,
                settings.producer_id_expiration_check_interval_ms,
            ),
        ]
        self._tasks = [asyncio.create_task(self._repeat(*chore)) for chore in chores]
        if settings.cleaner.enable:
            self._tasks.append(asyncio.create_task(self.cleaner.run_for_ever()))

    async def _repeat(
        self, chore: Callable[[], Coroutine[Any, Any, None]], initial_delay_ms: int, interval_ms: int
    ) -> None:
        await asyncio.sleep(initial_delay_ms / 1000)
        while True:
            try:
                await chore()
            except Exception:
                logger.exception("a chore of the log manager failed; it will be tried again")
            await asyncio.sleep(interval_ms / 1000)

    async def note_boot(self) -> None:
        """All logs, the quorum's too, are open and recovered."""
        for directory in self.directories:
            with self._guard(directory):
                if directory.is_online:
                    await self._machine.workers.run(directory.note_boot)

    async def stop(self) -> None:
        """Make all logs durable, close them, leave the marks of a clean stop, unlock the folders."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._each(list(self._logs.values()), self._close_log)
        for directory in self.directories:
            with self._guard(directory):
                self._write_all(directory)
                if directory.is_online:
                    directory.mark_clean()
        self._logs.clear()
        self._homes.clear()
        self._unlock()

    async def _close_log(self, log: PartitionLog) -> None:
        with contextlib.suppress(KafkaError):
            await log.flush()
            await self._machine.workers.run(log.close)

    def _unlock(self) -> None:
        for directory in self.directories:
            directory.unlock()

    # -- loading ------------------------------------------------------------------------------

    async def _open_directory(self, directory: LogDirectory, config_of: ConfigOfTopic) -> None:
        folders: list[TopicPartition] = []
        with self._guard(directory):
            directory.open()
            for name in self._disk.list(directory.path):
                if not self._disk.is_dir(f"{directory.path}/{name}") or name in _OTHER_FOLDERS:
                    continue
                topic_partition = partition_of(name)
                if is_deleted_folder(name):
                    self._removals.add(f"{directory.path}/{name}", 0)
                elif is_stray_folder(name):
                    logger.info("%s/%s was put aside: remove it when it is not needed", directory.path, name)
                elif topic_partition is None:
                    logger.warning("skipping %s/%s: it is not a partition's folder", directory.path, name)
                elif topic_partition in self._homes:
                    raise LogDirectoryError(
                        f"{directory.path}/{name} is also in {self._homes[topic_partition].path}"
                    )
                else:
                    self._homes[topic_partition] = directory
                    folders.append(topic_partition)
        if directory.is_online:

            async def load(topic_partition: TopicPartition) -> None:
                config = config_of(topic_partition.topic)
                with contextlib.suppress(KafkaError), self._opening(directory):
                    log = await self._machine.workers.run(
                        self._open_log, directory, topic_partition, config, may_be_tiered=True
                    )
                    self._adopt(log, directory)

            await self._each(folders, load)

    async def _each(self, items: list[Any], work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        """Do ``work`` on every item, a few at a time."""
        waiting = iter(items)

        async def lane() -> None:
            for item in waiting:
                await work(item)

        await asyncio.gather(*(lane() for _ in range(self._settings.num_recovery_threads)))

    def _open_log(
        self,
        directory: LogDirectory,
        topic_partition: TopicPartition,
        config: LogConfig,
        topic_id: uuid.UUID | None = None,
        *,
        may_be_tiered: bool = False,
    ) -> PartitionLog:
        path = f"{directory.path}/{folder_of(topic_partition)}"
        try:
            log = PartitionLog.open(
                self._machine,
                path,
                topic_partition,
                config,
                recovery_point=directory.recovery_points.get(topic_partition, 0),
                clean_shutdown=directory.was_clean,
                log_start_offset=directory.log_start_offsets.get(topic_partition, 0),
                topic_id=topic_id,
                may_be_tiered=may_be_tiered,
                guard=guard_of(directory, topic_partition, self._guarded),
                report=self.report,
            )
        except (CheckpointError, MalformedMetadataError) as error:
            raise LogDirectoryError(f"partition folder {path} cannot be loaded: {error}") from error
        watermark = directory.high_watermarks.get(topic_partition, 0)
        log.high_watermark = max(log.log_start_offset, min(watermark, log.log_end_offset))
        return log

    def _adopt(self, log: PartitionLog, directory: LogDirectory) -> None:
        log.on_failure = partial(self._log_failed, directory)
        log.on_truncation = partial(self._log_truncated, directory, log.topic_partition)
        self._logs[log.topic_partition] = log
        self._homes[log.topic_partition] = directory

    @contextlib.contextmanager
    def _opening(self, directory: LogDirectory) -> Iterator[None]:
        """A disk that fails while a log is opened takes its folder offline."""
        try:
            yield
        except KafkaError as error:
            if isinstance(error.__cause__, OSError):
                self._disk_failed(directory, error.__cause__, str(error))
            raise

    # -- logs ---------------------------------------------------------------------------------

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        return self._logs.get(topic_partition)

    def __iter__(self) -> Iterator[PartitionLog]:
        return iter(list(self._logs.values()))

    def get_or_create(
        self, topic_partition: TopicPartition, config: LogConfig, topic_id: uuid.UUID
    ) -> PartitionLog:
        """The partition's log, with this configuration; made, durably, when there is none.

        A log of another topic id is what a deleted topic of the same name has left: it makes room.
        Raises ``KafkaError(kafka_storage_error)``.
        """
        log = self._logs.get(topic_partition)
        if log is not None:
            if log.topic_id == topic_id:
                log.config = config
                return log
            if log.topic_id is None:
                log.take_topic_id(topic_id)
                log.config = config
                return log
            logger.warning("%s belongs to topic id %s, not to %s", log.directory, log.topic_id, topic_id)
            self.put_aside(topic_partition)
        directory = self._homes.get(topic_partition) or self._roomiest_directory()
        if not directory.is_online:
            raise KafkaError(
                ErrorCode.kafka_storage_error,
                f"log folder {directory.path} is offline: {directory.offline_reason}",
            )
        self._forget_offsets(directory, topic_partition)
        with self._opening(directory):
            log = self._open_log(directory, topic_partition, config, topic_id)
        self._adopt(log, directory)
        return log

    def _forget_offsets(self, directory: LogDirectory, topic_partition: TopicPartition) -> None:
        """What the checkpoints say of an earlier partition of this name must not judge a new one."""
        for offsets in (
            directory.recovery_points,
            directory.log_start_offsets,
            directory.high_watermarks,
            directory.cleaner_offsets,
        ):
            offsets.pop(topic_partition, None)
        if directory.has_checkpointed(topic_partition):
            with self._guard(directory):
                self._write_all(directory)

    def _roomiest_directory(self) -> LogDirectory:
        online = [directory for directory in self.directories if directory.is_online]
        if not online:
            raise KafkaError(ErrorCode.kafka_storage_error, "every log folder is offline")
        homes = list(self._homes.values())
        return min(online, key=homes.count)

    def checkpointed_high_watermark(self, topic_partition: TopicPartition) -> int:
        """The high watermark as of the last checkpoint before the start; 0 when unknown."""
        home = self._homes.get(topic_partition)
        return home.high_watermarks.get(topic_partition, 0) if home is not None else 0

    def delete(self, topic_partition: TopicPartition) -> None:
        """Take a log out at once; its bytes go after ``file.delete.delay.ms``."""
        name = deleted_folder(topic_partition, self._machine.entropy.uuid4())
        log, target = self._rename_away(topic_partition, name)
        if log is not None and target is not None:
            self._removals.add(target, log.config.file_delete_delay_ms)

    def put_aside(self, topic_partition: TopicPartition) -> str | None:
        """Take a log out that is not in the metadata; its bytes stay, in a folder that is returned."""
        name = stray_folder(topic_partition, self._machine.entropy.uuid4())
        _, target = self._rename_away(topic_partition, name)
        if target is not None:
            self.stray_count += 1
            logger.warning("%s is not in the metadata: its folder is kept as %s", topic_partition, target)
        return target

    def _rename_away(
        self, topic_partition: TopicPartition, name: str
    ) -> tuple[PartitionLog | None, str | None]:
        log = self._logs.pop(topic_partition, None)
        directory = self._homes.pop(topic_partition, None)
        if log is None or directory is None:
            return None, None
        log.take_offline(f"{topic_partition} was deleted")
        target = f"{directory.path}/{name}"
        with self._guard(directory):
            self._disk.rename(log.directory, target)
            self._disk.sync_dir(directory.path)
        return log, target if directory.is_online else None

    # -- failure ------------------------------------------------------------------------------

    def _log_failed(self, directory: LogDirectory, error: OSError) -> None:
        self._disk_failed(directory, error, f"{error.filename or directory.path}: {error.strerror or error}")

    def _disk_failed(self, directory: LogDirectory, error: OSError, reason: str) -> None:
        """Without free descriptors the disk is well: nothing but the operation, or its log, has failed."""
        if error.errno in LACK_OF_DESCRIPTORS:
            logger.error("%s: %s", directory.path, reason)
        else:
            self._take_offline(directory, reason)

    def _take_offline(self, directory: LogDirectory, reason: str) -> None:
        if not directory.is_online:
            return
        directory.offline_reason = reason
        logger.error("log folder %s is offline: %s", directory.path, reason)
        for topic_partition, home in self._homes.items():
            if home is directory and topic_partition in self._logs:
                self._logs[topic_partition].take_offline(f"log folder {directory.path} is offline: {reason}")
        if self._on_offline is not None:
            self._on_offline(directory.path, reason)

    @contextlib.contextmanager
    def _guard(self, directory: LogDirectory) -> Iterator[None]:
        """A failing disk takes the folder offline; whoever runs under it goes on without it."""
        try:
            yield
        except OSError as error:
            self._log_failed(directory, error)

    # -- chores -------------------------------------------------------------------------------

    async def clean_up(self) -> None:
        """One round of retention, bounded; and the removal of files whose delay is over."""
        budget = self._settings.retention_segments_per_round
        now_ms = self._machine.deletion_clock.now_ms()
        for log in self:
            if budget <= 0:
                break
            if log.awaits_config:
                continue
            with contextlib.suppress(KafkaError):
                while budget > 0 and (paths := log.delete_old_segments(now_ms, max_segments=1)):
                    budget -= 1
                    self.remove_files_later(log, paths)
                    # One by one: after a loss of power there must be no gap behind a segment that came back.
                    await log.sync_folder()
            await asyncio.sleep(0)
        await self._removals.run_due()

    async def flush_due(self) -> None:
        """Sync logs that have rolled since their last sync, or whose ``flush.ms`` is over."""
        for log in self:
            if log.is_flush_due():
                with contextlib.suppress(KafkaError):
                    await log.flush()
        await self._removals.run_due()

    async def checkpoint(self) -> None:
        """Write the recovery points and log starts of all folders."""
        for directory in self.directories:
            with self._guard(directory):
                await self._write(directory, RECOVERY_POINTS, self._recovery_points(directory))
                await self._write(directory, LOG_START_OFFSETS, self._log_start_offsets(directory))

    async def checkpoint_high_watermarks(self) -> None:
        for directory in self.directories:
            with self._guard(directory):
                await self._write(directory, HIGH_WATERMARKS, self._high_watermarks(directory))

    async def _write(self, directory: LogDirectory, name: str, offsets: dict[TopicPartition, int]) -> None:
        if directory.is_online and directory.says_otherwise(name, offsets):
            await self._machine.workers.run(directory.write_checkpoint, name, offsets, directory.ticket())

    def _write_all(self, directory: LogDirectory) -> None:
        if directory.is_online:
            ticket = directory.ticket()
            directory.write_checkpoint(RECOVERY_POINTS, self._recovery_points(directory), ticket)
            directory.write_checkpoint(LOG_START_OFFSETS, self._log_start_offsets(directory), ticket)
            directory.write_checkpoint(HIGH_WATERMARKS, self._high_watermarks(directory), ticket)
            directory.write_cleaner_offsets()

    def _log_truncated(self, directory: LogDirectory, topic_partition: TopicPartition) -> None:
        """What was durable may now be cut and written anew: the checkpoints must not vouch for it."""
        log, cleaned = self._logs.get(topic_partition), directory.cleaner_offsets.get(topic_partition)
        if log is not None and cleaned is not None and cleaned > log.log_end_offset:
            directory.cleaner_offsets[topic_partition] = log.log_end_offset
        if directory.has_checkpointed(topic_partition):
            with self._guard(directory):
                self._write_all(directory)

    def logs_of(self, directory: LogDirectory) -> Iterator[PartitionLog]:
        """The logs that lie in one of the folders."""
        for topic_partition, log in self._logs.items():
            if self._homes.get(topic_partition) is directory:
                yield log

    def _recovery_points(self, directory: LogDirectory) -> dict[TopicPartition, int]:
        return {log.topic_partition: log.flushed_offset for log in self.logs_of(directory)}

    def _log_start_offsets(self, directory: LogDirectory) -> dict[TopicPartition, int]:
        return {
            log.topic_partition: log.log_start_offset
            for log in self.logs_of(directory)
            if log.config.remote_storage_enable or log.log_start_offset > log.segments.segments[0].base_offset
        }

    def _high_watermarks(self, directory: LogDirectory) -> dict[TopicPartition, int]:
        return {log.topic_partition: log.high_watermark for log in self.logs_of(directory)}

    # -- what the cleaner needs ---------------------------------------------------------------

    def cleaner_offset(self, topic_partition: TopicPartition) -> int | None:
        """Where the last compaction of a log has ended."""
        home = self._homes.get(topic_partition)
        return None if home is None else home.cleaner_offsets.get(topic_partition)

    async def note_cleaned(self, log: PartitionLog, offset: int) -> None:
        home = self._homes.get(log.topic_partition)
        if home is not None and self._logs.get(log.topic_partition) is log and home.is_online:
            with self._guard(home):
                home.cleaner_offsets[log.topic_partition] = offset
                await self._machine.workers.run(home.write_cleaner_offsets)

    async def make_recoverable(self, log: PartitionLog) -> None:
        home = self._homes.get(log.topic_partition)
        if home is not None:
            with self._guard(home):
                await self._write(home, RECOVERY_POINTS, self._recovery_points(home))

    def remove_files_later(self, log: PartitionLog, paths: Iterable[str]) -> None:
        for path in paths:
            self._removals.add(path, log.config.file_delete_delay_ms)

    async def _expire_producers(self) -> None:
        now_ms = self._machine.deletion_clock.now_ms()
        for log in self:
            log.producers.state.remove_expired(now_ms)
            await asyncio.sleep(0)
