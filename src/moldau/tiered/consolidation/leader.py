"""The leader's side of consolidation: plans segments, assigns them to engines, publishes the built segments.

An engine builds segments. The engine is this broker itself (:mod:`moldau.tiered.consolidation.engine`), or an
outside engine that sends requests. The engine gets a plan with a lease, reports each finished copy, and
renews the lease while it works. At the end it releases the partitions that it did not finish. Segments of a
partition are published in the order of their offsets. If a segment is copied early, it is published after the
segments before it.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Final
from uuid import UUID

from moldau.coordinators.diskless.calls import FindBatchesCall, PartitionToFind
from moldau.runtime import Clock, Entropy, ErrorCode, KafkaError, UnexpectedErrors
from moldau.tiered.consolidation.open_plans import Lease, OpenPlan, OpenPlans, OpenSegment
from moldau.tiered.consolidation.plan import GatheredSegment, PlannedSegment, SegmentGathering
from moldau.tiered.consolidation.ports import LedPartition, WalCoordinator
from moldau.tiered.consolidation.reconciler import ConsolidationStatus, SegmentReconciler
from moldau.tiered.consolidation.side_by_side import CALLS_A_TURN, side_by_side
from moldau.tiered.consolidation.work import BuiltCopy, HeldPlan, Plan, PlannedWork, PublishedSegment
from moldau.tiered.metadata.lifecycle import IllegalTransitionError, RemoteLogSegmentState
from moldau.tiered.metadata.manager import RemoteMetadataUnknownOutcomeError
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.storage.segment_builder import MAX_SEGMENT_BYTES
from moldau.tiered.storage.storage_manager import (
    CustomMetadataSizeLimitExceededError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    check_custom_metadata,
)

__all__ = ["REFUSALS", "ConsolidationLeader"]

logger = logging.getLogger(__name__)

_State: Final = RemoteLogSegmentState
_BATCHES_A_PAGE: Final = 1_000
_SEGMENTS_A_PLAN: Final = 8
"""Maximum number of a partition's segments in a plan. When an engine crashes, the work on these segments is
lost."""
_WRITES_MAX: Final = 3
_FRESH_MS: Final = 1_000
_AT_A_TIME: Final = 16
"""Number of partitions that are planned or published in parallel. One sync makes all their writes durable."""

REFUSALS: Final = frozenset({ErrorCode.fenced_leader_epoch, ErrorCode.invalid_update_version})
"""Errors which say that the reported copy is not needed."""


@dataclass(slots=True)
class _Budget:
    """The remaining size of a plan. Partitions add their segments to the plan one after another. Each
    partition may use the size that the earlier partitions did not use."""

    left_bytes: int
    gathering: asyncio.Lock = field(default_factory=asyncio.Lock)


class ConsolidationLeader:
    """Plans and publishes for all diskless partitions that this broker leads."""

    def __init__(
        self,
        reconciler: SegmentReconciler,
        wal: WalCoordinator,
        led: Callable[[], Mapping[TopicIdPartition, LedPartition]],
        clock: Clock,
        entropy: Entropy,
        *,
        custom_metadata_max_bytes: int = 128,
        unexpected: UnexpectedErrors | None = None,
    ) -> None:
        """``led`` returns the diskless partitions that this broker leads now."""
        self.custom_metadata_max_bytes = custom_metadata_max_bytes
        self._unexpected = unexpected or UnexpectedErrors()
        self._reconciler = reconciler
        self._wal = wal
        self._led = led
        self._clock = clock
        self._entropy = entropy
        self._plans = OpenPlans()
        self._locks: dict[TopicIdPartition, asyncio.Lock] = {}
        self._turn = 0
        self.statuses: dict[TopicIdPartition, ConsolidationStatus] = {}
        """The status of each partition at its last check."""
        self._fresh: dict[TopicIdPartition, tuple[int, int, ConsolidationStatus]] = {}
        """Partitions that were reconciled a moment ago and are planned next: epoch, time and status of
        each.
        """

    # -- upkeep -------------------------------------------------------------------------------

    async def reconcile_all(self) -> None:
        """For each partition, complete interrupted work, apply retention, and delete unneeded segments."""
        self._forget_others()
        for number, one in enumerate(list(self._led().values()), 1):
            if not number % CALLS_A_TURN:
                await asyncio.sleep(0)
            async with self._lock(one.partition):
                status = await self._reconcile(one)
            if status is not None:
                self._fresh[one.partition] = (one.epoch, self._clock.now_ms(), status)
                await self._reconciler.delete_unneeded(status.needless)

    async def _reconcile(self, led: LedPartition) -> ConsolidationStatus | None:
        """Reconcile a partition. Returns ``None`` when the partition cannot be reconciled now."""
        partition = led.partition
        for late in self._plans.expire(self._clock.now_ms()):
            logger.warning(
                "%s did not renew its lease: its plan of %s has expired", late.lease.engine, late.partition
            )
        plan = self._plans.of(partition)
        if plan is not None and plan.epoch != led.epoch:
            self._plans.drop(plan)
        try:
            status = await self._reconciler.reconcile(led, self._plans.own(partition))
        except (KafkaError, RemoteStorageError, IllegalTransitionError, OSError) as error:
            logger.info("%s cannot be reconciled now: %s", partition, error)
            return None
        except Exception as error:
            # The other partitions must be reconciled although this partition has failed.
            self._unexpected.report("reconciling a partition's segments", error)
            return None
        self._note(led, status)
        return status

    def _note(self, led: LedPartition, status: ConsolidationStatus) -> ConsolidationStatus:
        self.statuses[led.partition] = status
        self._reconciler.measure_backlog(led, status.wal_size_bytes)
        return status

    def _just_seen(self, led: LedPartition) -> ConsolidationStatus | None:
        """Return the latest result of :meth:`reconcile_all` for the partition; ``None`` if that call used
        another leader epoch, or if it is too long ago."""
        epoch, seen_ms, status = self._fresh.pop(led.partition, (-1, 0, None))
        is_fresh = epoch == led.epoch and 0 <= self._clock.now_ms() - seen_ms < _FRESH_MS
        return status if is_fresh else None

    async def _is_due(self, led: LedPartition, status: ConsolidationStatus) -> bool:
        """Whether a segment can perhaps be built now, because of the size or the age of the batches in the
        WAL."""
        if not 0 <= status.wal_size_bytes < led.rules.segment_bytes:
            return True
        topic_id, _, index = led.partition
        call = FindBatchesCall(
            [PartitionToFind(topic_id, index, status.wal_start, 1)], max_batches_per_partition=1
        )
        (found,) = await self._wal.find_batches(call)
        if not found.batches:
            return False
        oldest_ms = found.batches[0].log_append_time_ms
        return self._clock.now_ms() - oldest_ms >= led.rules.max_age_ms

    def _forget_others(self) -> None:
        """Drop the plans and the state of partitions that this broker no longer leads."""
        known = self._led()
        for plan in self._plans:
            if plan.partition not in known:
                self._plans.drop(plan)
        for partition in [partition for partition in self._locks if partition not in known]:
            if not self._locks[partition].locked():
                del self._locks[partition]
            self.statuses.pop(partition, None)
            self._fresh.pop(partition, None)

    def _lock(self, partition: TopicIdPartition) -> asyncio.Lock:
        return self._locks.setdefault(partition, asyncio.Lock())

    # -- planning -----------------------------------------------------------------------------

    async def plan(
        self, engine: str, *, max_bytes: int, lease_ms: int, topics: Collection[str] | None = None
    ) -> Plan:
        """Plan the next segments of partitions without a plan in progress, about ``max_bytes`` in total. The
        plan may be empty.

        The segments are recorded as COPY_SEGMENT_STARTED. If an engine does not report a segment or renew its
        lease within ``lease_ms``, the segment is planned again. ``topics`` limits the plan to these topics.
        Partitions are left out when their coordinator or their metadata are not available.
        """
        self._forget_others()
        led = [
            one
            for one in self._led().values()
            if one.may_copy and (topics is None or one.partition.topic in topics)
        ]
        self._turn += 1
        start = self._turn % len(led) if led else 0
        until_ms = self._clock.now_ms() + lease_ms
        lease = self._plans.lease(self._entropy.uuid4(), engine, until_ms)
        budget = _Budget(max_bytes)

        async def plan_one(one: LedPartition) -> list[PlannedWork]:
            if budget.left_bytes <= 0:
                return []
            async with self._lock(one.partition):
                planned = await self._plan_partition(one, lease, budget)
            return [PlannedWork(segment, one.epoch) for segment in planned]

        try:
            found = await side_by_side(plan_one, led[start:] + led[:start], _AT_A_TIME)
        except BaseException:
            # No engine received the plan. Without this release, its partitions would wait until the lease
            # ends.
            self._plans.give_up(lease.id)
            self._plans.end(lease)
            raise
        work = [planned for some in found for planned in some]
        if not work:
            self._plans.end(lease)
        held = self._plans.held(lease, lambda partition: topics is None or partition.topic in topics)
        return Plan(
            lease.id, until_ms, work, [HeldPlan(one.engine, one.until_ms, count) for one, count in held]
        )

    async def _plan_partition(
        self, led: LedPartition, lease: Lease, budget: "_Budget"
    ) -> Sequence[PlannedSegment]:
        status = self._just_seen(led) or await self._reconcile(led)
        if status is None or self._plans.of(led.partition) is not None:
            return ()
        try:
            if not await self._is_due(led, status):
                return ()
            if not status.is_fenced:
                # No older leader can see a segment that begins after the fence. Therefore no older leader can
                # treat the segment as abandoned.
                status = self._note(led, ConsolidationStatus.of(await self._reconciler.fence(led)))
            async with budget.gathering:
                if budget.left_bytes <= 0:
                    return ()
                gathered = await self._gather(led, status.wal_start, budget.left_bytes)
                budget.left_bytes -= sum(one.size_bytes for one in gathered)
            return await self._begin(led, lease, status, gathered)
        except (KafkaError, RemoteStorageError, ValueError, OSError) as error:
            # Some segments may have been recorded before the error. No engine builds these segments, so the
            # next round deletes them.
            logger.info("%s is not planned now: %s", led.partition, error)
            return ()
        except Exception as error:
            self._unexpected.report("planning a partition's segments", error)
            return ()

    async def _gather(self, led: LedPartition, offset: int, max_bytes: int) -> list[GatheredSegment]:
        """Return the segments that can be formed from the partition's WAL, beginning at ``offset``."""
        topic_id, _, index = led.partition
        gathering = SegmentGathering(led.rules)
        gathered: list[GatheredSegment] = []
        page_bytes = 2 * led.rules.segment_bytes
        while len(gathered) < _SEGMENTS_A_PLAN and sum(one.size_bytes for one in gathered) < max_bytes:
            call = FindBatchesCall(
                [PartitionToFind(topic_id, index, offset, page_bytes)],
                max_bytes=page_bytes,
                max_batches_per_partition=_BATCHES_A_PAGE,
            )
            (found,) = await self._wal.find_batches(call)
            if found.error is not ErrorCode.none:
                raise KafkaError(found.error, found.message)
            # Batches of transactions that may still be aborted stay in the WAL, because their segment's index
            # must contain the abort.
            end = found.high_watermark if found.last_stable_offset < 0 else found.last_stable_offset
            batches = [batch for batch in found.batches if batch.last_offset < end]
            if batches:
                gathered += gathering.add(batches, found.aborted)
            if not batches or batches[-1].last_offset + 1 >= end:
                rest = gathering.rest(self._clock.now_ms())
                gathered += [] if rest is None else [rest]
                break
            offset = batches[-1].last_offset + 1
            await asyncio.sleep(0)
        built = takewhile(lambda one: one.size_bytes <= MAX_SEGMENT_BYTES, gathered)
        return list(islice(built, _SEGMENTS_A_PLAN))

    async def _begin(
        self,
        led: LedPartition,
        lease: Lease,
        status: ConsolidationStatus,
        gathered: Sequence[GatheredSegment],
    ) -> Sequence[PlannedSegment]:
        if not gathered:
            return ()
        planned = [
            PlannedSegment.of(
                one,
                led.partition,
                self._entropy.uuid4(),
                broker_id=self._reconciler.events.broker_id,
                now_ms=self._clock.now_ms(),
                index_interval_bytes=led.index_interval_bytes,
                generations=led.generations,
            )
            for one in gathered
        ]
        await side_by_side(
            self._reconciler.metadata.add_remote_log_segment_metadata,
            [segment.metadata for segment in planned],
            _SEGMENTS_A_PLAN,
        )
        plan = OpenPlan(led.partition, lease, led.epoch, status.wal_start)
        plan.segments = [OpenSegment(segment) for segment in planned]
        self._plans.add(plan)
        return planned

    # -- engines ------------------------------------------------------------------------------

    def is_planned(self, lease_id: UUID, segment: PlannedSegment) -> bool:
        """Whether the segment may still be published under this lease. False if this broker does not lead the
        partition in the epoch of the plan any more."""
        led, plan = self._led().get(segment.partition), self._plans.of(segment.partition)
        if led is None or plan is None or plan.epoch != led.epoch or plan.lease.id != lease_id:
            return False
        return plan.find(segment.segment_id) is not None

    def renew(self, lease_id: UUID, lease_ms: int) -> int | None:
        """The new end of the lease, in ms since the epoch; ``None`` when the lease has ended."""
        until_ms = self._clock.now_ms() + lease_ms
        return until_ms if self._plans.renew(lease_id, until_ms) else None

    async def give_up(self, lease_id: UUID, partitions: Collection[TopicIdPartition] | None = None) -> None:
        """Abandon the plan of an engine, or some partitions of it, so that other engines can build these
        partitions."""
        ended = self._plans.give_up(lease_id, partitions)
        for plan in ended:
            one = self._led().get(plan.partition)
            if one is not None:
                async with self._lock(plan.partition):
                    status = await self._reconcile(one)
                if status is not None:
                    await self._reconciler.delete_unneeded(status.needless)

    async def publish(self, lease_id: UUID, copies: Sequence[BuiltCopy]) -> list[PublishedSegment]:
        """Write the event that the copied segments are finished. Then advance the WAL's start to the end of
        these segments."""
        of_partition: dict[TopicIdPartition, list[BuiltCopy]] = {}
        for copy in copies:
            of_partition.setdefault(copy.partition, []).append(copy)

        async def publish_some(partition: TopicIdPartition) -> dict[UUID, PublishedSegment]:
            async with self._lock(partition):
                return await self._publish_some(self._led().get(partition), lease_id, of_partition[partition])

        answers: dict[UUID, PublishedSegment] = {}
        for some in await side_by_side(publish_some, list(of_partition), _AT_A_TIME):
            answers.update(some)
        return [answers[copy.segment_id] for copy in copies]

    async def _publish_some(
        self, led: LedPartition | None, lease_id: UUID, copies: Sequence[BuiltCopy]
    ) -> dict[UUID, PublishedSegment]:
        """Publish the copies of one partition."""
        answers: dict[UUID, PublishedSegment] = {}
        for copy in copies:
            answers[copy.segment_id] = self._record_copy(led, lease_id, copy)
        plan = None if led is None else self._plans.of(led.partition)
        if led is None or plan is None or not any(one.is_waiting for one in answers.values()):
            return answers
        failure = await self._publish_ready(led, plan)
        left = {one.planned.segment_id for one in plan.segments}
        for id, answer in answers.items():
            if answer.is_waiting and (id not in left or failure is not None):
                code, message = (ErrorCode.none, None) if id not in left or failure is None else failure
                answers[id] = PublishedSegment(id, code, message)
        return answers

    def _record_copy(self, led: LedPartition | None, lease_id: UUID, copy: BuiltCopy) -> PublishedSegment:
        """Record a copy. The copy waits to be published, unless it is refused or was published before."""
        id = copy.segment_id
        if led is None or copy.epoch != led.epoch:
            message = "another leader planned it" if led else "this broker does not lead the partition"
            return PublishedSegment(id, ErrorCode.fenced_leader_epoch, message)
        plan = self._plans.of(led.partition)
        found = plan.find(id) if plan is not None and plan.lease.id == lease_id else None
        try:
            check_custom_metadata(str(id), copy.custom_metadata, self.custom_metadata_max_bytes)
        except CustomMetadataSizeLimitExceededError as error:
            return PublishedSegment(id, ErrorCode.invalid_update_version, str(error))
        if found is not None:
            found.is_copied, found.custom_metadata = True, copy.custom_metadata
            return PublishedSegment(id, is_waiting=True)
        try:
            segments = self._reconciler.metadata.list_remote_log_segments(led.partition)
        except RemoteStorageError as error:
            return PublishedSegment(id, ErrorCode.kafka_storage_error, str(error))
        known = next((one for one in segments if one.id.id == id), None)
        status = self.statuses.get(led.partition)
        if (
            known is not None
            and known.state is _State.COPY_SEGMENT_FINISHED
            and known.custom_metadata == copy.custom_metadata
            and status is not None
            and known.end_offset < status.wal_start
        ):
            return PublishedSegment(id)
        return PublishedSegment(id, ErrorCode.invalid_update_version, "its plan has expired")

    async def _publish_ready(self, led: LedPartition, plan: OpenPlan) -> tuple[ErrorCode, str | None] | None:
        """Publish the segments at the beginning of the plan that are already copied. Returns the error, if
        any."""
        try:
            while plan.segments and plan.segments[0].is_copied:
                await self._publish_one(led, plan, plan.segments[0])
                del plan.segments[0]
        except KafkaError as error:
            if error.code is ErrorCode.fenced_leader_epoch:
                self._plans.drop(plan)
            return error.code, error.message
        except (IllegalTransitionError, RemoteResourceNotFoundError) as error:
            self._plans.drop(plan)
            return ErrorCode.fenced_leader_epoch, f"another leader has discarded it: {error}"
        except (RemoteStorageError, OSError) as error:
            return ErrorCode.kafka_storage_error, str(error)
        if not plan.segments:
            self._plans.drop(plan)
        return None

    async def _publish_one(self, led: LedPartition, plan: OpenPlan, copied: OpenSegment) -> None:
        metadata = copied.planned.metadata
        if plan.wal_start > metadata.end_offset:
            return  # all records of the segment were deleted, so the next round deletes its objects
        event = self._reconciler.events.of(metadata, _State.COPY_SEGMENT_FINISHED, copied.custom_metadata)
        for attempt in range(_WRITES_MAX):
            try:
                position = await self._reconciler.metadata.update_remote_log_segment_metadata(event)
                break
            except RemoteMetadataUnknownOutcomeError:
                if attempt == _WRITES_MAX - 1:
                    raise
        here = await self._reconciler.prune(led, metadata, plan.wal_start, position.offset)
        plan.wal_start = here.wal_start_offset
        self._note(led, ConsolidationStatus.of(here))
