"""Opens, creates and maintains all partition logs of a node, in one or more log folders."""

import asyncio
import contextlib
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from moldau.protocol.partitions import TopicPartition
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.storage.cleaner.cleaner import LogCleaner
from moldau.storage.critical_logs import inventory
from moldau.storage.critical_logs.recovery_report import RecoveryReport, Repair
from moldau.storage.folders.directory_failures import DirectoryFailures
from moldau.storage.folders.file_names import (
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    deleted_folder,
    is_stray_folder,
    stray_folder,
)
from moldau.storage.folders.found_folders import FoundFolders
from moldau.storage.folders.future_logs import FutureLogs, LogMove, finish_exchanges
from moldau.storage.folders.late_removals import LateRemovals
from moldau.storage.folders.log_checkpoints import ALL_CHECKPOINTS, LogCheckpoints, carry_offsets
from moldau.storage.folders.log_directory import LogDirectory, LogDirectoryError
from moldau.storage.folders.log_folders import FolderWork, NewLog, RetiredLog, release_log
from moldau.storage.folders.log_opener import LogOpener
from moldau.storage.folders.partition_metadata import is_misread
from moldau.storage.folders.placement import home_for_new
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.log_manager_settings import LogManagerSettings

logger = logging.getLogger(__name__)

ConfigOfTopic = Callable[[str], LogConfig]


