"""Follows a partition of ``__remote_log_metadata``. It writes each event to the store, and then applies it in
memory.

Memory contains only the partitions that this broker uses. They are loaded from the store between two batches
of events. Therefore there is no gap between the loaded state and the next events. If a follower fails (no
leader, a full disk), it retries after a while, from the store's state. Until then its state in memory is old
but consistent.
"""

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from itertools import count
from typing import Any, Final, Protocol, TypeVar

import apsw

from moldau.cluster.internal_topics import REMOTE_LOG_METADATA_TOPIC
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import Entropy, KafkaError
from moldau.tiered.metadata.lifecycle import RemotePartitionDeleteState
from moldau.tiered.metadata.manager import (
    RemoteMetadataNotReadyError,
    RemoteMetadataUnknownOutcomeError,
)
from moldau.tiered.metadata.records import decode_event
from moldau.tiered.metadata.segment_cache import SegmentCache
from moldau.tiered.metadata.segments import (
    RemoteLogMetadata,
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from moldau.tiered.metadata.store import NOTHING_APPLIED, AppliedEvents, EventOutcome, MetadataStore
from moldau.tiered.metadata.topic import MetadataTopic, TopicOffsets, TopicRecords
from moldau.tiered.storage.storage_manager import RemoteStorageError

__all__ = ["FollowedPartition", "MetadataFollower", "StoreCalls", "StoreRenewedError"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

READ_BYTES: Final = 1 << 18
WORK_A_TURN: Final = 500
"""Number of events, and of leader epochs in them, that are applied in one iteration of the event loop. This
takes a few milliseconds."""
LOGGED_MAX: Final = 10
"""If a read contains unreadable records, at most this number of them is logged one by one."""
BACKOFF_S: Final = 0.1
BACKOFF_MAX_S: Final = 5.0
LATE_AFTER_FAILURES: Final = 5
"""After this number of failures in a row, the failure is logged in any case. This is about a second and a
half after the first failure."""


class StoreCalls(Protocol):
    """The calls to the store. Only one call runs at a time, and it does not run on the event loop."""

    generation: int
    """Incremented each time the store is dropped and created again."""

    async def call(self, generation: int, function: Callable[..., T], *arguments: Any) -> T:
        """Run ``function(store, *arguments)``. Raises :class:`StoreRenewedError` when the store has another
        generation."""
        ...


class StoreRenewedError(Exception):
    """The store was created again, so earlier results from it are invalid."""

    def __init__(self) -> None:
        super().__init__("the local cache was damaged and is built again")


RETRIED: Final = (RemoteStorageError, KafkaError, apsw.Error, OSError, StoreRenewedError)


class FollowedPartition:
    """A partition's segments in memory. The partition is ready when the events of the metadata partition
    before ``ready_at`` are applied."""

    __slots__ = ("cache", "ready", "ready_at")

    def __init__(self, cache: SegmentCache, ready_at: int) -> None:
        self.cache = cache
        self.ready_at = ready_at
        self.ready: asyncio.Event = asyncio.Event()


class MetadataFollower:
    """The follower of a metadata partition. Call ``start`` on the event loop."""

    def __init__(
        self,
        partition: int,
        topic: MetadataTopic,
        store: StoreCalls,
        entropy: Entropy,
        on_caught_up: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_caught_up`` is called when all events are applied: after each start, and after each loss of
        the store."""
        self.partition = partition
        self._on_caught_up = on_caught_up
        self._is_behind = True
        self._topic = topic
        self._store = store
        self._entropy = entropy
        self.position = -1
        """Offset of the next event to apply; -1 until the store has been read."""
        self.skipped = 0
        """Number of records and batches since the start that could not be read."""
        self.followed: dict[TopicIdPartition, FollowedPartition] = {}
        self.deletions: dict[TopicIdPartition, RemotePartitionDeleteMetadata] = {}
        self.problem: str | None = None
        """The reason why the follower makes no progress, for operators."""
        self._failures = 0
        self._held: set[TopicIdPartition] = set()
        self._unready: list[FollowedPartition] = []
        self._wanted: dict[TopicIdPartition, int] = {}
        """Partitions to load, with the number of the request. A partition may be requested again while it
        is loading.
        """
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._writers = 0
        self._dropped: dict[int, Exception] = {}
        self._order = count()
        self._generation = store.generation
        self._wake = asyncio.Event()
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        if self._task is None:
            name = f"follow {_name(self.partition)}"
            self._task = asyncio.get_running_loop().create_task(self._run(), name=name)

    async def close(self) -> None:
        """Stop following. For writers that still wait for their events, the outcome stays unknown."""
        self._closed = True
        self._moved.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        error = RemoteMetadataUnknownOutcomeError("the metadata manager was closed before it saw the event")
        for _, _, future in self._waiters:
            if not future.done():
                future.set_exception(error)
        self._waiters.clear()
        for partition in list(self.followed):
            self._forget(partition)

    # Calls of the manager

    def begin_following(self, partition: TopicIdPartition, *, afresh: bool = False) -> None:
        """From now on, keep a partition in memory. It is loaded from the store.

        With ``afresh`` the partition becomes ready only after all events that were acknowledged before this
        call are applied.
        """
        self._held.add(partition)
        known = self.followed.get(partition)
        if known is not None and afresh:
            known.ready.clear()
        if known is None or afresh:
            self._wanted[partition] = next(self._order)
            self._wake.set()

    def catch_up(self) -> None:
        """Call ``on_caught_up`` once more when all events are applied. This is needed when this follower
        exists already and this broker becomes the leader of the metadata partition."""
        self._is_behind = True
        self._wake.set()

    def drop(self, partition: TopicIdPartition) -> None:
        """Drop a partition. If the partition is being deleted, it stays until its deletion has finished."""
        self._held.discard(partition)
        if partition not in self.deletions:
            self._wanted.pop(partition, None)
            self._forget(partition)

    def _forget(self, partition: TopicIdPartition) -> None:
        followed = self.followed.pop(partition, None)
        if followed is not None:
            followed.ready.set()  # Callers that are waiting for this partition get an error.
        self._moved.set()

    @property
    def is_needed(self) -> bool:
        """Whether this metadata partition has events of a partition that is in use or has an unfinished
        deletion."""
        return bool(self._held or self.deletions)

    def is_ready(self, partition: TopicIdPartition) -> bool:
        found = self.followed.get(partition)
        return found is not None and found.ready.is_set()

    async def until_loaded(self, partition: TopicIdPartition) -> FollowedPartition | None:
        """The partition once it is ready. ``None`` if the partition was not requested, or is not requested
        any more."""
        while not self._closed:
            found = self.followed.get(partition)
            if found is not None:
                if found.ready.is_set():
                    return found
                await found.ready.wait()
            elif partition in self._wanted or partition in self.deletions:
                self._moved.clear()
                await self._moved.wait()
            else:
                return None
        return None

    async def until_applied(self, offset: int) -> None:
        """Wait until the event at ``offset`` is applied. Raises the reason if the event was dropped (see
        :meth:`writing`).
        """
        if self.position > offset:
            if offset in self._dropped:
                raise self._dropped[offset]
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (offset, next(self._order), future))
        await future

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Encloses a write and the wait for its event, because this follower may apply the event before the
        writer knows the event's offset.

        Inside this context, the follower remembers dropped events for callers that begin to wait later.
        """
        self._writers += 1
        try:
            yield
        finally:
            self._writers -= 1
            if not self._writers:
                self._dropped.clear()

    # The loop -------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                self._generation = self._store.generation
                await self._prepare()
                while True:
                    await self._step()
            except RETRIED as error:
                self._failed(error)
            except Exception as error:
                # An internal error must not be silent. Otherwise callers that wait would wait forever.
                self._failed(error, exc_info=True)
            backoff_s = min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(self._failures - 1, 30))
            await asyncio.sleep(backoff_s * self._entropy.uniform(0.8, 1.2))

    def _failed(self, error: Exception, *, exc_info: bool = False) -> None:
        self._failures += 1
        # Shortly after its start, a broker possibly does not lead the partition yet. Operators need no log
        # message about this.
        is_news = self.problem != str(error) and not isinstance(error, RemoteMetadataNotReadyError)
        if is_news or self._failures == LATE_AFTER_FAILURES:
            logger.warning("cannot follow %s: %s", _name(self.partition), error, exc_info=exc_info)
        self.problem = str(error)

    def _works(self) -> None:
        self.problem, self._failures = None, 0

    async def _prepare(self) -> None:
        """Find the next offset to read, and load the requested partitions in the state at this offset."""
        wanted = dict(self._wanted)
        applied = await self._ask(MetadataStore.applied, self.partition)
        offsets = await self._topic.offsets(self.partition, applied.epoch)
        if applied != NOTHING_APPLIED and not self._fits(applied, offsets):
            logger.warning(
                "the stored state of %s goes up to %s, which the log does not have",
                _name(self.partition),
                applied,
            )
            await self._ask(MetadataStore.reset, self.partition)
            applied = NOTHING_APPLIED
        position = max(applied.next_offset, offsets.start_offset)
        again = {**dict.fromkeys(self.followed), **wanted}
        deletions = await self._ask(MetadataStore.deletions, self.partition)
        self.deletions = {each.partition: each for each in deletions}
        again = {**dict.fromkeys(self.deletions), **again}
        behind = position < self.position
        self._is_behind |= behind
        self.position = position
        for followed in self._unready:
            # A partition that is not ready waits for an end offset that an earlier leader may have reported.
            # Other replicas perhaps do not have this offset.
            followed.ready_at = offsets.log_end_offset
        for partition, wish in again.items():
            keep_ready = not behind and wish is None
            await self._load(partition, offsets.log_end_offset, wish, keep_ready=keep_ready)
        self._answer(())

    async def _ask(self, function: Callable[..., T], *arguments: Any) -> T:
        return await self._store.call(self._generation, function, *arguments)

    @staticmethod
    def _fits(applied: AppliedEvents, offsets: TopicOffsets) -> bool:
        if applied.next_offset > offsets.log_end_offset:
            return False
        return applied.next_offset <= max(offsets.start_offset, offsets.epoch_end_offset)

    async def _step(self) -> None:
        while wanted := dict(self._wanted):
            # The callers have put these partitions into ``_wanted`` before this request for the end offset.
            # All events of earlier leaders are therefore before this end offset.
            end_offset = (await self._topic.offsets(self.partition)).log_end_offset
            for partition, wish in wanted.items():
                await self._load(partition, end_offset, wish, keep_ready=False)
        self._mark_ready()
        self._wake.clear()
        found = await self._topic.read(self.partition, self.position, READ_BYTES)
        has_news = found.next_offset > self.position
        if has_news:
            await self._apply(found)
        self._works()
        if not has_news and self._is_behind:
            self._is_behind = False
            self._on_caught_up()
        if not has_news and not self._wanted:
            await _first(self._topic.wait_beyond(self.partition, self.position), self._wake.wait())

    async def _load(
        self, partition: TopicIdPartition, end_offset: int, wish: int | None, *, keep_ready: bool
    ) -> None:
        """Load a partition. The partition is ready when the events before ``end_offset`` are applied."""
        cache = await self._ask(_load_cache, partition)
        known = self.followed.get(partition)
        if known is not None and keep_ready:
            known.cache = cache
        elif known is not None:
            known.cache, known.ready_at = cache, end_offset
            known.ready.clear()
            self._unready.append(known)
        elif partition in self._wanted or partition in self.deletions:
            new = self.followed[partition] = FollowedPartition(cache, end_offset)
            self._unready.append(new)
        if self._wanted.get(partition) == wish:
            self._wanted.pop(partition, None)
        self._moved.set()

    def _mark_ready(self) -> None:
        if self._unready:
            unready, self._unready = self._unready, []
            for followed in unready:
                if followed.ready_at <= self.position:
                    followed.ready.set()
                else:
                    self._unready.append(followed)

    async def _apply(self, found: TopicRecords) -> None:
        records, next_offset, epoch, unreadable = found
        outcomes = await self._ask(_apply_records, self.partition, records, AppliedEvents(next_offset, epoch))
        self.skipped += unreadable + len(records) - len(outcomes)
        work = 0
        for outcome in outcomes:
            if work >= WORK_A_TURN:
                work = 0
                await asyncio.sleep(0)
            work += 1
            if outcome.error is not None:
                logger.warning(
                    "event %d of %s is dropped: %s",
                    outcome.offset,
                    _name(self.partition),
                    outcome.error,
                )
            elif isinstance(outcome.changed, RemoteLogSegmentMetadata):
                followed = self.followed.get(outcome.changed.topic_id_partition)
                if followed is not None:
                    work += len(outcome.changed.leader_epochs)
                    for _ in followed.cache.put_in_steps(outcome.changed):
                        await asyncio.sleep(0)
            elif outcome.changed is not None:
                self._deletion(outcome.changed)
        self.position = next_offset
        self._mark_ready()
        self._answer(outcomes)

    def _deletion(self, event: RemotePartitionDeleteMetadata) -> None:
        partition = event.partition
        if event.state is not RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            self.deletions[partition] = event
            if partition not in self.followed:
                self._wanted[partition] = next(self._order)
            return
        self.deletions.pop(partition, None)
        self._wanted.pop(partition, None)
        if partition in self._held and partition in self.followed:
            self.followed[partition].cache = SegmentCache()
        else:
            self._forget(partition)

    def _answer(self, outcomes: Collection[EventOutcome]) -> None:
        failures = {outcome.offset: outcome.error for outcome in outcomes if outcome.error is not None}
        if self._writers:
            self._dropped.update(failures)
        while self._waiters and self._waiters[0][0] < self.position:
            offset, _, future = heapq.heappop(self._waiters)
            if future.done():
                continue
            error = failures.get(offset)
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


async def _first(*waits: Awaitable[Any]) -> None:
    """Wait for the first of several awaitables; the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        if not task.cancelled():
            task.result()


def _load_cache(store: MetadataStore, partition: TopicIdPartition) -> SegmentCache:
    """The stored segments of a partition. They are built outside the event loop because there may be very
    many of them."""
    stored = store.load(partition)
    cache = SegmentCache()
    for segment in stored.segments:
        cache.put(segment)
    for epoch, offset in stored.highest_offsets.items():
        cache.raise_highest(epoch, offset)
    return cache


def _apply_records(
    store: MetadataStore, partition: int, records: Sequence[tuple[int, bytes]], applied: AppliedEvents
) -> list[EventOutcome]:
    """Apply events to the store. This function runs on a worker thread, because a thousand events would block
    the event loop too long."""
    return store.apply(partition, list(_decoded(partition, records)), applied)


def _name(partition: int) -> TopicPartition:
    """The name of a metadata partition."""
    return TopicPartition(REMOTE_LOG_METADATA_TOPIC, partition)


def _decoded(partition: int, records: Sequence[tuple[int, bytes]]) -> Iterator[tuple[int, RemoteLogMetadata]]:
    skipped_count = 0
    for offset, value in records:
        try:
            yield offset, decode_event(value)
        except ProtocolError as error:
            # The record comes from a later version or another implementation. The events before and after
            # this record are valid.
            skipped_count += 1
            if skipped_count <= LOGGED_MAX:
                logger.error("record %d of %s is skipped: %s", offset, _name(partition), error)
    if skipped_count > LOGGED_MAX:
        logger.error(
            "%d more records of %s up to %d are skipped",
            skipped_count - LOGGED_MAX,
            _name(partition),
            records[-1][0],
        )
