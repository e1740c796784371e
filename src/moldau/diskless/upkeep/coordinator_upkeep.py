"""Regular work on the coordinators that this broker leads: retention of topics, snapshots, and removal of old
entries.

The coordinator limits each pass. This module runs the passes and distributes them over time. It repeats a
pass as long as the pass deletes something.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from moldau.coordinators.diskless.calls import DeletedRecords, RetentionPolicy
from moldau.metrics import Meters
from moldau.runtime import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

_POLICIES_A_PASS: Final = 100
_PASSES_MAX: Final = 1_000


class UpkeptCoordinators(Protocol):
    """The coordinators that this broker leads."""

    @property
    def coordinator_ids(self) -> list[int]: ...

    @property
    def standby_ids(self) -> list[int]:
        """Coordinators that other brokers lead. This broker is a standby: it keeps a copy of their state."""
        ...

    def is_active(self, coordinator_id: int) -> bool: ...

    async def apply_retention(
        self, coordinator_id: int, policies: Sequence[RetentionPolicy]
    ) -> list[DeletedRecords]: ...

    async def forget_old(self, coordinator_id: int) -> None: ...

    async def snapshot(self, coordinator_id: int) -> object: ...

    def records_since_snapshot(self, coordinator_id: int) -> int: ...


class CoordinatorUpkeep:
    """Runs retention and snapshots of every coordinator that this broker leads."""

    def __init__(
        self,
        coordinators: UpkeptCoordinators,
        policies: Callable[[int], Sequence[RetentionPolicy]],
        meters: Meters,
        *,
        snapshot_records: int,
    ) -> None:
        """``policies`` returns the retention of a coordinator's partitions, according to the current topic
        configs.
        """
        self._coordinators = coordinators
        self._policies = policies
        self._snapshot_records = snapshot_records
        scope = meters.scoped("moldau.diskless", "Retention")
        self._deletions = scope.counter("DeletionsPerSec", "Log start offsets that retention has moved.")

    def _active(self) -> list[int]:
        return [found for found in self._coordinators.coordinator_ids if self._coordinators.is_active(found)]

    async def apply_retention(self) -> None:
        """Apply the retention of all topics. Passes are repeated until no records are left to delete, or up
        to a maximum number."""
        for coordinator_id in self._active():
            policies = [
                policy
                for policy in self._policies(coordinator_id)
                if policy.retention_ms >= 0 or policy.retention_bytes >= 0
            ]
            for start in range(0, len(policies), _POLICIES_A_PASS):
                await self._apply_some(coordinator_id, policies[start : start + _POLICIES_A_PASS])

    async def _apply_some(self, coordinator_id: int, policies: list[RetentionPolicy]) -> None:
        for _ in range(_PASSES_MAX):
            try:
                deleted = await self._coordinators.apply_retention(coordinator_id, policies)
            except KafkaError as error:
                # The coordinator has moved to another broker, or is loading. Its next leader continues, or
                # this broker continues in the next round.
                logger.info("retention at coordinator %d ends early: %s", coordinator_id, error)
                return
            moved = {
                (found.topic_id, found.partition_index) for found in deleted if found.error is ErrorCode.none
            }
            self._deletions.value += len(moved)
            policies = [policy for policy in policies if (policy.topic_id, policy.partition_index) in moved]
            if not policies:
                return
            await asyncio.sleep(0)

    async def snapshot_and_expire(self) -> None:
        """Take snapshots of logs that have grown enough, and remove outdated entries."""
        for coordinator_id in self._active():
            try:
                await self._coordinators.forget_old(coordinator_id)
            except KafkaError as error:
                logger.info("coordinator %d keeps its outdated entries for now: %s", coordinator_id, error)
        # Each replica takes its own snapshots (KIP-630) and removes the start of its own log.
        for coordinator_id in (*self._active(), *self._coordinators.standby_ids):
            try:
                if self._coordinators.records_since_snapshot(coordinator_id) >= self._snapshot_records:
                    await self._coordinators.snapshot(coordinator_id)
            except KafkaError as error:
                logger.info("coordinator %d has no snapshot now: %s", coordinator_id, error)
