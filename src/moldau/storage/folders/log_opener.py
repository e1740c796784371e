"""Opens the log of a partition with the checkpointed offsets of its log folder."""

import uuid
from collections.abc import Mapping

from moldau.runtime import Machine
from moldau.storage.folders.checkpoint import CheckpointError
from moldau.storage.folders.file_names import folder_of
from moldau.storage.folders.log_directory import LogDirectory, LogDirectoryError
from moldau.storage.folders.partition_metadata import MalformedMetadataError
from moldau.storage.guards import log_guards
from moldau.storage.guards.recovery_report import RecoveryReport
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.topic_partition import TopicPartition


class LogOpener:
    """Opens logs with the recovery points, log starts and watermarks of their folders."""

    def __init__(
        self, machine: Machine, guarded: Mapping[str, log_guards.GuardedTopic], report: RecoveryReport
    ) -> None:
        """``guarded`` contains the topics with guards (:mod:`..guards.guarding`). ``report`` notes all
        repairs."""
        self._machine = machine
        self._disk = machine.disk
        self._guarded = guarded
        self._report = report

    def open(
        self,
        directory: LogDirectory,
        topic_partition: TopicPartition,
        config: LogConfig,
        topic_id: uuid.UUID | None = None,
        *,
        may_be_tiered: bool = False,
    ) -> PartitionLog:
        """Open a log. If the log does not exist, create it. Blocking.

        Raises the errors of ``PartitionLog.open``, and :class:`LogDirectoryError` for a folder whose files
        cannot be loaded.
        """
        path = f"{directory.path}/{folder_of(topic_partition)}"
        report = log_guards.report_of(self._disk, path, self._report)
        has_all_written = directory.was_killed or directory.was_clean
        removed = log_guards.removed_segment(self._disk, path) if has_all_written else None
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
                was_killed=directory.was_killed,
                guard=log_guards.guard_of(directory, topic_partition, self._guarded),
                report=report,
            )
        except (CheckpointError, MalformedMetadataError) as error:
            raise LogDirectoryError(f"partition folder {path} cannot be loaded: {error}") from error
        watermark = directory.high_watermarks.get(topic_partition, 0)
        log.high_watermark = log_guards.checked_watermark(log, watermark, removed, report)
        return log
