"""Truncations of a log. They remove the end of the log, or make an empty log that begins at another
offset."""

from collections.abc import Callable, Sequence
from functools import partial

from moldau.storage.critical_logs.integrity_check import DurableOffset
from moldau.storage.log.auxiliary_state import AuxiliaryState
from moldau.storage.log.files.disk_steps import FileOperations, FileSteps, holding_files
from moldau.storage.log.state.log_state import LogState
from moldau.storage.producers.producer_state import ProducerEntry


class Truncation:
    """Truncates a log's segments, together with its offsets, epochs and producers. The steps of an operation
    have such an order that a crash between two steps does no harm. No append is allowed before the operation
    returns."""

    def __init__(
        self,
        operations: FileOperations,
        state: LogState,
        durable: DurableOffset | None,
        now_ms: Callable[[], int],
    ) -> None:
        """``durable`` is the stored durable offset of a critical log."""
        self._operations = operations
        self._state = state
        self._durable = durable
        self._now_ms = now_ms
        self.on_truncation: Callable[[], Callable[[], None]] | None = None
        """Called at least once in each truncation, before the next append. It returns a function, which a
        worker runs before the truncation is complete."""

    async def truncate_to(self, offset: int) -> None:
        """Drop every batch that contains or follows ``offset``, durably. Nothing happens if ``offset`` is at
        or above the end. The log then ends after its last remaining batch. If compaction has removed the
        batches directly before ``offset``, this end is below ``offset``."""
        await self._operations.do("truncating", self._truncating(offset))

    async def restart_at(self, offset: int) -> None:
        """Drop all records. The log is then empty and begins at ``offset``."""
        await self._operations.do("truncating", self._restarting(offset))

    async def begin_behind_remote(self, state: AuxiliaryState) -> None:
        """Drop all local records. The log is then empty and begins after the offsets in the remote tier."""
        await self._operations.do("beginning anew", self._beginning_behind(state))

    def restart_now(self, offset: int) -> None:
        """Does the same as :meth:`restart_at`, but on the calling thread. This call blocks."""
        self._operations.do_now("truncating", self._restarting(offset))

    def _truncating(self, offset: int) -> FileSteps[None]:
        segments, start_offset = self._state.segments, self._state.offsets.log_start_offset
        first_offset = segments.segments[0].base_offset
        if offset >= segments.end_offset:
            return
        if offset < start_offset or first_offset < offset == start_offset:
            yield from self._restarting(offset)
        elif offset <= first_offset:
            # If records before ``offset`` are in the remote tier, they stay readable. Producers whose batches
            # retention has removed stay known.
            producers = yield partial(self._state.producers.snapshots.at, offset)
            yield from self._emptying(offset, producers)
            yield from self._truncated(offset)
        elif segments.end_before(offset) < start_offset:
            yield from self._restarting(start_offset)
        else:
            self._state.offsets.truncation_count += 1
            yield partial(self._lower_durable, offset)
            cut_files = segments.truncate_to(offset)
            self._forget_from(segments.end_offset)
            yield from self._lower_checkpoints()
            self._state.producers.truncate_to(segments, self._state.offsets, now_ms=self._now_ms())
            yield cut_files
            yield from self._truncated(segments.end_offset)

    def _restarting(self, offset: int) -> FileSteps[None]:
        yield from self._emptying(offset)
        self._state.offsets.log_start_offset = offset
        self._state.epochs.clear()
        yield from self._truncated(offset)

    def _beginning_behind(self, state: AuxiliaryState) -> FileSteps[None]:
        offset, offsets = state.offset, self._state.offsets
        yield from self._dropping_all()
        yield from self._taking_over(offset, state.producers)
        start_offset = min(state.log_start_offset, offset)
        self._state.epochs.replace(state.leader_epochs, start_offset)
        self._state.epochs.cut(offset)
        yield self._state.epochs.save
        # The state at the offset must be on the disk before the log begins at this offset. Otherwise, after a
        # crash, nothing would show that the state is missing.
        self._state.segments.restart_at(offset)
        offsets.log_start_offset = start_offset
        offsets.highest_copied_offset = offset - 1
        self._forget_from(offset)
        yield from self._announcing()

    def _emptying(self, offset: int, producers: Sequence[ProducerEntry] = ()) -> FileSteps[None]:
        """Drop all local records. ``producers`` are the producers at ``offset``."""
        yield from self._dropping_all()
        yield from self._taking_over(offset, producers)
        self._state.segments.restart_at(offset)

    def _dropping_all(self) -> FileSteps[None]:
        """Remove the files of all segments."""
        segments = self._state.segments
        self._state.offsets.truncation_count += 1
        yield partial(self._lower_durable, 0)
        if self._durable is not None:
            self._state.offsets.flushed_offset = 0
        yield from self._lower_checkpoints()
        yield from holding_files(segments.segments)
        yield partial(segments.drop_files, segments.segments)

    def _taking_over(self, offset: int, producers: Sequence[ProducerEntry]) -> FileSteps[None]:
        """Replace the producers by ``producers``, which are the producers at ``offset``."""
        self._state.producers.restart_at(offset, producers, self._now_ms())
        if producers:
            yield partial(self._state.producers.snapshots.take_snapshot, self._state.producers.state)

    def _forget_from(self, end_offset: int) -> None:
        self._state.epochs.cut(end_offset)
        self._state.offsets.cut(end_offset)

    def _truncated(self, end_offset: int) -> FileSteps[None]:
        self._forget_from(end_offset)
        yield self._state.epochs.save
        yield from self._announcing()

    def _announcing(self) -> FileSteps[None]:
        if self.on_truncation is not None:
            yield self.on_truncation()

    def _lower_durable(self, offset: int) -> None:
        """Lower the stored durable offset before a truncation, so that the removed records do not look like a
        loss."""
        if self._durable is not None:
            self._durable.lower(offset)

    def _lower_checkpoints(self) -> FileSteps[None]:
        """Lower the checkpoints before files are truncated. Otherwise, after a crash, the next start would
        report the removed records of a critical log as lost."""
        if self._durable is not None and self.on_truncation is not None:
            yield self.on_truncation()
