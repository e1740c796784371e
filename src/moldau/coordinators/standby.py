"""A standby follows a partition that another node leads, and keeps the state of this partition for a fast
failover.

A standby applies committed records and decides nothing. It follows the high watermark of its replica. If the
log begins after the applied offset, for example because a snapshot was downloaded, the standby restores its
store again. When this node is elected, the standby is closed. The new coordinator then loads the standby's
store and the later records of the log.
"""

import asyncio
import logging
from typing import Any, Final, Generic, TypeVar

from moldau.coordinators.kind import CoordinatorKind, Term
from moldau.coordinators.loader import ShardLoader
from moldau.coordinators.log import LogUpTo
from moldau.coordinators.shard import CommittedRecord, Shard
from moldau.runtime import UnexpectedErrors

logger = logging.getLogger(__name__)

R = TypeVar("R")
S = TypeVar("S", bound=Shard[Any])

FIRST_RETRY_S: Final = 0.5
RETRY_MAX_S: Final = 30.0


class StandbyShard(Generic[S, R]):
    """Keeps the store of a followed partition up to date, for kinds that have a store."""

    def __init__(
        self,
        kind: CoordinatorKind[S, R],
        term: Term,
        unexpected: UnexpectedErrors,
        *,
        after: "asyncio.Task[None] | None" = None,
    ) -> None:
        """``after`` completes when an earlier term on this node has ended. Until then the earlier term may
        use the store's files."""
        assert kind.new_store is not None
        self.term = term
        self.name = f"the standby of {kind.topic.name}-{term.partition}"
        self.store = kind.new_store(term)
        self.applied_offset = 0
        """All records below this offset are in the store."""
        self.is_current = False
        """Whether the standby has reached the high watermark at least once since its last restore."""
        self._kind = kind
        self._log = term.log
        self._unexpected = unexpected
        self._moved = asyncio.Event()
        self._must_restart = False
        self._task = asyncio.get_running_loop().create_task(self._run(after), name=self.name)
        self._end_watermarks = self._log.follow_watermark(lambda _: self._moved.set())

    def restart(self) -> None:
        """Restore the store again, because it is damaged."""
        self._must_restart = True
        self._moved.set()

    def stop(self) -> None:
        """Stop applying records immediately."""
        self._end_watermarks()
        self._task.cancel()

    async def close(self) -> None:
        """After :meth:`stop`, wait until no task of the standby runs and the store is closed."""
        await asyncio.wait([self._task])
        await self.store.close()

    async def _run(self, after: "asyncio.Task[None] | None") -> None:
        if after is not None:
            await asyncio.wait([after])
        delay_s = FIRST_RETRY_S
        while True:
            self._must_restart = self.is_current = False
            try:
                await self._follow()
                delay_s = FIRST_RETRY_S
            except Exception as error:
                # The error has no lasting effect: records that are not in the store are still in the log, and
                # the next term on this node loads them.
                logger.warning("%s begins anew: %s", self.name, error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_MAX_S)

    async def _follow(self) -> None:
        """Restore the store and apply records as they arrive. Returns when the store must be restored
        again."""
        log, shard = self._log, self._kind.new_shard(self.term.partition)
        restored = await self.store.restore(shard)
        self.applied_offset = log.log_start_offset if restored is None else restored
        while not self._must_restart:
            self._moved.clear()
            if not log.log_start_offset <= self.applied_offset <= log.log_end_offset:
                return
            watermark = log.high_watermark
            if self.applied_offset < watermark:
                await self._apply(shard, watermark)
            else:
                self.is_current = True
                await self._moved.wait()

    async def _apply(self, shard: S, end_offset: int) -> None:
        records: list[CommittedRecord] = []

        def replayed(offset: int, record: R) -> None:
            records.append(CommittedRecord(offset, record))

        def hand_over() -> None:
            if records:
                self.store.committed(records, records[-1].offset + 1)
                records.clear()

        loader: ShardLoader[R] = ShardLoader(
            shard,
            self._kind.codec,
            LogUpTo(self._log, end_offset),
            replayed,
            name=self.name,
            policy=self._kind.policy,
        )
        self.applied_offset = await loader.run(self.applied_offset, hand_over)
        self.store.committed((), self.applied_offset)
