"""Consolidation by the broker itself, when no outside engine does it.

In each round the engine makes a plan. It builds one unit after another in memory, copies the segments, and
publishes them. A failed unit is abandoned, and planned again in a later round.
"""

import asyncio
import logging
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from moldau.metrics import Meters
from moldau.objects.storage import ObjectStorage, StorageError
from moldau.records.errors import CorruptRecordError
from moldau.runtime import ErrorCode, UnexpectedErrors, Workers
from moldau.runtime.byte_quota import ByteRateQuota
from moldau.tiered.consolidation.building import build_and_copy, memory_bytes
from moldau.tiered.consolidation.leader import REFUSALS, ConsolidationLeader
from moldau.tiered.consolidation.plan import PlannedSegment, Unit, lay_out_units
from moldau.tiered.consolidation.work import BuiltCopy
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.meters import TieredMeters
from moldau.tiered.storage.storage_manager import (
    RemoteStorageError,
    RemoteStorageManager,
    check_custom_metadata,
)
from moldau.tiered.work_pool import WorkPool

__all__ = ["BrokerEngine", "EngineSettings", "RemoteCopies"]

logger = logging.getLogger(__name__)

ENGINE_NAME: Final = "broker"
DEFAULT_UNIT_BYTES: Final = 64 * 1024**2
_PUBLISH_TRIES: Final = 3
_UNITS_AT_A_TIME: Final = 3
"""Number of units in progress: one unit is read and built, one is copied, and one is published."""
_UNITS_IN_MEMORY: Final = 2
_PLANS_A_ROUND: Final = 64
"""After this number of plans, all partitions are reconciled before the next plan, even if there is more to
build."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Limits of the engine, in bytes and milliseconds."""

    unit_bytes: int = DEFAULT_UNIT_BYTES
    """Maximum size of a unit in memory. A larger segment is a unit of its own. Two units are in memory at a
    time."""
    plan_bytes: int = 512 * 1024**2
    """Maximum total size of the segments in a plan."""
    lease_ms: int = 600_000
    reads_in_flight: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCopies:
    """The destination of all copies to remote storage. All copies share its rate limit and its meters."""

    storage: RemoteStorageManager
    quota: ByteRateQuota
    meters: TieredMeters
    unexpected: UnexpectedErrors = field(default_factory=UnexpectedErrors)


