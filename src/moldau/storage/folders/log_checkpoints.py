"""The checkpoints of log folders. This module collects their content, and writes them without blocking the
event loop."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from moldau.protocol.partitions import TopicPartition
from moldau.runtime import Machine
from moldau.storage.folders.file_names import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
)
from moldau.storage.folders.log_directory import LogDirectory
from moldau.storage.log.partition_log import PartitionLog

Offsets = dict[TopicPartition, int]

ALL_CHECKPOINTS: Final = (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS, CLEANER_OFFSETS)


class LogCheckpoints:
    """Writes a folder's checkpoints from the state of its logs. Methods raise ``OSError``."""

    def __init__(
        self,
        machine: Machine,
        logs_of: Callable[[LogDirectory], Iterable[PartitionLog]],
        other_watermarks: Callable[[LogDirectory], Offsets],
    ) -> None:
        """``other_watermarks`` returns the high watermarks of logs that are stored elsewhere. These
        watermarks are also written into the checkpoint of a folder."""
        self._machine = machine
        self._logs_of = logs_of
        self._other_watermarks = other_watermarks

    async def write(self, directory: LogDirectory, *names: str) -> None:
        """Write the checkpoints that have changed."""
        if directory.is_online:
            ticket = directory.ticket()
            offsets = {name: self._of(directory, name) for name in names}
            due = {name: each for name, each in offsets.items() if directory.says_otherwise(name, each)}
            if due:
                await self._machine.workers.run(directory.write_checkpoints, due, ticket)

    def prepare(self, directory: LogDirectory, *names: str) -> Callable[[], None]:
        """Prepare a write of the current checkpoints. The result is a function, which a worker calls.

        If another write of a checkpoint is in progress, that write has older content, and this write replaces
        the content.
        """
        if not directory.is_online:
            return lambda: None
        offsets = {name: self._of(directory, name) for name in names}
        return partial(directory.write_checkpoints, offsets, directory.ticket())

    def _of(self, directory: LogDirectory, name: str) -> Offsets:
        if name == CLEANER_OFFSETS:
            return dict(directory.cleaner_offsets)
        logs = self._logs_of(directory)
        if name == RECOVERY_POINTS:
            return {log.topic_partition: log.flushed_offset for log in logs}
        if name == HIGH_WATERMARKS:
            known = {log.topic_partition: log.high_watermark for log in logs}
            return known | self._other_watermarks(directory)
        return {
            log.topic_partition: log.log_start_offset
            for log in logs
            if log.config.remote_storage_enable or log.log_start_offset > log.segments.segments[0].base_offset
        }


def carry_offsets(log: PartitionLog, home: LogDirectory, target: LogDirectory) -> None:
    """Give the folder ``target`` the offsets of a closed log, which moves there from the folder ``home``."""
    name = log.topic_partition
    target.recovery_points[name] = log.log_end_offset
    target.log_start_offsets[name] = log.log_start_offset
    target.high_watermarks[name] = log.high_watermark
    # The target may still have the offset of a deleted topic with the same name.
    target.cleaner_offsets.pop(name, None)
    if (cleaned := home.cleaner_offsets.get(name)) is not None:
        target.cleaner_offsets[name] = cleaned
