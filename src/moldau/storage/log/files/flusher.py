"""Flushes a log, and tracks which part of it is durable."""

from collections.abc import Callable
from functools import partial

from moldau.runtime.files.disk import File
from moldau.storage.critical_logs.integrity_check import DurableOffset
from moldau.storage.log.state.log_state import LogState
from moldau.storage.segments.batch_scan import checksum_at


class LogFlusher:
    """Makes appends durable, together with the epochs and producer snapshots that belong to the appends."""

    def __init__(self, state: LogState, durable: DurableOffset | None, now_ms: Callable[[], int]) -> None:
        """``durable`` stores the durable offset of a critical log after each sync."""
        self._state = state
        self._durable = durable
        self._now_ms = now_ms
        self._last_flush_ms = now_ms()

    async def flush(self, up_to: int | None = None) -> int:
        """Make appends durable: all appends so far, or only the appends below ``up_to``. Returns the offset
        below which everything is durable.

        Concurrent calls share one sync. Calls that arrive during a sync are completed by the next sync. A
        closed segment is synced separately from the active segment, to which producers write.
        """
        segments, offsets = self._state.segments, self._state.offsets
        wanted = segments.end_offset if up_to is None else up_to
        while True:
            async with segments.changing:
                self._state.access.check()
                if self._is_durable(min(wanted, segments.end_offset)):
                    return offsets.flushed_offset
                end_offset, truncations = segments.end_offset, offsets.truncation_count
                if up_to is not None:
                    end_offset = min(up_to, end_offset)
                try:
                    await segments.sync(
                        offsets.flushed_offset,
                        end_offset,
                        None if self._has_synced_beside else self._sync_beside,
                        self._noting_durable(end_offset),
                    )
                except OSError as error:
                    self._state.access.fail("syncing", error)
                self._last_flush_ms = self._now_ms()
                if truncations == offsets.truncation_count:
                    offsets.flushed_offset = max(offsets.flushed_offset, end_offset)

    def is_due(self) -> bool:
        """Whether appends must be made durable now, because a segment was sealed since the last flush or
        ``flush.ms`` has passed."""
        segments, flushed_offset = self._state.segments, self._state.offsets.flushed_offset
        if self._state.access.failure is not None or flushed_offset >= segments.end_offset:
            return False
        return (
            flushed_offset < segments.active.base_offset
            or self._now_ms() - self._last_flush_ms >= segments.config.flush_ms
        )

    def _is_durable(self, offset: int) -> bool:
        return self._state.offsets.flushed_offset >= offset and not self._state.segments.folder_changed

    def _noting_durable(self, offset: int) -> Callable[[], None]:
        """Returns a function that the caller must call when everything below ``offset`` is synced."""
        if self._durable is None:
            return _nothing
        segments = self._state.segments
        note = partial(self._durable.note, offset, self._durable.generation)
        if offset != segments.end_offset:
            return note
        if segments.last_checksum is not None:
            return partial(note, segments.last_checksum)
        last = segments.last_batch()
        return note if last is None else partial(self._note_with_checksum, note, last)

    @staticmethod
    def _note_with_checksum(note: Callable[[int], None], last: tuple[File, int]) -> None:
        note(checksum_at(*last))

    @property
    def _has_synced_beside(self) -> bool:
        """Whether :meth:`_sync_beside` has nothing to do, and the durable offset can be stored without a
        wait for the disk."""
        state, durable = self._state, self._durable
        can_note = durable is None or durable.exists
        return can_note and state.epochs.is_saved and state.producers.snapshots.is_synced

    def _sync_beside(self) -> None:
        """Sync the leader epochs and producer snapshots. Without them, batches are not durable. This call
        blocks."""
        self._state.epochs.save()
        self._state.producers.snapshots.sync()

    def flush_and_close(self) -> None:
        """Make all appends durable and release the files. This call blocks. Raises ``OSError`` if the disk
        fails."""
        segments = self._state.segments
        self._state.producers.write_snapshot(segments.end_offset, durably=False)
        # ``_sync_beside`` also syncs the snapshot. The snapshot's name becomes durable together with the
        # names of the segments.
        self._sync_beside()
        segments.sync_now(self._state.offsets.flushed_offset)
        self._state.offsets.flushed_offset = segments.end_offset
        self._noting_durable(segments.end_offset)()
        segments.close()


def _nothing() -> None: ...
