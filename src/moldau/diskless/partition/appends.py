"""Appends to a diskless partition. Batches are checked and passed to the writer in the order of the calls."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from moldau.coordinators.diskless.calls import CREATE_TIME, LOG_APPEND_TIME
from moldau.diskless.partition.services import PartitionServices
from moldau.diskless.partition.traffic import TopicTraffic
from moldau.protocol.partitions import PartitionKey
from moldau.records.batch import TRANSACTIONAL_BIT, BatchHeader, TimestampType, validate_produce
from moldau.records.errors import OpenedSizeError, RecordsRejectedError
from moldau.records.record import QUICK_BYTES
from moldau.replication.appending.slow_batches import OpeningQueue
from moldau.replication.partition_interface import AppendAnswer, AppendOutcome
from moldau.runtime import ErrorCode, KafkaError
from moldau.runtime.fair_lane import FairClient
from moldau.runtime.steps import Steps, exhaust
from moldau.storage.log.admission import checked, is_slow_to_admit, must_open
from moldau.storage.log.config import LogConfig

_PENDING_BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximum bytes of batches that wait for the creation of a new partition by its coordinator."""

_DEFECT: Final = AppendOutcome(ErrorCode.unknown_server_error, message="unexpected error")

_UNGUARDED: Final = "the batch belongs to no open transaction"


class _Terms(NamedTuple):
    """The acks, the timeout and the guard in a producer's request to append a batch."""

    required_acks: int
    timeout_ms: int
    guard: int


class _PendingAppend:
    """An append that waits until it is certain that the coordinator has the partition."""

    __slots__ = ("_appends", "_due", "answer", "guard", "header", "records", "timeout_at_s")

    def __init__(
        self,
        appends: "PartitionAppends",
        records: bytes,
        header: BatchHeader,
        timeout_s: float,
        guard: int,
    ) -> None:
        self._appends = appends
        self.records = records
        self.header = header
        self.guard = guard
        deadlines = appends.deadlines
        self.timeout_at_s = deadlines.loop.time() + timeout_s
        self.answer: asyncio.Future[AppendOutcome] = deadlines.loop.create_future()
        self._due = deadlines.due(timeout_s)
        deadlines.add(self._due, self)
        self.answer.add_done_callback(self._answered)

    def expire(self) -> None:
        self._due = -1.0
        if not self.answer.done():
            self.answer.set_result(AppendOutcome(ErrorCode.request_timed_out))
        self._appends.drop_answered()

    def _answered(self, _answer: "asyncio.Future[AppendOutcome]") -> None:
        if self._due >= 0:
            self._appends.deadlines.remove(self._due, self)


