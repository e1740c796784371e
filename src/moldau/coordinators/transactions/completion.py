"""Writes the markers of ended transactions until every partition has a marker, and then completes the
transactions.

For one transaction there are three steps. First, the decision about its end is committed in
``__transaction_state``. Then each partition gets a marker, which is sent again until the partition's leader
confirms that the marker is committed. Last, the completion is written. A new coordinator finds the prepared
transactions in its log and continues with them, so a partition may get a marker twice. From transaction
version 2 on, the partition refuses the second copy if the next transaction is already open.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import Any, Final, Protocol

from moldau.coordinators.runtime import CoordinatorRuntime
from moldau.coordinators.transactions.codec import TransactionRecord
from moldau.coordinators.transactions.shard import TransactionShard, Unfinished
from moldau.coordinators.transactions.transaction import EndedTransaction
from moldau.protocol.partitions import TopicPartition
from moldau.replication.partition_interface import TransactionMarker
from moldau.runtime import ErrorCode, KafkaError, UnexpectedErrors

logger = logging.getLogger(__name__)

RETRY_S: Final = 0.1
RETRY_MAX_S: Final = 5.0

TransactionRuntime = CoordinatorRuntime[TransactionShard, TransactionRecord]


class MarkerWriter(Protocol):
    """Writes markers to partitions on any broker."""

    async def write(
        self, marker: TransactionMarker, partitions: Iterable[TopicPartition]
    ) -> set[TopicPartition]:
        """Write a marker. Returns the partitions for which it must be sent again.

        If the topic of a partition was deleted, no marker is needed. The only error that is raised is
        TRANSACTION_COORDINATOR_FENCED, when a newer coordinator has written to a partition.
        """
        ...


class TransactionCompletion:
    """Writes markers for the partitions of ``__transaction_state`` that this node leads."""

    def __init__(
        self, runtime: TransactionRuntime, writer: MarkerWriter, unexpected: UnexpectedErrors
    ) -> None:
        self._runtime = runtime
        self._writer = writer
        self._unexpected = unexpected
        self._looking: set[int] = set()
        self._completing: dict[tuple[int, int, str, EndedTransaction], None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def count(self) -> int:
        """Number of transactions whose markers are being written."""
        return len(self._completing)

    def find_prepared(self, partition: int) -> None:
        """Search a partition for prepared transactions. Called after the end of a transaction was decided or
        loaded. The markers are written when the decision is committed."""
        if partition not in self._looking:
            self._looking.add(partition)
            # The search begins after this iteration's events, so that the record is replayed before it.
            asyncio.get_running_loop().call_soon(self._search, partition)

    async def close(self) -> None:
        """Stop the work in progress. The new leader of the partition continues this work, or this node
        continues it after its next start."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _search(self, partition: int) -> None:
        self._looking.discard(partition)
        host = self._runtime.led(partition)
        if host is None or self._closed:
            return
        found = self._runtime.read(partition, lambda shard, now_ms: shard.unfinished())
        found.add_done_callback(partial(self._found, partition, host.term.epoch))

    def _found(self, partition: int, epoch: int, found: "asyncio.Future[list[Unfinished]]") -> None:
        if self._closed or found.cancelled():
            return
        error = found.exception()
        if error is None:
            for ended in found.result():
                self._begin(partition, epoch, ended)
        elif not (isinstance(error, KafkaError) and error.code is ErrorCode.not_coordinator):
            # The coordinator is being loaded, or it is unknown whether its records are committed.
            asyncio.get_running_loop().call_later(RETRY_S, self.find_prepared, partition)

    def _begin(self, partition: int, epoch: int, ended: Unfinished) -> None:
        key = (partition, epoch, ended.transactional_id, ended.transaction.ended)
        if key in self._completing:
            return
        self._completing[key] = None

        async def complete() -> None:
            try:
                await self._complete(partition, epoch, ended)
            finally:
                del self._completing[key]

        self._run(complete())

    async def _complete(self, partition: int, epoch: int, ended: Unfinished) -> None:
        transaction = ended.transaction
        marker = TransactionMarker(
            *transaction.identity,
            transaction.commits,
            epoch,
            transaction.client_version,
            partition,
            ended.decided_at,
        )
        left = set(transaction.partitions)
        delay_s = RETRY_S
        while self._leads(partition, epoch):
            if left:
                try:
                    left = await self._writer.write(marker, left)
                except KafkaError as error:
                    logger.info("the end of %r is left to another node: %s", ended.transactional_id, error)
                    return
            if not left:
                try:
                    await self._runtime.write(
                        partition, lambda shard, now_ms, token: shard.complete(token, ended, now_ms)
                    )
                    return
                except KafkaError as error:
                    if error.code is ErrorCode.not_coordinator:
                        return
                    logger.info("the end of %r is written again: %s", ended.transactional_id, error)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)

    def _leads(self, partition: int, epoch: int) -> bool:
        host = self._runtime.led(partition)
        return host is not None and host.term.epoch == epoch

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._contained(work), name="transaction markers")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _contained(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self._unexpected.report("completing a transaction", error)
