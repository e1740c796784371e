"""The coordinator runtime: the coordinators of one kind that this node leads, one for each partition.

``kind.py`` describes the kind. ``shard_host.py`` defines the order of four steps: decide, replay, append,
respond.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

from moldau.coordinators.effects import BatchKind, Effects, Token
from moldau.coordinators.kind import CoordinatorKind, Term
from moldau.coordinators.log import CoordinatorLog
from moldau.coordinators.shard import Shard
from moldau.coordinators.shard_host import HostState, ShardHost
from moldau.coordinators.standby import StandbyShard
from moldau.records.control import EndTransactionMarker
from moldau.replication.appending.transactions import TransactionGuard
from moldau.replication.classic_partition import ClassicPartition
from moldau.runtime import Clock, ErrorCode, KafkaError, UnexpectedErrors

logger = logging.getLogger(__name__)

K = TypeVar("K")
R = TypeVar("R")
S = TypeVar("S", bound=Shard[Any])
T = TypeVar("T")

ROWS_A_TURN: Final = 250
"""Number of values of a large read that are read in one iteration of the event loop, for each partition. This
takes much less than a millisecond."""

NO_TERM: Final = -1
"""The epoch of a standby, which leads nothing."""


class _LocalPartition(Generic[S, R]):
    """A partition of the kind on this node. It is a coordinator, or a standby of a coordinator that another
    node leads."""

    __slots__ = ("closing", "host", "standby")

    def __init__(self) -> None:
        self.host: ShardHost[S, R] | None = None
        self.standby: StandbyShard[S, R] | None = None
        self.closing: asyncio.Task[None] | None = None
        """The task that closes the previous coordinator or standby of the partition. Until the task ends,
        that object may still use the store's files."""


