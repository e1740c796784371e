"""Ends files: their producers get the responses, and the memory of the files is released."""

from collections.abc import Sequence

from moldau.diskless.writing.buffers.open_buffer import HeldBytes
from moldau.diskless.writing.sequence_gaps import SequenceGaps
from moldau.diskless.writing.uploader import Uploader, WriterTasks
from moldau.diskless.writing.waiters import TIMED_OUT, ObjectWaiters
from moldau.diskless.writing.wal_file import FileShare, FilesInFlight, ProducedBatch, WalFile
from moldau.diskless.writing.writer_memory import OwnObjects
from moldau.replication.partition_interface import AppendOutcome
from moldau.runtime import ErrorCode, UnexpectedErrors

__all__ = ["LOST", "FileFinisher"]

LOST = AppendOutcome(ErrorCode.kafka_storage_error, message="the object of the batch could not be made")
_UNCERTAIN = AppendOutcome(ErrorCode.request_timed_out, message="the broker lost track of the batch's object")


class FileFinisher:
    """Ends each file once. A file ends when all its parts are committed, when it has timed out, or when it
    was given up after an unexpected error.

    When the file has ended, the bytes of its batches are returned to the budget. If batches were committed,
    the broker's cache does not need the object's bytes any more. An object without references is deleted.
    """

    def __init__(
        self,
        own: OwnObjects,
        held: HeldBytes,
        in_flight: FilesInFlight,
        gaps: SequenceGaps,
        tasks: WriterTasks,
        uploader: Uploader,
        unexpected: UnexpectedErrors,
    ) -> None:
        self._own = own
        self._held = held
        self._in_flight = in_flight
        self._gaps = gaps
        self._tasks = tasks
        self._uploader = uploader
        self._unexpected = unexpected

    def share_done(self, share: FileShare) -> None:
        """Pass a part's batches to the broker's own cache, after the producers of the part got their
        responses."""
        with self._unexpected.contained("finishing a commit", lambda _: self._share_over(share)):
            share.is_answered = True
            if all(each.is_answered for each in share.file.shares):
                self._in_flight.answered(share.file)
            if self._own.commits is None or not share.outcomes:
                self._share_over(share)
            else:
                self._own.commits.committed(share, self._share_over)

    def _share_over(self, share: FileShare) -> None:
        file = share.file
        share.is_done = True
        with self._unexpected.contained("finishing a WAL object", lambda _: self.abandon(file)):
            if file.is_done:
                if self._own.commits is not None:
                    self._own.commits.finished(file.shares)
                self.drop(file)

    def abandon(self, file: WalFile) -> None:
        """Handle an unexpected error in the file: send an error to all its producers, and release
        everything."""
        was_stored = file.uploaded.done() and file.uploaded.result()
        if not file.uploaded.done():
            file.uploaded.set_result(False)
        if not self._in_flight.remove(file):
            return
        if file.key in self._own.memory.recent:
            self._own.memory.recent.discard(file.key)
        elif not was_stored:
            self._own.memory.pool.release(file.object.arena)
        # An object that was not stored can never be committed. A stored object may still be committed by
        # another part; otherwise it is an orphan.
        outcome = _UNCERTAIN if was_stored else LOST
        self.answer_lost(file.object.batches, file.waiters, file.payload_bytes, outcome)
        file.shares = []

    def answer_lost(
        self,
        batches: Sequence[ProducedBatch],
        waiters: ObjectWaiters,
        payload_bytes: int,
        outcome: AppendOutcome,
    ) -> None:
        """Send the outcome to the producers of batches whose file was given up, and return the bytes to the
        budget."""
        waiters.stop()
        for batch in batches:
            self._gaps.dropped(batch.key, batch.header)
            batch.owner.resolve(outcome)
        self._held.size_bytes -= payload_bytes

    def drop(self, file: WalFile) -> None:
        """Drop the file. Each of its producers has got a response or has timed out."""
        if not self._in_flight.remove(file):
            return
        file.waiters.stop()
        for waiter in file.waiters.all:
            waiter.resolve(TIMED_OUT)
        self._held.size_bytes -= file.payload_bytes
        self._own.memory.recent.committed(file.key)
        # The file and its parts refer to each other. The references from the file are removed, so that the
        # arena is released without the garbage collector.
        file.shares = []
        is_stored = file.uploaded.done() and file.uploaded.result()
        if is_stored and not file.accepted_count:
            self._own.memory.recent.discard(file.key)
            if not file.is_uncertain:
                self._tasks.run(self._uploader.delete(file.key), f"delete {file.key}")
