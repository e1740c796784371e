"""Appends to one diskless partition: batches are checked and passed to the writer in the order of calls."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from moldau.coordinators.diskless.calls import CREATE_TIME, LOG_APPEND_TIME
from moldau.diskless.partition.services import PartitionServices
from moldau.diskless.partition.traffic import TopicTraffic
from moldau.records.batch import TRANSACTIONAL_BIT, BatchHeader, TimestampType, validate_produce
from moldau.records.errors import OpenedSizeError, RecordsRejectedError
from moldau.records.record import QUICK_BYTES
from moldau.replication.appending.opening import OpeningQueue
from moldau.replication.partition import AppendAnswer, AppendOutcome, PartitionKey
from moldau.runtime import ErrorCode, KafkaError
from moldau.runtime.fair_lane import FairClient, Steps, exhaust
from moldau.storage.log.admission import checked, is_slow_to_admit, must_open
from moldau.storage.log.config import LogConfig

_UNBORN_BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximum bytes of batches that wait for a new partition's creation at its coordinator."""

_DEFECT: Final = AppendOutcome(ErrorCode.unknown_server_error, message="unexpected error")

_NO_TRANSACTIONS: Final = "transactions on diskless topics are not supported yet"


class _Unborn(NamedTuple):
    """An append that waits until the partition is known."""

    records: bytes
    header: BatchHeader
    timeout_at_s: float
    answer: "asyncio.Future[AppendOutcome]"


class Place(Protocol):
    """The partition on this broker."""

    @property
    def is_closed(self) -> bool:
        """Whether it has left this broker."""
        ...

    @property
    def is_known(self) -> bool:
        """Whether the coordinator is known to have the partition."""
        ...

    def when_known(self, callback: Callable[[], None]) -> None:
        """Call back, once, when the partition is known or has left this broker."""
        ...