class CoordinatorRuntime(Generic[S, R]):
    """Owns the shards; all calls are made on the event loop.

    :meth:`write` and :meth:`read` raise the errors of the operation, which are :class:`KafkaError`. They also
    raise NOT_COORDINATOR (this node does not lead the partition), COORDINATOR_LOAD_IN_PROGRESS, and
    COORDINATOR_NOT_AVAILABLE (the log refused the records, or did not commit them within the policy's time).
    """

    def __init__(
        self,
        kind: CoordinatorKind[S, R],
        clock: Clock,
        unexpected: UnexpectedErrors | None = None,
        on_change: Callable[[int], None] = lambda partition: None,
    ) -> None:
        """``on_change`` is called with a partition each time after a term of the partition has begun or
        ended, and after :meth:`reload`."""
        self.kind = kind
        self._clock = clock
        self._unexpected = unexpected or UnexpectedErrors()
        self._on_change = on_change
        self._places: dict[int, _LocalPartition[S, R]] = {}
        """Partitions with a coordinator or a standby on this node."""
        self._closed = False

    @property
    def partitions(self) -> list[int]:
        """The partitions that this node leads. They may be loaded or not."""
        return sorted(index for index, place in self._places.items() if place.host is not None)

    @property
    def standbys(self) -> list[int]:
        """The partitions that other nodes lead. This node also keeps their state in a store."""
        return sorted(index for index, place in self._places.items() if place.standby is not None)

    def standby(self, partition: int) -> StandbyShard[S, R] | None:
        """Return the standby of a partition that another node leads."""
        return self._place(partition).standby

    def stand_by(self, partition: ClassicPartition) -> None:
        """Keep the state of a followed partition up to date, for kinds with a store."""
        index = partition.key.partition
        if self._closed or self._place(index).standby is not None:
            return
        self.unload(index)
        # The standby does not lead the partition, so it gets the epoch ``NO_TERM``. If the standby's store
        # requests a reload, it passes this epoch, and :meth:`reload` restarts the standby.
        term = Term(index, NO_TERM, self.kind.open_log(partition))
        place = self._places.setdefault(index, _LocalPartition())
        place.standby = StandbyShard(self.kind, term, self._unexpected, after=place.closing)

    def stand_down(self, partition: int) -> None:
        """Stop following ``partition``."""
        place = self._place(partition)
        standby, place.standby = place.standby, None
        if standby is not None:
            self._close(standby)

    def lead(self, partition: ClassicPartition, epoch: int) -> None:
        """Lead a partition from ``epoch`` on. This epoch is higher than all earlier epochs."""
        self.load(partition.key.partition, epoch, self.kind.open_log(partition))

    def leave(self, partition: int, epoch: int) -> None:
        """Stop leading ``partition``, because this node does not lead it in ``epoch`` or later."""
        host = self._place(partition).host
        if host is not None:
            logger.info("%s is not led here as of epoch %d.", host.name, epoch)
            self.unload(partition)

    def load(self, partition: int, epoch: int, log: CoordinatorLog) -> None:
        """Load ``partition`` in the term of ``epoch``. An older term ends.

        Returns immediately. Until the log is replayed, operations on the shard get
        COORDINATOR_LOAD_IN_PROGRESS. ``terms.py`` ignores late and repeated calls.
        """
        if self._closed:
            return
        self.stand_down(partition)
        host = self._place(partition).host
        if host is not None:
            self._close(host)
        self._lead(Term(partition, epoch, log))

    def reload(self, partition: int, epoch: int) -> None:
        """Load ``partition`` again from its log, within the term of ``epoch``. In any other term the call is
        ignored. With the epoch :data:`NO_TERM`, restart the standby.
        """
        standby = self._place(partition).standby
        if standby is not None and epoch == NO_TERM:
            standby.restart()
        host = self._place(partition).host
        if host is not None and host.term.epoch == epoch:
            self._close(host)
            self._lead(host.term)

    def unload(self, partition: int) -> None:
        """Stop leading ``partition``."""
        place = self._place(partition)
        host, place.host = place.host, None
        if host is not None:
            self._close(host)
            self._on_change(partition)

    def led(self, partition: int) -> ShardHost[S, R] | None:
        """Return the coordinator of a partition that this node leads. It may be loaded or not."""
        return self._place(partition).host

    def write(
        self, partition: int, operation: Callable[[S, int, Token], Effects[R]]
    ) -> "asyncio.Future[Any]":
        """Run ``operation(shard, now_ms, token)`` now. Operations run in the order of the calls. The result
        of the future is the response to ``token``. This operation or a later operation sends the response.
        """
        host = self._place(partition).host
        return self._absent(partition) if host is None else host.write(operation)

    def write_in_transaction(
        self,
        partition: int,
        operation: Callable[[S, int, Token], Effects[R]],
        producer: BatchKind,
        guard: TransactionGuard | None,
    ) -> "asyncio.Future[Any]":
        """Append like :meth:`write`, for records of a transaction; see ``ShardHost.write_in_transaction``."""
        host = self._place(partition).host
        if host is None:
            return self._absent(partition)
        return host.write_in_transaction(operation, producer, guard)

    def end_transaction(
        self, partition: int, producer: BatchKind, marker: EndTransactionMarker, version: int
    ) -> "asyncio.Future[None]":
        """Write the marker that ends a producer's transaction; see ``ShardHost.end_transaction``."""
        host = self._place(partition).host
        return self._absent(partition) if host is None else host.end_transaction(producer, marker, version)

    def guard(self, partition: int, producer: BatchKind) -> TransactionGuard | None:
        """A guard for records of a transaction; ``None`` if the transaction is already open in this log.

        Raises NOT_COORDINATOR. Raises INVALID_PRODUCER_EPOCH if the producer is fenced in this log.
        """
        host = self._place(partition).host
        if host is None:
            raise KafkaError(ErrorCode.not_coordinator, f"{self.kind.topic.name}-{partition} is not here.")
        return host.term.log.guard(producer.producer_id, producer.producer_epoch)

    def withdraw(self, partition: int, producer: BatchKind, guard: TransactionGuard) -> None:
        """Remove a guard after its records were written or refused. If a later term has begun, the guard no
        longer exists."""
        host = self._place(partition).host
        if host is not None:
            host.term.log.withdraw(producer.producer_id, guard)

    def read(self, partition: int, operation: Callable[[S, int], T]) -> "asyncio.Future[T]":
        """Run ``operation(shard, now_ms)`` now. The response is sent when everything that the operation could
        read is committed."""
        host = self._place(partition).host
        return self._absent(partition) if host is None else host.read(operation)

    def peek(self, partition: int, operation: Callable[[S, int], T]) -> T | None:
        """Read a shard without waiting for commits; see ``ShardHost.peek``. The result is None if this node
        does not lead the partition."""
        host = self._place(partition).host
        return None if host is None else host.peek(operation)

    def read_in_turns(
        self,
        partition: int,
        names: Callable[[S], Sequence[K]],
        rows: Callable[[S, int, Sequence[K]], Sequence[T]],
    ) -> Coroutine[Any, Any, list[T]]:
        """Read a large number of values, for example all offsets of a group. First, ``names(shard)`` is
        called, which returns the names of all values. Then ``rows(shard, now_ms, names)`` is called in
        several iterations of the event loop, each time with some of these names.

        Each value shows the state at the time when it is read. Raises ``KafkaError``.
        """
        return self._read_rows(partition, self.read(partition, lambda shard, now_ms: names(shard)), rows)

    async def _read_rows(
        self,
        partition: int,
        names: "asyncio.Future[Sequence[K]]",
        rows: Callable[[S, int, Sequence[K]], Sequence[T]],
    ) -> list[T]:
        wanted = await names
        found: list[T] = []
        for first in range(0, len(wanted), ROWS_A_TURN):
            found += await self.read(partition, partial(_rows_of, rows, wanted[first : first + ROWS_A_TURN]))
            await asyncio.sleep(0)
        return found

    def shards(self) -> list[S]:
        """The loaded shards, for meters."""
        return [host.shard for host in self._led() if host.state is HostState.ACTIVE]

    def problem(self) -> str | None:
        """Return a sentence about the partitions that cannot be loaded, with the reason; ``None`` when all
        can be loaded."""
        found = [f"{host.name}: {host.load_problem}" for host in self._led() if host.load_problem]
        return "; ".join(found) or None

    def notice(self) -> str | None:
        """Return a sentence that names the partitions in which the last load skipped unreadable records;
        ``None`` when there are no such partitions."""
        found = [f"{host.name}: {host.broken}" for host in self._led() if host.broken.count]
        return "; ".join(found) or None

    def is_active(self, partition: int) -> bool:
        """Whether this node leads the partition and has loaded it."""
        host = self._place(partition).host
        return host is not None and host.state is HostState.ACTIVE

    async def until_loaded(self, partition: int) -> None:
        """Wait until a load in progress has ended."""
        host = self._place(partition).host
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
        while closing := [place.closing for place in self._places.values() if place.closing is not None]:
            await asyncio.wait(closing)

    def _absent(self, partition: int) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_exception(
            KafkaError(ErrorCode.not_coordinator, f"{self.kind.topic.name}-{partition} is not on this node.")
        )
        return future

    def _place(self, partition: int) -> "_LocalPartition[S, R]":
        """The entry of a partition on this node. If there is no entry, a new, empty entry is made."""
        return self._places.get(partition) or _LocalPartition()

    def _led(self) -> Iterator[ShardHost[S, R]]:
        return (place.host for place in self._places.values() if place.host is not None)

    def _lead(self, term: Term) -> None:
        place = self._places.setdefault(term.partition, _LocalPartition())
        place.host = ShardHost(self.kind, term, self._clock, self._unexpected, after=place.closing)
        self._on_change(term.partition)

    def _close(self, host: ShardHost[S, R] | StandbyShard[S, R]) -> None:
        partition = host.term.partition
        host.stop()
        place = self._places[partition]
        before = place.closing

        async def close() -> None:
            if before is not None:
                await asyncio.wait([before])
            await host.close()

        task = asyncio.get_running_loop().create_task(close(), name=f"close {host.name}")
        place.closing = task

        def forget(done: "asyncio.Task[None]") -> None:
            if place.closing is done:
                place.closing = None
                if place.host is None and place.standby is None:
                    self._places.pop(partition, None)

        task.add_done_callback(forget)


def _rows_of(rows: Callable[[S, int, K], T], some: K, shard: S, now_ms: int) -> T:
    return rows(shard, now_ms, some)
