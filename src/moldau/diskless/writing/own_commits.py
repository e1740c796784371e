"""Passes this broker's own commits from memory into its cache, without a request.

This module guarantees the following. As soon as the batches of a file have their offsets, this module asks
each cache whether it accepts a run of batches. No other code of the event loop runs before all caches have
answered. A cache accepts a run under three conditions. It is at the tail, it reads nothing at the moment, and
it ends where the run begins. The answer *yes* is a *promise* of the cache: until the promise ends, the cache
appends no other batches. A worker thread writes the runs of a file; the files of one coordinator are written
one after the other. Then the runs are in the cache, and the promises end. Meanwhile the producers get their
responses. If a cache does not accept a run, or has lost its last batches, it gets the batches in the same way
as batches of other brokers: it requests their positions from the coordinator.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple, Protocol

from moldau.coordinators.diskless.calls import BatchCoordinate, CommittedBatch
from moldau.diskless.reading.recent_objects import RecentObjects
from moldau.diskless.writing.wal_file import FileShare, ProducedBatch
from moldau.protocol.partitions import PartitionKey
from moldau.records.batch import TRANSACTIONAL_BIT
from moldau.runtime import ErrorCode, UnexpectedErrors, Workers
from moldau.storage.log.worker_appends import AsideWrite

__all__ = ["OwnCommits", "OwnRun", "RunTaker"]


class OwnRun(NamedTuple):
    """Adjacent batches of a partition, in memory that is writable."""

    key: PartitionKey
    batches: Sequence[BatchCoordinate]
    content: memoryview


class RunTaker(Protocol):
    """The interface of the cacher for batches that it gets without FindBatches."""

    def promise(self, key: PartitionKey, batches: Sequence[BatchCoordinate]) -> bool:
        """Ask whether the partition's cache will append these batches. If the result is True, the cache
        appends these batches before any other batch.

        The result is also true when this broker has no cache of the partition. The promise ends with
        :meth:`over`.
        """
        ...

    def begin(self, run: OwnRun) -> AsideWrite | None:
        """Begin to append promised batches. Returns ``None`` when no bytes are left to write."""
        ...

    def end(self, run: OwnRun, write: AsideWrite) -> None:
        """Complete the append of ``run`` after ``write`` is done."""
        ...

    def over(self, run: OwnRun) -> bool:
        """End the promise. Returns whether the cache has the batches."""
        ...


class OwnCommits:
    """Passes each committed part of a file to the caches. When this broker no longer needs the file's object,
    the object is dropped from memory."""

    def __init__(
        self,
        recent: RecentObjects,
        taker: RunTaker,
        workers: Workers,
        unexpected: UnexpectedErrors,
        is_shared: Callable[[], bool] = lambda: False,
    ) -> None:
        """``is_shared`` returns whether other brokers read objects from this broker's memory."""
        self.is_shared = is_shared
        self._recent = recent
        self._taker = taker
        self._workers = workers
        self._unexpected = unexpected
        self._waiting: dict[int, deque[tuple[FileShare, list[OwnRun], Callable[[FileShare], None]]]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def committed(self, share: FileShare, on_over: Callable[[FileShare], None]) -> None:
        """Pass the part's batches to the caches. ``on_over`` is called when the caches no longer need the
        bytes of the part."""
        runs: list[OwnRun] = []
        # an error here must not stop the next commits; the caches then get the batches from the coordinator
        with self._unexpected.contained("promising own commits", lambda _: _not_cached(share)):
            self._promise(share, runs)
        if not runs:
            on_over(share)
            return
        coordinator_id = share.coordinator_id
        self._waiting.setdefault(coordinator_id, deque()).append((share, runs, on_over))
        if coordinator_id not in self._tasks:
            self._tasks[coordinator_id] = asyncio.get_running_loop().create_task(
                self._keep_all(coordinator_id), name=f"own commits to coordinator {coordinator_id}"
            )

    def _promise(self, share: FileShare, runs: list[OwnRun]) -> None:
        content = self._recent.writable(share.file.key)
        share.is_cached = content is not None
        if content is None:
            return
        for key, pairs in groupby(zip(share.batches, share.outcomes, strict=True), lambda pair: pair[0].key):
            for batches in _runs(share.file.key, pairs):
                first, last = batches[0], batches[-1]
                run = OwnRun(key, batches, content[first.byte_offset : last.byte_offset + last.size_bytes])
                is_promised = False
                # If ``promise`` raises, the promise must end, too. Otherwise the cache would wait forever.
                with self._unexpected.contained("promising own commits", partial(self._no_promise, run)):
                    is_promised = self._taker.promise(key, batches)
                if not is_promised:
                    share.is_cached = False
                    break
                runs.append(run)

    def finished(self, shares: Sequence[FileShare]) -> None:
        """Called when all parts of a file are finished."""
        if self.is_shared():
            return  # the object stays in memory for the other brokers, as long as there is enough space
        if shares and all(share.is_cached or not share.outcomes for share in shares):
            self._recent.discard(shares[0].file.key)

    async def drain(self) -> None:
        """Wait for all batches that were committed before this call. When it returns, they are cached, or
        they will not be cached."""
        while self._tasks:
            await asyncio.wait(set(self._tasks.values()))

    async def stop(self) -> None:
        """Stop after the current write; no more batches are cached."""
        for waiting in self._waiting.values():
            waiting.clear()
        await self.drain()

    # -- writing ------------------------------------------------------------------------------

    async def _keep_all(self, coordinator_id: int) -> None:
        waiting = self._waiting[coordinator_id]
        try:
            while waiting:
                await self._keep_next(waiting)
        finally:
            del self._tasks[coordinator_id]

    async def _keep_next(
        self, waiting: deque[tuple[FileShare, list[OwnRun], Callable[[FileShare], None]]]
    ) -> None:
        share, runs, on_over = waiting.popleft()
        try:
            with self._unexpected.contained("caching own commits"):
                await self._keep(runs)
        finally:
            kept = [self._over(run) for run in runs]
            share.is_cached = share.is_cached and all(kept)
        # ``on_over`` may release the memory of the object. Therefore the views in the runs must be dropped
        # first.
        runs.clear()
        on_over(share)

    def _no_promise(self, run: OwnRun, error: Exception) -> None:
        self._over(run)

    def _over(self, run: OwnRun) -> bool:
        is_cached = False
        with self._unexpected.contained("ending a promise"):
            is_cached = self._taker.over(run)
        return is_cached

    async def _keep(self, runs: list[OwnRun]) -> None:
        rest = deque(runs)
        while rest:
            # A log can have only one write at a time. Therefore a group has at most one run of each
            # partition.
            together: dict[PartitionKey, OwnRun] = {}
            while rest and rest[0].key not in together:
                run = rest.popleft()
                together[run.key] = run
            writes: list[tuple[OwnRun, AsideWrite]] = []
            try:
                for run in together.values():
                    write = self._taker.begin(run)
                    if write is not None:
                        writes.append((run, write))
                if writes:
                    await self._workers.run(_write_all, [write for _, write in writes])
            finally:
                for run, write in writes:
                    with self._unexpected.contained("ending the write of own commits"):
                        self._taker.end(run, write)


def _not_cached(share: FileShare) -> None:
    share.is_cached = False


def _write_all(writes: list[AsideWrite]) -> None:
    for write in writes:
        write.run()


def _runs(
    object_key: str, pairs: Iterator[tuple[ProducedBatch, CommittedBatch]]
) -> Iterator[Sequence[BatchCoordinate]]:
    """A partition's batches that have offsets now, in groups of adjacent batches (runs)."""
    run: list[BatchCoordinate] = []
    end = -1
    for batch, outcome in pairs:
        if outcome.error is not ErrorCode.none or outcome.is_duplicate:
            continue
        if run and batch.byte_offset != end:
            yield run
            run = []
        header = batch.header
        end = batch.byte_offset + header.size_bytes
        run.append(
            BatchCoordinate(
                *batch.key,
                outcome.base_offset,
                outcome.base_offset + header.last_offset_delta,
                object_key,
                batch.byte_offset,
                header.size_bytes,
                outcome.log_append_time_ms,
                header.max_timestamp,
                batch.timestamp_type,
                bool(header.attributes & TRANSACTIONAL_BIT),
            )
        )
    if run:
        yield run
