"""One log folder of a node: its lock, its checkpoints, its clean-shutdown mark, and its health."""

import errno
import itertools
import json
import threading
import uuid
from collections.abc import Iterable, Mapping

from moldau.protocol.partitions import TopicPartition
from moldau.runtime.files.disk import Disk, DiskError, DiskSpace, Lock
from moldau.storage.critical_logs.recovery_report import RecoveryReport, Repair, RepairKind
from moldau.storage.folders.checkpoint import CheckpointError, read_offset_checkpoint, write_offset_checkpoint
from moldau.storage.folders.file_names import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LAST_BOOT,
    LOCK,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
)


class LogDirectoryError(Exception):
    """A log folder, or a partition's folder in it, cannot be used. The message names the folder and the
    reason."""


class LogDirectory:
    """A folder that contains the folders of partitions. Its methods block."""

    def __init__(
        self, disk: Disk, path: str, boot_id: str = "", report: RecoveryReport | None = None
    ) -> None:
        """``boot_id`` is the current boot id of the machine. ``report`` notes which files were rebuilt."""
        self._disk = disk
        self.path = path
        self.directory_id: uuid.UUID | None = None
        """The folder's id in its ``meta.properties``; None if this file could not be read."""
        self.was_read = False
        """Whether the partitions in the folder are known."""
        self._boot_id = boot_id
        self._report = report or RecoveryReport()
        self.same_boot = True
        """Whether the machine has not been restarted since the folder was last opened. If that is unknown,
        the value is true.
        """
        self.was_killed = False
        """Whether the process was killed while the machine kept running, so that all written bytes exist."""
        self.offline_reason: str | None = None
        self.was_clean = False
        self.clean_epoch = -1
        """The broker epoch in which the node stopped cleanly; -1 if it did not stop cleanly, or if the
        epoch is unknown."""
        self.recovery_points: dict[TopicPartition, int] = {}
        self.log_start_offsets: dict[TopicPartition, int] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.cleaner_offsets: dict[TopicPartition, int] = {}
        """For each log, the offset at which its last compaction ended."""
        self._lock: Lock | None = None
        self._written: dict[str, dict[TopicPartition, int]] = {}
        self._writing = threading.Lock()
        self._tickets = itertools.count()
        self._newest: dict[str, int] = {}

    @property
    def is_online(self) -> bool:
        return self.offline_reason is None

    def open(self) -> None:
        """Lock the folder and read its checkpoints. If the folder does not exist, it is created.

        Removes the clean-shutdown mark, because this mark may exist only after a clean stop. Raises
        :class:`LogDirectoryError` when another process has locked the folder, and ``OSError``.
        """
        self._disk.make_dirs(self.path)
        try:
            self._lock = self._disk.lock(f"{self.path}/{LOCK}")
        except DiskError as error:
            if error.errno == errno.EAGAIN:
                raise LogDirectoryError(
                    f"{self.path} is in use by another process (it holds {LOCK})"
                ) from error
            raise
        self.recovery_points = self._read(RECOVERY_POINTS)
        self.log_start_offsets = self._read(LOG_START_OFFSETS)
        self.high_watermarks = self._read(HIGH_WATERMARKS)
        self.cleaner_offsets = self._read(CLEANER_OFFSETS)
        last_boot = self._last_boot()
        self.same_boot = not (last_boot and self._boot_id and last_boot != self._boot_id.encode())
        mark = f"{self.path}/{CLEAN_SHUTDOWN}"
        self.was_clean = self._disk.exists(mark)
        if self.was_clean:
            self.clean_epoch = _broker_epoch(self._disk.read(mark))
            self._disk.remove(mark)
            self._disk.sync_dir(self.path)
        self.was_killed = bool(last_boot and self._boot_id) and self.same_boot and not self.was_clean

    def space(self) -> DiskSpace:
        """Return the size and free space of the folder's file system. Raises ``OSError`` if the disk
        fails."""
        return self._disk.space(self.path)

    def _last_boot(self) -> bytes:
        path = f"{self.path}/{LAST_BOOT}"
        return self._disk.read(path) if self._disk.exists(path) else b""

    def note_boot(self) -> None:
        """Write the boot id, because all logs are open and recovered. From now on, written bytes exist until
        the machine restarts."""
        path, boot_id = f"{self.path}/{LAST_BOOT}", self._boot_id.encode()
        if boot_id and not (self._disk.exists(path) and self._disk.read(path) == boot_id):
            self._disk.write_atomically(path, boot_id)

    def _read(self, name: str) -> dict[TopicPartition, int]:
        try:
            offsets = read_offset_checkpoint(self._disk, f"{self.path}/{name}")
        except CheckpointError as error:
            # The content of these files can be computed again from the logs.
            reason = f"is created again, because line {error.line} cannot be read: {error.reason}"
            self._report.add(Repair(RepairKind.REBUILT, error.path, reason))
            self._disk.remove(error.path)
            offsets = {}
        self._written[name] = dict(offsets)
        return offsets

    def says_otherwise(self, name: str, offsets: dict[TopicPartition, int]) -> bool:
        """Whether a checkpoint differs from these offsets."""
        return self._written.get(name) != offsets

    def has_checkpointed(self, topic_partition: TopicPartition) -> bool:
        """Whether a checkpoint on the disk contains a partition."""
        return any(topic_partition in offsets for offsets in self._written.values())

    def ticket(self) -> int:
        """Return a number that orders checkpoints by the time at which their content was collected."""
        return next(self._tickets)

    def write_checkpoint(self, name: str, offsets: dict[TopicPartition, int], ticket: int) -> None:
        """Replace one of the checkpoints, unless it already has the same content.

        Only one thread writes at a time, and older content never replaces newer content. Otherwise a
        checkpoint from before a truncation could claim that removed records exist.
        """
        with self._writing:
            if ticket < self._newest.get(name, -1):
                return
            self._newest[name] = ticket
            if self.says_otherwise(name, offsets):
                write_offset_checkpoint(self._disk, f"{self.path}/{name}", offsets)
                self._written[name] = offsets

    def write_checkpoints(self, offsets: Mapping[str, dict[TopicPartition, int]], ticket: int) -> None:
        """Replace several checkpoints, by name."""
        for name, each in offsets.items():
            self.write_checkpoint(name, each, ticket)

    def write_cleaner_offsets(self) -> None:
        """Replace the cleaner's checkpoint."""
        self.write_checkpoint(CLEANER_OFFSETS, dict(self.cleaner_offsets), self.ticket())

    def mark_clean(self, broker_epoch: int = -1) -> None:
        """Write the clean-shutdown mark, because all logs are durable and have checkpoints. The next start
        then does not search for damage.

        ``broker_epoch`` is -1 if the broker has not registered, for example because its start failed. The
        mark then has the epoch of the last clean stop, because the logs have not changed since."""
        epoch = self.clean_epoch if broker_epoch < 0 else broker_epoch
        content = json.dumps({"version": 0, "brokerEpoch": epoch}, separators=(",", ":"))
        self._disk.write_atomically(f"{self.path}/{CLEAN_SHUTDOWN}", content.encode())

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _broker_epoch(mark: bytes) -> int:
    try:
        return int(json.loads(mark)["brokerEpoch"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return -1  # An older version of the software wrote the file, without an epoch.


def previous_broker_epoch(directories: Iterable[LogDirectory], last_epoch: int = -1) -> int:
    """Return the broker epoch in which all folders were closed cleanly. It is -1 if a folder has no such
    epoch.

    ``last_epoch`` is the newest epoch in which the broker has registered, as far as the broker knows. If a
    folder was closed in an epoch before ``last_epoch``, or before the epoch of another folder, the folder is
    an older copy. The result is then the epoch of the copy. By this epoch the controller detects the copy
    (KIP-966).
    """
    epochs = {each.clean_epoch if each.is_online and each.was_clean else -1 for each in directories}
    oldest = min((epoch for epoch in epochs if epoch >= 0), default=-1)
    if len(epochs) == 1 or oldest < max((last_epoch, *epochs)):
        return oldest
    return -1
