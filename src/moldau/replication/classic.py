"""A classic partition: its data lies in a local log on each replica's disk, copied from a leader."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.records.batch import BatchHeader, refuse_transaction, validate_produce
from moldau.records.errors import OpenedSizeError, RecordsRejectedError
from moldau.records.record import QUICK_BYTES
from moldau.replication.leadership import Leadership
from moldau.replication.opening import OpeningQueue
from moldau.replication.partition import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    AbortedTransaction,
    ActiveProducer,
    AppendAnswer,
    AppendOutcome,
    FoundOffset,
    PartitionKey,
    PartitionState,
    ReadAnswer,
    ReadOutcome,
    ReadRequest,
)
from moldau.replication.remote import RemotePart
from moldau.replication.timestamp_lookup import find_max_timestamp, find_timestamp
from moldau.replication.traffic import PartitionTraffic
from moldau.replication.waiters import WaitingRoom
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.machine import Machine
from moldau.storage.append_info import AppendInfo, AppendOrigin, TimestampOffset
from moldau.storage.log import PartitionLog
from moldau.storage.log_admission import Admitted, admit

ACKS_ALL: Final = -1
_APPENDED: Final = ErrorCode.none
_new = tuple.__new__


class ClassicPartition:
    """This broker's replica of a classic partition, as leader or follower."""

    def __init__(
        self,
        machine: Machine,
        key: PartitionKey,
        topic: str,
        log: PartitionLog,
        local_id: int,
        arrivals: WaitingRoom[PartitionKey],
        *,
        min_in_sync: int,
        high_watermark: int,
        meters: BrokerTopicMeters,
    ) -> None:
        self._machine = machine
        self._key = key
        self._topic = topic
        self.log = log
        self._local_id = local_id
        self._arrivals = arrivals
        self.min_in_sync = min_in_sync
        """``min.insync.replicas``; whoever hosts the partition sets it anew when it changes."""
        self._leadership: Leadership | None = None
        self._leader_epoch = -1
        self._high_watermark = min(high_watermark, log.log_end_offset)
        self._traffic = PartitionTraffic(meters, topic)
        self._unacknowledged: list[tuple[int, asyncio.Future[AppendOutcome], AppendOutcome]] = []
        self.remote: RemotePart | None = None
        """What lies before the log's first local segment; set by whoever hosts tiered partitions."""
        self._opening: OpeningQueue | None = None
        self._staged_messages = self._staged_bytes = 0
        self.on_high_watermark: Callable[[int], None] | None = None
        """Told of each move; a coordinator that stands on this partition listens here."""

    @property
    def key(self) -> PartitionKey:
        return self._key

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def leader_epoch(self) -> int:
        return self._leader_epoch

    @property
    def high_watermark(self) -> int:
        """First offset that consumers may not read yet."""
        leadership = self._leadership
        return leadership.high_watermark if leadership is not None else self._high_watermark

    @property
    def is_leader(self) -> bool:
        return self._leadership is not None

    @property
    def is_under_replicated(self) -> bool:
        leadership = self._leadership
        return leadership is not None and len(leadership.in_sync) <= len(leadership.followers)

    def become_leader(self, leader_epoch: int, replicas: tuple[int, ...], in_sync: tuple[int, ...]) -> None:
        """Lead the partition from ``leader_epoch`` on; the same epoch again only updates the sets."""
        leadership = self._leadership
        if leadership is not None and leadership.leader_epoch == leader_epoch:
            if leadership.change_in_sync(in_sync):
                self._watermark_moved()
            return
        self.log.leader_epochs.assign(leader_epoch, self.log.log_end_offset)
        self._leadership = Leadership(
            self._local_id,
            leader_epoch,
            replicas,
            in_sync,
            log_end_offset=self.log.log_end_offset,
            high_watermark=self._high_watermark,
            now_ms=self._machine.clock.now_ms(),
        )
        self._leader_epoch = leader_epoch
        if self._leadership.local_append(self.log.log_end_offset):
            self._watermark_moved()
        self._publish_watermark()

    def resign(self, leader_epoch: int) -> None:
        """Stop leading: whoever waits for an acknowledgement is told to look for the new leader."""
        self._high_watermark = self.high_watermark
        self._leadership = None
        self._leader_epoch = leader_epoch
        waiting, self._unacknowledged = self._unacknowledged, []
        for _, future, _ in waiting:
            if not future.done():
                future.set_result(AppendOutcome(ErrorCode.not_leader_or_follower))
        self._arrivals.notify(self._key)

    def append(self, records: memoryview, *, required_acks: int, timeout_ms: int) -> AppendAnswer:
        try:
            leadership = self._check_leads(required_acks)
            log = self.log
            headers = validate_produce(records, max_batch_bytes=log.config.max_message_bytes)
            refuse_transaction(headers[0])
            opening = self._opening
            if (opening is not None and opening.is_busy) or log.takes_long(headers[0]):
                return self._append_opened(records, headers, required_acks, timeout_ms)
            try:
                admitted = log.admit(records, headers, QUICK_BYTES)
            except OpenedSizeError:
                return self._append_opened(records, headers, required_acks, timeout_ms)
            return self._append_admitted(leadership, admitted, len(records), required_acks, timeout_ms)
        except KafkaError as error:
            return self._refuse(len(records), error)

    def _check_leads(self, required_acks: int) -> Leadership:
        leadership = self._leadership
        if leadership is None:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        if required_acks == ACKS_ALL and len(leadership.in_sync) < self.min_in_sync:
            raise KafkaError(ErrorCode.not_enough_replicas)
        return leadership

    def _refuse(self, size_bytes: int, error: KafkaError) -> AppendOutcome:
        if error.code in (ErrorCode.not_leader_or_follower, ErrorCode.not_enough_replicas):
            return AppendOutcome(error.code)
        self._traffic.refused(error.code, size_bytes)
        bad = error.record_errors if isinstance(error, RecordsRejectedError) else ()
        return AppendOutcome(error.code, message=error.message, record_errors=bad)

    def _append_opened(
        self, records: memoryview, headers: list[BatchHeader], required_acks: int, timeout_ms: int
    ) -> "asyncio.Future[AppendOutcome]":
        """A worker looks into the batch; what is appended meanwhile waits behind it."""
        if self._opening is None:
            self._opening = OpeningQueue(self._machine.workers, self._machine.unexpected)
        batch, config, now_ms = bytes(records), self.log.config, self._machine.clock.now_ms()

        def append(admitted: Admitted) -> AppendAnswer:
            leadership = self._check_leads(required_acks)
            return self._append_admitted(leadership, admitted, len(batch), required_acks, timeout_ms)

        return self._opening.put(
            partial(admit, config, batch, headers, now_ms), append, partial(self._refuse, len(batch))
        )

    def _append_admitted(
        self,
        leadership: Leadership,
        admitted: Admitted,
        size_bytes: int,
        required_acks: int,
        timeout_ms: int,
    ) -> AppendAnswer:
        log = self.log
        batch, headers, append_time_ms = admitted
        info = log.append_as_leader(batch, headers, leadership.leader_epoch, append_time_ms=append_time_ms)
        self._traffic.appended(headers[0][12], size_bytes)
        outcome = AppendOutcome(
            ErrorCode.none, info.first_offset, info.log_append_time_ms, log.log_start_offset
        )
        if leadership.local_append(log.log_end_offset):
            self._watermark_moved()
        if required_acks != ACKS_ALL or info.last_offset < leadership.high_watermark:
            return outcome
        return self._await_replicas(info.last_offset, outcome, timeout_ms)

    def stage(self, records: memoryview, required_acks: int) -> AppendOutcome | None:
        """As :meth:`append`, but written by :meth:`write_staged`, under the contract of ``StagingLog``.

        ``None``: nothing has happened, and it is for :meth:`append`.
        """
        leadership = self._leadership
        if leadership is None or (
            required_acks == ACKS_ALL and (not leadership.alone or self.min_in_sync > 1)
        ):
            return None
        if self._opening is not None and self._opening.is_busy:
            return None
        log = self.log
        if not log.may_stage(len(records), leadership.leader_epoch):
            return None
        try:
            (header,) = validate_produce(records, max_batch_bytes=log.config.max_message_bytes)
            refuse_transaction(header)
            offset = log.stage(records, header)
        except KafkaError:
            return None
        if offset is None:
            return None
        self._staged_messages += header[12]
        self._staged_bytes += len(records)
        # Made as a tuple: half the time of calling the class, for every pipelined request.
        return _new(AppendOutcome, (_APPENDED, offset, -1, log.log_start_offset, None, ()))

    def write_staged(self) -> None:
        """Append what was staged. Raises ``KafkaError(kafka_storage_error)`` when the disk fails."""
        messages, self._staged_messages = self._staged_messages, 0
        size_bytes, self._staged_bytes = self._staged_bytes, 0
        self.log.write_staged()
        self._traffic.appended(messages, size_bytes)
        leadership = self._leadership
        if leadership is not None and leadership.local_append(self.log.log_end_offset):
            self._watermark_moved()

    def append_own(
        self, batches: bytes | bytearray, headers: list[BatchHeader], origin: AppendOrigin
    ) -> AppendInfo:
        """Append what this broker itself has to say (a coordinator's records); with acks=all.

        Raises ``KafkaError`` when it was not appended. The caller watches the high watermark.
        """
        leadership = self.check_in_sync()
        info = self.log.append_as_leader(batches, headers, leadership.leader_epoch, origin=origin)
        if leadership.local_append(self.log.log_end_offset):
            # The caller learns its offset first; whoever waits for it is woken after that.
            asyncio.get_running_loop().call_soon(self._watermark_moved)
        return info

    def check_in_sync(self) -> Leadership:
        """This term, if a write with acks=all may be taken in it. Raises ``KafkaError``."""
        if self._leadership is None:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        if len(self._leadership.in_sync) < self.min_in_sync:
            raise KafkaError(ErrorCode.not_enough_replicas)
        return self._leadership

    def _await_replicas(
        self, last_offset: int, outcome: AppendOutcome, timeout_ms: int
    ) -> asyncio.Future[AppendOutcome]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[AppendOutcome] = loop.create_future()
        self._unacknowledged.append((last_offset, future, outcome))
        timer = loop.call_later(timeout_ms / 1000, self._give_up, future)
        future.add_done_callback(lambda _: timer.cancel())
        return future

    @staticmethod
    def _give_up(future: "asyncio.Future[AppendOutcome]") -> None:
        if not future.done():
            future.set_result(AppendOutcome(ErrorCode.request_timed_out))

    def _watermark_moved(self) -> None:
        leadership = self._leadership
        watermark = self._high_watermark if leadership is None else leadership.high_watermark
        self.log.high_watermark = watermark
        if self._unacknowledged:
            self._acknowledge()
        if self.on_high_watermark is not None:
            self.on_high_watermark(watermark)
        self._arrivals.notify(self._key)

    def _publish_watermark(self) -> None:
        # Retention and the checkpoint of the log manager may never pass it.
        self.log.high_watermark = self.high_watermark

    def _acknowledge(self) -> None:
        watermark = self.high_watermark
        enough = len(self._leadership.in_sync) >= self.min_in_sync if self._leadership else False
        still: list[tuple[int, asyncio.Future[AppendOutcome], AppendOutcome]] = []
        for waiting in self._unacknowledged:
            last_offset, future, outcome = waiting
            if last_offset >= watermark:
                still.append(waiting)
            elif not future.done():
                future.set_result(
                    outcome if enough else AppendOutcome(ErrorCode.not_enough_replicas_after_append)
                )
        self._unacknowledged = still

    def _check_epoch(self, current_leader_epoch: int) -> ErrorCode:
        if self._leadership is None:
            return ErrorCode.not_leader_or_follower
        if current_leader_epoch == -1 or current_leader_epoch == self._leader_epoch:
            return ErrorCode.none
        if current_leader_epoch < self._leader_epoch:
            return ErrorCode.fenced_leader_epoch
        return ErrorCode.unknown_leader_epoch

    def read(self, request: ReadRequest) -> ReadAnswer:
        error = self._check_epoch(request.current_leader_epoch)
        if error is not ErrorCode.none:
            return ReadOutcome(error=error)
        log = self.log
        if request.last_fetched_epoch >= 0:
            epoch, end = log.end_offset_for_epoch(request.last_fetched_epoch)
            if epoch < 0:  # newer than anything here, or older
                return self._known()._replace(error=ErrorCode.offset_out_of_range)
            if epoch != request.last_fetched_epoch or end < request.offset:
                return self._known()._replace(diverging_epoch=(epoch, end))
        from_follower = request.replica_id >= 0
        # Only now: a follower whose log differs from this one holds none of these records for certain.
        if from_follower and log.local_log_start_offset <= request.offset <= log.log_end_offset:
            self._follower_fetched(request.replica_id, request.offset)
        known = self._known()
        watermark, stable = known.high_watermark, known.last_stable_offset
        readable_end = log.log_end_offset if from_follower else watermark
        if not log.log_start_offset <= request.offset <= readable_end:
            return known._replace(error=ErrorCode.offset_out_of_range)
        bound = readable_end if not request.read_committed else stable
        if request.offset == readable_end and not request.read_committed and not log.is_offline:
            return known  # what nearly every poll of an idle consumer finds
        try:
            result = log.read(
                request.offset,
                request.max_bytes,
                upper_bound_offset=bound,
                min_one_batch=request.min_one_batch,
            )
        except KafkaError as failure:
            if failure.code is ErrorCode.offset_moved_to_tiered_storage:
                return self._read_remote(request, known, from_follower=from_follower)
            return known._replace(error=failure.code)
        aborted = None
        if request.read_committed:
            aborted = [
                AbortedTransaction(found.producer_id, found.first_offset)
                for found in log.aborted_transactions(request.offset, result)
            ]
        if not from_follower:
            self._traffic.fetched(result.size_bytes)
        return ReadOutcome(
            views=result.views,
            size_bytes=result.size_bytes,
            high_watermark=watermark,
            last_stable_offset=stable,
            log_start_offset=log.log_start_offset,
            aborted=aborted,
            is_cut=result.size_bytes > 0 and result.next_offset < bound,
        )

    def _known(self) -> ReadOutcome:
        watermark = self.high_watermark
        return ReadOutcome(
            high_watermark=watermark,
            last_stable_offset=self.log.last_stable_offset(watermark),
            log_start_offset=self.log.log_start_offset,
        )

    def _read_remote(self, request: ReadRequest, known: ReadOutcome, *, from_follower: bool) -> ReadAnswer:
        """A follower takes the remote part from the remote tier itself (KIP-405)."""
        if from_follower or self.remote is None:
            return known._replace(error=ErrorCode.offset_moved_to_tiered_storage)
        answer = self.remote.read(request, known)
        answer.add_done_callback(self._count_remote_read)
        return answer

    def _count_remote_read(self, answer: "asyncio.Future[ReadOutcome]") -> None:
        if not answer.cancelled():
            size_bytes = answer.result().size_bytes
            self._traffic.fetched(size_bytes)

    def _follower_fetched(self, replica_id: int, fetch_offset: int) -> None:
        if self._leadership is not None and self._leadership.follower_fetched(
            replica_id, fetch_offset, self._machine.clock.now_ms()
        ):
            self._watermark_moved()

    async def find_offset(
        self, timestamp_ms: int, *, read_committed: bool, current_leader_epoch: int
    ) -> FoundOffset:
        error = self._check_epoch(current_leader_epoch)
        if error is not ErrorCode.none:
            raise KafkaError(error)
        log = self.log
        watermark = self.high_watermark
        end = log.last_stable_offset(watermark) if read_committed else watermark
        if timestamp_ms == LATEST_TIMESTAMP:
            return FoundOffset(end, -1, self._leader_epoch)
        if timestamp_ms in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
            is_local = timestamp_ms == EARLIEST_LOCAL_TIMESTAMP
            start = log.local_log_start_offset if is_local else log.log_start_offset
            return FoundOffset(start, -1, log.epoch_for_offset(start))
        if timestamp_ms == LATEST_TIERED_TIMESTAMP:
            copied = -1 if self.remote is None else await self.remote.highest_offset()
            return FoundOffset() if copied < 0 else FoundOffset(copied, -1, log.epoch_for_offset(copied))
        if timestamp_ms == EARLIEST_PENDING_UPLOAD_TIMESTAMP:
            return await self._find_pending_upload()
        if timestamp_ms == MAX_TIMESTAMP:
            return await self._find_max_timestamp(end)
        if timestamp_ms < 0:
            raise KafkaError(
                ErrorCode.unsupported_version, f"{timestamp_ms} is not a timestamp that Kafka defines"
            )
        return await self._find_timestamp(timestamp_ms, end)

    async def _find_pending_upload(self) -> FoundOffset:
        """The first offset that is not in the remote tier (KIP-1023)."""
        if self.remote is None:
            return FoundOffset()
        log, copied = self.log, await self.remote.highest_offset()
        if copied < 0 and log.local_log_start_offset > log.log_start_offset:
            return FoundOffset()  # this leader has yet to learn which part was copied
        offset = max(copied + 1, log.log_start_offset)
        return FoundOffset(offset, -1, log.epoch_for_offset(offset))

    async def _find_timestamp(self, timestamp_ms: int, end_offset: int) -> FoundOffset:
        log = self.log
        searched_to = -1
        # Again when the local part has shrunk meanwhile: what has left it was not searched yet.
        while self.remote is not None and max(searched_to, log.log_start_offset) < log.local_log_start_offset:
            searched_to = log.local_log_start_offset
            remote = await self.remote.find_timestamp(timestamp_ms, end_offset)
            if remote is not None:
                return remote
        return self._as_found(await find_timestamp(log, self._machine.workers, timestamp_ms, end_offset))

    async def _find_max_timestamp(self, end_offset: int) -> FoundOffset:
        log = self.log
        local = self._as_found(await find_max_timestamp(log, self._machine.workers, end_offset))
        if self.remote is None or log.log_start_offset >= log.local_log_start_offset:
            return local
        return await self.remote.find_max_timestamp(local.timestamp_ms - 1, end_offset) or local

    def _as_found(self, found: TimestampOffset | None) -> FoundOffset:
        if found is None:
            return FoundOffset()
        return FoundOffset(found.offset, found.timestamp, self.log.epoch_for_offset(found.offset))

    async def delete_records(self, before_offset: int) -> int:
        if self._leadership is None:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        if self.log.config.cleanup_compact and not self.log.config.cleanup_delete:
            raise KafkaError(
                ErrorCode.policy_violation, f"{self.topic} keeps the last record of each key: it is compacted"
            )
        target = self.high_watermark if before_offset == -1 else before_offset
        if not 0 <= target <= self.high_watermark:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"cannot delete up to {target}: the high watermark is {self.high_watermark}",
            )
        self.log.update_log_start_offset(target)
        await self.log.persist_start()
        return self.log.log_start_offset

    def end_offset_for_epoch(self, leader_epoch: int, current_leader_epoch: int) -> tuple[int, int]:
        error = self._check_epoch(current_leader_epoch)
        if error is not ErrorCode.none:
            raise KafkaError(error)
        return self.log.end_offset_for_epoch(leader_epoch)

    def state(self) -> PartitionState:
        log = self.log
        return PartitionState(
            self.high_watermark,
            log.log_start_offset,
            log.log_end_offset,
            log.size_bytes,
            log.directory,
            tuple(ActiveProducer(*producer) for producer in log.active_producers()),
        )
