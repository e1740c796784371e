"""One partition's shard while this node leads the partition.

The runtime guarantees this order to its shards:

1. *Decide*: an operation reads the shard and returns effects. The shard contains every earlier decision,
   committed or not.
2. *Replay*: the records of the operation are applied to the shard at once, at the offsets that they will
   get. Therefore the next operation need not wait for the log.
3. *Append*: all records of one iteration of the event loop are appended to the log as one batch.
4. *Answer*: the response is sent when everything that the operation could have read is committed.

When an append fails, the shard contains records that the log does not contain. Therefore all waiting
requests get an error, and the shard is discarded and loaded again from the log.

States: LOADING -> ACTIVE -> CLOSED. After a failure, LOADING and ACTIVE go back to LOADING.
"""

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from moldau.coordinators.effects import BatchKind, Effects, Reply, TimerKey, Token
from moldau.coordinators.kind import CoordinatorKind, Term
from moldau.coordinators.loader import BrokenRecordError, BrokenRecords, ShardLoader
from moldau.coordinators.log import coordinator_error
from moldau.coordinators.pending import BATCH_OVERHEAD_BYTES, KeyValue, PendingBatch, batch_size_bytes
from moldau.coordinators.shard import CommittedRecord, Shard
from moldau.coordinators.timers import ShardTimers
from moldau.coordinators.watermark_waits import CommitQueue
from moldau.records.control import EndTransactionMarker, build_end_transaction_marker
from moldau.replication.appending.transactions import TransactionGuard
from moldau.runtime import Clock, ErrorCode, KafkaError, UnexpectedErrors

logger = logging.getLogger(__name__)

R = TypeVar("R")
S = TypeVar("S", bound=Shard[Any])
T = TypeVar("T")

RELOAD_DELAY_S = 0.5
RELOAD_DELAY_MAX_S = 30.0


class HostState(enum.Enum):
    """State of a host. Operations run only in ACTIVE."""

    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


