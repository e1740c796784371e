"""A classic partition: each replica has a local log on its disk, and followers copy the leader's log.

:class:`ClassicPartition` drives a :class:`moldau.replication.core.replica.Replica` and the log, in the order
of the replica's contract. Other objects handle reads, lookups by timestamp, waiting producers and syncs.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from moldau.protocol.partitions import PartitionKey
from moldau.records.batch import TRANSACTIONAL_BIT, BatchHeader, validate_produce
from moldau.records.errors import OpenedSizeError, RecordsRejectedError
from moldau.records.record import QUICK_BYTES
from moldau.replication.appending.acknowledgements import Acknowledgements
from moldau.replication.appending.deletion import RecordDeletion
from moldau.replication.appending.flushes import FlushQueue
from moldau.replication.appending.group_commit import GroupCommit
from moldau.replication.appending.participant import ClassicTransactions
from moldau.replication.appending.slow_batches import OpeningQueue
from moldau.replication.appending.transactions import AppendTerms, TransactionChecks, TransactionGuard
from moldau.replication.context import ReplicaContext
from moldau.replication.core.leader import LeaderReplica
from moldau.replication.core.policy import WRITTEN, Durability, ReplicaPolicy
from moldau.replication.core.replica import Replica
from moldau.replication.fetching.following import Following
from moldau.replication.leading import Leading
from moldau.replication.lookups.list_offsets import OffsetLookup
from moldau.replication.partition_interface import (
    ActiveProducer,
    AppendAnswer,
    AppendOutcome,
    PartitionStatus,
    ReadRequest,
)
from moldau.replication.reads import PartitionReader
from moldau.replication.remote import RemoteSlot
from moldau.replication.traffic import PartitionTraffic
from moldau.replication.waiters import WatermarkListeners
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.fair_lane import FairClient
from moldau.runtime.garbage_collection import weakly
from moldau.storage.log.admission import Admitted, admission
from moldau.storage.log.append_info import AppendInfo, AppendOrigin
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.snapshots.replicated_log import LogPosition, SnapshotReader
from moldau.storage.snapshots.snapshot_log import SnapshotLog

ACKS_ALL: Final = -1
_APPENDED: Final = ErrorCode.none
_NOT_LEADER: Final = AppendOutcome(ErrorCode.not_leader_or_follower)
_TOO_FEW_AFTER: Final = AppendOutcome(ErrorCode.not_enough_replicas_after_append)
_new = tuple.__new__


class ClassicPartition:
    """This broker's replica of a classic partition, as leader or follower."""

    shares_writes = True

    def __init__(
        self,
        context: ReplicaContext,
        key: PartitionKey,
        log: PartitionLog,
        *,
        min_in_sync: int,
        high_watermark: int,
        policy: ReplicaPolicy = WRITTEN,
        snapshots: SnapshotLog | None = None,
    ) -> None:
        self._machine = machine = context.machine
        self._key = key
        self._topic = topic = log.topic_partition.topic
        name = f"{topic}-{key.partition}"
        self.log = log
        self.policy = policy
        self.snapshots = snapshots
        """The log with the snapshots that shorten it; ``None`` for a log without snapshots."""
        self._arrivals = context.arrivals
        self._listener = context.listener
        self._monotonic_ms = context.monotonic_ms or machine.clock.now_ms
        watermark = min(high_watermark, log.log_end_offset)
        replica = Replica(context.local_id, high_watermark=watermark, policy=policy, min_in_sync=min_in_sync)
        self._replica = replica
        self._leader: LeaderReplica | None = None
        """The role of the replica if it leads; otherwise ``None``."""
        self._traffic = PartitionTraffic(context.meters, topic)
        self._acknowledgements = Acknowledgements(context.arrivals.deadlines)
        self._commit: GroupCommit | None = None
        if policy.durability is Durability.FSYNCED:
            self._commit = GroupCommit(name, log, weakly(self._synced), weakly(self._sync_failed))
        self._clients_append = policy.clients_append
        self._flushes = FlushQueue(log, weakly(self._flushed), machine.unexpected)
        self._may_stage = policy.clients_append and self._commit is None
        self._deletion = RecordDeletion(topic, log, replica, policy)
        self.remote = slot = RemoteSlot()
        self._lookup = OffsetLookup(log, replica, machine, slot)
        moved = weakly(self._watermark_moved)
        self.following = Following(name, log, replica, self._commit, moved, snapshots)
        """The methods that a fetcher uses while this replica follows."""
        brokers_moved = self._deletion.replicas_moved
        self.leading = Leading(replica, context.listener, self._monotonic_ms, moved, brokers_moved)
        """Changes of the in-sync set while this replica leads."""
        fetched = weakly(self._follower_fetched)
        disk_reads = context.disk_reads(log)
        reader = PartitionReader(disk_reads, replica, self._traffic, fetched, self.leading, slot, snapshots)
        self.read, self.is_up_to_date = reader.read, reader.is_up_to_date
        self.count_shared_reads = reader.count_shared_reads
        self.delete_records = self._deletion.delete
        self.find_offset = self._lookup.find
        self.opening: OpeningQueue | None = None
        self.guards = TransactionChecks(log)
        self._staged_messages = self._staged_bytes = 0
        self.watermarks = WatermarkListeners()

    @property
    def key(self) -> PartitionKey:
        return self._key

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def leader_epoch(self) -> int:
        return self._replica.leader_epoch

    @property
    def high_watermark(self) -> int:
        """First offset that consumers may not read yet."""
        return self._replica.role.high_watermark

    @property
    def leader_to_follow(self) -> int | None:
        """The id of the broker that this replica follows; ``None`` if it does not follow a broker."""
        follower = self._replica.follower
        return None if follower is None else follower.leader_id

    @property
    def is_leader(self) -> bool:
        return self._leader is not None

    @property
    def is_under_replicated(self) -> bool:
        leader = self._leader
        return leader is not None and len(leader.in_sync) <= len(leader.followers)

    @property
    def transactions(self) -> ClassicTransactions:
        return ClassicTransactions(self, self._machine.clock)

    @property
    def min_in_sync(self) -> int:
        """``min.insync.replicas``. The partition's host sets it when the config changes."""
        return self._replica.min_in_sync

    @min_in_sync.setter
    def min_in_sync(self, count: int) -> None:
        if count != self._replica.min_in_sync and self._replica.change_min_in_sync(count):
            self._watermark_moved()

    # -- the role -------------------------------------------------------------------------------

    def when_uncut(self, move: Callable[[], None]) -> None:
        """Call ``move``, which changes the role. While the log is being truncated, the call waits for the end
        of the truncation. If several calls wait, only the last call is made."""
        if not self.following.defers(move):
            move()

    def end(self) -> None:
        """Resign permanently. Pending changes of the role are dropped, and no later change is allowed."""
        self.following.end()
        self.resign(self.leader_epoch)

    def become_leader(
        self,
        leader_epoch: int,
        replicas: tuple[int, ...],
        in_sync: tuple[int, ...],
        partition_epoch: int = -1,
    ) -> None:
        """Lead in ``leader_epoch``. If this replica leads in it already, only update the replica sets.

        Older epochs are ignored. While the log is being truncated, every change of the role waits.
        """
        again = partial(self.become_leader, leader_epoch, replicas, in_sync, partition_epoch)
        if self.following.defers(again):
            return
        self.leading.metadata_epoch = partition_epoch
        replica, log = self._replica, self.log
        before = replica.role
        moved = replica.lead(
            leader_epoch,
            replicas,
            in_sync,
            partition_epoch=partition_epoch,
            log_end_offset=log.log_end_offset,
            synced_offset=0,  # The first sync of the epoch reports the durable offset.
            now_ms=self._monotonic_ms(),
            log_start_offset=log.offsets.log_start_offset,
        )
        if replica.role is not before:
            log.leader_epochs.assign(leader_epoch, log.log_end_offset)
            self._role_changed()
        else:
            self.leading.brokers_changed()
        if moved:
            self._watermark_moved()

    def follow(self, leader_epoch: int, leader_id: int) -> None:
        """Follow another broker in ``leader_epoch``. Older epochs are ignored."""
        if self.following.defers(partial(self.follow, leader_epoch, leader_id)):
            return
        if self._replica.follow(leader_epoch, leader_id):
            self.log.forget_empty_epochs()
            self._role_changed()

    def resign(self, leader_epoch: int) -> None:
        """Stop leading or following, because the partition has no leader or this replica stops."""
        if self.following.defers(partial(self.resign, leader_epoch)):
            return
        if self._replica.resign(leader_epoch):
            self._role_changed()

    def _role_changed(self) -> None:
        led, self._leader = self._leader, self._replica.leader
        self.guards.clear()
        # Retention and the log manager's checkpoint must not use an offset above the high watermark.
        self.log.high_watermark = self.high_watermark
        if led is not None:
            # Producers that wait for an acknowledgement get NOT_LEADER_OR_FOLLOWER and look for the new
            # leader.
            self._acknowledgements.fail(_NOT_LEADER)
            self._flushes.refuse(_NOT_LEADER)
        # Consumers may also wait at a follower, so they are notified of each change.
        self._arrivals.notify(self._key)
        if self._commit is not None:
            self._commit.begin_term()
            if min(self.high_watermark, self.log.flushed_offset) < self.log.log_end_offset:
                self._commit.plan()
        self.leading.brokers_changed()
        self._deletion.replicas_moved()
        if self._listener is not None:
            self._listener.role_changed(self)

    # -- appends of clients ---------------------------------------------------------------------

    def append(
        self,
        records: memoryview,
        *,
        required_acks: int,
        timeout_ms: int,
        client: FairClient | None = None,
        guard: TransactionGuard | None = None,
    ) -> AppendAnswer:
        """Append like ``Partition.append``. The first batch of a transaction needs a ``guard``."""
        terms = AppendTerms(required_acks, timeout_ms, guard)
        try:
            if not self._clients_append:
                raise KafkaError(
                    ErrorCode.topic_authorization_failed, f"{self.topic} is written by coordinators only"
                )
            leader = self._check_leads(required_acks)
            log = self.log
            headers = validate_produce(records, max_batch_bytes=log.segments.config.max_message_bytes)
            opening = self.opening
            if (opening is not None and opening.is_busy(client)) or log.is_slow_to_admit(headers[0]):
                return self._append_opened(records, headers, client, terms)
            try:
                admitted = log.admit(records, headers, QUICK_BYTES)
            except OpenedSizeError:
                return self._append_opened(records, headers, client, terms)
            return self._append_admitted(leader, admitted, len(records), terms)
        except KafkaError as error:
            return self._refuse(len(records), error)

    def _check_leads(self, required_acks: int) -> LeaderReplica:
        leader = self._leader
        if leader is None:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        if required_acks == ACKS_ALL and not leader.has_enough_in_sync:
            raise KafkaError(ErrorCode.not_enough_replicas)
        return leader

    def _refuse(self, size_bytes: int, error: KafkaError) -> AppendOutcome:
        if error.code in (ErrorCode.not_leader_or_follower, ErrorCode.not_enough_replicas):
            return AppendOutcome(error.code)
        self._traffic.refused(error.code, size_bytes)
        bad = error.record_errors if isinstance(error, RecordsRejectedError) else ()
        return AppendOutcome(error.code, message=error.message, record_errors=bad)

    def _append_opened(
        self, records: memoryview, headers: list[BatchHeader], client: FairClient | None, terms: AppendTerms
    ) -> "asyncio.Future[AppendOutcome]":
        """Append a batch that a worker opens first. Later appends of the same client wait for this batch."""
        if self.opening is None:
            self.opening = OpeningQueue(self._machine.opening, self._machine.unexpected)
        batch, config, now_ms = bytes(records), self.log.config, self._machine.clock.now_ms()

        def append(admitted: Admitted) -> AppendAnswer:
            leader = self._check_leads(terms.required_acks)
            return self._append_admitted(leader, admitted, len(batch), terms)

        return self.opening.put(
            client,
            admission(config, batch, headers, now_ms),
            append,
            partial(self._refuse, len(batch)),
            is_lasting=terms.required_acks == 0,
        )

    def _append_admitted(
        self, leader: LeaderReplica, admitted: Admitted, size_bytes: int, terms: AppendTerms
    ) -> AppendAnswer:
        required_acks, timeout_ms, guard = terms
        log = self.log
        batch, headers, append_time_ms = admitted
        if headers[0][5] & TRANSACTIONAL_BIT:
            self.guards.check(headers[0].producer_id, headers[0].producer_epoch, guard)
        info = log.append_as_leader(batch, headers, leader.leader_epoch, append_time_ms=append_time_ms)
        self._traffic.appended(headers[0][12], size_bytes)
        outcome = AppendOutcome(
            ErrorCode.none, info.first_offset, info.log_append_time_ms, log.offsets.log_start_offset
        )
        if self._commit is not None:
            self._commit.plan()
        elif log.must_flush:
            go_on = partial(self._answer, info.last_offset, outcome, required_acks, timeout_ms)
            return self._flushes.put(info.last_offset, go_on)
        self._appended(leader, log.segments.end_offset)
        return self._answer(info.last_offset, outcome, required_acks, timeout_ms)

    def _appended(self, leader: LeaderReplica, end_offset: int) -> None:
        if leader.local_append(end_offset):
            self._watermark_moved()
        elif leader.followers:
            self._arrivals.notify(self._key)

    def _answer(
        self, last_offset: int, outcome: AppendOutcome, required_acks: int, timeout_ms: int
    ) -> AppendAnswer:
        if required_acks != ACKS_ALL or last_offset < self._replica.role.high_watermark:
            return outcome
        return self._acknowledgements.add(last_offset, outcome, timeout_ms)

    def _flushed(self, end_offset: int) -> None:
        """Record that all records below an offset are flushed, as ``flush.messages`` requires."""
        leader = self._leader
        if leader is not None:
            self._appended(leader, max(end_offset, leader.log_end_offset))

    def stage(
        self, records: memoryview, required_acks: int, client: FairClient | None = None
    ) -> AppendOutcome | None:
        """Append like :meth:`append`, but :meth:`write_staged` writes the records later. ``StagedAppends``
        describes the contract.

        Returns ``None`` when nothing was staged. The caller then calls :meth:`append`.
        """
        leader = self._leader
        if leader is None or not self._may_stage or (required_acks == ACKS_ALL and not leader.alone):
            return None
        if self.opening is not None and self.opening.is_busy(client):
            return None
        log = self.log
        if not log.may_stage(len(records), leader.leader_epoch):
            return None
        try:
            (header,) = validate_produce(records, max_batch_bytes=log.segments.config.max_message_bytes)
            offset = None if header[5] & TRANSACTIONAL_BIT else log.stage(records, header)
        except KafkaError:
            return None
        if offset is None:
            return None
        self._staged_messages += header[12]
        self._staged_bytes += len(records)
        # Each pipelined request creates an ``AppendOutcome``. A call of the class would take twice as long.
        return _new(AppendOutcome, (_APPENDED, offset, -1, log.offsets.log_start_offset, None, ()))

    def write_staged(self) -> None:
        """Append the staged records. Raises ``KafkaError(kafka_storage_error)`` when the disk fails."""
        messages, self._staged_messages = self._staged_messages, 0
        size_bytes, self._staged_bytes = self._staged_bytes, 0
        self.log.write_staged()
        self._traffic.appended(messages, size_bytes)
        if self._leader is not None:
            self._appended(self._leader, self.log.segments.end_offset)

    # -- appends of this broker -----------------------------------------------------------------

    def append_own(
        self, batches: bytes | bytearray, headers: list[BatchHeader], origin: AppendOrigin
    ) -> AppendInfo:
        """Append records of this broker itself (a coordinator's records), with acks=all.

        Raises ``KafkaError`` when the records were not appended. The caller waits for the high watermark.
        """
        leader = self.check_in_sync()
        if self._commit is not None:
            self._commit.check()
        info = self.log.append_as_leader(batches, headers, leader.leader_epoch, origin=origin)
        if headers[0].is_transactional:
            self.guards.appended(headers[0])
        if self._commit is not None:
            self._commit.plan()
        elif self.log.must_flush:
            self._flushes.begin()
            return info
        if leader.local_append(self.log.segments.end_offset):
            # The caller must get the offset of its append before waiting requests are woken.
            asyncio.get_running_loop().call_soon(self._watermark_moved)
        elif leader.followers:
            self._arrivals.notify(self._key)
        return info

    def check_in_sync(self) -> LeaderReplica:
        """The replica's role as leader. Raises ``KafkaError`` unless it leads and accepts acks=all now."""
        return self._check_leads(ACKS_ALL)

    def committed(self, offset: int, timeout_ms: int) -> "asyncio.Future[AppendOutcome]":
        """Return the outcome of this broker's append at ``offset``, now or when the append is committed. The
        outcome of a committed append has no error."""
        outcome = _NOT_LEADER if self._leader is None else AppendOutcome(ErrorCode.none, offset)
        if self._leader is not None and offset >= self.high_watermark:
            return self._acknowledgements.add(offset, outcome, timeout_ms)
        answer: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()
        answer.set_result(outcome)
        return answer

    # -- the watermark --------------------------------------------------------------------------

    def _follower_fetched(self, request: ReadRequest) -> None:
        leader, acknowledged = self._leader, request.acknowledged_offset
        if leader is None:
            return
        if leader.follower_fetched(
            request.replica_id,
            request.offset,
            self._monotonic_ms(),
            synced_offset=None if acknowledged < 0 else acknowledged,
            broker_epoch=request.broker_epoch,
            log_start_offset=request.log_start_offset,
        ):
            self._watermark_moved()
        self._deletion.replicas_moved()
        if request.replica_id not in leader.in_sync and self._listener is not None:
            self._listener.outsider_fetched(self)

    def _synced(self, offset: int) -> None:
        leader = self._leader
        if leader is not None and leader.local_sync(offset):
            self._watermark_moved()

    def _sync_failed(self, error: KafkaError) -> None:
        self._acknowledgements.fail(AppendOutcome(error.code, message=error.message))

    async def settled(self) -> None:
        """Wait until all appended records are as durable as the policy requires, or until it is certain that
        they will never be durable."""
        if self._commit is not None:
            await self._commit.settled()
        elif self.log.must_flush:
            await self.log.flush()

    def _watermark_moved(self) -> None:
        watermark = self._replica.role.high_watermark
        self.log.offsets.high_watermark = watermark
        leader = self._leader
        if leader is not None and self._acknowledgements:
            self._acknowledgements.advance(watermark, None if leader.has_enough_in_sync else _TOO_FEW_AFTER)
        for listener in self.watermarks.all:
            listener(watermark)
        self._arrivals.notify(self._key)

    # -- other methods --------------------------------------------------------------------------

    def end_offset_for_epoch(self, leader_epoch: int, current_leader_epoch: int) -> tuple[int, int]:
        self.check_epoch(current_leader_epoch)
        return self.log.end_offset_for_epoch(leader_epoch)

    def open_snapshot(self, snapshot_id: LogPosition, current_leader_epoch: int) -> SnapshotReader | None:
        if self.snapshots is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        self.check_epoch(current_leader_epoch)
        return self.snapshots.open_snapshot(snapshot_id)

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Raises ``KafkaError`` if this replica does not lead in the request's epoch."""
        error = self._replica.check_epoch(current_leader_epoch)
        if error is not ErrorCode.none:
            raise KafkaError(error)

    def state(self) -> PartitionStatus:
        log = self.log
        offsets = (self.high_watermark, log.log_start_offset, log.log_end_offset)
        producers = tuple(ActiveProducer(*producer) for producer in log.active_producers())
        return PartitionStatus(*offsets, log.size_bytes, log.directory, producers)
