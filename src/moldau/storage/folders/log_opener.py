"""Opens the log of a partition with the checkpointed offsets of its log folder."""

import uuid
from collections.abc import Mapping

from moldau.protocol.partitions import TopicPartition
from moldau.runtime import Machine
from moldau.storage.critical_logs import inventory
from moldau.storage.critical_logs.recovery_report import RecoveryReport
from moldau.storage.folders.checkpoint import CheckpointError
from moldau.storage.folders.file_names import folder_of
from moldau.storage.folders.log_directory import LogDirectory, LogDirectoryError
from moldau.storage.folders.partition_metadata import MalformedMetadataError
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog


class LogOpener:
    """Opens logs with the recovery points, log starts and watermarks of their folders."""

    def __init__(
        self, machine: Machine, critical: Mapping[str, inventory.CriticalTopic], report: RecoveryReport
    ) -> None:
        """``critical`` contains the topics of critical logs. All repairs are added to ``report``."""
        self._machine = machine
        self._disk = machine.disk
        self._critical = critical
        self._report = report

    def open(
        self,
        directory: LogDirectory,
        topic_partition: TopicPartition,
        config: LogConfig,
        topic_id: uuid.UUID | None = None,
        *,
        may_be_tiered: bool = False,
        was_closed: bool = False,
    ) -> PartitionLog:
        """Open a log. If the log does not exist, create it. This call blocks.

        ``was_closed`` means that this process has closed the log, so that it needs no recovery.

        Raises the errors of ``PartitionLog.open``, and :class:`LogDirectoryError` for a folder whose files
        cannot be loaded.
        """
        path = f"{directory.path}/{folder_of(topic_partition)}"
        report = inventory.report_of(self._disk, path, self._report)
        has_all_written = directory.was_killed or directory.was_clean
        removed = inventory.removed_segment(self._disk, path) if has_all_written else None
        try:
            log = PartitionLog.open(
                self._machine,
                path,
                topic_partition,
                config,
                recovery_point=directory.recovery_points.get(topic_partition, 0),
                clean_shutdown=was_closed or directory.was_clean,
                log_start_offset=directory.log_start_offsets.get(topic_partition, 0),
                topic_id=topic_id,
                may_be_tiered=may_be_tiered,
                was_killed=directory.was_killed,
                integrity=inventory.integrity_of(directory, topic_partition, self._critical),
                report=report,
            )
        except (CheckpointError, MalformedMetadataError) as error:
            raise LogDirectoryError(f"partition folder {path} cannot be loaded: {error}") from error
        watermark = directory.high_watermarks.get(topic_partition, 0)
        log.high_watermark = inventory.checked_watermark(log, watermark, removed, report)
        return log
