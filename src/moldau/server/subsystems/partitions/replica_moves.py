"""Moves replicas between the log folders of this broker (AlterReplicaLogDirs, KIP-113).

The moves run in the background, one after another. Each move copies a log, with at most
``replica.alter.log.dirs.io.max.bytes.per.second``. When the copy has all records, the replica is closed for
some milliseconds. In this time the last records are copied and the folders are renamed. Clients retry.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from moldau.protocol.partitions import TopicPartition
from moldau.runtime.byte_quota import ByteRateQuota, QuotaSettings
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.unexpected import UnexpectedErrors
from moldau.server.subsystems.partitions.hosting import PartitionHosting
from moldau.storage.folders.future_logs import LogMove
from moldau.storage.folders.log_directory import LogDirectory
from moldau.storage.log_manager import LogManager

logger = logging.getLogger(__name__)

RETRY_S: Final = 0.05
PREFERRED_MAX: Final = 10_000
"""Maximum number of stored requests for replicas that are not on this broker. The limit saves memory, because
some of the named replicas may never come to this broker."""


class ReplicaMoves:
    """The moves of replicas on one broker. Use this class on the event loop."""

    def __init__(
        self,
        logs: LogManager,
        hosting: PartitionHosting,
        has_snapshots: Callable[[str], bool],
        quota: QuotaSettings,
        unexpected: UnexpectedErrors,
    ) -> None:
        """``has_snapshots`` returns whether the logs of a topic have snapshots, so that records before a
        snapshot are removed. ``quota`` limits all moves together."""
        self._logs = logs
        self._futures = logs.futures
        self._hosting = hosting
        self._has_snapshots = has_snapshots
        self._unexpected = unexpected
        self._quota = ByteRateQuota(quota)
        self._changing = asyncio.Lock()
        """Held while a request begins or ends a move, and during an exchange. Otherwise a request could end a
        move during its exchange, and delete the copy before the exchange renames it."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def limit(self, bytes_per_second: int) -> None:
        """Set the maximum rate of all moves together."""
        self._quota.settings = replace(self._quota.settings, bytes_per_second=max(1, bytes_per_second))

    def start(self) -> None:
        """Start the task that copies."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="moves between log folders")

    async def stop(self) -> None:
        """Stop. If an exchange is in progress, it is finished first. The copies start again from the
        beginning at the next start of the broker."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def resume_unfinished(self) -> None:
        """Restart the moves that were interrupted when the last process ended."""
        unfinished, self._logs.unfinished_moves = self._logs.unfinished_moves, []
        for name, target in unfinished:
            code = await self.request(name, target)
            logger.info("the move of %s to %s starts again: %s", name, target.path, code.name)

    async def request(self, name: TopicPartition, target: LogDirectory) -> ErrorCode:
        """Begin to move a replica to a folder. If the replica is already in this folder, its move to another
        folder ends.

        Returns REPLICA_NOT_AVAILABLE if the replica is not on this broker. If the replica is created later,
        it is created in this folder.
        """
        async with self._changing:
            return await self._request(name, target)

    async def _request(self, name: TopicPartition, target: LogDirectory) -> ErrorCode:
        if not target.is_online:
            return ErrorCode.kafka_storage_error
        log, move = self._logs.get(name), self._futures.moves.get(name)
        if log is not None and log.is_offline:
            return ErrorCode.kafka_storage_error
        if move is not None and move.target is target and self._is_wanted(move):
            return ErrorCode.none
        if move is not None:
            await self._futures.drop(move)
        log, home = self._logs.get(name), self._logs.home_of(name)
        if log is None or home is None:
            if len(self._logs.preferred) < PREFERRED_MAX:
                self._logs.preferred[name] = target
            return ErrorCode.replica_not_available
        if log.is_offline:
            return ErrorCode.kafka_storage_error
        if home is target:
            return ErrorCode.none
        if log.config.is_cache or self._has_snapshots(name.topic):
            logger.warning(
                "%s cannot be moved to another log folder: its kind has more files than a log", name
            )
            return ErrorCode.invalid_request
        try:
            await self._futures.begin(log, home, target)
        except KafkaError as error:
            logger.error("%s cannot be moved to %s: %s", name, target.path, error)
            return error.code
        self._wake.set()
        return ErrorCode.none

    async def _run(self) -> None:
        while True:
            while self._futures.moves:
                move = next(iter(self._futures.moves.values()))
                with self._unexpected.contained("moving a replica between log folders"):
                    await self._move(move)
                if self._futures.moves.get(move.name) is move:
                    await self._futures.drop(move)
            self._wake.clear()
            if not self._futures.moves:
                await self._wake.wait()

    async def _move(self, move: LogMove) -> None:
        try:
            while self._is_wanted(move):
                await self._copy(move)
                if await self._exchanged(move):
                    logger.info("%s has moved to %s", move.name, move.target.path)
                    return
                await asyncio.sleep(RETRY_S)
        except KafkaError as error:
            logger.error("the move of %s to %s has failed: %s", move.name, move.target.path, error)

    def _is_wanted(self, move: LogMove) -> bool:
        """Whether the replica is still on this broker and its move was not cancelled."""
        is_current = self._futures.moves.get(move.name) is move
        return is_current and self._logs.get(move.name) is move.source and move.target.is_online

    async def _copy(self, move: LogMove) -> None:
        """Copy the log. Returns when the copy has all records that the log had a moment ago, and the copied
        records are durable."""
        loop = asyncio.get_running_loop()
        # A compaction of the source may be in progress. It may remove a record because there is a newer
        # record with the same key, which the copy does not contain yet.
        while self._logs.cleaner.cleaning is move.source:  # noqa: ASYNC110
            await asyncio.sleep(RETRY_S)
        while self._is_wanted(move):
            if (wait_s := self._quota.throttle_s(loop.time())) > 0:
                await asyncio.sleep(min(wait_s, 1.0))
                continue
            size_bytes = await self._futures.copy(move, self._quota.settings.bytes_per_second)
            if not size_bytes:
                break
            self._quota.record(size_bytes, loop.time())
            await asyncio.sleep(0)
        await move.future.flush()

    async def _exchanged(self, move: LogMove) -> bool:
        """Close the replica, exchange its log, and open it again. Returns False if the exchange must be tried
        again."""
        async with self._changing:
            if not self._is_wanted(move) or move.source.truncation_count != move.truncation_count:
                return False
            key = self._hosting.suspend(move.name)
            if key is None:
                return False
            exchange = asyncio.ensure_future(self._exchange(move))
            try:
                # If the exchange were cancelled in the middle, no folder would have the log's name.
                await asyncio.shield(exchange)
            except asyncio.CancelledError:
                await asyncio.wait([exchange])
                raise
            finally:
                self._hosting.resume(key)
            return True

    async def _exchange(self, move: LogMove) -> None:
        while await self._futures.copy(move):
            pass
        try:
            await self._logs.exchange(move)
        except OSError as error:
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
