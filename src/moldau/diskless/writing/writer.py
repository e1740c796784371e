"""Makes objects from record batches; the objects are then stored and committed (KIP-1163's produce path).

The steps, in this order: A batch is copied into the buffer. The buffer is closed and becomes an object. The
object is uploaded; several uploads run at the same time. The object's batches are committed at each
coordinator, in the order in which buffers were closed. After that its producers get their responses.

Memory is limited by ``max_buffered_bytes``. When this limit is reached, :attr:`DisklessWriter.is_full` is
true, and the broker reads producers' connections slowly (``ProduceHandlers``). Requests that were already
read are still accepted, because their producers wait anyway. Above twice the limit a batch is refused at once
with KAFKA_STORAGE_ERROR. Producers retry after this error, and librdkafka correctly treats it as "not
persisted".

When the store does not work, uploads are retried until the last producer's timeout. At its timeout a producer
gets REQUEST_TIMED_OUT (retriable, "possibly persisted"). The object is dropped, and dropped batches never
reach a coordinator.

An unexpected exception (``UnexpectedErrors``) affects a single object. Its producers get an error, its bytes
are released, and the next objects continue.
"""

import asyncio
import logging
from collections.abc import Mapping

from moldau.diskless.batch_coordinator import BatchCoordinator
from moldau.diskless.object_keys import ObjectOrigin, new_object_key
from moldau.diskless.writing.buffers.buffer import CloseReason
from moldau.diskless.writing.buffers.open_buffer import ClosedBuffer, FillingBuffer, HeldBytes
from moldau.diskless.writing.committer import CommitQueues, Committing
from moldau.diskless.writing.producer_answers import LOST, FileFinisher
from moldau.diskless.writing.reported_backlogs import ReportedBacklogs
from moldau.diskless.writing.sequence_gaps import SequenceGaps
from moldau.diskless.writing.uploader import Uploader, UploadSlots, WriterTasks
from moldau.diskless.writing.waiters import WaitingProducer
from moldau.diskless.writing.wal_file import FilesInFlight, ProducedBatch, WalFile
from moldau.diskless.writing.writer_memory import OwnObjects, WriterMemory
from moldau.diskless.writing.writer_meters import WriterMeters
from moldau.diskless.writing.writer_settings import WriterSettings
from moldau.metrics import Meters
from moldau.objects import ObjectStorage
from moldau.protocol.partitions import PartitionKey
from moldau.records import BatchHeader
from moldau.replication.partition_interface import AppendAnswer, AppendOutcome
from moldau.runtime import ErrorCode, Machine

__all__ = ["DisklessWriter", "WriterSettings"]

_log = logging.getLogger(__name__)

_REFUSED = AppendOutcome(ErrorCode.kafka_storage_error, message="too many bytes wait for the object store")
_CLOSING = AppendOutcome(ErrorCode.kafka_storage_error, message="the broker is shutting down")


