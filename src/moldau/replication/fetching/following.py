"""The methods that a fetcher calls to change the log of a follower."""

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from moldau.records.batch import iter_headers
from moldau.replication.appending.group_commit import GroupCommit
from moldau.replication.core.follower import FetchPosition, FollowerReplica
from moldau.replication.core.replica import Replica
from moldau.replication.core.role_names import IllegalMoveError
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.storage.log.append_info import AppendInfo
from moldau.storage.log.auxiliary_state import AuxiliaryState
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.snapshots.replicated_log import LogPosition
from moldau.storage.snapshots.snapshot_log import SnapshotLog

logger = logging.getLogger(__name__)


class Following:
    """Makes a follower's log equal to the log of its leader.

    A fetcher fetches from :meth:`position`, and sends :meth:`acknowledged_offset`. Then it calls one of the
    following methods, with the leader epoch of that position:

    * :meth:`truncate` if the response has a diverging epoch;
    * :meth:`start_over` if the leader's log begins after the end of this log;
    * :meth:`begin_behind_remote` if only the local part of the leader's log begins after the end of this log;
    * :meth:`begin_at_snapshot` if the response names a snapshot;
    * :meth:`begin_with` if :meth:`begins_inside` is true;
    * :meth:`append` in all other cases.

    If the epoch has changed, or the log is being truncated, the methods raise ``KafkaError``.
    """

    def __init__(
        self,
        name: str,
        log: PartitionLog,
        replica: Replica,
        commit: GroupCommit | None,
        watermark_moved: Callable[[], None],
        snapshots: SnapshotLog | None = None,
    ) -> None:
        """``snapshots`` is the same object as ``log`` if the log has snapshots, otherwise ``None``. The
        snapshots of the log move the start of the log."""
        self._name = name
        self._log = log
        self._replica = replica
        self._commit = commit
        self._watermark_moved = watermark_moved
        self._snapshots = snapshots
        self._cuts = False
        self._has_ended = False
        self._next_move: Callable[[], None] | None = None
        self._durable_start = log.offsets.log_start_offset

    def position(self) -> FetchPosition:
        """The position of the next fetch. Raises ``KafkaError`` if this replica does not follow."""
        log = self._log
        found = self._follower().position(log.leader_epochs, log.log_end_offset)
        if self._snapshots is not None and found.offset:
            # Directly after a snapshot, the log has no record that could give the epoch for the request.
            found = found._replace(last_fetched_epoch=self._snapshots.last_epoch)
        return found._replace(log_start_offset=log.offsets.log_start_offset)

    def acknowledged_offset(self) -> int:
        """Return the offset that a fetch sends to the leader. This replica's copies of the records below this
        offset count for the high watermark."""
        follower, log = self._follower(), self._log
        if log.must_flush:
            return log.offsets.flushed_offset
        return follower.acknowledged_offset(log.log_end_offset, log.offsets.flushed_offset)

    def is_synced(self, position: FetchPosition) -> bool:
        """Whether a fetch from ``position`` may be sent now. If not, :meth:`synced` must be awaited first.

        A fetch acknowledges the records before its offset. It also acknowledges the start of the log: a
        DeleteRecords request ends when all followers have sent the new start. If each record must survive a
        loss of power (``flush.messages`` is 1), the start must survive it, too.
        """
        if self.acknowledged_offset() < position.offset:
            return False
        return self._log.config.flush_messages > 1 or position.log_start_offset <= self._durable_start

    async def synced(self) -> None:
        """Wait until the start and all records of the log may be acknowledged. Raises ``KafkaError`` when a
        sync fails."""
        log, commit = self._log, self._commit
        if commit is None:
            await log.flush()
        else:
            if log.offsets.flushed_offset < log.log_end_offset:
                commit.plan()  # An earlier incarnation of this broker may have left unsynced records.
            await commit.settled()
            commit.check()
        start_offset = log.offsets.log_start_offset
        if start_offset > self._durable_start:
            await log.persist_start()
            self._durable_start = start_offset

    def append(
        self, leader_epoch: int, batches: bytes | memoryview, *, high_watermark: int, log_start_offset: int
    ) -> AppendInfo:
        """Append fetched records, and adopt the leader's watermark and log start.

        Raises ``KafkaError`` if the leader epoch has changed, or if the batches are refused, for example
        because the first batch begins before the log's end.
        """
        follower, log = self._follower(leader_epoch), self._log
        info = log.append_as_follower(batches)
        if follower.appended(log.log_end_offset, high_watermark):
            self._watermark_moved()
        if self._snapshots is None:
            log.update_log_start_offset(min(log_start_offset, follower.high_watermark))
        if self._commit is not None and info.size_bytes:
            self._commit.plan()
        return info

    def begins_inside(self, batches: bytes | memoryview) -> bool:
        """Whether the log is empty, and its first offset is inside the first of the fetched batches.

        DeleteRecords may move the start of the leader's log into a batch. A follower whose log begins at this
        offset gets the whole batch.
        """
        log = self._log
        if self._snapshots is not None or log.local_log_start_offset != log.log_end_offset:
            return False
        first = next((header for _, header in iter_headers(memoryview(batches))), None)
        return first is not None and first.base_offset < log.log_end_offset <= first.last_offset

    async def begin_with(
        self, leader_epoch: int, batches: bytes, *, high_watermark: int, log_start_offset: int
    ) -> None:
        """Move the start of the empty log back to the beginning of the first fetched batch, and append the
        batches as :meth:`append` does."""
        follower = self._follower(leader_epoch)
        first = next(header for _, header in iter_headers(memoryview(batches)))
        await self._cut(follower, self._log.truncate_fully_and_start_at(first.base_offset))
        self.append(leader_epoch, batches, high_watermark=high_watermark, log_start_offset=log_start_offset)

    def remote_truncation(self, leader_epoch: int, diverging_epoch: int, end_offset: int) -> int | None:
        """The offset at which :meth:`truncate` would truncate the log if this offset is before the local log;
        otherwise ``None``."""
        follower, log = self._follower(leader_epoch), self._log
        target = follower.truncation(log.leader_epochs, log.log_end_offset, diverging_epoch, end_offset)
        return target if log.log_start_offset < target < log.local_log_start_offset else None

    async def truncate(self, leader_epoch: int, diverging_epoch: int, end_offset: int) -> int:
        """Truncate the log at the diverging epoch in the leader's response. Returns the new end of the
        log."""
        follower, log = self._follower(leader_epoch), self._log
        target = follower.truncation(log.leader_epochs, log.log_end_offset, diverging_epoch, end_offset)
        await self._cut(follower, log.truncate_to(target))
        return log.log_end_offset

    async def start_over(self, leader_epoch: int, log_start_offset: int) -> None:
        """Drop the whole log, and begin at the start of the leader's log."""
        follower = self._follower(leader_epoch)
        await self._cut(follower, self._log.truncate_fully_and_start_at(log_start_offset))

    async def begin_behind_remote(self, leader_epoch: int, state: AuxiliaryState) -> None:
        """Drop the local log. The log then begins at the offset of ``state``, after the records that are in
        the remote tier."""
        follower = self._follower(leader_epoch)
        await self._cut(follower, self._log.begin_behind_remote(state))

    async def begin_at_snapshot(self, leader_epoch: int, snapshot_id: LogPosition) -> None:
        """Drop the whole log. The log then begins at the end of a fetched snapshot.

        Raises :class:`IllegalMoveError` if the snapshot lacks records that this replica considered committed.
        """
        follower, snapshots = self._follower(leader_epoch), self._snapshots
        assert snapshots is not None
        if snapshot_id.offset < follower.high_watermark:
            raise IllegalMoveError(f"snapshot {snapshot_id} is below the watermark {follower.high_watermark}")
        await self._cut(follower, snapshots.begin_at_snapshot(snapshot_id))
        if follower.appended(self._log.log_end_offset, snapshot_id.offset):
            self._watermark_moved()

    def defers(self, move: Callable[[], None]) -> bool:
        """Return whether ``move`` must wait because the log is being truncated. In this case ``move`` is
        called after the truncation, unless a later call of this method replaces ``move``.

        Before the truncation is complete, no leader may append, and no follower in another epoch may append.
        """
        if self._has_ended:
            return False
        if self._cuts:
            self._next_move = move
        return self._cuts

    @property
    def is_cutting(self) -> bool:
        """Whether the log is being truncated."""
        return self._cuts

    def end(self) -> None:
        """Stop permanently. If a truncation is in progress, the log may be deleted only after that
        truncation."""
        self._has_ended = True
        self._next_move = None

    async def _cut(self, follower: FollowerReplica, cut: Coroutine[Any, Any, None]) -> None:
        self._cuts = True
        try:
            await cut
        finally:
            # A truncation is completed even if its caller is cancelled.
            self._cuts = False
            if not self._has_ended:
                self._was_cut(follower)
            move, self._next_move = self._next_move, None
            if move is not None:
                move()

    def _was_cut(self, follower: FollowerReplica) -> None:
        log = self._log
        log.forget_empty_epochs()
        if self._commit is not None:
            self._commit.truncated(log.log_end_offset)
        watermark = follower.high_watermark
        if follower.truncated(log.log_end_offset):
            logger.error(
                "%s lost committed records: its log was truncated at offset %d because of a leader that lacks"
                " them, and the high watermark was %d",
                self._name,
                log.log_end_offset,
                watermark,
            )
        log.offsets.high_watermark = follower.high_watermark

    def _follower(self, leader_epoch: int | None = None) -> FollowerReplica:
        follower = self._replica.follower
        if follower is None:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        if self._cuts:
            # Two fetchers may use this object after each other. The first one has begun the truncation.
            raise KafkaError(ErrorCode.replica_not_available, f"{self._name} is being truncated")
        if leader_epoch is not None and leader_epoch != follower.leader_epoch:
            is_old = leader_epoch < follower.leader_epoch
            raise KafkaError(ErrorCode.fenced_leader_epoch if is_old else ErrorCode.unknown_leader_epoch)
        return follower