class BrokerEngine:
    """Carries out the plans that this broker makes as a leader. :meth:`run_once` is called at an interval."""

    def __init__(
        self,
        leader: ConsolidationLeader,
        wal_storage: ObjectStorage,
        copies: RemoteCopies,
        workers: Workers,
        meters: Meters,
        settings: EngineSettings | None = None,
        is_enabled: Callable[[], bool] = lambda: True,
    ) -> None:
        """``is_enabled`` is false when an outside engine builds the segments. This broker reconciles the
        partitions in both cases."""
        self._leader = leader
        self._wal_storage = wal_storage
        self._storage = copies.storage
        self._workers = workers
        self.settings = settings or EngineSettings()
        self._is_enabled = is_enabled
        self._tiered_meters = copies.meters
        self._quota = copies.quota
        self._unexpected = copies.unexpected
        self._memory: list[memoryview] = []
        self._places = WorkPool(_UNITS_IN_MEMORY)
        self._reading = asyncio.Lock()
        scope = meters.scoped("moldau.diskless", "Consolidation")
        self._segments = scope.counter("SegmentsPerSec", "Segments that this broker has built and copied.")
        self._bytes = scope.counter(
            "BytesPerSec", "Bytes of the segments that this broker has built and copied."
        )
        self._failures = scope.counter(
            "ErrorsPerSec", "Consolidation units that failed. They are planned again."
        )

    async def run_once(self) -> int:
        """Reconcile the recorded segments, then consolidate. Returns the number of published bytes.

        An exception from this method is always a bug.
        """
        await self._leader.reconcile_all()
        total = 0
        try:
            for _ in range(_PLANS_A_ROUND):
                if not self._is_enabled():
                    break
                done = await self._carry_out_a_plan()
                if not done:
                    break  # There was nothing to do, or an error occurred. Do not try again immediately.
                total += done
        finally:
            self._memory.clear()
        return total

    async def _carry_out_a_plan(self) -> int:
        """Make a plan and build all of its segments. Returns the number of published bytes."""
        settings = self.settings
        plan = await self._leader.plan(ENGINE_NAME, max_bytes=settings.plan_bytes, lease_ms=settings.lease_ms)
        if not plan.work:
            return 0
        units = lay_out_units([work.segment for work in plan.work], settings.unit_bytes)
        task = _LeasedPlan(
            plan.lease_id, {work.segment.segment_id: work.epoch for work in plan.work}, iter(units)
        )
        try:
            await asyncio.gather(*(self._build_units(task) for _ in range(_UNITS_AT_A_TIME)))
        except asyncio.CancelledError:
            raise  # The node stops. The next leader continues the work.
        except Exception:
            await self._leader.give_up(plan.lease_id)
            raise
        await self._leader.give_up(plan.lease_id)
        return task.done_bytes

    async def _build_units(self, task: "_LeasedPlan") -> None:
        for unit in task.units:
            segments = self._still_planned(task, unit.segments)
            if not segments or self._leader.renew(task.lease_id, self.settings.lease_ms) is None:
                continue
            copies = await self._build(task, segments)
            if copies:
                await self._publish(task, segments, copies)

    def _still_planned(self, task: "_LeasedPlan", segments: Sequence[PlannedSegment]) -> list[PlannedSegment]:
        """The segments in ``segments`` that must still be built. Segments of a deleted topic, or of a
        partition that another broker leads now, are left out. A copy of such a segment would leave objects to
        which no metadata refer."""
        is_planned = self._leader.is_planned
        return [
            one for one in segments if one.partition not in task.given_up and is_planned(task.lease_id, one)
        ]

    async def _build(self, task: "_LeasedPlan", segments: Sequence[PlannedSegment]) -> list[BuiltCopy]:
        """Build and copy everything that can be built.

        An error that is not caused by the store or by the data is a bug. Such a bug usually concerns a single
        batch. The unit's partitions are then built one by one, so that only the partition with this batch is
        left out.
        """
        await self._keep_quota(task, sum(one.size_bytes for one in segments))
        async with self._places.place():
            segments = self._still_planned(task, segments)
            if not segments:
                return []
            with self._unexpected.contained("building segments"):
                return await self._build_in(self._take_memory(memory_bytes(segments)), task, segments)
        partitions = dict.fromkeys(one.partition for one in segments)
        if len(partitions) == 1:
            self._given_up(task, segments)
            return []
        copies: list[BuiltCopy] = []
        for partition in partitions:
            copies += await self._build(task, [one for one in segments if one.partition == partition])
        return copies

    def _given_up(self, task: "_LeasedPlan", segments: Sequence[PlannedSegment]) -> None:
        """Abandon these segments. They are planned again later."""
        self._failures.value += 1
        task.given_up.update(one.partition for one in segments)
        for segment in segments:
            self._tiered_meters.failed_copy(segment.partition.topic)

    async def _build_in(
        self, memory: memoryview, task: "_LeasedPlan", segments: Sequence[PlannedSegment]
    ) -> list[BuiltCopy]:
        for segment in segments:
            self._tiered_meters.copy_request(segment.partition.topic)
        try:
            copied = await build_and_copy(
                segments,
                self._wal_storage,
                self._workers,
                self._storage,
                into=memory,
                reads_in_flight=self.settings.reads_in_flight,
                reading=self._reading,
            )
            for segment, metadata in zip(segments, copied, strict=True):
                max_bytes = self._leader.custom_metadata_max_bytes
                check_custom_metadata(str(segment.metadata.id), metadata, max_bytes)
        except (StorageError, RemoteStorageError, CorruptRecordError) as error:
            # The memory of a failed unit is not reused, because an upload may still be reading it.
            logger.warning("segments of %s cannot be built now: %s", _names(segments), error)
            self._given_up(task, segments)
            return []
        self._memory.append(memory)
        for segment in segments:
            self._tiered_meters.copied(segment.partition.topic, segment.size_bytes)
        return [
            BuiltCopy(segment.partition, segment.segment_id, task.epochs[segment.segment_id], metadata)
            for segment, metadata in zip(segments, copied, strict=True)
        ]

    async def _keep_quota(self, task: "_LeasedPlan", size_bytes: int) -> None:
        """Wait until ``size_bytes`` bytes may be copied. The lease is renewed during the wait."""
        loop = asyncio.get_running_loop()
        while (wait_s := self._quota.throttle_s(loop.time())) > 0:
            self._leader.renew(task.lease_id, self.settings.lease_ms)
            await asyncio.sleep(min(wait_s, 1.0))
        self._quota.record(size_bytes, loop.time())

    def _take_memory(self, size_bytes: int) -> memoryview:
        """Use memory of earlier units, or new memory. Writing to new memory pages takes longer than the copy
        itself."""
        if self._memory and len(self._memory[-1]) >= size_bytes:
            return self._memory.pop()
        # Units that are nearly full have similar sizes. The memory is therefore made large enough for the
        # next such unit, too.
        is_nearly_full = self.settings.unit_bytes < 2 * size_bytes
        wanted_bytes = max(size_bytes, self.settings.unit_bytes if is_nearly_full else 0)
        # The memory is not a bytearray, because creating a bytearray fills it with zeros while the event loop
        # waits.
        return memoryview(mmap.mmap(-1, wanted_bytes))

    async def _publish(
        self, task: "_LeasedPlan", segments: Sequence[PlannedSegment], copies: Sequence[BuiltCopy]
    ) -> None:
        sizes = {one.segment_id: one.size_bytes for one in segments}
        left = list(copies)
        for _ in range(_PUBLISH_TRIES):
            answers = await self._leader.publish(task.lease_id, left)
            again: list[BuiltCopy] = []
            for copy, answer in zip(left, answers, strict=True):
                if answer.error is ErrorCode.none:
                    task.done_bytes += sizes[copy.segment_id]
                    self._segments.value += 1
                    self._bytes.value += sizes[copy.segment_id]
                elif answer.error in REFUSALS:
                    task.given_up.add(copy.partition)
                    logger.info("%s is not published: %s", copy.partition, answer.message)
                else:
                    again.append(copy)
            left = again
            if not left:
                break
        for copy in left:
            # Perhaps the segment was recorded as finished, but the WAL was not pruned. In this case the next
            # round finds the segment, and completes the prune.
            self._failures.value += 1
            task.given_up.add(copy.partition)
            logger.warning("%s is not published now", copy.partition)


@dataclass(slots=True)
class _LeasedPlan:
    """A plan that the engine is carrying out."""

    lease_id: UUID
    epochs: Mapping[UUID, int]
    units: Iterator[Unit]
    given_up: set[TopicIdPartition] = field(default_factory=set)
    """Partitions that have a failed segment. The later segments of such a partition cannot be published."""
    done_bytes: int = 0


def _names(segments: Sequence[PlannedSegment]) -> str:
    return ", ".join(str(partition) for partition in dict.fromkeys(one.partition for one in segments))
