"""The calls of engines to leaders (APIs 11656 to 11658). The interface is the same for a leader in this
process and for a leader that is called over the network."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from moldau.network.own_calls import BrokerCall, BrokerChannel, Fields
from moldau.protocol.own.consolidation import lease as lease_wire
from moldau.protocol.own.consolidation import plan as plan_wire
from moldau.protocol.own.consolidation import publish as publish_wire
from moldau.protocol.own.rights import Right
from moldau.runtime import ErrorCode, KafkaError
from moldau.tiered.consolidation import wire
from moldau.tiered.consolidation.leader import ConsolidationLeader
from moldau.tiered.consolidation.work import BuiltCopy, Plan, PublishedSegment
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.storage.storage_manager import RemotePlace

__all__ = [
    "CALLS",
    "ConsolidationCalls",
    "LeaseCall",
    "LocalConsolidation",
    "NetworkConsolidation",
    "PlacedPlan",
    "PlanCall",
    "PublishCall",
]

LEASE_MAX_MS: Final = 24 * 3_600_000
PLANNED_PARSED_BYTES: Final = 16 * 1024 * 1024
"""Maximum memory of a parsed request about planned segments. This is enough for 34,000 copies, or 60,000
partitions."""
PLAN_MAX_BYTES: Final = 16 * 1024**3
"""Maximum total size of the segments in one plan. The response itself is much smaller: with small batches,
about a thousandth of this size."""


class PlanCall(NamedTuple):
    """Request to plan the next segments."""

    engine: str
    """Name of the caller. Log lines contain it, and so do the responses to other callers."""
    max_bytes: int
    lease_ms: int = 600_000
    topics: Collection[str] | None = None
    """The topics of the plan; ``None`` for all topics."""


class PlacedPlan(NamedTuple):
    """A plan, and the location of the remote segments that its leader uses."""

    plan: Plan
    place: RemotePlace


class PublishCall(NamedTuple):
    """Request to publish copies of planned segments."""

    lease_id: UUID
    copies: Sequence[BuiltCopy]


class LeaseCall(NamedTuple):
    """Request to renew a lease, or to release it."""

    lease_id: UUID
    lease_ms: int = 600_000
    """The time in ms from the receipt of this request to the end of the lease; 0 releases the lease."""
    partitions: Collection[TopicIdPartition] | None = None
    """If ``lease_ms`` is 0, the partitions that are released; ``None`` releases all partitions of the
    lease."""


class ConsolidationCalls(Protocol):
    """The calls of an engine to the leader of diskless partitions. If a call fails as a whole, it raises
    ``KafkaError``. It is safe to repeat every call.

    UNSUPPORTED_VERSION means that diskless topics have no remote tier on that broker.
    """

    async def plan(self, call: PlanCall) -> PlacedPlan: ...

    async def publish(self, call: PublishCall) -> list[PublishedSegment]:
        """The result of publishing for each copy, in the order of the copies."""
        ...

    async def lease(self, call: LeaseCall) -> int | None:
        """The end of the lease by the leader's clock; ``None`` when the lease has ended."""
        ...


class LocalConsolidation:
    """Carries out the calls of engines in the broker that leads the partitions. Implements
    :class:`ConsolidationCalls`."""

    def __init__(self, leader: ConsolidationLeader | None, place: RemotePlace) -> None:
        """``leader`` is ``None`` when diskless topics have no remote tier."""
        self._leader = leader
        self._place = place

    def _led(self) -> ConsolidationLeader:
        if self._leader is None:
            raise KafkaError(
                ErrorCode.unsupported_version,
                "diskless topics have no remote tier here: it needs diskless.system.enable and"
                " remote.log.storage.system.enable",
            )
        return self._leader

    async def plan(self, call: PlanCall) -> PlacedPlan:
        leader = self._led()
        if call.max_bytes <= 0 or not 0 < call.lease_ms <= LEASE_MAX_MS:
            raise KafkaError(
                ErrorCode.invalid_request, f"a plan needs bytes, and a lease of up to {LEASE_MAX_MS} ms"
            )
        plan = await leader.plan(
            call.engine,
            max_bytes=min(call.max_bytes, PLAN_MAX_BYTES),
            lease_ms=call.lease_ms,
            topics=None if call.topics is None else frozenset(call.topics),
        )
        return PlacedPlan(plan, self._place)

    async def publish(self, call: PublishCall) -> list[PublishedSegment]:
        return await self._led().publish(call.lease_id, call.copies)

    async def lease(self, call: LeaseCall) -> int | None:
        leader = self._led()
        if call.lease_ms > 0:
            return leader.renew(call.lease_id, min(call.lease_ms, LEASE_MAX_MS))
        await leader.give_up(call.lease_id, call.partitions)
        return None


