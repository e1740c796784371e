"""Appends whose bytes are written by a worker thread while the event loop continues.

In a large append, the kernel spends most of the time on filling memory pages. The kernel does not need the
Python interpreter for this.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from moldau.records.batch import BatchHeader, iter_headers
from moldau.runtime.files.disk import File
from moldau.storage.log.appending import Appender
from moldau.storage.log.state.log_state import LogState
from moldau.storage.segments.segment import Segment


@dataclass(slots=True)
class AsideWrite:
    """Batches that are being appended to a log. A worker thread calls :meth:`run`. The log calls all other
    methods."""

    owner: "AsideAppends"
    segment: Segment
    file: File
    position: int
    batches: memoryview
    headers: list[BatchHeader]
    truncation_count: int
    is_written: bool = False
    error: OSError | None = None

    def run(self) -> None:
        """Write the bytes. If this fails, the error is stored. The log handles the error later, and may have
        been closed in the meantime."""
        try:
            self.file.write_at(self.position, [self.batches])
            self.is_written = True
        except OSError as error:
            self.error = error


class AsideAppends:
    """Begins and ends the appends of one log that a worker thread writes.

    **The caller's contract.** A log has one write in progress at a time. From :meth:`begin` to :meth:`end` no
    other call may append or roll, and the batches' memory must stay valid. The log contains the batches only
    after ``end``. Its end offset does not change before that, and does not change if the write fails. If the
    log is truncated, closed or taken offline in the meantime, the write has no effect.
    """

    def __init__(self, now_ms: Callable[[], int], state: LogState, appender: Appender) -> None:
        self._now_ms = now_ms
        self._state = state
        self._appender = appender

    def begin(self, batches: memoryview) -> AsideWrite | None:
        """Prepare to append whole batches with given offsets and epochs; the caller has checked their CRCs.

        Returns ``None`` when the batches do not fit in one write. The caller then uses
        :meth:`Appender.append_as_follower`. Raises the same errors as that method.
        """
        self._state.access.check()
        headers = [header for _, header in iter_headers(batches)]
        if not headers or not self._follow_on(headers):
            return None
        first, last = headers[0], headers[-1]
        if first.partition_leader_epoch > self._state.epochs.current:
            self._state.epochs.begin(first.partition_leader_epoch, first.base_offset)
        segments = self._state.segments
        newest_ms = max(header.max_timestamp for header in headers)
        if segments.must_roll(len(batches), last.last_offset, newest_ms, self._now_ms()):
            self._appender.roll()
        if last.last_offset - segments.active.base_offset >= 2**31:
            return None
        active = segments.active
        segments.hold_files()
        truncation_count = self._state.offsets.truncation_count
        return AsideWrite(self, active, active.file, active.size_bytes, batches, headers, truncation_count)

    def _follow_on(self, headers: list[BatchHeader]) -> bool:
        offset, epoch = self._state.segments.end_offset, headers[0].partition_leader_epoch
        if epoch < self._state.epochs.current:
            return False
        for header in headers:
            if header.base_offset != offset or header.partition_leader_epoch != epoch:
                return False
            offset = header.next_offset
        return True

    def end(self, write: AsideWrite) -> bool:
        """Finish the append after the worker is done. The batches are now in the log.

        Returns False when the log has changed in the meantime, or when the worker was stopped before it
        finished. Raises ``KafkaError(kafka_storage_error)`` when the write failed.
        """
        segments, segment = self._state.segments, write.segment
        try:
            if self._state.access.failure is not None:
                return False
            is_at_end = segment is segments.active and segment.size_bytes == write.position
            if (
                is_at_end
                and write.is_written
                and self._state.offsets.truncation_count == write.truncation_count
            ):
                segment.size_bytes += len(write.batches)
                self._appender.account(
                    write.position, write.headers, write.headers[0].base_offset, write.batches
                )
                return True
            if segment in segments.segments:
                with contextlib.suppress(OSError):
                    segment.file.truncate(segment.size_bytes)
                if write.error is not None:
                    self._state.access.fail("appending to", write.error)
            return False
        finally:
            segments.release_files()
