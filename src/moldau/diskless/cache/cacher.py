"""Builds and keeps the local segments of the diskless partitions that this broker hosts.

For each coordinator there are two loops, which are called lanes (see
:mod:`moldau.diskless.cache.follow_lane`). A partition begins in the catch-up lane. It moves to the tail lane
when it has all committed records. If it lags for a long time, it moves back to the catch-up lane.

If the coordinator's offsets match an opened cache, and at most ``first_max_bytes`` are missing, the cache
continues at its own end. Otherwise the cache is emptied and starts at the high watermark. Reads of older
offsets are then cold reads.

A partition leaves its lane if the next batches are in an object of another broker and no client reads the
partition on this broker. It begins again in the catch-up lane when it is read.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final, Protocol

from moldau.coordinators.diskless.calls import (
    LOG_APPEND_TIME,
    BatchCoordinate,
    FindBatchesCall,
    FoundPartition,
    ListedOffset,
    TimestampToList,
)
from moldau.diskless.byte_budget import ByteBudget
from moldau.diskless.cache.cache_bound import CacheBound
from moldau.diskless.cache.follow_lane import FollowLane, LaneSettings
from moldau.diskless.cache.partition_cache import UNKNOWN, PartitionCache, Scratch
from moldau.diskless.object_keys import parse_object_key
from moldau.diskless.reading.object_reads import ObjectReads, ObjectSource
from moldau.diskless.reading.read_meters import ReadMeters
from moldau.diskless.reading.read_round import ReadBatches
from moldau.diskless.writing.own_commits import OwnRun
from moldau.metrics import Meters
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.special_timestamps import (
    LATEST_TIMESTAMP,
)
from moldau.records.errors import CorruptRecordError
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.storage.log.worker_appends import AsideWrite

logger = logging.getLogger(__name__)

_LAGGING_ROUNDS: Final = 16
"""Number of consecutive rounds in which a partition does not reach the high watermark. After this number it
leaves the tail lane."""


class OffsetFinder(Protocol):
    """The part of a batch coordinator that the cacher needs."""

    async def find_batches(self, call: FindBatchesCall) -> Sequence[FoundPartition]: ...

    async def list_offsets(self, partitions: Sequence[TimestampToList]) -> Sequence[ListedOffset]: ...


@dataclass(frozen=True, slots=True)
class CacherSettings:
    """Limits for :class:`Cacher`, in bytes and milliseconds."""

    cache_max_bytes: int = 4 * 1024**3
    tail_round_bytes: int = 16 * 1024**2
    tail_partition_bytes: int = 8 * 1024**2
    tail_budget_bytes: int = 64 * 1024**2
    tail_max_wait_ms: int = 500
    catch_up_round_bytes: int = 8 * 1024**2
    catch_up_partition_bytes: int = 4 * 1024**2
    catch_up_budget_bytes: int = 16 * 1024**2
    first_max_bytes: int = 64 * 1024**2
    unread_ms: int = 120_000
    """Time in ms after the last read of a partition for which its cache gets the batches of other brokers. If
    it is negative, the cache always gets them."""


class Cacher:
    """Follows the coordinators with loops that are called lanes. A lane requests the batches of a set of
    partitions from one coordinator (see :mod:`moldau.diskless.cache.follow_lane`). This class is the
    :class:`LaneOwner` of its lanes. It interprets the responses and appends the batches."""

    def __init__(
        self,
        machine: Machine,
        finder: OffsetFinder,
        source: ObjectSource,
        arrivals: WaitingRoom[PartitionKey],
        meters: Meters,
        settings: CacherSettings | None = None,
        *,
        broker_id: int = -1,
    ) -> None:
        """``broker_id`` is in the names of the objects that this broker writes."""
        self._finder = finder
        self._arrivals = arrivals
        self.settings = settings = settings or CacherSettings()
        self._tail_meters = ReadMeters(meters, "tail")
        self._catch_up_meters = ReadMeters(meters, "catch-up")
        self._unexpected = machine.unexpected
        self._tail_reads = ObjectReads(
            source, ByteBudget(settings.tail_budget_bytes), self._tail_meters, machine.unexpected
        )
        self._catch_up_reads = ObjectReads(
            source,
            ByteBudget(settings.catch_up_budget_bytes),
            self._catch_up_meters,
            machine.unexpected,
        )
        self._recent, self._broker_id = source.recent, broker_id
        self._bound = CacheBound(machine, settings.cache_max_bytes, meters)
        self._scratch = Scratch()
        self._caches: dict[PartitionKey, PartitionCache] = {}
        self._tails: dict[int, FollowLane] = {}
        self._catch_ups: dict[int, FollowLane] = {}
        self._lagging: dict[PartitionKey, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._evictions: set[asyncio.Task[None]] = set()
        self._meter_state(meters)

    def _meter_state(self, meters: Meters) -> None:
        scope = meters.scoped("moldau.diskless", "Cache")
        scope.gauge(
            "SizeBytes",
            lambda: sum(_size_of(cache) for cache in self._caches.values()),
            "Bytes of local segments.",
        )
        scope.gauge("Partitions", lambda: len(self._caches), "Partitions with a cache on this broker.")
        scope.gauge(
            "CatchingUp",
            lambda: sum(len(lane) for lane in self._catch_ups.values()),
            "Partitions whose cache is catching up with the log.",
        )
        scope.gauge(
            "LagRecords",
            lambda: sum(_lag_of(cache) for cache in self._caches.values()),
            "Committed offsets that are not in the caches yet, without unread partitions.",
        )
        scope.gauge(
            "Unread",
            lambda: sum(cache.is_asleep for cache in self._caches.values()),
            "Partitions whose cache is not filled, because no client reads them on this broker.",
        )

    def in_hand(self) -> Mapping[str, int]:
        """Return the amounts of resources that are in use; see :meth:`DisklessWriter.in_hand`."""
        lanes = (*self._tails.values(), *self._catch_ups.values())
        return {
            "read bytes at the tail": self._tail_reads.taken_bytes,
            "read bytes of catching up": self._catch_up_reads.taken_bytes,
            "partitions being read": sum(lane.busy_count for lane in lanes),
            "promised caches": sum(cache.is_promised for cache in self._caches.values()),
        }

    # -- partitions ---------------------------------------------------------------------------

    def add(self, cache: PartitionCache) -> None:
        """Begin to follow a partition."""
        self._caches[cache.key] = cache
        cache.notify_readers = partial(self._arrivals.notify, cache.key)
        self._lane(self._catch_ups, cache.coordinator_id).add(cache)

    def remove(self, cache: PartitionCache) -> None:
        """Stop following a partition. The caller must close the partition's log."""
        cache.close()
        self._caches.pop(cache.key, None)
        self._leave_lanes(cache)
        self._arrivals.notify(cache.key)

    def _leave_lanes(self, cache: PartitionCache) -> None:
        self._lagging.pop(cache.key, None)
        for lanes in (self._tails, self._catch_ups):
            lane = lanes.get(cache.coordinator_id)
            if lane is not None:
                lane.remove(cache)

    def _must_sleep(self, cache: PartitionCache, found: FoundPartition) -> bool:
        """Whether no client reads the partition here, and batches of other brokers would have to be read."""
        if not found.batches:
            return False
        unread_ms = self.settings.unread_ms
        if not cache.is_usable or unread_ms < 0:
            return False
        if cache.must_begin and cache.read_s > -inf:
            return False  # A read began to follow the partition, so the cache must begin before it may sleep.
        if cache.read_s + unread_ms / 1000 > asyncio.get_running_loop().time():
            return False
        return any(batch.marker is None and self._is_foreign(batch.object_key) for batch in found.batches)

    def _is_foreign(self, object_key: str) -> bool:
        """Whether another broker wrote the object, and the object is not in memory."""
        if object_key in self._recent:
            return False
        parsed = parse_object_key(object_key)
        return parsed is None or parsed.broker_id != self._broker_id

    def _sleep(self, cache: PartitionCache) -> None:
        """Stop following a partition until it is read."""
        self._leave_lanes(cache)
        cache.sleep(partial(self._wake, cache))
        # A reader may have waited for longer than the settings allow. It reads again now.
        self._arrivals.notify(cache.key)

    def _wake(self, cache: PartitionCache) -> None:
        if not cache.is_closed:
            self._lane(self._catch_ups, cache.coordinator_id).add(cache)

    def _lane(self, lanes: dict[int, FollowLane], coordinator_id: int) -> FollowLane:
        lane = lanes.get(coordinator_id)
        if lane is None:
            lane = lanes[coordinator_id] = self._new_lane(coordinator_id, is_tail=lanes is self._tails)
            task = asyncio.get_running_loop().create_task(lane.run(), name=lane.name)
            self._unexpected.watch(task, "following a coordinator")
            self._tasks.append(task)
        return lane

    def coordinator_moved(self, coordinator_id: int) -> None:
        """Let the lanes of a coordinator continue at once, because the coordinator has moved to another
        broker. After failures, a lane pauses.
        """
        for lanes in (self._tails, self._catch_ups):
            lane = lanes.get(coordinator_id)
            if lane is not None:
                lane.resume()

    def _new_lane(self, coordinator_id: int, *, is_tail: bool) -> FollowLane:
        settings = self.settings
        if is_tail:
            lane_settings = LaneSettings(
                settings.tail_round_bytes,
                settings.tail_partition_bytes,
                settings.first_max_bytes,
                settings.tail_max_wait_ms,
            )
            reads, meters = self._tail_reads, self._tail_meters
        else:
            lane_settings = LaneSettings(
                settings.catch_up_round_bytes, settings.catch_up_partition_bytes, settings.first_max_bytes, 0
            )
            reads, meters = self._catch_up_reads, self._catch_up_meters
        name = f"{'tail' if is_tail else 'catch-up'} of coordinator {coordinator_id}"
        return FollowLane(name, self._finder, reads, self, lane_settings, meters, self._unexpected)

    async def close(self) -> None:
        """Stop following all partitions."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._evictions, return_exceptions=True)

    # -- the follower's side of the lanes -------------------------------------------------------

    async def apply_answer(self, cache: PartitionCache, found: FoundPartition, asked_end: int) -> bool:
        known_end = asked_end if cache.must_begin else 0
        if found.high_watermark < max(0, cache.local_end_offset, known_end):
            return await self._resolve(cache)
        if self._must_sleep(cache, found):
            self._learn(cache, found)
            self._sleep(cache)
            return True
        restart = self._restart_offset(cache, found, cache.must_begin)
        if restart is not None:
            logger.info(
                "the cache of %s-%d is emptied and starts at offset %d",
                *(cache.topic, cache.key.partition, restart),
            )
            await cache.restart_at(restart)
        if found.error is ErrorCode.none and not found.moved_to_tier:
            cache.must_begin = False
        self._learn(cache, found)
        if restart is not None:
            self._arrivals.notify(cache.key)
        return restart is None or bool(found.batches and found.batches[0].base_offset == restart)

    @staticmethod
    def _restart_offset(cache: PartitionCache, found: FoundPartition, is_first: bool) -> int | None:
        """The offset at which the local log must start again, if the log does not match the response."""
        local_end = cache.local_end_offset
        if not cache.is_usable:
            return None
        if found.error is not ErrorCode.none or found.moved_to_tier:
            return max(found.wal_start_offset, found.log_start_offset)
        batches = found.batches
        if is_first and batches and batches[-1].last_offset + 1 < found.high_watermark:
            return found.high_watermark
        if batches and batches[0].base_offset != local_end:
            return batches[0].base_offset
        if not batches and local_end < found.high_watermark and is_first:
            return found.high_watermark
        return None

    def _learn(self, cache: PartitionCache, found: FoundPartition | ListedOffset, end: int = -1) -> None:
        if isinstance(found, FoundPartition):
            end = found.high_watermark
            cache.learn_aborted(found.aborted)
        cache.learn(
            log_start_offset=found.log_start_offset,
            wal_start_offset=found.wal_start_offset,
            high_watermark=end,
            last_stable_offset=found.last_stable_offset,
            remote_metadata_position=found.remote_metadata_position,
        )

    async def _resolve(self, cache: PartitionCache) -> bool:
        """Request the partition's committed offsets, because the coordinator's response does not match the
        cache. If the cache does not end within these offsets, restart it."""
        known_end = cache.high_watermark
        (listed,) = await self._finder.list_offsets([TimestampToList(*cache.partition_id, LATEST_TIMESTAMP)])
        if listed.error is not ErrorCode.none:
            raise KafkaError(listed.error, listed.message)
        start = max(listed.log_start_offset, listed.wal_start_offset, 0)
        if not start <= cache.local_end_offset <= listed.offset:
            restart = start if cache.local_end_offset < start else listed.offset
            logger.warning(
                "the cache of %s-%d ends at offset %d, and the partition ends at offset %d:"
                " the cache is emptied and starts at offset %d",
                *(cache.topic, cache.key.partition, cache.local_end_offset, listed.offset, restart),
            )
            await cache.restart_at(restart)
        # A read may have learned a newer end in the meantime.
        if listed.offset < known_end == cache.high_watermark:
            cache.correct(listed.offset)
        self._learn(cache, listed, listed.offset)
        return False

    def append(self, cache: PartitionCache, batches: ReadBatches) -> bool:
        size_bytes = sum(len(view) for _, view in batches)
        return self._append_cached(cache, size_bytes, lambda: cache.append(batches, self._scratch))

    # -- this broker's own commits (moldau.diskless.writing.own_commits.RunTaker) -------------------------

    def promise(self, key: PartitionKey, batches: Sequence[BatchCoordinate]) -> bool:
        cache = self._caches.get(key)
        if cache is None or cache.is_asleep:
            return True
        end = cache.promised_offset if cache.is_promised else cache.local_end_offset
        if not (cache.is_at_tail and cache.is_usable and end == batches[0].base_offset):
            return False
        lane = self._lane(self._tails, cache.coordinator_id)
        if lane.is_reading(cache):
            return False
        lane.postpone()
        cache.learn_promised(batches)
        return True

    def begin(self, run: OwnRun) -> AsideWrite | None:
        cache = self._caches.get(run.key)
        first = run.batches[0]
        if cache is None or not cache.is_usable or cache.local_end_offset != first.base_offset:
            return None
        if cache.promised_offset <= run.batches[-1].last_offset:
            return None  # an earlier run failed, so the lane reads these batches
        if any(batch.timestamp_type == LOG_APPEND_TIME for batch in run.batches):
            start = first.byte_offset
            views = [run.content[one.byte_offset - start :][: one.size_bytes] for one in run.batches]
            self.append(cache, list(zip(run.batches, views, strict=True)))
            return None
        writes: list[AsideWrite | None] = []
        self._append_cached(
            cache, len(run.content), lambda: writes.append(cache.begin_own(run.batches, run.content))
        )
        return writes[0] if writes else None

    def end(self, run: OwnRun, write: AsideWrite) -> None:
        cache = self._caches.get(run.key)
        if cache is None or cache.log.aside is not write.owner:
            write.owner.end(write)
        else:
            self._append_cached(cache, 0, lambda: cache.end_own(write))

    def over(self, run: OwnRun) -> bool:
        cache = self._caches.get(run.key)
        if cache is None or cache.is_asleep:
            return True
        end = run.batches[-1].last_offset + 1
        is_cached = cache.local_end_offset >= end
        if cache.promised_offset == end or not is_cached:
            cache.promised_offset = UNKNOWN
            self._lane(self._tails, cache.coordinator_id).request_again()
        cache.note_kept()
        return is_cached

    def _append_cached(self, cache: PartitionCache, size_bytes: int, append: Callable[[], None]) -> bool:
        before = cache.local_end_offset
        try:
            append()
        except CorruptRecordError as error:
            self._tail_meters.corrupt_batches.value += 1
            logger.error("a batch of %s-%d cannot be cached: %s", cache.topic, cache.key.partition, error)
            self.mark_stuck(cache)
            return False
        except KafkaError as error:
            logger.error("%s-%d has no cache any more: %s", cache.topic, cache.key.partition, error)
            return False
        finally:
            if cache.local_end_offset != before:
                self._arrivals.notify(cache.key)
        if self._bound.appended(size_bytes) and not self._evictions:
            task = asyncio.get_running_loop().create_task(self._bound.enforce(list(self._caches.values())))
            self._evictions.add(task)
            task.add_done_callback(self._evictions.discard)
            self._unexpected.watch(task, "evicting cached segments")
        return True

    def mark_stuck(self, cache: PartitionCache) -> None:
        cache.is_stuck = True
        self._arrivals.notify(cache.key)

    def round_over(self, cache: PartitionCache) -> None:
        if cache.is_closed or not cache.is_known:
            return
        tail = self._lane(self._tails, cache.coordinator_id)
        catch_up = self._lane(self._catch_ups, cache.coordinator_id)
        if cache.is_caught_up:
            self._lagging.pop(cache.key, None)
            if catch_up.remove(cache):
                cache.is_at_tail = True
                tail.add(cache)
            return
        rounds = self._lagging[cache.key] = self._lagging.get(cache.key, 0) + 1
        if rounds > _LAGGING_ROUNDS and tail.remove(cache):
            cache.is_at_tail = False
            catch_up.add(cache)


def _size_of(cache: PartitionCache) -> int:
    return cache.log.size_bytes if cache.is_usable else 0


def _lag_of(cache: PartitionCache) -> int:
    is_followed = cache.is_known and not cache.is_asleep
    return max(0, cache.high_watermark - cache.local_end_offset) if is_followed else 0
