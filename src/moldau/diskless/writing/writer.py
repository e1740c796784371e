"""Turns record batches into objects that are stored and committed (KIP-1163's produce path).

The driver's contract, in this order: a batch is copied into the buffer; the buffer is closed and becomes an
object; the object is uploaded, several at a time; its batches are committed, in the order in which buffers
were closed, at each coordinator; only then its producers are answered.

Memory is bounded by ``max_buffered_bytes``. When that is reached, :attr:`DisklessWriter.is_full` is true, and
producers' connections are read slowly (``ProduceHandlers``); requests that were already read are still
accepted, because their producers wait anyway. Beyond twice the bound a batch is refused at once with
KAFKA_STORAGE_ERROR, which producers retry and librdkafka correctly treats as "not persisted".

When the store is down, uploads are retried until the last producer's time-out. Producers get
REQUEST_TIMED_OUT (retriable, "possibly persisted") at their time-out, the object is dropped, and dropped
batches never reach a coordinator.

An unexpected exception (``UnexpectedErrors``) costs one object: its producers are answered with an error, its
bytes are released, and the next objects continue.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from moldau.diskless.batch_coordinator import BatchCoordinator
from moldau.diskless.object_keys import new_object_key
from moldau.diskless.writing.arenas import new_arena
from moldau.diskless.writing.buffer import LARGE_SHARE, ClosePolicy, CloseReason, WalBuffer
from moldau.diskless.writing.committer import Committing, FileCommitQueue
from moldau.diskless.writing.memory import OwnObjects, WriterMemory
from moldau.diskless.writing.sequence_gaps import SequenceGaps
from moldau.diskless.writing.uploader import Uploader
from moldau.diskless.writing.waiters import TIMED_OUT, ObjectWaiters, WaitingProducer
from moldau.diskless.writing.wal_file import Batch, FileShare, WalFile
from moldau.diskless.writing.writer_meters import WriterMeters
from moldau.diskless.writing.writer_settings import WriterSettings
from moldau.metrics import Meters
from moldau.objects import ObjectStorage, StorageError
from moldau.records import BatchHeader
from moldau.replication.partition import AppendAnswer, AppendOutcome, PartitionKey
from moldau.runtime import ErrorCode, KafkaError, Machine

__all__ = ["DisklessWriter", "WriterSettings"]

_log = logging.getLogger(__name__)

FORGETTING = 0.98

_REFUSED = AppendOutcome(ErrorCode.kafka_storage_error, message="too many bytes wait for the object store")
_CLOSING = AppendOutcome(ErrorCode.kafka_storage_error, message="the broker is shutting down")
_LOST = AppendOutcome(ErrorCode.kafka_storage_error, message="the object of the batch could not be made")
_UNCERTAIN = AppendOutcome(ErrorCode.request_timed_out, message="the broker lost track of the batch's object")


class DisklessWriter:
    """A broker's path into the object store for batches of diskless topics."""

    def __init__(
        self,
        storage: ObjectStorage,
        coordinator: BatchCoordinator,
        machine: Machine,
        meters: Meters,
        *,
        broker_id: int,
        settings: WriterSettings | None = None,
        own: OwnObjects | None = None,
    ) -> None:
        """Create it on the event loop that will run it."""
        self._storage = storage
        self._coordinator = coordinator
        self._clock = machine.clock
        self._entropy = machine.entropy
        self._workers = machine.workers
        self._unexpected = machine.unexpected
        self._broker_id = broker_id
        self._loop = asyncio.get_running_loop()
        self._buffer: WalBuffer[WaitingProducer] | None = None
        self._waiters: ObjectWaiters | None = None
        self._opened_s = 0.0
        self._last_arrival_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._to_upload: deque[WalFile] = deque()
        self._uploading = 0
        self._files: dict[WalFile, None] = {}
        """Unfinished files: answers are pending, or this broker's own cache still needs the bytes."""
        self._unanswered: dict[WalFile, None] = {}
        self._queues: dict[int, FileCommitQueue] = {}
        self._gaps = SequenceGaps()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._is_making_arenas = False
        self._buffered_bytes = 0
        self._under_way = 0
        """Batches in files that are not answered."""
        self._most_under_way = 0.0
        """Recent maximum of the batches in flight."""
        settings = settings or WriterSettings()
        own = own or OwnObjects(WriterMemory(settings))
        self._memory, self._own_commits = own.memory, own.commits
        self.recent = own.memory.recent
        self.configure(settings)
        self._meters = WriterMeters(meters, lambda: self._buffered_bytes, lambda: self.recent.size_bytes)
        self._uploader = Uploader(storage, self._settings.retries, machine.entropy, self._meters)

    def in_hand(self) -> Mapping[str, int]:
        """Resources in use for producers; all zero when nothing is in flight."""
        queues = self._queues.values()
        return {
            "buffered bytes": self._buffered_bytes,
            "batches under way": self._under_way,
            "files": len(self._files),
            "unanswered files": len(self._unanswered),
            "files to upload": len(self._to_upload),
            "uploads": self._uploading,
            "shares": sum(len(queue) for queue in queues),
            "batches in the buffer": 0 if self._buffer is None else len(self._buffer.batches),
        }

    def configure(self, settings: WriterSettings) -> None:
        """Use other settings from the next buffer on (``recent_bytes`` stays unchanged)."""
        self._settings = settings
        self._policy = ClosePolicy(settings.commit_interval_ms, settings.quiet_ms, settings.puts_per_second)
        self._memory.configure(settings)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of batches that are not answered for."""
        return self._buffered_bytes

    @property
    def is_full(self) -> bool:
        """Whether the network should stop reading produce requests."""
        return self._buffered_bytes >= self._settings.max_buffered_bytes

    def append(
        self,
        key: PartitionKey,
        records: memoryview,
        header: BatchHeader,
        *,
        timeout_ms: int,
        timestamp_type: int = 0,
        request_id: int = 0,
    ) -> AppendAnswer:
        """Accept one batch that has passed the produce checks; ``records`` is only valid during the call.

        The batches of a partition get offsets in the order of these calls. ``timestamp_type`` is the topic's.
        The outcome is a future, done within ``timeout_ms``; a refusal is returned at once.
        """
        size = len(records)
        if self._is_closing:
            return _CLOSING
        if self._buffered_bytes + size > 2 * self._settings.max_buffered_bytes:
            self._gaps.dropped(key, header)
            return _REFUSED
        now = self._loop.time()
        answer: asyncio.Future[AppendOutcome] = self._loop.create_future()
        waiter = WaitingProducer(answer, now + timeout_ms / 1000, request_id)
        self._put(key, records, header, timestamp_type, waiter)
        return answer

    def _put(
        self,
        key: PartitionKey,
        records: memoryview,
        header: BatchHeader,
        timestamp_type: int,
        waiter: WaitingProducer,
    ) -> None:
        """Copy a batch into the buffer, or into the next one."""
        size, now = len(records), self._loop.time()
        max_bytes = self._settings.buffer_max_bytes
        buffer = self._buffer
        if buffer is not None and (buffer.size_bytes + size > max_bytes or not buffer.fits(size)):
            self._close_buffer(CloseReason.FULL)
            buffer = None
        if buffer is None:
            buffer = self._buffer = WalBuffer(self._memory.pool, size)
            self._waiters = ObjectWaiters(self._loop)
            self._opened_s = now
        buffer.add(key, records, header, timestamp_type, waiter)
        self._buffered_bytes += size
        assert self._waiters is not None
        self._waiters.add(waiter)
        self._last_arrival_s = now
        if max_bytes - buffer.size_bytes < size:
            # A next batch of this size has no room: close now instead of waiting for it.
            self._close_buffer(CloseReason.FULL)
        elif self._timer is None or self._is_complete(buffer):
            self._consider()

    def _hold(self, file: WalFile, batch: Batch) -> bool:
        """Add a batch again that arrived before its predecessor, for about a second.

        No longer: five held requests fill a Java client's connection, through which the missing one may come.
        """
        now, waiter = self._loop.time(), batch.owner
        if waiter.held_until is None:
            waiter.held_until = now + self._settings.hold_ms / 1000
        if self._is_closing or waiter.is_expired or waiter.answer.done() or now >= waiter.held_until:
            return False
        size = batch.header.size_bytes
        if self._buffered_bytes + size > 2 * self._settings.max_buffered_bytes:
            return False
        file.waiters.remove(waiter)
        content = memoryview(file.object.arena)[batch.byte_offset : batch.byte_offset + size]
        self._put(batch.key, content, batch.header, batch.timestamp_type, waiter)
        return True

    def _consider(self) -> None:
        """Close the buffer if it is due, otherwise schedule the next check."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._buffer is None:
            return
        decision = self._policy.decide(
            self._loop.time() * 1000,
            self._opened_s * 1000,
            self._last_arrival_s * 1000,
            self._uploading < self._settings.max_uploads,
            large=self._is_large(self._buffer.size_bytes),
            complete=self._is_complete(self._buffer),
        )
        if decision.reason is not None:
            self._close_buffer(decision.reason)
        elif decision.look_again_ms is not None:
            self._timer = self._loop.call_at(decision.look_again_ms / 1000, self._consider)

    def _is_large(self, size_bytes: int) -> bool:
        return size_bytes * LARGE_SHARE >= self._settings.buffer_max_bytes

    def _is_complete(self, buffer: WalBuffer[WaitingProducer]) -> bool:
        return not self._unanswered and 0 < self._most_under_way <= len(buffer.batches)

    def _close_buffer(self, reason: CloseReason) -> None:
        buffer, waiters = self._buffer, self._waiters
        if buffer is None or waiters is None:
            return
        self._buffer = self._waiters = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # The buffered batches, in case that they do not become a file.
        batches, payload_bytes = tuple(buffer.batches), buffer.size_bytes

        def lose(_: Exception) -> None:
            buffer.abandon()
            self._answer_lost(batches, waiters, payload_bytes, _LOST)

        file: WalFile | None = None
        with self._unexpected.contained("making a WAL object", lose):
            file = self._make_file(buffer, waiters, reason)
        if file is None:
            return
        with self._unexpected.contained("sending a WAL object off", lambda _: self._abandon(file)):
            self._send_off(file)
            if reason is CloseReason.FULL and self._memory.pool.is_low and not self._is_making_arenas:
                self._is_making_arenas = True
                self._run(self._make_arenas(), "diskless arenas")

    def _make_file(
        self, buffer: WalBuffer[WaitingProducer], waiters: ObjectWaiters, reason: CloseReason
    ) -> WalFile:
        now, created_ms, payload_bytes = self._loop.time(), self._clock.now_ms(), buffer.size_bytes
        self._policy.closed(now * 1000, large=self._is_large(payload_bytes))
        built = buffer.build(created_ms=created_ms, broker_id=self._broker_id)
        is_shared = self._own_commits is not None and self._own_commits.is_shared()
        size_bytes = built.size_bytes if is_shared else None
        key = new_object_key(created_ms, self._broker_id, self._entropy, self._settings.prefix, size_bytes)
        file = WalFile(
            key, built, waiters, created_ms=created_ms, payload_bytes=payload_bytes, opened_s=self._opened_s
        )
        waited_ms = (now - self._opened_s) * 1000
        self._meters.closed(reason, built.size_bytes, len(built.batches), waited_ms)
        return file

    def _send_off(self, file: WalFile) -> None:
        self._files[file] = self._unanswered[file] = None
        self._under_way += len(file.object.batches)
        self._most_under_way = max(self._most_under_way, self._under_way)
        self._share_out(file)
        if not file.shares:
            self._drop(file)
            return
        self._to_upload.append(file)
        self._start_uploads()

    async def _make_arenas(self) -> None:
        """Under full load, let a worker allocate the memory of the next buffers."""
        pool = self._memory.pool
        try:
            while pool.is_low:
                pool.release(await self._workers.run(new_arena, pool.arena_size_bytes))
        finally:
            self._is_making_arenas = False

    def _share_out(self, file: WalFile) -> None:
        """Queue the file at its coordinators: this fixes its place in their order."""
        shares: dict[int, FileShare] = {}
        for run in file.object.runs:
            try:
                coordinator_id = self._coordinator.coordinator_of(*run[0].key)
            except KafkaError as error:
                for batch in run:
                    batch.owner.resolve(AppendOutcome(error.code, message=error.message))
                continue
            share = shares.get(coordinator_id)
            if share is None:
                share = shares[coordinator_id] = FileShare(file, coordinator_id)
            share.batches.extend(run)
        file.shares = list(shares.values())
        for share in file.shares:
            self._queue(share.coordinator_id).push(share)

    def _queue(self, coordinator_id: int) -> FileCommitQueue:
        queue = self._queues.get(coordinator_id)
        if queue is None:
            queue = self._queues[coordinator_id] = FileCommitQueue(
                coordinator_id,
                Committing(
                    broker_id=self._broker_id,
                    coordinator=self._coordinator,
                    retries=self._settings.retries,
                    gaps=self._gaps,
                    entropy=self._entropy,
                    meters=self._meters,
                    unexpected=self._unexpected,
                    hold=self._hold,
                ),
                self._share_done,
            )
        return queue

    def coordinator_moved(self, coordinator_id: int) -> None:
        """A coordinator is led elsewhere than before: a commit that waits after a failure is repeated now."""
        queue = self._queues.get(coordinator_id)
        if queue is not None:
            queue.go_on()

    def _start_uploads(self) -> None:
        while self._to_upload and self._uploading < self._settings.max_uploads:
            self._uploading += 1
            file = self._to_upload.popleft()
            self._run(self._upload_and_free_slot(file), f"upload {file.key}")

    async def _upload_and_free_slot(self, file: WalFile) -> None:
        is_stored = False
        try:
            with self._unexpected.contained("uploading a WAL object", lambda _: self._abandon(file)):
                if file in self._files and not file.waiters.all_expired:
                    is_stored = await self._uploader.upload(file, self._policy)
        finally:
            self._uploading -= 1
            if file in self._files:
                with self._unexpected.contained("settling a WAL object", lambda _: self._abandon(file)):
                    self._upload_over(file, is_stored)
            self._start_uploads()
            self._consider()

    def _upload_over(self, file: WalFile, is_stored: bool) -> None:
        if is_stored:
            # Before the commit: a reader may see the commit earlier than this broker.
            self.recent.put(file.key, file.object.arena, file.object.size_bytes, is_committed=False)
            file.settle_shares()
        else:
            self._meters.given_up()
            self._memory.pool.release(file.object.arena)
        if not file.uploaded.done():
            file.uploaded.set_result(is_stored)

    # Finishing ------------------------------------------------------------------------------------

    def _share_done(self, share: FileShare) -> None:
        """Its producers have their answers; now the broker's own cache gets the batches."""
        with self._unexpected.contained("finishing a commit", lambda _: self._share_over(share)):
            share.is_answered = True
            if all(each.is_answered for each in share.file.shares):
                self._answered(share.file)
            if self._own_commits is None or not share.outcomes:
                self._share_over(share)
            else:
                self._own_commits.committed(share, self._share_over)

    def _answered(self, file: WalFile) -> None:
        """Its producers may send more."""
        if self._unanswered.pop(file, self) is None:
            self._under_way -= len(file.object.batches)
            self._most_under_way *= FORGETTING

    def _share_over(self, share: FileShare) -> None:
        file = share.file
        share.is_done = True
        with self._unexpected.contained("finishing a WAL object", lambda _: self._abandon(file)):
            if file.is_done:
                if self._own_commits is not None:
                    self._own_commits.finished(file.shares)
                self._drop(file)

    def _abandon(self, file: WalFile) -> None:
        """An unexpected error in the file: answer all its producers, and release everything."""
        was_stored = file.uploaded.done() and file.uploaded.result()
        if file in self._to_upload:
            self._to_upload.remove(file)
        if not file.uploaded.done():
            file.uploaded.set_result(False)
        if file not in self._files:
            return
        if file.key in self.recent:
            self.recent.discard(file.key)
        elif not was_stored:
            self._memory.pool.release(file.object.arena)
        del self._files[file]
        self._answered(file)
        # A stored object may be committed by another part, or is an orphan; the rest can never be committed.
        outcome = _UNCERTAIN if was_stored else _LOST
        self._answer_lost(file.object.batches, file.waiters, file.payload_bytes, outcome)
        file.shares = []

    def _answer_lost(
        self, batches: Sequence[Batch], waiters: ObjectWaiters, payload_bytes: int, outcome: AppendOutcome
    ) -> None:
        waiters.stop()
        for batch in batches:
            self._gaps.dropped(batch.key, batch.header)
            batch.owner.resolve(outcome)
        self._buffered_bytes -= payload_bytes

    def _drop(self, file: WalFile) -> None:
        """Every batch of the file has its answer, or its time-out."""
        if self._files.pop(file, self) is self:
            return
        self._answered(file)
        file.waiters.stop()
        for waiter in file.waiters.all:
            waiter.resolve(TIMED_OUT)
        self._buffered_bytes -= file.payload_bytes
        self.recent.committed(file.key)
        file.shares = []  # they refer to the file: an arena must not wait for the garbage collector
        is_stored = file.uploaded.done() and file.uploaded.result()
        if is_stored and not file.accepted_count:
            self.recent.discard(file.key)
            if not file.is_uncertain:
                self._run(self._delete(file.key), f"delete {file.key}")

    async def _delete(self, key: str) -> None:
        """Nothing refers to the object, and nothing ever will. If this fails, the orphan scan finds it."""
        try:
            await self._storage.delete([key])
            self._meters.deleted()
        except StorageError as error:
            _log.info("%s stays as an orphan: %s", key, error)

    # Ending -----------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Close the buffer and return when all that was appended before is answered."""
        self._close_buffer(CloseReason.FLUSH)
        answers = [waiter.answer for file in self._files for waiter in file.waiters.all]
        if answers:
            await asyncio.wait(answers)

    async def close(self, grace_s: float = 30.0) -> None:
        """Refuse new batches, finish the others within ``grace_s`` seconds, drop the rest."""
        self._is_closing = True
        try:
            async with asyncio.timeout(grace_s):
                await self.flush()
                while self._tasks:
                    await asyncio.wait(set(self._tasks))
                if self._own_commits is not None:
                    await self._own_commits.drain()
        except TimeoutError:
            _log.warning("%d objects were given up at shutdown", len(self._files))
        self._to_upload.clear()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for queue in self._queues.values():
            await queue.stop()
        self._queues.clear()
        if self._own_commits is not None:
            await self._own_commits.stop()
        for file in list(self._files):
            self._drop(file)
        self.recent.clear()

    def _run(self, body: Coroutine[Any, Any, None], name: str) -> None:
        task = self._loop.create_task(body, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._unexpected.watch(task, "writing WAL objects")