class PartitionAppends:
    """Passes producers' batches to the writer."""

    def __init__(
        self,
        key: PartitionKey,
        place: Place,
        services: PartitionServices,
        config: LogConfig,
        traffic: TopicTraffic,
    ) -> None:
        self.config = config
        """The topic's own config."""
        self._key = key
        self._place = place
        self._writer = services.writer
        self._clock = services.clock
        self._opening = OpeningQueue(services.opening, services.unexpected)
        self._traffic = traffic
        self._unexpected = services.unexpected
        self._unborn: deque[_Unborn] = deque()
        self._unborn_bytes = 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes of batches that wait until the partition is known."""
        return self._unborn_bytes

    def append(
        self, records: memoryview, *, required_acks: int, timeout_ms: int, client: FairClient | None = None
    ) -> AppendAnswer:
        with self._unexpected.contained("taking a batch"):
            return self._append(records, required_acks, timeout_ms, client)
        return _DEFECT

    def _append(
        self, records: memoryview, required_acks: int, timeout_ms: int, client: FairClient | None
    ) -> AppendAnswer:
        size_bytes = len(records)
        self._traffic.received(size_bytes, None if client is None else client.rack)
        try:
            config, now_ms = self.config, self._clock.now_ms()
            header = validate_produce(records, max_batch_bytes=config.max_message_bytes)[0]
            _refuse_transaction(header)
            is_lasting = required_acks == 0
            if self._opening.is_busy(client) or is_slow_to_admit(config, header, now_ms):
                answer: AppendAnswer = self._append_opened(
                    records, header, timeout_ms, client, is_lasting=is_lasting
                )
            elif not must_open(config, header, now_ms):
                answer = self._append_stored(records, header, size_bytes, timeout_ms)
            else:
                try:
                    stored, header = exhaust(_as_stored(config, records, header, now_ms, QUICK_BYTES))
                except OpenedSizeError:
                    answer = self._append_opened(records, header, timeout_ms, client, is_lasting=is_lasting)
                else:
                    answer = self._append_stored(stored, header, size_bytes, timeout_ms)
        except KafkaError as error:
            return self._refuse(size_bytes, error)
        if required_acks == 0 and not (
            isinstance(answer, AppendOutcome) and answer.error is ErrorCode.not_leader_or_follower
        ):
            return AppendOutcome()
        return answer

    def _refuse(self, size_bytes: int, error: KafkaError) -> AppendOutcome:
        self._traffic.refused(error.code, size_bytes)
        bad = error.record_errors if isinstance(error, RecordsRejectedError) else ()
        return AppendOutcome(error.code, message=error.message, record_errors=bad)

    def _append_opened(
        self,
        records: memoryview,
        header: BatchHeader,
        timeout_ms: int,
        client: FairClient | None,
        *,
        is_lasting: bool,
    ) -> "asyncio.Future[AppendOutcome]":
        """A worker opens the batch; later appends of the same client wait for it."""
        batch = memoryview(bytes(records))
        return self._opening.put(
            client,
            _as_stored(self.config, batch, header, self._clock.now_ms()),
            lambda opened: self._append_stored(opened[0], opened[1], len(batch), timeout_ms),
            partial(self._refuse, len(batch)),
            is_lasting=is_lasting,
        )

    def _append_stored(
        self, stored: memoryview, header: BatchHeader, size_bytes: int, timeout_ms: int
    ) -> AppendAnswer:
        if self._place.is_closed:
            return AppendOutcome(ErrorCode.not_leader_or_follower)
        if not self._place.is_known or self._unborn:
            answer: AppendAnswer = self._append_when_known(stored, header, timeout_ms)
        else:
            answer = self._append_now(stored, header, timeout_ms)
        if not isinstance(answer, AppendOutcome) or answer.error is ErrorCode.none:
            self._traffic.appended(header.records_count, size_bytes)
        return answer

    def _append_now(self, records: memoryview, header: BatchHeader, timeout_ms: float) -> AppendAnswer:
        stamps = self.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        return self._writer.append(
            self._key,
            records,
            header,
            timeout_ms=int(timeout_ms),
            timestamp_type=LOG_APPEND_TIME if stamps else CREATE_TIME,
        )

    def _append_when_known(
        self, records: memoryview, header: BatchHeader, timeout_ms: int
    ) -> "asyncio.Future[AppendOutcome]":
        """Keep the order of batches for a partition that its coordinator has not created yet."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[AppendOutcome] = loop.create_future()
        # One batch may always wait; otherwise a large one could never be the first.
        if self._unborn and self._unborn_bytes + len(records) > _UNBORN_BYTES_MAX:
            answer.set_result(AppendOutcome(ErrorCode.not_leader_or_follower))
            return answer
        if not self._unborn:
            self._place.when_known(self._born)
        timer = loop.call_later(timeout_ms / 1000, _time_out, answer)
        answer.add_done_callback(lambda _: timer.cancel())
        self._unborn.append(_Unborn(bytes(records), header, loop.time() + timeout_ms / 1000, answer))
        self._unborn_bytes += len(records)
        return answer

    def _born(self) -> None:
        loop = asyncio.get_running_loop()
        while self._unborn:
            unborn = self._unborn.popleft()
            self._unborn_bytes -= len(unborn.records)
            if unborn.answer.done():
                continue
            if self._place.is_closed:
                unborn.answer.set_result(AppendOutcome(ErrorCode.not_leader_or_follower))
                continue
            rest_ms = max(0.0, unborn.timeout_at_s - loop.time()) * 1000
            answer: AppendAnswer = _DEFECT
            with self._unexpected.contained("taking a batch that has waited"):
                answer = self._append_now(memoryview(unborn.records), unborn.header, rest_ms)
            if isinstance(answer, AppendOutcome):
                unborn.answer.set_result(answer)
            else:
                answer.add_done_callback(_passing_on(unborn.answer))


def _as_stored(
    config: LogConfig, records: memoryview, header: BatchHeader, now_ms: int, limit: int | None = None
) -> Steps[tuple[memoryview, BatchHeader]]:
    """See ``log_admission.checked``; the writer sets the append time."""
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


def _time_out(answer: "asyncio.Future[AppendOutcome]") -> None:
    if not answer.done():
        answer.set_result(AppendOutcome(ErrorCode.request_timed_out))


def _refuse_transaction(header: BatchHeader) -> None:
    """Raise ``UNSUPPORTED_VERSION`` for a transactional batch: diskless coordinators have no markers yet."""
    if header[5] & TRANSACTIONAL_BIT:
        raise KafkaError(ErrorCode.unsupported_version, _NO_TRANSACTIONS)
