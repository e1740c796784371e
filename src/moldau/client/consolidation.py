"""Consolidation of diskless topics by engines outside the brokers: plans, publishing, leases.

An engine requests a plan from every leader and groups all segments into units
(:func:`moldau.tiered.consolidation.plan.lay_out_units`). It builds and copies the segments
(:mod:`moldau.tiered.consolidation.building`) and reports the copies to each leader. Then it releases the
other segments of the plan. Segments that the engine does not complete are planned again when its lease ends.
A report may arrive late or more than once, and this causes no error.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from moldau.client.cluster import Client
from moldau.network.client.node_connection import NodeAddress
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.tiered.consolidation.calls import LeaseCall, NetworkConsolidation, PlanCall, PublishCall
from moldau.tiered.consolidation.work import BuiltCopy, HeldPlan, Plan, PublishedSegment
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.storage.storage_manager import RemotePlace

__all__ = ["ClusterPlan", "give_up", "plan_everywhere", "publish_everywhere", "renew"]


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The plans of several leaders, by broker id."""

    plans: Mapping[int, Plan]
    places: Mapping[int, RemotePlace] = field(default_factory=dict)
    """The locations of the leaders' remote segments."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to build."""
        return not any(plan.work for plan in self.plans.values())

    @property
    def held(self) -> list[HeldPlan]:
        """For each engine other than the caller, the number of partitions in its leases, and the end of its
        last lease.
        """
        found: dict[str, HeldPlan] = {}
        for one in (held for plan in self.plans.values() for held in plan.held):
            same = found.get(one.engine, HeldPlan(one.engine, one.until_ms, 0))
            until_ms = max(same.until_ms, one.until_ms)
            found[one.engine] = HeldPlan(one.engine, until_ms, same.partitions + one.partitions)
        return list(found.values())


async def plan_everywhere(
    client: Client,
    engine: str,
    *,
    max_bytes: int,
    lease_ms: int = 600_000,
    topics: Collection[str] | None = None,
) -> ClusterPlan:
    """Request a plan from every broker for the partitions that the broker leads. ``max_bytes`` are divided
    equally among the brokers.

    A broker that does not answer is skipped. Raises ``KafkaError`` when no broker answers, and
    UNSUPPORTED_VERSION when diskless topics have no remote storage.
    """
    brokers = await _brokers(client)
    call = PlanCall(engine, max(1, max_bytes // len(brokers)), lease_ms, topics)
    answers = await asyncio.gather(
        *(_leader(client, endpoint).plan(call) for endpoint in brokers.values()), return_exceptions=True
    )
    plans: dict[int, Plan] = {}
    places: dict[int, RemotePlace] = {}
    failure: BaseException | None = None
    for broker_id, answer in zip(brokers, answers, strict=True):
        if isinstance(answer, KafkaError | OSError):
            failure = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            plans[broker_id], places[broker_id] = answer
    if not plans and failure is not None:
        raise failure
    return ClusterPlan(plans, places)


async def publish_everywhere(
    client: Client, plan: ClusterPlan, copies: Sequence[BuiltCopy]
) -> list[PublishedSegment]:
    """Report to each leader the copies of its segments. Returns the outcomes in the order of ``copies``.

    If a leader does not answer, the outcome is NETWORK_EXCEPTION, and the report may be repeated.
    """
    brokers = await _brokers(client)
    leaders = {
        work.segment.segment_id: broker_id for broker_id, one in plan.plans.items() for work in one.work
    }
    by_leader: dict[int, list[BuiltCopy]] = {}
    for copy in copies:
        by_leader.setdefault(leaders[copy.segment_id], []).append(copy)
    outcomes: dict[UUID, PublishedSegment] = {}
    for broker_id, some in by_leader.items():
        call = PublishCall(plan.plans[broker_id].lease_id, some)
        try:
            if broker_id not in brokers:
                raise KafkaError(ErrorCode.network_exception, f"broker {broker_id} is away")
            published = await _leader(client, brokers[broker_id]).publish(call)
        except (KafkaError, OSError) as error:
            code = error.code if isinstance(error, KafkaError) else ErrorCode.network_exception
            for copy in some:
                outcomes[copy.segment_id] = PublishedSegment(copy.segment_id, code, str(error))
        else:
            outcomes.update({one.segment_id: one for one in published})
    return [outcomes[copy.segment_id] for copy in copies]


async def renew(client: Client, plan: ClusterPlan, lease_ms: int = 600_000) -> bool:
    """Renew the leases. Returns False when a leader does not answer, or has given the plan to other
    engines."""
    answers = await _lease_at_leaders(client, plan, lease_ms, None)
    return all(isinstance(one, int) for one in answers)


async def give_up(
    client: Client, plan: ClusterPlan, partitions: Collection[TopicIdPartition] | None = None
) -> None:
    """Release the unfinished part of a plan, or some partitions of the plan. This may also be called when the
    whole plan is done.

    If a leader does not answer, the lease at that leader ends at its time limit.
    """
    await _lease_at_leaders(client, plan, 0, partitions)


async def _lease_at_leaders(
    client: Client, plan: ClusterPlan, lease_ms: int, partitions: Collection[TopicIdPartition] | None
) -> list[int | BaseException | None]:
    brokers = await _brokers(client)
    return await asyncio.gather(
        *(
            _leader(client, brokers[broker_id]).lease(LeaseCall(one.lease_id, lease_ms, partitions))
            for broker_id, one in plan.plans.items()
            if one.work and broker_id in brokers
        ),
        return_exceptions=True,
    )


async def _brokers(client: Client) -> dict[int, NodeAddress]:
    metadata = await client.metadata([])
    return {one.node_id: NodeAddress(one.host, one.port) for one in metadata.brokers}


def _leader(client: Client, endpoint: NodeAddress) -> NetworkConsolidation:
    return NetworkConsolidation(client.channel(endpoint))
