"""Consolidation by the broker itself: what runs where no outside engine does.

Each round plans, builds unit after unit in memory, copies and publishes. A unit that fails is given up, and
planned anew in a later round.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from moldau.metrics import Meters
from moldau.objects.storage import ObjectStorage, StorageError
from moldau.records.errors import CorruptRecordError
from moldau.runtime import ErrorCode, Workers
from moldau.tiered.builder import BuiltSegment
from moldau.tiered.consolidation.building import build_segments, copy_segment
from moldau.tiered.consolidation.leader import REFUSALS, BuiltCopy, ConsolidationLeader
from moldau.tiered.consolidation.plan import PlannedSegment, lay_out_units
from moldau.tiered.segments import TopicIdPartition
from moldau.tiered.storage_manager import RemoteStorageError, RemoteStorageManager

__all__ = ["BrokerEngine", "EngineSettings"]

logger = logging.getLogger(__name__)

ENGINE_NAME: Final = "broker"
DEFAULT_UNIT_BYTES: Final = 64 * 1024**2
_PUBLISH_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Bounds; bytes, milliseconds."""

    unit_bytes: int = DEFAULT_UNIT_BYTES
    """What is in memory at a time."""
    plan_bytes: int = 512 * 1024**2
    """What is planned at a time."""
    lease_ms: int = 600_000
    reads_in_flight: int = 4


class BrokerEngine:
    """Drives the leader's plans; :meth:`run_once` is called on an interval."""

    def __init__(
        self,
        leader: ConsolidationLeader,
        wal_storage: ObjectStorage,
        storage: RemoteStorageManager,
        workers: Workers,
        meters: Meters,
        settings: EngineSettings | None = None,
        *,
        is_enabled: Callable[[], bool] = lambda: True,
    ) -> None:
        """``is_enabled``: false where an outside engine builds; the upkeep is done all the same."""
        self._leader = leader
        self._wal_storage = wal_storage
        self._storage = storage
        self._workers = workers
        self.settings = settings or EngineSettings()
        self._is_enabled = is_enabled
        self._memory: bytearray | None = None
        scope = meters.scoped("moldau.diskless", "Consolidation")
        self._segments = scope.counter("SegmentsPerSec", "Segments that this broker has built and copied.")
        self._bytes = scope.counter("BytesPerSec", "Bytes of those segments.")
        self._failures = scope.counter("ErrorsPerSec", "Units that failed and are planned anew.")

    async def run_once(self) -> int:
        """Put in order what is recorded, then consolidate what there is; bytes that left the WAL.

        Raises nothing but what is a defect.
        """
        await self._leader.tidy_all()
        total = 0
        try:
            while self._is_enabled():
                done = await self._carry_out_a_plan()
                if not done:
                    break  # nothing to do, or something is wrong: not at once again
                total += done
        finally:
            self._memory = None
        return total

    async def _carry_out_a_plan(self) -> int:
        """Plan once and build all of it; bytes that were published."""
        settings = self.settings
        plan = await self._leader.plan(ENGINE_NAME, max_bytes=settings.plan_bytes, lease_ms=settings.lease_ms)
        epochs = {work.segment.segment_id: work.epoch for work in plan.work}
        given_up: set[TopicIdPartition] = set()
        done = 0
        try:
            for unit in lay_out_units([work.segment for work in plan.work], settings.unit_bytes):
                segments = [one for one in unit.segments if one.partition not in given_up]
                if segments and self._leader.renew(plan.lease_id, settings.lease_ms) is not None:
                    done += await self._build(plan.lease_id, segments, epochs, given_up)
        finally:
            await self._leader.give_up(plan.lease_id)
        return done

    async def _build(
        self,
        lease_id: UUID,
        segments: Sequence[PlannedSegment],
        epochs: Mapping[UUID, int],
        given_up: set[TopicIdPartition],
    ) -> int:
        """Build, copy and publish; partitions for which that fails go to ``given_up``."""
        try:
            built = await build_segments(
                segments,
                self._wal_storage,
                self._workers,
                into=self._take_memory(segments),
                reads_in_flight=self.settings.reads_in_flight,
            )
            copies = await self._copy(segments, built, epochs)
        except (StorageError, RemoteStorageError, CorruptRecordError) as error:
            self._failures.value += 1
            self._memory = None  # somebody may still be reading from it
            logger.warning("segments of %s cannot be built now: %s", _names(segments), error)
            given_up.update(one.partition for one in segments)
            return 0
        return await self._publish(lease_id, segments, copies, given_up)

    def _take_memory(self, segments: Sequence[PlannedSegment]) -> bytearray:
        """The same memory for each unit of a round: fresh pages cost more than the copy."""
        size_bytes = sum(one.size_bytes for one in segments)
        if self._memory is None or len(self._memory) < size_bytes:
            self._memory = bytearray(size_bytes)
        return self._memory

    async def _copy(
        self, segments: Sequence[PlannedSegment], built: Sequence[BuiltSegment], epochs: Mapping[UUID, int]
    ) -> list[BuiltCopy]:
        """All at once; when one fails the others are waited for, since they read the shared memory."""
        copying = [
            asyncio.ensure_future(copy_segment(segment, one, self._storage))
            for segment, one in zip(segments, built, strict=True)
        ]
        try:
            await asyncio.wait(copying)
        finally:
            for task in copying:
                task.cancel()
            await asyncio.gather(*copying, return_exceptions=True)
        return [
            BuiltCopy(segment.partition, segment.segment_id, epochs[segment.segment_id], task.result())
            for segment, task in zip(segments, copying, strict=True)
        ]

    async def _publish(
        self,
        lease_id: UUID,
        segments: Sequence[PlannedSegment],
        copies: Sequence[BuiltCopy],
        given_up: set[TopicIdPartition],
    ) -> int:
        sizes = {one.segment_id: one.size_bytes for one in segments}
        left = list(copies)
        done = 0
        for _ in range(_PUBLISH_TRIES):
            answers = await self._leader.publish(lease_id, left)
            again: list[BuiltCopy] = []
            for copy, answer in zip(left, answers, strict=True):
                if answer.error is ErrorCode.none:
                    done += sizes[copy.segment_id]
                    self._segments.value += 1
                    self._bytes.value += sizes[copy.segment_id]
                elif answer.error in REFUSALS:
                    given_up.add(copy.partition)
                    logger.info("%s is not published: %s", copy.partition, answer.message)
                else:
                    again.append(copy)
            left = again
            if not left:
                break
        for copy in left:
            # What is recorded and not pruned is found and gone on with in the next round.
            self._failures.value += 1
            given_up.add(copy.partition)
            logger.warning("%s is not published now", copy.partition)
        return done


def _names(segments: Sequence[PlannedSegment]) -> str:
    return ", ".join(str(partition) for partition in dict.fromkeys(one.partition for one in segments))