# -- plan ----------------------------------------------------------------------------------------


def _plan_request(call: PlanCall, version: int) -> Fields:
    return {
        "engine": call.engine,
        "max_bytes": call.max_bytes,
        "lease_ms": call.lease_ms,
        "topics": None if call.topics is None else sorted(call.topics),
    }


def _plan_arguments(request: Any) -> PlanCall:
    return PlanCall(request.engine, request.max_bytes, request.lease_ms, request.topics)


def _plan_response(placed: PlacedPlan, version: int) -> Fields:
    class_name, url, prefix = placed.place
    place = {"storage_class_name": class_name, "storage_url": url, "storage_prefix": prefix}
    return {**wire.plan_fields(placed.plan), **place}


def _placed_plan(response: Any) -> PlacedPlan:
    place = RemotePlace(response.storage_class_name, response.storage_url, response.storage_prefix)
    return PlacedPlan(wire.as_plan(response), place)


async def _serve_plan(leader: ConsolidationCalls, call: PlanCall) -> PlacedPlan:
    return await leader.plan(call)


PLAN: Final[BrokerCall[ConsolidationCalls, PlanCall, PlacedPlan]] = BrokerCall(
    request=plan_wire.REQUEST,
    response=plan_wire.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=_serve_plan,
    request_fields=_plan_request,
    arguments=_plan_arguments,
    response_fields=_plan_response,
    result=_placed_plan,
)

# -- publish -------------------------------------------------------------------------------------


async def _serve_publish(leader: ConsolidationCalls, call: PublishCall) -> list[PublishedSegment]:
    return await leader.publish(call)


PUBLISH: Final[BrokerCall[ConsolidationCalls, PublishCall, list[PublishedSegment]]] = BrokerCall(
    request=publish_wire.REQUEST,
    response=publish_wire.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=_serve_publish,
    request_fields=lambda call, version: {
        "lease_id": call.lease_id,
        "copies": [wire.copy_message(copy) for copy in call.copies],
    },
    arguments=lambda request: PublishCall(request.lease_id, [wire.as_copy(one) for one in request.copies]),
    response_fields=lambda published, version: {
        "segments": [wire.published_message(one) for one in published]
    },
    result=lambda response: [wire.as_published(one) for one in response.segments],
    parsed_bytes_max=PLANNED_PARSED_BYTES,
)

# -- lease ---------------------------------------------------------------------------------------


def _lease_request(call: LeaseCall, version: int) -> Fields:
    partitions = call.partitions
    return {
        "lease_id": call.lease_id,
        "lease_ms": call.lease_ms,
        "partitions": None if partitions is None else [wire.partition_message(one) for one in partitions],
    }


def _lease_arguments(request: Any) -> LeaseCall:
    named = request.partitions
    partitions = None if named is None else [wire.as_partition(one) for one in named]
    return LeaseCall(request.lease_id, request.lease_ms, partitions)


async def _serve_lease(leader: ConsolidationCalls, call: LeaseCall) -> int | None:
    return await leader.lease(call)


LEASE: Final[BrokerCall[ConsolidationCalls, LeaseCall, int | None]] = BrokerCall(
    request=lease_wire.REQUEST,
    response=lease_wire.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=_serve_lease,
    request_fields=_lease_request,
    arguments=_lease_arguments,
    response_fields=lambda until_ms, version: {"lease_until_ms": -1 if until_ms is None else until_ms},
    result=lambda response: None if response.lease_until_ms < 0 else response.lease_until_ms,
    parsed_bytes_max=PLANNED_PARSED_BYTES,
)

CALLS: Final[Mapping[int, BrokerCall[ConsolidationCalls, Any, Any]]] = MappingProxyType(
    {call.api_key: call for call in (PLAN, PUBLISH, LEASE)}
)


class NetworkConsolidation:
    """Sends the calls of an engine to a broker over the network. Implements :class:`ConsolidationCalls`."""

    def __init__(self, channel: BrokerChannel) -> None:
        self._channel = channel

    async def plan(self, call: PlanCall) -> PlacedPlan:
        return await self._channel.call(PLAN, call)

    async def publish(self, call: PublishCall) -> list[PublishedSegment]:
        return await self._channel.call(PUBLISH, call)

    async def lease(self, call: LeaseCall) -> int | None:
        return await self._channel.call(LEASE, call)
