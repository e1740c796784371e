"""Commits files to a coordinator, strictly in the order in which their buffers were closed.

Uploads finish in any order, so the queue waits for the upload of its first file. Several commits are in
progress at a time. Each commit has a number (``open_commits.py``), and the coordinator decides commits in the
order of the numbers. Some coordinators, such as those of older brokers, do not support this order. They get
one commit at a time. Otherwise batches of a producer could be reordered.

After a failure only the first commit is sent until its outcome is known. Then the other commits are sent.

This module guarantees the following. Producers get a response only when the coordinator has responded to the
commit of their batches. If the outcome of a commit is unknown, the commit is repeated with the key of the
same object until its outcome is known. The producers' timeouts do not stop these repetitions. A file without
any accepted batch is reported through ``on_done`` like any other file.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from moldau.coordinators.diskless.calls import (
    DEFINITE_REFUSALS,
    FORGOTTEN,
    HELD,
    NUMBER_PASSED,
    UNGUARDED,
    CommitFileCall,
    CommitFileResult,
)
from moldau.diskless.batch_coordinator import BatchCoordinator, commit_epoch
from moldau.diskless.writing.open_commits import OpenCommits
from moldau.diskless.writing.sequence_gaps import SequenceGaps
from moldau.diskless.writing.wal_file import FileShare, ProducedBatch, WalFile
from moldau.diskless.writing.writer_meters import WriterMeters
from moldau.objects import RetryPolicy
from moldau.replication.partition_interface import AppendOutcome
from moldau.runtime import Entropy, ErrorCode, KafkaError, UnexpectedErrors

__all__ = ["CommitQueues", "Committing", "FileCommitQueue"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committing:
    """The coordinator, the settings and the state that all commit queues of a broker share."""

    broker_id: int
    coordinator: BatchCoordinator
    retries: RetryPolicy
    gaps: SequenceGaps
    """The producers with dropped batches. All coordinators share this state."""
    entropy: Entropy
    meters: WriterMeters
    unexpected: UnexpectedErrors
    hold: Callable[[WalFile, ProducedBatch], bool] = lambda file, batch: False
    """If the previous batch of a producer is missing, adds the batch to a later object, so that its commit is
    repeated. Returns False when the batch has already waited for the maximum time.
    """
    limit: int = 1
    """Number of commits in progress at each coordinator."""
    report_backlog: Callable[[int, int], None] = lambda coordinator_id, size_bytes: None
    """Stores the WAL backlog that a coordinator reports in the result of a commit."""


class KnownOutcome(NamedTuple):
    """The outcome of a commit, and the time in ms from its first attempt to this outcome."""

    result: CommitFileResult | KafkaError
    took_ms: float


class FileCommitQueue:
    """The parts of files that one coordinator commits. ``on_done`` is called once for each part, in order."""

    def __init__(
        self, coordinator_id: int, committing: Committing, on_done: Callable[[FileShare], None]
    ) -> None:
        self._id = coordinator_id
        self._coordinator = committing.coordinator
        self._entropy = committing.entropy
        self._policy = committing.retries
        self._meters = committing.meters
        self._broker_id = committing.broker_id
        self._on_done = on_done
        self._gaps = committing.gaps
        self._hold = committing.hold
        self._report_backlog = committing.report_backlog
        self._unexpected = committing.unexpected
        self._shares: deque[FileShare] = deque()
        """Parts whose commits have not begun."""
        self._begun: deque[tuple[FileShare, asyncio.Task[KnownOutcome] | None]] = deque()
        """Parts whose commits have begun, in order; ``None`` if there is nothing to commit."""
        self._open = OpenCommits(committing.limit)
        self._limits: dict[int | None, asyncio.Timeout] = {}
        """The time limit of each attempt in progress, by the number of its commit."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._resumed = asyncio.Event()

    def __len__(self) -> int:
        """Number of parts that are not finished."""
        return len(self._shares) + len(self._begun)

    def push(self, share: FileShare) -> None:
        """Queue a part of a file. The upload of the file may still be in progress."""
        self._shares.append(share)
        self._ensure("begin", self._begin_all)

    def _ensure(self, work: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a loop over the queue, unless the loop is already running."""
        if work not in self._tasks:
            name = f"diskless commits to coordinator {self._id}: {work}"
            self._tasks[work] = asyncio.get_running_loop().create_task(run(), name=name)

    def resume(self) -> None:
        """End the pause after a failure, because another broker leads the coordinator now. The next attempt
        is then made at once."""
        self._resumed.set()

    async def stop(self) -> None:
        """Drop the queue. It stays unknown whether its files were committed."""
        tasks = [*self._tasks.values(), *(attempt for _, attempt in self._begun if attempt is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin_all(self) -> None:
        while self._shares:
            share, attempt = self._shares[0], None
            with self._unexpected.contained("committing a WAL object", partial(_lost_track, share)):
                if await asyncio.shield(share.file.uploaded):
                    attempt = await self._begin(share)
                else:
                    self._note_dropped(share.batches)
            self._shares.popleft()
            self._begun.append((share, attempt))
            self._ensure("finish", self._finish_all)
        del self._tasks["begin"]

    async def _finish_all(self) -> None:
        while self._begun:
            share, attempt = self._begun[0]
            with self._unexpected.contained("committing a WAL object", partial(_lost_track, share)):
                if attempt is not None:
                    self._finish(share, await attempt)
            self._begun.popleft()
            self._on_done(share)
        del self._tasks["finish"]

    async def _begin(self, share: FileShare) -> "asyncio.Task[KnownOutcome] | None":
        """Begin a commit when another commit is allowed. Returns ``None`` if no batch of the part is left."""
        await self._open.room(commit_epoch(self._coordinator))
        if not self._select(share):
            return None
        number = self._open.open_next()
        name = f"diskless commit {number} to coordinator {self._id}"
        attempt = asyncio.get_running_loop().create_task(self._until_known(share, number), name=name)
        attempt.add_done_callback(partial(self._ended, number))
        return attempt

    def _ended(self, number: int, attempt: "asyncio.Task[KnownOutcome]") -> None:
        """Close a commit. After an error, the coordinator perhaps never received the number of this commit.
        The next commit may then be waiting at the coordinator for this number. In this case the attempt of
        the next commit is ended, so that the next commit is sent again with a new :class:`CommitPlace`."""
        if attempt.cancelled():
            self._open.settle(number)
            return
        is_received = attempt.exception() is None and not isinstance(attempt.result().result, KafkaError)
        self._open.settle(number, is_received=is_received)
        limit = self._limits.get(self._open.blocked())
        if limit is not None and not limit.expired():
            limit.reschedule(0)

    def _select(self, share: FileShare) -> bool:
        """Decide which batches are committed. Returns whether there is any batch to commit."""
        if len(share.file.owner_ids) == 1:
            # The file has no other coordinator, so no other coordinator depends on the list of batches.
            # Batches may therefore still be left out.
            share.drop_expired()
        self._note_dropped(share.dropped)
        gaps = self._gaps
        share.follow_dropped = {
            at for at, batch in enumerate(share.batches) if gaps.follows_dropped(batch.key, batch.header)
        }
        return bool(share.batches)

    def _finish(self, share: FileShare, outcome: "KnownOutcome") -> None:
        """Send the responses to the producers of a part of a file."""
        result, took_ms = outcome
        self._meters.committed(len(share.batches), took_ms)
        if isinstance(result, KafkaError):
            _log.warning("coordinator %d refused %s: %s", self._id, share.file.key, result)
            _answer_all(share, _refusal_code(share, result), result.message)
            self._note_dropped(share.batches)
            return
        self._report_backlog(self._id, result.backlog_bytes)
        share.outcomes = result.batches
        rejected = 0
        for at, (batch, committed) in enumerate(zip(share.batches, result.batches, strict=True)):
            if committed.error is HELD:
                if not self._hold(share.file, batch):
                    self._gaps.dropped(batch.key, batch.header)
                    batch.owner.resolve(AppendOutcome(*committed[:5]))
                continue
            if committed.error is UNGUARDED:
                self._gaps.dropped(batch.key, batch.header)
            if committed.error is ErrorCode.none and at in share.follow_dropped:
                self._gaps.committed(batch.key, batch.header)
            if committed.error is not ErrorCode.none:
                rejected += 1
            elif not committed.is_duplicate:
                share.file.accepted_count += 1
            batch.owner.resolve(AppendOutcome(*committed[:5]))
        if rejected:
            self._meters.rejected(rejected)

    def _note_dropped(self, batches: Sequence[ProducedBatch]) -> None:
        for batch in batches:
            self._gaps.dropped(batch.key, batch.header)

    async def _until_known(self, share: FileShare, number: int) -> "KnownOutcome":
        """Send the commit until its outcome is known, and return the coordinator's response. The response may
        be a refusal after which no batch of the part will ever be committed.

        FORGOTTEN and NUMBER_PASSED are treated as such refusals. After these errors no repetition returns the
        outcome, and repetitions would delay all later files. After NUMBER_PASSED, the next number that the
        coordinator expects is higher than this one. It would also refuse the next numbers of this broker, so
        later commits are sent without numbers.
        """
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        call = share.call(self._broker_id)
        retry = 0
        failed_s: float | None = None
        while True:
            await self._open.until_sendable(number)
            call = replace(call, place=self._open.place(number))
            attempted_s = loop.time()
            try:
                result = await self._attempt(number, call)
                if failed_s is not None:
                    self._meters.paused((loop.time() - failed_s) * 1000)
                return KnownOutcome(result, (loop.time() - begin_s) * 1000)
            except KafkaError as error:
                if error.code is NUMBER_PASSED:
                    self._open.abandon_numbers()
                if error.code in DEFINITE_REFUSALS or error.code in (FORGOTTEN, NUMBER_PASSED):
                    return KnownOutcome(error, (loop.time() - begin_s) * 1000)
                if error.code is ErrorCode.unsupported_version and not _is_alone(call):
                    # The coordinator does not keep the order of commits, so it must get one commit at a time.
                    # This attempt has sent no request.
                    if not self._open.is_first(number):
                        await self._open.until_settled()
                    continue
                reason: Exception = error
            except (OSError, TimeoutError) as error:
                reason = error
            except asyncio.CancelledError:
                share.file.is_uncertain = True  # the coordinator may still carry out the commit
                raise
            share.file.is_uncertain = True
            failed_s = attempted_s if failed_s is None else failed_s
            self._meters.commit_failed()
            log = _log.warning if retry == 0 else _log.debug
            log("commit of %s to coordinator %d: %r; asking again", share.file.key, self._id, reason)
            self._open.halt()
            if self._open.is_first(number):
                is_resumed = await self._pause(self._policy.backoff_ms(retry, self._entropy) / 1000)
                retry = 0 if is_resumed else retry
            retry += 1

    async def _attempt(self, number: int, call: CommitFileCall) -> CommitFileResult:
        """Send a commit to the coordinator. Raises ``TimeoutError`` after the time-out, and when the commit
        must be sent again with a new :class:`CommitPlace`."""
        async with asyncio.timeout(self._policy.attempt_timeout_ms / 1000) as limit:
            self._limits[number] = limit
            try:
                return await self._coordinator.commit_file(self._id, call)
            finally:
                del self._limits[number]

    async def _pause(self, seconds: float) -> bool:
        """Wait between two attempts. Returns whether :meth:`resume` ended the wait."""
        self._resumed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._resumed.wait()
        except TimeoutError:
            return False
        return True


def _is_alone(call: CommitFileCall) -> bool:
    """Whether no earlier commit was open when the call got its number."""
    return call.place is None or call.place.number == call.place.open_from


class CommitQueues:
    """Owns a queue for each coordinator, and splits files among the queues."""

    def __init__(self, committing: Committing, on_done: Callable[[FileShare], None]) -> None:
        self._committing = committing
        self._on_done = on_done
        self._queues: dict[int, FileCommitQueue] = {}

    def __len__(self) -> int:
        """Number of parts of files that are not finished."""
        return sum(len(queue) for queue in self._queues.values())

    def configure(self, retries: RetryPolicy) -> None:
        """From now on, use another policy for coordinators that get their first file later."""
        self._committing = replace(self._committing, retries=retries)

    def share_out(self, file: WalFile) -> None:
        """Queue the file at its coordinators. This determines its position in their order."""
        shares: dict[int, FileShare] = {}
        for run in file.object.runs:
            try:
                coordinator_id = self._committing.coordinator.coordinator_of(*run[0].key)
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
            queue = FileCommitQueue(coordinator_id, self._committing, self._on_done)
            self._queues[coordinator_id] = queue
        return queue

    def coordinator_moved(self, coordinator_id: int) -> None:
        """Another broker leads the coordinator now. Repeat a commit that waits after a failure."""
        queue = self._queues.get(coordinator_id)
        if queue is not None:
            queue.resume()

    async def stop(self) -> None:
        """Drop all queues. It stays unknown whether their files were committed."""
        for queue in self._queues.values():
            await queue.stop()
        self._queues.clear()


def _refusal_code(share: FileShare, refusal: KafkaError) -> ErrorCode:
    """Error code for producers. KAFKA_STORAGE_ERROR is used only if it is certain that no batch was
    committed, because librdkafka relies on this meaning."""
    if refusal.code is ErrorCode.invalid_request:
        return ErrorCode.unknown_server_error
    return ErrorCode.request_timed_out if share.file.is_uncertain else ErrorCode.kafka_storage_error


def _lost_track(share: FileShare, error: Exception) -> None:
    """Answer all batches of a share with an error, because an unexpected error has occurred. Otherwise a bug
    would block all later files of the coordinator."""
    share.file.is_uncertain = True
    share.outcomes = ()  # the offsets are unknown, so no batch may be passed to the cache
    _answer_all(share, ErrorCode.unknown_server_error, "unexpected error")


def _answer_all(share: FileShare, code: ErrorCode, message: str | None) -> None:
    outcome = AppendOutcome(code, message=message)
    for batch in share.batches:
        batch.owner.resolve(outcome)