class AppendTarget(Protocol):
    """The partition on this broker, as appends need it."""

    @property
    def is_closed(self) -> bool:
        """Whether the partition has left this broker."""
        ...

    @property
    def is_known(self) -> bool:
        """Whether it is certain that the coordinator has the partition."""
        ...

    def when_known(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once: when it is certain that the coordinator has the partition, or when the
        partition has left this broker."""
        ...


class PartitionAppends:
    """Passes producers' batches to the writer."""

    def __init__(
        self,
        key: PartitionKey,
        place: AppendTarget,
        services: PartitionServices,
        config: LogConfig,
        traffic: TopicTraffic,
    ) -> None:
        self.config = config
        """The current config of the topic."""
        self._key = key
        self._place = place
        self._writer = services.writer
        self.deadlines = services.deadlines
        self._clock = services.clock
        self._opening = OpeningQueue(services.opening, services.unexpected)
        self._traffic = traffic
        self._unexpected = services.unexpected
        self._pending: deque[_PendingAppend] = deque()
        self._pending_bytes = 0
        self._awaits_birth = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes of batches that wait until it is certain that the coordinator has the partition."""
        return self._pending_bytes

    def append(
        self,
        records: memoryview,
        *,
        required_acks: int,
        timeout_ms: int,
        client: FairClient | None = None,
        guard: int = 0,
    ) -> AppendAnswer:
        """Append a batch, like ``Partition.append``. If the batch is transactional, it has a ``guard``, and
        its transaction was verified."""
        with self._unexpected.contained("taking a batch"):
            return self._append(records, _Terms(required_acks, timeout_ms, guard), client)
        return _DEFECT

    def _append(self, records: memoryview, terms: "_Terms", client: FairClient | None) -> AppendAnswer:
        size_bytes = len(records)
        self._traffic.received(size_bytes, None if client is None else client.rack)
        try:
            config, now_ms = self.config, self._clock.now_ms()
            header = validate_produce(records, max_batch_bytes=config.max_message_bytes)[0]
            if header[5] & TRANSACTIONAL_BIT and not terms.guard:
                raise KafkaError(ErrorCode.invalid_txn_state, _UNGUARDED)
            if self._opening.is_busy(client) or is_slow_to_admit(config, header, now_ms):
                answer: AppendAnswer = self._append_opened(records, header, terms, client)
            elif not must_open(config, header, now_ms):
                answer = self._append_stored(records, header, size_bytes, terms)
            else:
                try:
                    stored, header = exhaust(_as_stored(config, records, header, now_ms, QUICK_BYTES))
                except OpenedSizeError:
                    answer = self._append_opened(records, header, terms, client)
                else:
                    answer = self._append_stored(stored, header, size_bytes, terms)
        except KafkaError as error:
            return self._refuse(size_bytes, error)
        if terms.required_acks == 0 and not (
            isinstance(answer, AppendOutcome) and answer.error is ErrorCode.not_leader_or_follower
        ):
            return AppendOutcome()
        return answer

    def _refuse(self, size_bytes: int, error: KafkaError) -> AppendOutcome:
        self._traffic.refused(error.code, size_bytes)
        bad = error.record_errors if isinstance(error, RecordsRejectedError) else ()
        return AppendOutcome(error.code, message=error.message, record_errors=bad)

    def _append_opened(
        self, records: memoryview, header: BatchHeader, terms: "_Terms", client: FairClient | None
    ) -> "asyncio.Future[AppendOutcome]":
        """Append a batch that a worker thread decompresses. Later appends of the same client wait for this
        append."""
        batch = memoryview(bytes(records))
        return self._opening.put(
            client,
            _as_stored(self.config, batch, header, self._clock.now_ms()),
            lambda opened: self._append_stored(opened[0], opened[1], len(batch), terms),
            partial(self._refuse, len(batch)),
            is_lasting=terms.required_acks == 0,
        )

    def _append_stored(
        self, stored: memoryview, header: BatchHeader, size_bytes: int, terms: "_Terms"
    ) -> AppendAnswer:
        if self._place.is_closed:
            return AppendOutcome(ErrorCode.not_leader_or_follower)
        if not self._place.is_known or self._pending:
            answer: AppendAnswer = self._append_when_known(stored, header, terms)
        else:
            answer = self._append_now(stored, header, terms.timeout_ms, terms.guard)
        if not isinstance(answer, AppendOutcome) or answer.error is ErrorCode.none:
            self._traffic.appended(header.records_count, size_bytes)
        return answer

    def _append_now(
        self, records: memoryview, header: BatchHeader, timeout_ms: float, guard: int
    ) -> AppendAnswer:
        stamps = self.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        return self._writer.append(
            self._key,
            records,
            header,
            timeout_ms=int(timeout_ms),
            timestamp_type=LOG_APPEND_TIME if stamps else CREATE_TIME,
            guard=guard,
        )

    def _append_when_known(
        self, records: memoryview, header: BatchHeader, terms: "_Terms"
    ) -> "asyncio.Future[AppendOutcome]":
        """Queue a batch, in order, because perhaps the coordinator has not created the partition yet."""
        # The first batch in the queue may have any size. Otherwise a very large batch could never be
        # appended.
        if self._pending and self._pending_bytes + len(records) > _PENDING_BYTES_MAX:
            refused: asyncio.Future[AppendOutcome] = self.deadlines.loop.create_future()
            refused.set_result(AppendOutcome(ErrorCode.not_leader_or_follower))
            return refused
        if not self._awaits_birth:
            self._awaits_birth = True
            self._place.when_known(self._born)
        pending = _PendingAppend(self, bytes(records), header, terms.timeout_ms / 1000, terms.guard)
        self._pending.append(pending)
        self._pending_bytes += len(records)
        return pending.answer

    def drop_answered(self) -> None:
        """Free the memory of appends that got a response before the partition was known."""
        while self._pending and self._pending[0].answer.done():
            self._next_pending()

    def refuse_waiting(self) -> None:
        """The broker stops. Therefore refuse the batches that are waiting for the confirmation that the
        coordinator has the partition."""
        while self._pending:
            pending = self._next_pending()
            if not pending.answer.done():
                pending.answer.set_result(AppendOutcome(ErrorCode.not_leader_or_follower))

    def _next_pending(self) -> _PendingAppend:
        pending = self._pending.popleft()
        self._pending_bytes -= len(pending.records)
        return pending

    def _born(self) -> None:
        self._awaits_birth = False
        loop = asyncio.get_running_loop()
        while self._pending:
            pending = self._next_pending()
            if pending.answer.done():
                continue
            if self._place.is_closed:
                pending.answer.set_result(AppendOutcome(ErrorCode.not_leader_or_follower))
                continue
            rest_ms = max(0.0, pending.timeout_at_s - loop.time()) * 1000
            answer: AppendAnswer = _DEFECT
            with self._unexpected.contained("appending a batch that has waited"):
                records = memoryview(pending.records)
                answer = self._append_now(records, pending.header, rest_ms, pending.guard)
            if isinstance(answer, AppendOutcome):
                pending.answer.set_result(answer)
            else:
                answer.add_done_callback(_passing_on(pending.answer))


def _as_stored(
    config: LogConfig, records: memoryview, header: BatchHeader, now_ms: int, limit: int | None = None
) -> Steps[tuple[memoryview, BatchHeader]]:
    """The batch in the form in which it is stored; see :func:`moldau.storage.log.admission.checked`. The
    writer sets the append time.
    """
    batch, header = yield from checked(config, records, header, now_ms, limit)
    return memoryview(batch), header


def _passing_on(
    target: "asyncio.Future[AppendOutcome]",
) -> "Callable[[asyncio.Future[AppendOutcome]], None]":
    def pass_on(done: "asyncio.Future[AppendOutcome]") -> None:
        if not target.done():
            if done.cancelled():
                target.set_result(AppendOutcome(ErrorCode.not_leader_or_follower))
            else:
                target.set_result(_DEFECT if done.exception() is not None else done.result())

    return pass_on
