"""Reads of a classic partition. Consumers read up to the watermark, and followers up to the log's end."""

import asyncio
from collections.abc import Callable, Sequence
from typing import assert_never

from moldau.replication.core.divergence import diverging_epoch
from moldau.replication.core.replica import Replica
from moldau.replication.disk_reads import DiskReads
from moldau.replication.leading import Leading
from moldau.replication.partition_interface import (
    AbortedTransaction,
    FollowerPosition,
    ReadAnswer,
    ReadOutcome,
    ReadRequest,
)
from moldau.replication.remote import RemoteSlot
from moldau.replication.traffic import PartitionTraffic
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.files.disk import FileRange
from moldau.storage.log.append_info import ReadResult
from moldau.storage.snapshots.replicated_log import Divergence
from moldau.storage.snapshots.snapshot_log import SnapshotLog


class PartitionReader:
    """Serves Fetch from one replica's log."""

    def __init__(
        self,
        disk_reads: DiskReads,
        replica: Replica,
        traffic: PartitionTraffic,
        follower_fetched: Callable[[ReadRequest], None],
        leading: Leading,
        slot: RemoteSlot,
        snapshots: SnapshotLog | None = None,
    ) -> None:
        """``disk_reads`` has the log. ``follower_fetched`` is called for a fetch of a follower whose log
        agrees with this log.

        ``leading`` finds followers in the rack of a consumer (KIP-392) and contains the quota of leaders
        (KIP-73). ``snapshots`` is the same log if the log has snapshots, otherwise ``None``.
        """
        self._disk_reads = disk_reads
        self._log = disk_reads.log
        self._replica = replica
        self._traffic = traffic
        self._follower_fetched = follower_fetched
        self._leading = leading
        self._snapshots = snapshots
        self._slot = slot

    def read(self, request: ReadRequest) -> ReadAnswer:
        return self._read(request, is_repeated=False)

    def _read(self, request: ReadRequest, *, is_repeated: bool) -> ReadAnswer:
        """``is_repeated`` means that the records were loaded from the disk after the first call."""
        from_follower = request.replica_id >= 0
        # Consumers that send a rack can be sent to followers, even if the rack is empty (KIP-392).
        may_follow = not from_follower and request.client_rack is not None
        error = self._replica.check_epoch(request.current_leader_epoch, may_follow=may_follow)
        if error is not ErrorCode.none:
            return ReadOutcome(error=error)
        log = self._log
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        # A follower's fetch counts only after the checks of its epoch and log. A follower with a diverging
        # log may have none of the records before its offset. A repeated read does not count, because the
        # follower may have sent another fetch, with a smaller offset, in the meantime.
        if (
            from_follower
            and not is_repeated
            and log.local_log_start_offset <= request.offset <= log.log_end_offset
        ):
            self._record_fetch(request)
        known = self._known()
        watermark, stable = known.high_watermark, known.last_stable_offset
        readable_end = log.segments.end_offset if from_follower else watermark
        if not log.offsets.log_start_offset <= request.offset <= log.segments.end_offset:
            return self._outside(request, known)
        if request.client_rack and not from_follower:
            nearer = self._leading.nearest_replica(request.client_rack, request.offset)
            if nearer >= 0:
                return known._replace(preferred_read_replica=nearer)
        bound = readable_end if not request.read_committed else stable
        if request.offset >= readable_end and not log.is_offline:
            # There are no records to read. This is the usual case for an idle consumer. If the offset is
            # beyond the end, this leader is new. An earlier leader has served records up to this offset, and
            # the watermark will reach this offset again.
            return known._replace(aborted=[]) if request.read_committed else known
        return self._read_log(request, known, bound, is_repeated=is_repeated)

    def _read_log(
        self, request: ReadRequest, known: ReadOutcome, bound: int, *, is_repeated: bool
    ) -> ReadAnswer:
        """Read records up to the offset ``bound``. ``known`` contains the partition's offsets."""
        log, from_follower = self._log, request.replica_id >= 0
        is_throttled = from_follower and self._leading.is_throttled(*log.topic_partition)
        if is_throttled and self._leading.withholds(request.replica_id):
            return known
        from_disk = is_repeated
        if not is_repeated and (request.max_bytes > 0 or request.min_one_batch):
            cold = log.cold_range(request.offset, request.max_bytes)
            if cold is not None:
                return asyncio.get_running_loop().create_task(self._read_cold(request, cold))
            from_disk = self._disk_reads.continues(request.offset)
        try:
            result = log.read(
                request.offset,
                request.max_bytes,
                upper_bound_offset=bound,
                min_one_batch=request.min_one_batch,
                is_loaded=from_disk,
            )
        except KafkaError as failure:
            if failure.code is ErrorCode.offset_moved_to_tiered_storage:
                return self._read_remote(request, known, from_follower=from_follower)
            return known._replace(error=failure.code)
        if from_disk:
            self._disk_reads.note_read(result.size_bytes, result.next_offset)
        aborted = self._aborted(request.offset, result) if request.read_committed else None
        views: Sequence[memoryview | bytes] = result.views
        if not from_follower:
            self._traffic.fetched(result.size_bytes)
        else:
            views = self._for_follower(result, known.high_watermark)
        return ReadOutcome(
            views=views,
            size_bytes=result.size_bytes,
            high_watermark=known.high_watermark,
            last_stable_offset=known.last_stable_offset,
            log_start_offset=known.log_start_offset,
            aborted=aborted,
            is_cut=result.size_bytes > 0 and result.next_offset < bound,
            is_throttled=is_throttled,
        )

    async def _read_cold(self, request: ReadRequest, cold: FileRange) -> ReadOutcome:
        """Read after the records were loaded. The replica's role and the log may have changed meanwhile."""
        await self._disk_reads.load(cold, request.offset, request.max_bytes)
        answer = self._read(request, is_repeated=True)
        return answer if isinstance(answer, ReadOutcome) else await answer

    def count_shared_reads(self, size_bytes: int, reader_rack: str | None, times: int) -> None:
        """See :meth:`moldau.replication.partition_interface.Partition.count_shared_reads`."""
        self._traffic.fetched(size_bytes * times)

    def _record_fetch(self, request: ReadRequest) -> None:
        leader = self._replica.leader
        if leader is not None and self._snapshots is None:
            leader.log_start_offset = self._log.offsets.log_start_offset
        self._follower_fetched(request)

    def is_up_to_date(self, position: FollowerPosition, replica_id: int, broker_epoch: int) -> bool:
        """See :meth:`moldau.replication.partition_interface.Partition.is_up_to_date`. If one of the
        conditions is not met, :meth:`read` may return something new for the follower."""
        leader, log = self._replica.leader, self._log
        if leader is None or self._snapshots is not None or log.is_offline:
            return False
        offset, last_epoch = position.fetch_offset, position.last_fetched_epoch
        is_idle = (
            position.current_leader_epoch == leader.leader_epoch
            and offset == log.segments.end_offset
            and (last_epoch < 0 or last_epoch == log.leader_epochs.latest_epoch)
            and position.told_high_watermark == leader.high_watermark
            and position.told_log_start_offset == log.offsets.log_start_offset
            and not position.told_error
            and leader.idle_follower_fetched(
                replica_id,
                offset,
                self._leading.now_ms(),
                broker_epoch=broker_epoch,
                log_start_offset=position.log_start_offset,
            )
        )
        if is_idle and position.idle is not None:
            position.idle.begin(replica_id, leader, log, self._leading.now_ms)
        return is_idle

    def _outside(self, request: ReadRequest, known: ReadOutcome) -> ReadOutcome:
        """The answer to a read of an offset that this log does not have."""
        is_behind = self._replica.leader is None and request.offset > self._log.segments.end_offset
        if is_behind and request.current_leader_epoch < 0:
            # This consumer may believe that this broker still leads. It would reset its position, because the
            # log of a new follower is empty. Only the leader knows whether the offset exists.
            return ReadOutcome(error=ErrorCode.not_leader_or_follower)
        return known._replace(error=ErrorCode.offset_out_of_range)

    def _for_follower(self, result: ReadResult, watermark: int) -> Sequence[memoryview | bytes]:
        self._traffic.replicated(result.size_bytes)
        if result.next_offset <= watermark:
            return result.views
        # The bytes are copied. If this broker loses the leadership, the log may be truncated, and the mapped
        # bytes would disappear.
        return [bytes(view) for view in result.views]

    def _refusal(self, request: ReadRequest) -> ReadOutcome | None:
        """Return the error for a reader with a replica id that is not a follower's, for an earlier
        incarnation of a follower, or for a reader with a diverging log. For any other reader, return None."""
        leader = self._replica.leader
        if (
            request.replica_id >= 0
            and leader is not None
            and (
                request.replica_id not in leader.followers
                or leader.is_stale_fetch(request.replica_id, request.broker_epoch)
            )
        ):
            return ReadOutcome(error=ErrorCode.not_leader_or_follower)
        if request.replica_id >= 0 and self._snapshots is not None:
            return self._compared_with_snapshots(request, self._snapshots)
        if request.last_fetched_epoch < 0:
            return None
        log = self._log
        diverging = diverging_epoch(
            log.leader_epochs, log.log_end_offset, request.offset, request.last_fetched_epoch
        )
        if diverging is None:
            return None
        if diverging[0] < 0:  # The epoch is newer than any epoch in this log.
            return self._known()._replace(error=ErrorCode.offset_out_of_range)
        return self._known()._replace(diverging_epoch=diverging)

    def _compared_with_snapshots(self, request: ReadRequest, log: SnapshotLog) -> ReadOutcome | None:
        """Return the response to a follower that needs a snapshot, or whose log diverges (KIP-630). For any
        other follower, return None."""
        offset, epoch = request.offset, request.last_fetched_epoch
        if epoch < 0 and offset >= log.start_offset:
            return None
        validation = log.validate_offset_and_epoch(offset, epoch)
        match validation.divergence:
            case Divergence.VALID:
                return None
            case Divergence.SNAPSHOT:
                return self._known()._replace(snapshot_id=validation.position)
            case Divergence.DIVERGING:
                end_offset, diverging = validation.position
                return self._known()._replace(diverging_epoch=(diverging, end_offset))
            case _:
                assert_never(validation.divergence)

    def _aborted(self, offset: int, result: ReadResult) -> list[AbortedTransaction]:
        return [
            AbortedTransaction(found.producer_id, found.first_offset)
            for found in self._log.aborted_transactions(offset, result)
        ]

    def _known(self) -> ReadOutcome:
        watermark = self._replica.role.high_watermark
        stable, start = self._log.last_stable_offset(watermark), self._log.offsets.log_start_offset
        # Positional arguments take half of the time of named arguments.
        return ReadOutcome(ErrorCode.none, (), 0, watermark, stable, start)

    def _read_remote(self, request: ReadRequest, known: ReadOutcome, *, from_follower: bool) -> ReadAnswer:
        """Read from the remote tier for a consumer. A follower gets an error, because it reads the remote
        tier itself (KIP-405). A consumer gets the same error if the log has no remote part."""
        remote = self._slot.part
        if from_follower or remote is None:
            return known._replace(error=ErrorCode.offset_moved_to_tiered_storage)
        answer = remote.read(request, known)
        answer.add_done_callback(self._count_remote_read)
        return answer

    def _count_remote_read(self, answer: "asyncio.Future[ReadOutcome]") -> None:
        if not answer.cancelled():
            size_bytes = answer.result().size_bytes
            self._traffic.fetched(size_bytes)
