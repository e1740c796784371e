"""Handles DeleteRecords for a classic partition. It moves the log start, and waits until the followers have
moved their log starts."""

import asyncio

from moldau.replication.core.leader import LeaderReplica
from moldau.replication.core.policy import ReplicaPolicy
from moldau.replication.core.replica import Replica
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.storage.log.partition_log import PartitionLog


class RecordDeletion:
    """Deletes the oldest records of a partition that this replica leads. This class is used on the event
    loop."""

    def __init__(self, topic: str, log: PartitionLog, replica: Replica, policy: ReplicaPolicy) -> None:
        self._topic = topic
        self._log = log
        self._replica = replica
        self._policy = policy
        self._waiting: list[tuple[int, asyncio.Future[int]]] = []

    async def delete(self, before_offset: int, timeout_s: float | None = None) -> int:
        """Delete records below an offset (-1 means the high watermark). Returns the low watermark, which is
        the lowest log start of all replicas.

        Followers get the new start with their next fetch. Followers on fenced brokers are ignored, unless
        they are still in sync. ``timeout_s`` limits only the wait for followers, as in Kafka, and ``None``
        means no limit. Raises ``KafkaError``, for example REQUEST_TIMED_OUT after this time, or when the
        leadership ends in the meantime.
        """
        target = self._target(before_offset)
        self._log.update_log_start_offset(target)
        if (leader := self._replica.leader) is not None:
            # A follower that has not fetched since then must not join the in-sync set with its old start.
            leader.log_start_offset = self._log.offsets.log_start_offset
        await self._log.persist_start()
        if self._replica.leader is None:
            # The leadership ended during the disk operation.
            raise KafkaError(ErrorCode.not_leader_or_follower)
        low_watermark = self._low_watermark(self._replica.leader)
        if low_watermark >= target:
            return low_watermark
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((target, future))
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise KafkaError(ErrorCode.request_timed_out) from None
        finally:
            self._waiting = [each for each in self._waiting if each[1] is not future]

    def _target(self, before_offset: int) -> int:
        if self._replica.leader is None:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        if not self._policy.clients_shorten:
            raise KafkaError(ErrorCode.policy_violation, f"{self._topic} is shortened by snapshots only")
        if self._log.config.cleanup_compact and not self._log.config.cleanup_delete:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"{self._topic} keeps the last record of each key: it is compacted",
            )
        watermark = self._replica.high_watermark
        target = watermark if before_offset == -1 else before_offset
        if not 0 <= target <= watermark:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"cannot delete up to {target}: the high watermark is {watermark}",
            )
        return target

    def replicas_moved(self) -> None:
        """Check the waiting deletions, because the followers' log starts, the active brokers or the role may
        have changed."""
        if not self._waiting:
            return
        leader = self._replica.leader
        for target, future in self._waiting:
            if future.done():
                continue
            if leader is None:
                future.set_exception(KafkaError(ErrorCode.not_leader_or_follower))
            elif (low_watermark := self._low_watermark(leader)) >= target:
                future.set_result(low_watermark)

    def _low_watermark(self, leader: LeaderReplica) -> int:
        return leader.low_watermark(self._log.offsets.log_start_offset)
