"""The start of an open log. This module has the offset, and the rules for moving it and for making a move
durable."""

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from moldau.runtime import Workers
from moldau.storage.critical_logs.recovery_report import RecoveryReport, Repair, RepairKind
from moldau.storage.log.leader_epochs import EpochEntry
from moldau.storage.log.state.log_state import LogState

_WRITING = "writing the leader epochs of"


class LogStart:
    """Decides where a log begins. When the start moves, it drops the epochs below the start.

    A log that may be tiered waits for its topic's configuration (``awaits_config``). Only then is it known
    whether offsets before the first local segment are in the remote tier or are lost.
    """

    def __init__(self, state: LogState, report: RecoveryReport, *, has_snapshots: bool) -> None:
        """``has_snapshots`` means that snapshots replace the records before the first segment, so these
        records are not lost."""
        self._state = state
        self._report = report
        self._has_snapshots = has_snapshots
        self.awaits_config = False
        """Whether the configuration of the log's topic is not known yet. Nothing may be deleted until
        then."""
        self.has_chunks = False
        """Whether the records before the first segment are in inactive chunks of the partition (KIP-1114)."""
        self._is_settled = False
        """Whether the start was determined after the log was opened."""
        self.checkpoint: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Makes the start durable, after the leader epochs. Raises ``OSError``."""

    def move(self, offset: int) -> None:
        """Move the start. The caller has checked that the new start is above the old start and not above the
        end. The move is durable when the log's owner, or the caller, has saved the epochs."""
        self._state.offsets.move_start(offset)
        self._state.producers.state.advance_log_start(offset)
        self._state.epochs.move_start(offset)

    def restore_epochs(self, entries: Iterable[EpochEntry]) -> None:
        """Set the epochs of offsets before the first local segment, if they were lost. ``entries`` is
        empty if there are no such offsets."""
        with self._state.access.disk_work(_WRITING):
            self._state.epochs.restore(entries, self._state.offsets.log_start_offset)

    def configured(self) -> None:
        """Determine the start, because the topic's configuration is known now. The segments already have
        it."""
        self.awaits_config = False
        if not self._state.segments.config.remote_storage_enable:
            self._state.offsets.highest_copied_offset = -1
        if self._state.access.failure is None:
            with self._state.access.disk_work(_WRITING):
                self.settle()

    def settle(self) -> None:
        """Determine the start. The configuration is known now. It decides whether there are records before
        the first local segment."""
        segments, start_offset = self._state.segments, self._state.offsets.log_start_offset
        tiered = segments.config.remote_storage_enable or self.has_chunks
        start = self._state.epochs.start_offset_at_open if tiered else segments.segments[0].base_offset
        if self._state.epochs.are_lost and not tiered:
            self.restore_epochs(())
        if start_offset < start:
            if not (tiered or self._has_snapshots or self._is_settled):
                reason = f"offsets {start_offset} to {start - 1} are missing: its first segment is gone"
                self._report.add(Repair(RepairKind.LOST, segments.folder, reason, start_offset))
            self.move(start)
        if not (self._is_settled or segments.config.cleanup_compact):
            self._report_holes()
        self._is_settled = True

    def _report_holes(self) -> None:
        for start, end in self._state.segments.holes:
            reason = f"offsets {start} to {end - 1} are missing: a segment between them is gone or shorter"
            self._report.add(Repair(RepairKind.LOST, self._state.segments.folder, reason, start))

    async def persist(self, workers: Workers) -> None:
        """Wait until the current start is durable, if the owner of the log makes it durable.

        Raises ``KafkaError(kafka_storage_error)`` if the disk fails.
        """
        self._state.access.check()
        try:
            if self.checkpoint is not None:
                await self.checkpoint()
            elif not self._state.epochs.is_saved:
                await workers.run(self._state.epochs.save)
        except OSError as error:
            self._state.access.check_descriptors("writing the start of", error)
            self._state.access.fail("writing the start of", error)
        self._state.access.check()