class DisklessWriter:
    """Accepts batches of diskless topics, and stores them in the object store."""

    def __init__(
        self,
        storage: ObjectStorage,
        coordinator: BatchCoordinator,
        machine: Machine,
        meters: Meters,
        origin: ObjectOrigin,
        *,
        settings: WriterSettings | None = None,
        own: OwnObjects | None = None,
    ) -> None:
        """Create the writer on the event loop that will run it."""
        settings = settings or WriterSettings()
        own = own or OwnObjects(WriterMemory(settings))
        self._machine = machine
        self._origin = origin
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._is_closing = False
        self._own = own
        self.recent = recent = own.memory.recent
        self._held = held = HeldBytes()
        self._meters = WriterMeters(meters, lambda: held.size_bytes, lambda: recent.size_bytes)
        self._gaps = SequenceGaps()
        self.reported_backlogs = ReportedBacklogs(self._loop.time)
        self._tasks = WriterTasks(machine.unexpected)
        self._in_flight = FilesInFlight()
        self._uploader = Uploader(storage, settings.retries, machine.entropy, self._meters)
        self._finisher = FileFinisher(
            own, held, self._in_flight, self._gaps, self._tasks, self._uploader, machine.unexpected
        )
        self._queues = CommitQueues(
            Committing(
                broker_id=origin.broker_id,
                coordinator=coordinator,
                retries=settings.retries,
                gaps=self._gaps,
                entropy=machine.entropy,
                meters=self._meters,
                unexpected=machine.unexpected,
                hold=self._hold,
                limit=settings.commits_in_flight,
                report_backlog=self.reported_backlogs.report,
            ),
            self._finisher.share_done,
        )
        self._slots = UploadSlots(self._tasks, self._upload, self._look_again, settings.max_uploads)
        self._filling = FillingBuffer(
            settings, own.memory, held, self._in_flight, self._slots.is_free, self._buffer_closed
        )

    def in_hand(self) -> Mapping[str, int]:
        """Return the amounts of resources that are in use for producers; all values are zero when nothing is
        in flight."""
        return {
            "buffered bytes": self._held.size_bytes,
            "batches under way": self._in_flight.batch_count,
            "files": len(self._in_flight),
            "unanswered files": self._in_flight.unanswered_count,
            "files to upload": len(self._slots.waiting),
            "uploads": self._slots.busy,
            "shares": len(self._queues),
            "batches in the buffer": len(self._filling),
        }

    def configure(self, settings: WriterSettings) -> None:
        """Use other settings for the next buffer and all later buffers (``recent_bytes`` stays unchanged)."""
        self._settings = settings
        self._own.memory.configure(settings)
        self._filling.configure(settings)
        self._queues.configure(settings.retries)
        self._slots.slots = settings.max_uploads

    @property
    def buffered_bytes(self) -> int:
        """Bytes of batches whose producers have no response yet."""
        return self._held.size_bytes

    @property
    def is_full(self) -> bool:
        """Whether the network should stop reading produce requests."""
        return self._held.size_bytes >= self._settings.max_buffered_bytes

    def append(
        self,
        key: PartitionKey,
        records: memoryview,
        header: BatchHeader,
        *,
        timeout_ms: int,
        timestamp_type: int = 0,
        request_id: int = 0,
        guard: int = 0,
    ) -> AppendAnswer:
        """Accept a batch that has passed the produce checks; ``records`` is valid only during the call.

        The batches of a partition get offsets in the order of these calls. ``timestamp_type`` is the topic's
        timestamp type. A transactional batch has a ``guard``. The outcome is a future that is done within
        ``timeout_ms``. A refusal is returned at once.
        """
        size = len(records)
        if self._is_closing:
            return _CLOSING
        if self._held.size_bytes + size > 2 * self._settings.max_buffered_bytes:
            self._gaps.dropped(key, header)
            return _REFUSED
        loop = self._loop
        answer: asyncio.Future[AppendOutcome] = loop.create_future()
        waiter = WaitingProducer(answer, loop.time() + timeout_ms / 1000, request_id, guard)
        self._filling.put(key, records, header, timestamp_type, waiter)
        return answer

    def _hold(self, file: WalFile, batch: ProducedBatch) -> bool:
        """If a batch arrived before its predecessor, add the batch to a later object, so that its commit is
        repeated. Repeat this for about a second. Returns False if the batch is not added again.

        This time must be short. A Java client sends at most five requests without a response on a connection.
        If five requests wait for a missing batch, this batch cannot be sent on that connection.
        """
        now, waiter = self._loop.time(), batch.owner
        if waiter.held_until is None:
            waiter.held_until = now + self._settings.hold_ms / 1000
        if self._is_closing or waiter.is_expired or waiter.answer.done() or now >= waiter.held_until:
            return False
        size = batch.header.size_bytes
        if self._held.size_bytes + size > 2 * self._settings.max_buffered_bytes:
            return False
        file.waiters.remove(waiter)
        content = memoryview(file.object.arena)[batch.byte_offset : batch.byte_offset + size]
        self._filling.put(batch.key, content, batch.header, batch.timestamp_type, waiter)
        self._meters.held()
        return True

    def _buffer_closed(self, closed: ClosedBuffer) -> None:
        """Make a file of a closed buffer, and begin its upload."""
        buffer, unexpected = closed.buffer, self._machine.unexpected
        # ``lose`` releases the bytes of the batches if they do not become a file.
        batches, payload_bytes = tuple(buffer.batches), buffer.size_bytes

        def lose(_: Exception) -> None:
            buffer.abandon()
            self._finisher.answer_lost(batches, closed.waiters, payload_bytes, LOST)

        file: WalFile | None = None
        with unexpected.contained("making a WAL object", lose):
            file = self._make_file(closed)
        if file is None:
            return
        with unexpected.contained("starting the upload of a WAL object", lambda _: self._abandon(file)):
            self._send_off(file)
            if closed.reason is CloseReason.FULL and self._own.memory.should_refill:
                self._tasks.run(self._own.memory.refill(self._machine.workers), "diskless arenas")

    def _make_file(self, closed: ClosedBuffer) -> WalFile:
        created_ms, payload_bytes = self._origin.now_ms(), closed.buffer.size_bytes
        broker_id, entropy = self._origin.broker_id, self._machine.entropy
        built = closed.buffer.build(created_ms=created_ms, broker_id=broker_id)
        size_bytes = built.size_bytes if self._origin.names_sizes() else None
        file = WalFile(
            new_object_key(created_ms, broker_id, entropy, self._settings.prefix, size_bytes),
            built,
            closed.waiters,
            created_ms=created_ms,
            payload_bytes=payload_bytes,
            opened_s=closed.opened_s,
        )
        waited_ms = (closed.closed_s - closed.opened_s) * 1000
        self._meters.closed(closed.reason, built.size_bytes, len(built.batches), waited_ms)
        return file

    def _send_off(self, file: WalFile) -> None:
        self._in_flight.add(file)
        self._queues.share_out(file)
        if file.shares:
            self._slots.put(file)
        else:
            self._finisher.drop(file)

    def coordinator_moved(self, coordinator_id: int) -> None:
        """Another broker leads the coordinator now. Repeat a commit that waits after a failure."""
        self._queues.coordinator_moved(coordinator_id)

    def _look_again(self) -> None:
        self._filling.consider()

    async def _upload(self, file: WalFile) -> None:
        unexpected, is_stored = self._machine.unexpected, False
        try:
            with unexpected.contained("uploading a WAL object", lambda _: self._abandon(file)):
                if file in self._in_flight and not file.waiters.all_expired:
                    is_stored = await self._uploader.upload(file, self._filling.policy)
        finally:
            if file in self._in_flight:
                with unexpected.contained("settling a WAL object", lambda _: self._abandon(file)):
                    self._upload_over(file, is_stored)

    def _upload_over(self, file: WalFile, is_stored: bool) -> None:
        if is_stored:
            # The object is added before the commit, because a reader may know of the commit before this
            # broker gets the response.
            self.recent.put(file.key, file.object.arena, file.object.size_bytes, is_committed=False)
            file.settle_shares(self._machine.entropy)
        else:
            self._meters.given_up()
            self._own.memory.pool.release(file.object.arena)
        if not file.uploaded.done():
            file.uploaded.set_result(is_stored)

    def _abandon(self, file: WalFile) -> None:
        self._slots.discard(file)
        self._finisher.abandon(file)

    # Stopping ---------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Close the buffer. Returns when all producers of earlier batches have their responses."""
        self._filling.close(CloseReason.FLUSH)
        answers = [waiter.answer for file in self._in_flight for waiter in file.waiters.all]
        if answers:
            await asyncio.wait(answers)

    async def close(self, grace_s: float = 30.0) -> None:
        """Refuse new batches, finish the other batches within ``grace_s`` seconds, and drop the batches that
        are left after that."""
        self._is_closing = True
        try:
            async with asyncio.timeout(grace_s):
                await self.flush()
                await self._tasks.finished()
                if self._own.commits is not None:
                    await self._own.commits.drain()
        except TimeoutError:
            _log.warning("%d objects were given up at shutdown", len(self._in_flight))
        self._slots.waiting.clear()
        await self._tasks.cancel()
        await self._queues.stop()
        if self._own.commits is not None:
            await self._own.commits.stop()
        for file in self._in_flight:
            self._finisher.drop(file)
        self.recent.clear()
