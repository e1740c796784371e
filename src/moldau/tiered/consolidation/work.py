"""The work of an engine: the plan that it gets, the copies that it reports, and the results. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from moldau.runtime import ErrorCode
from moldau.tiered.consolidation.plan import PlannedSegment
from moldau.tiered.metadata.segments import TopicIdPartition

__all__ = ["BuiltCopy", "HeldPlan", "Plan", "PlannedWork", "PublishedSegment"]


class PlannedWork(NamedTuple):
    """A planned segment, and the epoch of the leader that planned it."""

    segment: PlannedSegment
    epoch: int


class HeldPlan(NamedTuple):
    """Partitions that are not in a plan because another engine has a lease for them."""

    engine: str
    until_ms: int
    """End of the lease by the leader's clock, unless it is renewed."""
    partitions: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Segments that an engine must build, and the time by which it must report."""

    lease_id: UUID
    until_ms: int
    work: Sequence[PlannedWork]
    held: Sequence[HeldPlan] = ()


class BuiltCopy(NamedTuple):
    """A planned segment that was built and copied."""

    partition: TopicIdPartition
    segment_id: UUID
    epoch: int
    """Epoch of the leader that planned the segment."""
    custom_metadata: bytes | None
    """Custom metadata of the storage manager. They contain the name of the attempt whose objects form the
    segment."""


class PublishedSegment(NamedTuple):
    """The result of publishing a copy.

    NONE means that this call or an earlier call published the copy. NONE with ``is_waiting`` means that the
    copy will be published when the copies of all earlier segments are published. FENCED_LEADER_EPOCH means
    that a former leader planned the copy, that this broker does not lead the partition any more, or that
    another leader has discarded the segment. INVALID_UPDATE_VERSION means that the plan has expired, or that
    the custom metadata are too large. After FENCED_LEADER_EPOCH and INVALID_UPDATE_VERSION the copy's objects
    are not needed. After any other error the engine may report the copy again.
    """

    segment_id: UUID
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    is_waiting: bool = False
