"""The coordinator runtime: shards of one kind, one for each partition of a topic that this node leads.

It serves groups (``__consumer_offsets``), transactions (``__transaction_state``) and the diskless
coordinator (``__diskless_metadata``). The order of deciding, replaying, appending and answering is
written down in ``host.py``.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from moldau.coordinators.effects import Effects, Token
from moldau.coordinators.host import HostState, ShardHost
from moldau.coordinators.log import CoordinatorLog
from moldau.coordinators.shard import RecordCodec, Shard, ShardStore
from moldau.records.compression import Compression
from moldau.runtime import Clock, ErrorCode, KafkaError, UnexpectedErrors

R = TypeVar("R")
S = TypeVar("S", bound=Shard[Any])
T = TypeVar("T")


class CoordinatorRuntime(Generic[S, R]):
    """Owns the shards; all calls are made on the event loop.

    Errors that :meth:`write` and :meth:`read` raise, as :class:`KafkaError`: NOT_COORDINATOR (the
    partition is not, or no longer, led here), COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE
    (the log refused, or did not replicate in ``commit_timeout_ms``), and what the operation raised.
    """

    def __init__(
        self,
        topic: str,
        clock: Clock,
        new_shard: Callable[[int], S],
        codec: RecordCodec[R],
        *,
        commit_timeout_ms: int = 5000,
        compression: Compression = Compression.NONE,
        unexpected: UnexpectedErrors | None = None,
        skips_broken: bool = False,
    ) -> None:
        """``skips_broken``: a record that cannot be read is skipped instead of ending a load."""
        self._topic = topic
        self._clock = clock
        self._new_shard = new_shard
        self._codec = codec
        self._commit_timeout_ms = commit_timeout_ms
        self._compression = compression
        self._unexpected = unexpected or UnexpectedErrors()
        self._skips_broken = skips_broken
        self._hosts: dict[int, ShardHost[S, R]] = {}
        self._closing: dict[int, asyncio.Task[None]] = {}
        self._closed = False

    @property
    def partitions(self) -> list[int]:
        """The partitions that are led here, loaded or not."""
        return sorted(self._hosts)

    def load(
        self,
        partition: int,
        epoch: int,
        log: CoordinatorLog,
        new_store: Callable[[], ShardStore] | None = None,
    ) -> None:
        """This node leads ``partition`` from ``epoch`` on. An older or the same epoch is ignored.

        Returns at once; the shard answers COORDINATOR_LOAD_IN_PROGRESS until its log is replayed.
        ``new_store`` makes what materialises the shard's records; it is not called when the load is ignored.
        """
        host = self._hosts.get(partition)
        if self._closed or (host is not None and host.epoch >= epoch):
            return
        if host is not None:
            self._close(partition, host)
        self._hosts[partition] = ShardHost(
            f"{self._topic}-{partition}",
            epoch,
            log,
            lambda: self._new_shard(partition),
            self._codec,
            self._clock,
            store=None if new_store is None else new_store(),
            commit_timeout_ms=self._commit_timeout_ms,
            compression=self._compression,
            skips_broken=self._skips_broken,
            after=self._closing.get(partition),
            unexpected=self._unexpected,
        )

    def unload(self, partition: int, epoch: int | None = None) -> None:
        """This node leads ``partition`` no more; an ``epoch`` older than the loaded one is ignored."""
        host = self._hosts.get(partition)
        if host is None or (epoch is not None and epoch < host.epoch):
            return
        del self._hosts[partition]
        self._close(partition, host)

    def write(
        self, partition: int, operation: Callable[[S, int, Token], Effects[R]]
    ) -> "asyncio.Future[Any]":
        """Run ``operation(shard, now_ms, token)`` now, in the order of calls; the future is its answer.

        The answer is the reply to ``token``, given by this operation or by a later one.
        """
        host = self._hosts.get(partition)
        return self._absent(partition) if host is None else host.write(operation)

    def read(self, partition: int, operation: Callable[[S, int], T]) -> "asyncio.Future[T]":
        """Run ``operation(shard, now_ms)`` now; it answers once everything it could see is committed."""
        host = self._hosts.get(partition)
        return self._absent(partition) if host is None else host.read(operation)

    def shards(self) -> list[S]:
        """The shards that are loaded, for meters to look at."""
        return [host.shard for host in self._hosts.values() if host.state is HostState.ACTIVE]

    def problem(self) -> str | None:
        """Which partitions cannot be loaded, and why; ``None`` when there is none."""
        found = [f"{host.name}: {host.load_problem}" for host in self._hosts.values() if host.load_problem]
        return "; ".join(found) or None

    def notice(self) -> str | None:
        """Which partitions were loaded without some of their records; ``None`` when there is none."""
        found = [f"{host.name}: {host.broken}" for host in self._hosts.values() if host.broken.count]
        return "; ".join(found) or None

    def is_active(self, partition: int) -> bool:
        """Whether the partition is led here and loaded."""
        host = self._hosts.get(partition)
        return host is not None and host.state is HostState.ACTIVE

    async def until_loaded(self, partition: int) -> None:
        """Wait until a load that is under way has ended."""
        host = self._hosts.get(partition)
        if host is not None:
            await host.until_loaded()

    async def close(self) -> None:
        """Unload everything and take nothing more."""
        self._closed = True
        for partition in self.partitions:
            self.unload(partition)
        while self._closing:
            await asyncio.wait(tuple(self._closing.values()))

    def _absent(self, partition: int) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_exception(
            KafkaError(ErrorCode.not_coordinator, f"{self._topic}-{partition} is not on this node.")
        )
        return future

    def _close(self, partition: int, host: ShardHost[S, R]) -> None:
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