class ShardHost(Generic[S, R]):
    """Runs one shard over one log, for one term (one leader epoch)."""

    def __init__(
        self,
        kind: CoordinatorKind[S, R],
        term: Term,
        clock: Clock,
        unexpected: UnexpectedErrors,
        *,
        after: "asyncio.Task[None] | None" = None,
    ) -> None:
        """``after`` completes when an earlier term on this node has ended. Until then the earlier term may
        use the store's files."""
        loop = asyncio.get_running_loop()
        self.term = term
        self.name = f"{kind.topic.name}-{term.partition}"
        self.state = HostState.LOADING
        self.load_problem: str | None = None
        """The reason why the last load failed; cleared when a load succeeds."""
        self.broken = BrokenRecords()
        """Unreadable records that the last load skipped."""
        self.loads = 0
        self.store = None if kind.new_store is None else kind.new_store(term)
        self.kind = kind
        self._after = after
        self._unexpected = unexpected
        self._log = term.log
        self._codec = kind.codec
        self._clock = clock
        self._loop = loop
        self._shard = kind.new_shard(term.partition)
        self._timers = ShardTimers(loop, self._on_timer)
        self._commits = CommitQueue(loop, kind.policy.commit_timeout_ms)
        self._waiting: dict[Token, asyncio.Future[Any]] = {}
        self._next_token = 0
        self._pending = PendingBatch(kind.policy.compression)
        self._flush_planned = False
        self._appending = False
        self._end_offset = 0
        self._uncommitted: deque[CommittedRecord] = deque()
        self._committed_to: tuple[int, asyncio.Future[None]] | None = None
        """The offset that a load waits for, and a future. The future is completed when all records before the
        offset are committed."""
        self._loading = loop.create_task(self._load(), name=f"load {self.name}")
        self._end_watermarks = self._log.follow_watermark(self._on_high_watermark)

    @property
    def shard(self) -> S:
        return self._shard

    @property
    def committed_end(self) -> int:
        """The offset before which the records of the log are committed."""
        return self._log.high_watermark

    @property
    def end_offset(self) -> int:
        """The offset after the last record that the loaded shard has replayed."""
        return self._end_offset

    async def until_loaded(self) -> None:
        """Wait for the load in progress. The wait also ends when the host is closed."""
        await asyncio.wait([self._loading])

    def write(self, operation: Callable[[S, int, Token], Effects[R]]) -> "asyncio.Future[Any]":
        """Run an operation now. The result of the future is the response. Fails with :class:`KafkaError`."""
        future: asyncio.Future[Any] = self._loop.create_future()
        try:
            self._check_active()
            token = Token(self._next_token)
            self._next_token += 1
            self._waiting[token] = future
            try:
                now_ms = self._clock.now_ms()
                effects = operation(self._shard, now_ms, token)
            except BaseException:
                del self._waiting[token]
                raise
        except KafkaError as error:
            future.set_exception(error)
            return future
        except Exception as error:
            future.set_exception(self._defect("deciding on a request", error))
            return future
        self._accept(effects, now_ms)
        return future

    def write_in_transaction(
        self,
        operation: Callable[[S, int, Token], Effects[R]],
        producer: BatchKind,
        guard: TransactionGuard | None,
    ) -> "asyncio.Future[Any]":
        """Like :meth:`write`, for records that belong to the producer's transaction.

        Fails with INVALID_PRODUCER_EPOCH if the producer is fenced. Fails with INVALID_TXN_STATE if the
        records would open a transaction and the guard is not valid.
        """

        # The records that were collected before must be appended first, because the check of the guard uses
        # the state of producers in the log, which these records may change.
        if self.state is HostState.ACTIVE:
            self._flush()

        def checked(shard: S, now_ms: int, token: Token) -> Effects[R]:
            self._log.check_transaction(producer.producer_id, producer.producer_epoch, guard)
            return operation(shard, now_ms, token)

        return self.write(checked)

    def end_transaction(
        self, producer: BatchKind, marker: EndTransactionMarker, version: int
    ) -> "asyncio.Future[None]":
        """Write the marker that ends the producer's transaction. The future is done when the marker is
        committed.

        ``version`` is the transaction version (KIP-890), which decides which epochs a marker may have. Fails
        with INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED if the marker is too old.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        try:
            self._check_active()
            self._flush()
            self._check_active()
            self._log.check_marker(producer.producer_id, producer.producer_epoch, version)
            self._append_marker(producer, marker)
        except KafkaError as error:
            future.set_exception(error)
            return future
        self._answer(future, None)
        self._on_high_watermark(self._log.high_watermark)
        return future

    def _append_marker(self, producer: BatchKind, marker: EndTransactionMarker) -> None:
        batch = build_end_transaction_marker(
            producer.producer_id,
            producer.producer_epoch,
            committed=marker.committed,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp=self._clock.now_ms(),
        )
        self._appending = True
        try:
            offset = self._log.append(bytearray(batch))
        finally:
            self._appending = False
        if offset != self._end_offset:
            error = KafkaError(ErrorCode.coordinator_not_available, f"{self.name} is loaded again.")
            self._lose(error)
            raise error
        self._end_offset = offset + 1
        self._shard.replay_marker(producer.producer_id, producer.producer_epoch, marker.committed)

    def read(self, operation: Callable[[S, int], Any]) -> "asyncio.Future[Any]":
        """Read the shard now. The response is sent when all decisions that the shard contains at this time
        are committed."""
        future: asyncio.Future[Any] = self._loop.create_future()
        try:
            self._check_active()
            response = operation(self._shard, self._clock.now_ms())
        except KafkaError as error:
            future.set_exception(error)
        except Exception as error:
            future.set_exception(self._defect("reading a coordinator", error))
        else:
            self._answer(future, response)
        return future

    def peek(self, operation: Callable[[S, int], T]) -> T | None:
        """Run ``operation(shard, committed_end)`` now, without waiting for commits. The operation must itself
        ignore what records at or after ``committed_end`` have decided. The result is None if the shard is
        not loaded."""
        if self.state is not HostState.ACTIVE:
            return None
        return operation(self._shard, self._covered(self.committed_end))

    def stop(self) -> None:
        """Stop leading immediately: all waiting requests get NOT_COORDINATOR."""
        self.state = HostState.CLOSED
        self._end_watermarks()
        self._loading.cancel()
        self._drop(KafkaError(ErrorCode.not_coordinator, f"{self.name} has moved to another node."))

    async def close(self) -> None:
        """Wait until no task of this host is running any more. Call :meth:`stop` before this method."""
        await asyncio.wait([self._loading])
        if self.store is not None:
            await self.store.close()

    def _check_active(self) -> None:
        match self.state:
            case HostState.ACTIVE:
                return
            case HostState.LOADING:
                raise KafkaError(ErrorCode.coordinator_load_in_progress, f"{self.name} is being loaded.")
            case HostState.CLOSED:
                raise KafkaError(ErrorCode.not_coordinator, f"{self.name} is not on this node.")

    def _defect(self, work: str, error: Exception) -> KafkaError:
        self._unexpected.report(f"{work} in {self.name}", error)
        return KafkaError(ErrorCode.unknown_server_error, "The coordinator could not handle the request.")

    # decide -> replay -> append -> answer

    def _accept(self, effects: Effects[R], now_ms: int) -> None:
        # If an exception is raised here, every waiting request must still get a response; ``_lose`` sends it.
        with self._unexpected.contained(f"carrying out a decision of {self.name}", self._lose):
            if effects.records and not self._replay(effects, now_ms):
                return
            for change in effects.timers:
                self._timers.apply(change)
            for reply in effects.replies:
                self._give(reply)

    def _replay(self, effects: Effects[R], now_ms: int) -> bool:
        """Apply the records and queue them for the log. ``now_ms`` is the time of the decision. Returns False
        when the records were refused, or when the shard was discarded."""
        if effects.is_refusable:
            try:
                self._log.check_writable()
            except KafkaError as refusal:
                self._refuse(effects, refusal)
                return False
        encode = self._codec.encode
        try:
            pairs = [KeyValue(*encode(record)) for record in effects.records]
        except Exception as failure:
            self._unexpected.report(f"encoding a decision of {self.name}", failure)
            self._lose(failure)
            return False
        limit, size_bytes = self._log.max_batch_bytes, batch_size_bytes(pairs)
        if effects.atomic and size_bytes > limit:
            error = KafkaError(ErrorCode.message_too_large, f"A write of {self.name} exceeds {limit} bytes.")
            if effects.is_refusable:
                self._refuse(effects, error)
            else:
                self._lose(error)
            return False
        if effects.atomic and not self._make_room(effects.kind, size_bytes - BATCH_OVERHEAD_BYTES):
            return False
        for record, pair in zip(effects.records, pairs, strict=True):
            if not effects.atomic and not self._make_room(effects.kind, pair.size_bytes):
                return False
            offset = self._end_offset
            try:
                self._shard.replay(offset, record, effects.kind)
            except Exception as error:
                self._unexpected.report(f"replaying a decision of {self.name}", error)
                self._lose(error)
                return False
            self._pending.add(pair, offset, now_ms, effects.kind)
            self._end_offset = offset + 1
            if self.store is not None:
                self._uncommitted.append(CommittedRecord(offset, record))
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._planned_flush)
        return True

    def _refuse(self, effects: Effects[R], error: KafkaError) -> None:
        """Send the error of an operation, without appending its records."""
        for change in effects.timers:
            self._timers.apply(change)
        for reply in effects.replies:
            future = self._waiting.pop(reply.token, None)
            if future is not None and not future.done():
                future.set_exception(coordinator_error(error))

    def _make_room(self, kind: BatchKind, more_bytes: int) -> bool:
        if not self._pending.has_room(kind, more_bytes, self._log.max_batch_bytes):
            self._flush()
        return self.state is HostState.ACTIVE

    def _planned_flush(self) -> None:
        self._flush_planned = False
        if self.state is HostState.ACTIVE:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        expected = self._end_offset - len(self._pending)
        # The log may advance its high watermark during the append, and usually responses are then sent. But
        # now no response may be sent before it is certain that the records got the offsets that the shard
        # assumed.
        self._appending = True
        try:
            base_offset = self._log.append(self._pending.build())
        except Exception as error:
            logger.warning("%s could not append to its log: %s", self.name, error)
            self._lose(error)
            return
        finally:
            self._appending = False
        if base_offset != expected:
            self._lose(
                KafkaError(
                    ErrorCode.coordinator_not_available,
                    f"{self.name} appended at offset {base_offset} instead of {expected}.",
                )
            )
            return
        self._on_high_watermark(self._log.high_watermark)

    def _give(self, reply: Reply) -> None:
        future = self._waiting.get(reply.token)
        if future is None:
            return
        if isinstance(reply.response, KafkaError):
            # An error does not depend on uncommitted records, so it is sent at once, like the exception of an
            # operation.
            if not future.done():
                future.set_exception(reply.response)
        else:
            self._answer(future, reply.response)
        del self._waiting[reply.token]

    def _answer(self, future: "asyncio.Future[Any]", response: Any) -> None:
        if not self._pending and self._end_offset <= self._log.high_watermark:
            if not future.done():
                future.set_result(response)
        else:
            self._commits.add(self._end_offset, future, response)

    def _on_high_watermark(self, high_watermark: int) -> None:
        if self._committed_to is not None and high_watermark >= self._committed_to[0]:
            awaited = self._committed_to[1]
            if not awaited.done():
                awaited.set_result(None)
        if self.state is HostState.ACTIVE and not self._appending:
            covered = self._covered(high_watermark)
            # If the store cannot accept the records, nothing is lost, because they are replayed from the log
            # when the shard is loaded again.
            with self._unexpected.contained(f"storing what {self.name} has committed", self._lose):
                self._hand_over(covered)
                self._commits.advance(covered)

    def _covered(self, high_watermark: int) -> int:
        """The end of the committed decisions of the shard. Records that are not appended yet have expected
        offsets, which another record may get."""
        return min(high_watermark, self._end_offset - len(self._pending))

    def _hand_over(self, high_watermark: int) -> None:
        if self.store is None:
            return
        uncommitted = self._uncommitted
        records = []
        while uncommitted and uncommitted[0].offset < high_watermark:
            records.append(uncommitted.popleft())
        self.store.committed(records, high_watermark)

    # timers

    def _on_timer(self, key: TimerKey) -> None:
        if self.state is not HostState.ACTIVE:
            return
        # Requests may be waiting for the decision of this timer's operation. If the operation fails because
        # of a bug, ``_lose`` answers them with an error.
        with self._unexpected.contained(f"deciding on a timer in {self.name}", self._lose):
            now_ms = self._clock.now_ms()
            self._accept(self._shard.on_timer(key, now_ms), now_ms)

    # loading and discarding

    async def _load(self) -> None:
        if self._after is not None:
            # An earlier term of the same partition may still be closing the files of its store.
            await asyncio.wait([self._after])
            self._after = None
        delay_s = RELOAD_DELAY_S
        while self.state is HostState.LOADING:
            try:
                await self._load_once()
                return
            except asyncio.CancelledError:
                raise
            except Exception as error:
                if isinstance(error, BrokenRecordError) and self.load_problem != str(error):
                    logger.error(
                        "%s cannot be loaded: %s. Its log, or a copy of it, has to be repaired.",
                        self.name,
                        error,
                    )
                self.load_problem = str(error)
                logger.warning("%s could not be loaded and will be tried again: %s", self.name, error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RELOAD_DELAY_MAX_S)

    async def _load_once(self) -> None:
        log, store = self._log, self.store
        self._shard = self.kind.new_shard(self.term.partition)
        self._uncommitted.clear()
        offset = await store.restore(self._shard) if store is not None else None
        start = log.log_start_offset if offset is None else offset

        def remember(offset: int, record: R) -> None:
            self._uncommitted.append(CommittedRecord(offset, record))

        def hand_over() -> None:
            self._hand_over(log.high_watermark)

        loader = ShardLoader(
            self._shard,
            self._codec,
            log,
            remember if store is not None else None,
            name=self.name,
            policy=self.kind.policy,
            runs=self.kind.run_replay(self._shard) if self.kind.run_replay and store is None else None,
        )
        self._end_offset = await loader.run(start, hand_over)
        if store is not None:
            # A read of the store contains only committed records, and does not wait for a commit. An earlier
            # leader may have sent responses that depend on the last records of the log. Therefore all these
            # records must be committed and in the store before the first read.
            await self._until_committed(self._end_offset)
            hand_over()
        self.load_problem, self.broken = None, loader.broken
        self.loads += 1
        if loader.records_unknown:
            logger.warning(
                "%s: %d records of types that are not known were skipped.", self.name, loader.records_unknown
            )
        if loader.broken.count:
            logger.error("%s: %s.", self.name, loader.broken)
        now_ms = self._clock.now_ms()
        effects = self._shard.on_loaded(now_ms)
        self.state = HostState.ACTIVE
        logger.info(
            "%s is loaded: %d records up to offset %d.", self.name, loader.records_replayed, self._end_offset
        )
        self._accept(effects, now_ms)

    async def _until_committed(self, offset: int) -> None:
        """Wait until all records before ``offset`` are committed in this term."""
        if self._log.high_watermark < offset:
            awaited: asyncio.Future[None] = self._loop.create_future()
            self._committed_to = (offset, awaited)
            try:
                await awaited
            finally:
                self._committed_to = None

    def _lose(self, error: BaseException) -> None:
        """Discard the shard, because it differs from its log, and load it again."""
        if self.state is not HostState.ACTIVE:
            return
        self.state = HostState.LOADING
        self._drop(coordinator_error(error))
        self._loading = self._loop.create_task(self._load(), name=f"reload {self.name}")

    def _drop(self, error: KafkaError) -> None:
        self._timers.clear()
        self._pending = PendingBatch(self.kind.policy.compression)
        self._commits.fail(error)
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(KafkaError(error.code, error.message))
