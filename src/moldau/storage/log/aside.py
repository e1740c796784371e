"""Appends whose bytes a worker thread writes while the event loop goes on.

Most of what a large append costs is the kernel's, for the pages that it fills, and needs no interpreter.
"""

import contextlib
from dataclasses import dataclass

from moldau.records.batch import BatchHeader, iter_headers
from moldau.runtime.files.disk import File
from moldau.storage.log.staging import StagingLog
from moldau.storage.segments.segment import Segment


@dataclass(slots=True)
class AsideWrite:
    """Batches on their way into a log; :meth:`run` is for a worker thread, the rest is the log's."""

    log: "AsideLog"
    segment: Segment
    file: File
    position: int
    batches: memoryview
    headers: list[BatchHeader]
    truncation_count: int
    is_written: bool = False
    error: OSError | None = None

    def run(self) -> None:
        """Write the bytes. A failure is kept for the log to judge: it may have been closed meanwhile."""
        try:
            self.file.write_at(self.position, [self.batches])
            self.is_written = True
        except OSError as error:
            self.error = error


class AsideLog(StagingLog):
    """A log that lets its bytes be written aside.

    **The caller's contract.** Of a log one write is under way at a time; from :meth:`begin_aside` to
    :meth:`end_aside` nobody else appends or rolls, and the batches' memory stays. To the log the batches are
    not there before ``end_aside``: its end is that of before, and stays so when the write fails. It may be
    truncated, closed or taken offline meanwhile; then the write comes to nothing.
    """

    def begin_aside(self, batches: memoryview) -> AsideWrite | None:
        """Prepare to append whole batches with given offsets and epochs; the caller has checked their CRCs.

        ``None``: they do not fit one write, and are for :meth:`append_as_follower`. Raises ``KafkaError`` as
        that method does.
        """
        self._check_online()
        headers = [header for _, header in iter_headers(batches)]
        if not headers or not self._follow_on(headers):
            return None
        first, last = headers[0], headers[-1]
        if first.partition_leader_epoch > self._last_epoch:
            self._assign_epoch(first.partition_leader_epoch, first.base_offset)
        segments = self._segments
        newest_ms = max(header.max_timestamp for header in headers)
        if segments.must_roll(len(batches), last.last_offset, newest_ms, self._now_ms()):
            self.roll()
        if last.last_offset - segments.active.base_offset >= 2**31:
            return None
        active = segments.active
        segments.hold_files()
        return AsideWrite(self, active, active.file, active.size_bytes, batches, headers, self._truncations)

    def _follow_on(self, headers: list[BatchHeader]) -> bool:
        offset, epoch = self.log_end_offset, headers[0].partition_leader_epoch
        if epoch < self._last_epoch:
            return False
        for header in headers:
            if header.base_offset != offset or header.partition_leader_epoch != epoch:
                return False
            offset = header.next_offset
        return True

    def end_aside(self, write: AsideWrite) -> bool:
        """The worker is done: the batches are in the log.

        False when the log has changed meanwhile, or the worker was not let finish. Raises
        ``KafkaError(kafka_storage_error)`` when the write failed.
        """
        segments, segment = self._segments, write.segment
        try:
            if self._failure is not None:
                return False
            is_at_end = segment is segments.active and segment.size_bytes == write.position
            if is_at_end and write.is_written and self._truncations == write.truncation_count:
                segment.size_bytes += len(write.batches)
                self._account(write.position, write.headers, write.headers[0].base_offset, write.batches)
                return True
            if segment in segments.segments:
                with contextlib.suppress(OSError):
                    segment.file.truncate(segment.size_bytes)
                if write.error is not None:
                    self.fail("appending to", write.error)
            return False
        finally:
            segments.release_files()