class LogManager:
    """Opens, creates, deletes, checkpoints and flushes logs, and applies retention.

    When the disk of a log folder fails, the whole folder goes offline. One error line is logged,
    ``on_offline`` is called once, and all logs of the folder refuse operations. The other folders continue.
    """

    def __init__(
        self,
        machine: Machine,
        log_dirs: list[str],
        settings: LogManagerSettings | None = None,
        *,
        on_offline: Callable[[str, str], None] | None = None,
        critical: Mapping[str, inventory.CriticalTopic] | None = None,
    ) -> None:
        """``on_offline`` gets a folder's path and the reason; ``critical`` are the critical topics."""
        self._machine = machine
        self._disk = machine.disk
        self._settings = settings or LogManagerSettings()
        self._critical = critical or {}
        self.report = RecoveryReport()
        self.directories = [
            LogDirectory(machine.disk, path.rstrip("/"), machine.boot_id, self.report) for path in log_dirs
        ]
        self._opener = LogOpener(machine, self._critical, self.report)
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._homes: dict[TopicPartition, LogDirectory] = {}
        self._missing: dict[TopicPartition, Repair] = {}  # Folders that were missing when the node started.
        self.removals = LateRemovals(machine, self._settings.stray_delete_delay_ms)
        self.metadata_watermark = inventory.MetadataWatermark(self.directories)
        self._checkpoints = LogCheckpoints(machine, self.logs_of, self.metadata_watermark.of)
        self._failures = DirectoryFailures(self.logs_of, on_offline)
        self._found = FoundFolders(machine, self.directories, self._failures, self.removals)
        self.offline_listeners = self._failures.listeners
        self.futures = FutureLogs(machine, self._failures)
        self.unfinished_moves: list[tuple[TopicPartition, LogDirectory]] = []
        self.preferred: dict[TopicPartition, LogDirectory] = {}  # The folders in which logs will be created.
        self._folders = FolderWork(machine, self._checkpoints, self._retired, self._failures.log_failed)
        self._tasks: list[asyncio.Task[None]] = []
        self.broker_epoch = -1  # The broker epoch, which is written into the clean-shutdown files.
        self.stray_count = 0  # Folders that were moved aside since the node started.
        self.cleaner = LogCleaner(machine, self, self._settings.cleaner)

    # -- start and stop -----------------------------------------------------------------------

    async def start(self, config_of: ConfigOfTopic) -> None:
        """Lock the folders, load every partition in them, and begin the maintenance tasks.

        Raises :class:`LogDirectoryError`, which names the folder. All locks are released in this case.
        """
        try:
            self._failures.begin()
            for directory in self.directories:
                if directory.is_online:
                    with self._failures.disk_work(directory):
                        directory.open()
            self.unfinished_moves = finish_exchanges(self._disk, self.directories, self._failures)
            for directory, names in self._found.read().items():
                await self._load(directory, names, config_of)
            self._missing = inventory.check_no_folder_is_missing(self._disk, self.directories, self._critical)
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
        retention_ms = settings.log_retention_check_interval_ms
        flush_ms = settings.log_flush_scheduler_interval_ms
        checkpoint_ms = settings.log_flush_offset_checkpoint_interval_ms
        watermarks_ms = settings.replica_high_watermark_checkpoint_interval_ms
        expiry_ms = settings.producer_id_expiration_check_interval_ms
        self._tasks = [
            asyncio.create_task(self._repeat(chore, initial_delay_ms, interval_ms))
            for chore, initial_delay_ms, interval_ms in (
                (self.clean_up, settings.log_retention_initial_delay_ms, retention_ms),
                (self.flush_due, flush_ms, flush_ms),
                (self.checkpoint, checkpoint_ms, checkpoint_ms),
                (self.checkpoint_high_watermarks, watermarks_ms, watermarks_ms),
                (self._expire_producers, expiry_ms, expiry_ms),
            )
        ]
        if settings.cleaner.enable:
            self._tasks.append(asyncio.create_task(self.cleaner.run_forever()))

    async def _repeat(
        self, chore: Callable[[], Coroutine[Any, Any, None]], initial_delay_ms: int, interval_ms: int
    ) -> None:
        await asyncio.sleep(initial_delay_ms / 1000)
        while True:
            try:
                await chore()
            except Exception:
                logger.exception("periodic work of the log manager failed and will be tried again")
            await asyncio.sleep(interval_ms / 1000)

    async def note_boot(self) -> None:
        """Write the boot id, because all logs are open and recovered."""
        for directory in self.directories:
            with self._failures.disk_work(directory):
                if directory.is_online:
                    await self._machine.workers.run(directory.note_boot)

    async def stop(self) -> None:
        """Make all logs durable, close them, write the clean-shutdown marks, and unlock the folders."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._folders.stop()
        await self._each(list(self._logs.values()), self._close_log)
        for directory in self.directories:
            with self._failures.disk_work(directory):
                await self._checkpoints.write(directory, *ALL_CHECKPOINTS)
                if directory.is_online:
                    await self._machine.workers.run(directory.mark_clean, self.broker_epoch)
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

    async def _load(self, home: LogDirectory, names: list[TopicPartition], config_of: ConfigOfTopic) -> None:
        async def load(topic_partition: TopicPartition) -> None:
            config = config_of(topic_partition.topic)
            with contextlib.suppress(KafkaError), self._opening(home):
                log = await self._machine.workers.run(
                    self._opener.open, home, topic_partition, config, may_be_tiered=True
                )
                self._adopt(home, log)

        self._homes.update(dict.fromkeys(names, home))
        if home.is_online:
            await self._each(names, load)

    async def _each(self, items: list[Any], work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        """Call ``work`` with every item, for a few items at a time."""
        waiting = iter(items)

        async def lane() -> None:
            for item in waiting:
                await work(item)

        await asyncio.gather(*(lane() for _ in range(self._settings.num_recovery_threads)))

    def _adopt(self, directory: LogDirectory, log: PartitionLog) -> None:
        log.adopt(self._folders.keeper_of(log, directory, self._failures.log_failed, self._log_truncated))
        self._logs[log.topic_partition] = log
        self._homes[log.topic_partition] = directory

    @contextlib.contextmanager
    def _opening(self, directory: LogDirectory) -> Iterator[None]:
        """If the disk fails while a log is opened, the folder of the log goes offline."""
        try:
            yield
        except KafkaError as error:
            if isinstance(error.__cause__, OSError):
                self._failures.disk_failed(directory, error.__cause__, str(error))
            raise

    # -- logs ---------------------------------------------------------------------------------

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        return self._logs.get(topic_partition)

    def __iter__(self) -> Iterator[PartitionLog]:
        """The current logs. The iteration leaves out logs that are deleted while it runs."""
        for topic_partition in list(self._logs):
            if (log := self._logs.get(topic_partition)) is not None:
                yield log

    def lacks(self, topic_partition: TopicPartition, topic_id: uuid.UUID) -> bool:
        """Whether there is no log of this partition and topic id. The log must then be created."""
        log = self._logs.get(topic_partition)
        return log is None or log.topic_id != topic_id

    async def create(
        self, wanted: Iterable[NewLog], owner_of: Callable[[uuid.UUID], str | None] = lambda _: None
    ) -> dict[TopicPartition, KafkaError]:
        """Create logs durably. Existing logs with the same topic ids are kept. Returns the failures.

        An existing log whose topic id is no longer in the metadata image is moved aside. ``owner_of`` returns
        the name of the topic with an id. If the log's id belongs to another topic, a file was replaced.
        """
        new: dict[LogDirectory, list[NewLog]] = {}
        failed: dict[TopicPartition, KafkaError] = {}
        kept: set[TopicPartition] = set()
        counts = Counter(self._homes.values())
        for each in wanted:
            try:
                await self._choose_folder(each)
                log = self._logs.get(each.topic_partition)
                if log is not None and log.topic_id == each.topic_id:
                    continue
                if log is not None and (log.topic_id is None or is_misread(log.topic_id, each.topic_id)):
                    watermark = (
                        0 if each.config.is_cache else self.checkpointed_high_watermark(log.topic_partition)
                    )
                    inventory.checked_watermark(log, watermark, None, self.report)
                    await self._machine.workers.run(log.take_topic_id, each.topic_id)
                    continue
                if log is not None:
                    if not each.config.is_cache:
                        inventory.check_owner(log, owner_of)
                    logger.warning("%s belongs to %s, not to %s", log.directory, log.topic_id, each.topic_id)
                    self.put_aside(each.topic_partition)
                if (home := self._homes.get(each.topic_partition)) is not None:
                    kept.add(each.topic_partition)  # Its folder exists, but its log is not open.
                home = home or self.preferred.pop(each.topic_partition, None)
                directory = home_for_new(self.directories, home, counts, each.assignment)
            except KafkaError as error:
                failed[each.topic_partition] = error
                continue
            if (missing := self._missing.pop(each.topic_partition, None)) and not each.config.is_cache:
                self.report.add(missing)
            counts[directory] += 1
            new.setdefault(directory, []).append(each)
        await self._folders.settled()
        for directory, logs in new.items():
            names = {each.topic_partition for each in logs}
            await self._forget_offsets(directory, names - kept)
            failed |= await self._folders.make(
                directory, logs, partial(self._open_new, directory), partial(self._adopt, directory)
            )
        return failed

    async def _choose_folder(self, new: NewLog) -> None:
        """If a partition has several folders, keep the right one, and move the others aside."""
        if self._found.is_repeated(new.topic_partition):
            home = self._found.home_of(new)
            await self._put_folders_aside(new.topic_partition, home)
            if home is not None:
                self._homes[new.topic_partition] = home

    async def put_unused_aside(self, is_hosted: Callable[[TopicPartition], bool]) -> None:
        """Move folders aside if their partition has several folders and is not on this broker."""
        for name in self._found.repeated():
            if not is_hosted(name):
                await self._put_folders_aside(name)

    async def _put_folders_aside(self, name: TopicPartition, kept: LogDirectory | None = None) -> None:
        for directory in await self._found.put_aside(name, kept):
            self.stray_count += 1
            await self._forget_offsets(directory, [name])

    def _open_new(self, directory: LogDirectory, new: NewLog) -> PartitionLog:
        try:
            return self._opener.open(directory, new.topic_partition, new.config, new.topic_id)
        except LogDirectoryError as error:
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error

    def use(self, topic_partition: TopicPartition, config: LogConfig) -> PartitionLog:
        """Set the configuration of an existing log, and return the log. Raises
        ``KafkaError(kafka_storage_error)`` if there is no such log or its disk has failed."""
        log = self._logs.get(topic_partition)
        if log is None:
            raise KafkaError(ErrorCode.kafka_storage_error, f"{topic_partition} has no log")
        log.access.check()
        log.config = config
        return log

    def identify(self, ids: Mapping[str, uuid.UUID], unreadable: Mapping[str, str]) -> None:
        """Set the ids of the folders, by path, before the start. Unreadable folders are offline at first."""
        for directory in self.directories:
            directory.directory_id = ids.get(directory.path)
            if directory.path in unreadable:
                self._failures.take_offline(directory, unreadable[directory.path])

    def home_of(self, topic_partition: TopicPartition) -> LogDirectory | None:
        """Return the folder that has a log of this partition. The folder may be offline."""
        return self._homes.get(topic_partition)

    async def exchange(self, move: LogMove) -> None:
        """Replace a log by its copy, and open the copy. No code may use the log during the exchange.

        Raises ``KafkaError`` and ``OSError`` when a disk fails. The log is then offline until the next start.
        """
        log, name, home, target = move.source, move.name, move.home, move.target
        try:
            await self.futures.exchange(move)
        except (KafkaError, OSError):
            if log.is_offline and home.is_online:
                self._homes[name] = target  # The next start of the node completes the move.
            raise
        carry_offsets(log, home, target)
        self._homes[name] = target
        with self._opening(target):
            moved = await self._machine.workers.run(
                self._opener.open, target, name, log.config, log.topic_id, was_closed=True
            )
            self._adopt(target, moved)
        await self._forget_offsets(home, [name])
        path = f"{home.path}/{deleted_folder(name, move.unique)}"
        self.removals.add(path, log.config.file_delete_delay_ms)

    async def _forget_offsets(self, directory: LogDirectory, names: Iterable[TopicPartition]) -> None:
        """Drop checkpointed offsets of deleted partitions, because new partitions may get the same names."""
        for offsets in (
            directory.recovery_points,
            directory.log_start_offsets,
            directory.high_watermarks,
            directory.cleaner_offsets,
        ):
            for name in names:
                offsets.pop(name, None)
        if directory.is_online and any(map(directory.has_checkpointed, names)):
            with self._failures.disk_work(directory):
                await self._checkpoints.write(directory, *ALL_CHECKPOINTS)

    def checkpointed_high_watermark(self, topic_partition: TopicPartition) -> int:
        """The high watermark in the last checkpoint before the start; 0 when it is unknown."""
        home = self._homes.get(topic_partition)
        return home.high_watermarks.get(topic_partition, 0) if home is not None else 0

    def delete(self, topic_partition: TopicPartition) -> None:
        """Remove a log. Its folder is renamed soon, and deleted after ``file.delete.delay.ms``."""
        self._retire(topic_partition, deleted_folder(topic_partition, self._machine.entropy.uuid4()))

    def put_aside(self, topic_partition: TopicPartition) -> None:
        """Remove a log that is not in the metadata image. Its folder is renamed and kept for a long time."""
        name = stray_folder(topic_partition, self._machine.entropy.uuid4())
        if self._retire(topic_partition, name):
            self.stray_count += 1
            logger.warning("%s is not in the metadata: its folder is kept as %s", topic_partition, name)

    async def release(self, topic_partition: TopicPartition, name: str) -> str | None:
        """Close a log durably, and rename its folder. Returns the new path, or None if there is no log."""
        if (log := self._logs.pop(topic_partition, None)) is None:
            return None
        directory = self._homes.pop(topic_partition)
        # The checkpoints are changed first. Otherwise the next start would report a missing folder.
        await self._forget_offsets(directory, [topic_partition])
        with self._opening(directory):
            return await release_log(self._machine, log, f"{directory.path}/{name}")

    def _retire(self, topic_partition: TopicPartition, name: str) -> bool:
        log = self._logs.pop(topic_partition, None)
        directory = self._homes.pop(topic_partition, None)
        if log is None or directory is None:
            return False
        log.take_offline(f"{topic_partition} was deleted")
        self._folders.retire(RetiredLog(log, directory, f"{directory.path}/{name}"))
        return True

    def _retired(self, retired: RetiredLog) -> None:
        # The callbacks refer to the log. They are removed, because thousands of deleted logs would otherwise
        # stay in memory until a garbage collection.
        retired.log.epochs.on_change = retired.log.start.checkpoint = None
        if is_stray_folder(retired.target):
            self.removals.add_stray(retired.target)
        else:
            self.removals.add(retired.target, retired.log.config.file_delete_delay_ms)

    async def settled(self) -> None:
        """Wait until all earlier deletions are durable."""
        await self._folders.settled()

    # -- periodic work ------------------------------------------------------------------------

    async def clean_up(self) -> None:
        """Do one limited round of retention, and remove files whose delay is over."""
        budget = self._settings.retention_segments_per_round
        now_ms = self._machine.deletion_clock.now_ms()
        for log in self:
            if budget <= 0:
                break
            if log.awaits_config:
                continue
            with contextlib.suppress(KafkaError):
                # Segments are removed one by one, because an old segment may exist again after a loss of
                # power, and there must be no gap after this segment.
                while budget > 0 and (paths := await log.delete_old_segments(now_ms, max_segments=1)):
                    budget -= 1
                    self.remove_files_later(log, paths)
            await asyncio.sleep(0)
        await self.removals.run_due()

    async def flush_due(self) -> None:
        """Sync the logs that have a new segment or whose ``flush.ms`` has passed. Remove files whose delay is
        over."""
        # A log that was closed in the meantime is not due.
        for log in list(self._logs.values()):
            if log.is_flush_due():
                with contextlib.suppress(KafkaError):
                    await log.flush()
        await self.removals.run_due()

    async def checkpoint(self) -> None:
        """Write the recovery points and log starts of all folders."""
        for directory in self.directories:
            with self._failures.disk_work(directory):
                await self._checkpoints.write(directory, RECOVERY_POINTS, LOG_START_OFFSETS)

    async def checkpoint_high_watermarks(self) -> None:
        for directory in self.directories:
            with self._failures.disk_work(directory):
                await self._checkpoints.write(directory, HIGH_WATERMARKS)

    def _log_truncated(self, directory: LogDirectory, topic_partition: TopicPartition) -> Callable[[], None]:
        """Returns a callback. After a truncation of the log, it lowers the checkpointed offsets."""
        log, cleaned = self._logs.get(topic_partition), directory.cleaner_offsets.get(topic_partition)
        if log is not None and cleaned is not None and cleaned > log.log_end_offset:
            directory.cleaner_offsets[topic_partition] = log.log_end_offset
        if directory.has_checkpointed(topic_partition):
            return self._checkpoints.prepare(directory, *ALL_CHECKPOINTS)
        return lambda: None

    def logs_of(self, directory: LogDirectory) -> Iterator[PartitionLog]:
        """The logs in one folder."""
        for topic_partition, log in self._logs.items():
            if self._homes.get(topic_partition) is directory:
                yield log

    # -- methods for the cleaner --------------------------------------------------------------

    def cleaner_offset(self, topic_partition: TopicPartition) -> int | None:
        """The offset at which a log's last compaction ended; None if it was never compacted."""
        home = self._homes.get(topic_partition)
        return None if home is None else home.cleaner_offsets.get(topic_partition)

    async def note_cleaned(self, log: PartitionLog, offset: int) -> None:
        home = self._homes.get(log.topic_partition)
        if home is not None and self._logs.get(log.topic_partition) is log and home.is_online:
            with self._failures.disk_work(home):
                home.cleaner_offsets[log.topic_partition] = offset
                await self._machine.workers.run(home.write_cleaner_offsets)

    async def make_recoverable(self, log: PartitionLog) -> None:
        home = self._homes.get(log.topic_partition)
        if home is not None:
            with self._failures.disk_work(home):
                await self._checkpoints.write(home, RECOVERY_POINTS)

    def remove_files_later(self, log: PartitionLog, paths: Iterable[str]) -> None:
        for path in paths:
            self.removals.add(path, log.config.file_delete_delay_ms)

    async def _expire_producers(self) -> None:
        now_ms = self._machine.deletion_clock.now_ms()
        for log in self:
            log.producers.state.remove_expired(now_ms)
            await asyncio.sleep(0)
