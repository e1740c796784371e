"""The coordinator runtime: the coordinators of one kind that this node leads, one for each partition.

``kind.py`` declares the kind; ``host.py`` defines the order of deciding, replaying, appending and
answering.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from moldau.coordinators.effects import BatchKind, Effects, Token
from moldau.coordinators.host import HostState, ShardHost
from moldau.coordinators.kind import CoordinatorKind, Term
from moldau.coordinators.log import CoordinatorLog
from moldau.coordinators.shard import Shard
from moldau.coordinators.standby import StandbyShard
from moldau.records.control import EndTransactionMarker
from moldau.replication.appending.transactions import TransactionGuard
from moldau.replication.classic import ClassicPartition
from moldau.runtime import Clock, ErrorCode, KafkaError, UnexpectedErrors

logger = logging.getLogger(__name__)

R = TypeVar("R")
S = TypeVar("S", bound=Shard[Any])
T = TypeVar("T")

NO_TERM: Final = -1
"""Epoch of a standby."""


class CoordinatorRuntime(Generic[S, R]):
    """Owns the shards; all calls are made on the event loop.

    Errors that :meth:`write` and :meth:`read` raise, as :class:`KafkaError`: NOT_COORDINATOR (the partition
    is not, or no longer, led here), COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE (the log
    refused, or did not commit within the policy's time), and any error of the operation.
    """

    def __init__(
        self,
        kind: CoordinatorKind[S, R],
        clock: Clock,
        unexpected: UnexpectedErrors | None = None,
        on_change: Callable[[int], None] = lambda partition: None,
    ) -> None:
        """``on_change`` is called with a partition after it was loaded, reloaded or unloaded."""
        self.kind = kind
        self._clock = clock
        self._unexpected = unexpected or UnexpectedErrors()
        self._on_change = on_change
        self._hosts: dict[int, ShardHost[S, R]] = {}
        self._standbys: dict[int, StandbyShard[S, R]] = {}
        self._closing: dict[int, asyncio.Task[None]] = {}
        self._closed = False

    @property
    def partitions(self) -> list[int]:
        """The partitions that are led here, loaded or not."""
        return sorted(self._hosts)

    @property
    def standbys(self) -> list[int]:
        """The partitions that another node leads and whose state is materialised here."""
        return sorted(self._standbys)

    def standby(self, partition: int) -> StandbyShard[S, R] | None:
        """The state of a partition that another node leads."""
        return self._standbys.get(partition)

    def stand_by(self, partition: ClassicPartition) -> None:
        """This node follows a partition: keep its state up to date; for kinds with a store."""
        index = partition.key.partition
        if self._closed or index in self._standbys:
            return
        self.unload(index)
        # Without a term: requests of its store to the runtime have no effect.
        term = Term(index, NO_TERM, self.kind.open_log(partition))
        self._standbys[index] = StandbyShard(
            self.kind, term, self._unexpected, after=self._closing.get(index)
        )

    def stand_down(self, partition: int) -> None:
        """This node no longer follows ``partition``."""
        standby = self._standbys.pop(partition, None)
        if standby is not None:
            self._close(standby)

    def lead(self, partition: ClassicPartition, epoch: int) -> None:
        """This node leads a partition from ``epoch`` on, which is later than any epoch before."""
        self.load(partition.key.partition, epoch, self.kind.open_log(partition))

    def leave(self, partition: int, epoch: int) -> None:
        """As of ``epoch`` this node does not lead ``partition``."""
        host = self._hosts.get(partition)
        if host is not None:
            logger.info("%s is not led here as of epoch %d.", host.name, epoch)
            self.unload(partition)

    def load(self, partition: int, epoch: int, log: CoordinatorLog) -> None:
        """Load ``partition`` in the term of ``epoch``; an older term ends.

        Returns at once; the shard answers COORDINATOR_LOAD_IN_PROGRESS until its log is replayed. Late and
        repeated calls are filtered out by ``terms.py``.
        """
        if self._closed:
            return
        self.stand_down(partition)
        host = self._hosts.get(partition)
        if host is not None:
            self._close(host)
        self._lead(Term(partition, epoch, log))

    def reload(self, partition: int, epoch: int) -> None:
        """Reload ``partition`` from its log, within the term of ``epoch``; ignored in any other term."""
        standby = self._standbys.get(partition)
        if standby is not None and epoch == NO_TERM:
            standby.restart()
        host = self._hosts.get(partition)
        if host is not None and host.term.epoch == epoch:
            self._close(host)
            self._lead(host.term)

    def unload(self, partition: int) -> None:
        """This node no longer leads ``partition``."""
        host = self._hosts.pop(partition, None)
        if host is not None:
            self._close(host)
            self._on_change(partition)

    def led(self, partition: int) -> ShardHost[S, R] | None:
        """The coordinator of a partition that is led here, loaded or not."""
        return self._hosts.get(partition)

    def write(
        self, partition: int, operation: Callable[[S, int, Token], Effects[R]]
    ) -> "asyncio.Future[Any]":
        """Run ``operation(shard, now_ms, token)`` now, in the order of calls; the future is its answer.

        The answer is the reply to ``token``, sent by this operation or by a later one.
        """
        host = self._hosts.get(partition)
        return self._absent(partition) if host is None else host.write(operation)

    def write_in_transaction(
        self,
        partition: int,
        operation: Callable[[S, int, Token], Effects[R]],
        producer: BatchKind,
        guard: TransactionGuard | None,
    ) -> "asyncio.Future[Any]":
        """As :meth:`write`, for records of a transaction; see ``ShardHost.write_in_transaction``."""
        host = self._hosts.get(partition)
        if host is None:
            return self._absent(partition)
        return host.write_in_transaction(operation, producer, guard)

    def end_transaction(
        self, partition: int, producer: BatchKind, marker: EndTransactionMarker
    ) -> "asyncio.Future[None]":
        """Write the marker that ends a producer's transaction; done when it is committed."""
        host = self._hosts.get(partition)
        return self._absent(partition) if host is None else host.end_transaction(producer, marker)

    def guard(self, partition: int, producer: BatchKind) -> TransactionGuard | None:
        """A guard for records of a transaction; ``None`` where the transaction is open here already.

        Raises NOT_COORDINATOR, and INVALID_PRODUCER_EPOCH for a producer that is fenced here.
        """
        host = self._hosts.get(partition)
        if host is None:
            raise KafkaError(ErrorCode.not_coordinator, f"{self.kind.topic.name}-{partition} is not here.")
        return host.term.log.guard(producer.producer_id, producer.producer_epoch)

    def read(self, partition: int, operation: Callable[[S, int], T]) -> "asyncio.Future[T]":
        """Run ``operation(shard, now_ms)`` now; it answers once everything it could read is committed."""
        host = self._hosts.get(partition)
        return self._absent(partition) if host is None else host.read(operation)

    def shards(self) -> list[S]:
        """The loaded shards, for meters."""
        return [host.shard for host in self._hosts.values() if host.state is HostState.ACTIVE]

    def problem(self) -> str | None:
        """The partitions that cannot be loaded, with the reason; ``None`` when there is none."""
        found = [f"{host.name}: {host.load_problem}" for host in self._hosts.values() if host.load_problem]
        return "; ".join(found) or None

    def notice(self) -> str | None:
        """The partitions that were loaded without some of their records; ``None`` when there is none."""
        found = [f"{host.name}: {host.broken}" for host in self._hosts.values() if host.broken.count]
        return "; ".join(found) or None

    def is_active(self, partition: int) -> bool:
        """Whether the partition is led here and loaded."""
        host = self._hosts.get(partition)
        return host is not None and host.state is HostState.ACTIVE

    async def until_loaded(self, partition: int) -> None:
        """Wait until a load in progress has ended."""
        host = self._hosts.get(partition)
        if host is not None:
            await host.until_loaded()

    async def until_all_loaded(self) -> None:
        """Wait until all loads in progress have ended."""
        for partition in self.partitions:
            await self.until_loaded(partition)

    async def close(self) -> None:
        """Unload everything and accept no more calls."""
        self._closed = True
        for partition in self.partitions:
            self.unload(partition)
        for partition in self.standbys:
            self.stand_down(partition)
        while self._closing:
            await asyncio.wait(tuple(self._closing.values()))

    def _absent(self, partition: int) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_exception(
            KafkaError(ErrorCode.not_coordinator, f"{self.kind.topic.name}-{partition} is not on this node.")
        )
        return future

    def _lead(self, term: Term) -> None:
        self._hosts[term.partition] = ShardHost(
            self.kind, term, self._clock, self._unexpected, after=self._closing.get(term.partition)
        )
        self._on_change(term.partition)

    def _close(self, host: ShardHost[S, R] | StandbyShard[S, R]) -> None:
        partition = host.term.partition
        host.stop()
        before = self._closing.get(partition)

        async def close() -> None:
            if before is not None:
                await asyncio.wait([before])
            await host.close()

        task = asyncio.get_running_loop().create_task(close(), name=f"close {host.name}")
        self._closing[partition] = task

        def forget(done: "asyncio.Task[None]") -> None:
            if self._closing.get(partition) is done:
                del self._closing[partition]

        task.add_done_callback(forget)
