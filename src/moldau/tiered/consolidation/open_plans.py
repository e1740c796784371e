"""The plans of a leader that are in progress: their engines, leases and results. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from moldau.tiered.consolidation.plan import PlannedSegment
from moldau.tiered.metadata.segments import TopicIdPartition

__all__ = ["Lease", "OpenPlan", "OpenPlans", "OpenSegment"]


@dataclass(slots=True)
class Lease:
    """A permission for an engine to carry out its plans until a certain time. Without a lease, or after its
    end, other engines may plan the same segments."""

    id: UUID
    engine: str
    until_ms: int


@dataclass(slots=True)
class OpenSegment:
    """A planned segment, and the copy that its engine reported."""

    planned: PlannedSegment
    is_copied: bool = False
    custom_metadata: bytes | None = None


@dataclass(slots=True)
class OpenPlan:
    """The next segments of a partition, in the order of their offsets. A segment is removed when it is
    published."""

    partition: TopicIdPartition
    lease: Lease
    epoch: int
    wal_start: int
    """The start of the partition's WAL when it was checked last."""
    segments: list[OpenSegment] = field(default_factory=list)

    def find(self, segment_id: UUID) -> OpenSegment | None:
        """The segment with this id; ``None`` if the plan does not contain it."""
        return next((one for one in self.segments if one.planned.segment_id == segment_id), None)


class OpenPlans:
    """The plans in progress: at most one for each partition."""

    def __init__(self) -> None:
        self._leases: dict[UUID, Lease] = {}
        self._plans: dict[TopicIdPartition, OpenPlan] = {}

    def __iter__(self) -> Iterator[OpenPlan]:
        return iter(list(self._plans.values()))

    def of(self, partition: TopicIdPartition) -> OpenPlan | None:
        """The partition's plan in progress, no matter which engine has it; ``None`` if there is no plan."""
        return self._plans.get(partition)

    def own(self, partition: TopicIdPartition) -> set[UUID]:
        """The segments of a partition that are being built under a plan of this leader."""
        plan = self._plans.get(partition)
        return set() if plan is None else {one.planned.segment_id for one in plan.segments}

    def lease(self, id: UUID, engine: str, until_ms: int) -> Lease:
        """Begin a lease."""
        self._leases[id] = Lease(id, engine, until_ms)
        return self._leases[id]

    def end(self, lease: Lease) -> None:
        """End a lease that has no plans."""
        self._leases.pop(lease.id, None)

    def renew(self, id: UUID, until_ms: int) -> bool:
        """Extend a lease, but never shorten it. Returns False when the lease has ended."""
        lease = self._leases.get(id)
        if lease is None:
            return False
        lease.until_ms = max(lease.until_ms, until_ms)
        return True

    def add(self, plan: OpenPlan) -> None:
        """Begin a plan for a partition that has no plan yet."""
        assert plan.partition not in self._plans
        self._plans[plan.partition] = plan

    def held(self, own: Lease, of_interest: Callable[[TopicIdPartition], bool]) -> list[tuple[Lease, int]]:
        """Return the leases of other engines. Each lease comes with the number of partitions in its plans for
        which ``of_interest`` returns True."""
        plans = [plan for plan in self if plan.lease is not own and of_interest(plan.partition)]
        counts = Counter(plan.lease.id for plan in plans)
        leases = {plan.lease.id: plan.lease for plan in plans}
        return [(leases[id], count) for id, count in counts.items()]

    def drop(self, plan: OpenPlan) -> None:
        """Remove a plan that is finished or abandoned. A lease without plans ends."""
        if self._plans.get(plan.partition) is plan:
            del self._plans[plan.partition]
        if not any(one.lease is plan.lease for one in self._plans.values()):
            self._leases.pop(plan.lease.id, None)

    def give_up(self, id: UUID, partitions: Iterable[TopicIdPartition] | None = None) -> list[OpenPlan]:
        """End all plans of a lease, or only the plans of some partitions. Returns the plans that ended."""
        wanted = None if partitions is None else set(partitions)
        ended = [
            plan for plan in self if plan.lease.id == id and (wanted is None or plan.partition in wanted)
        ]
        for plan in ended:
            self.drop(plan)
        return ended

    def expire(self, now_ms: int) -> list[OpenPlan]:
        """End the plans of expired leases. Returns the plans that ended."""
        ended = [plan for plan in self if plan.lease.until_ms < now_ms]
        for plan in ended:
            self.drop(plan)
        for lease in [lease for lease in self._leases.values() if lease.until_ms < now_ms]:
            del self._leases[lease.id]
        return ended
