"""What engines that consolidate ask of leaders; served to whoever has CLUSTER_ACTION, advertised to none."""

from dataclasses import replace

from moldau.network.context import RequestContext
from moldau.protocol.own.consolidation_lease import ConsolidationLeaseRequest, ConsolidationLeaseResponse
from moldau.protocol.own.consolidation_plan import ConsolidationPlanRequest, ConsolidationPlanResponse
from moldau.protocol.own.consolidation_publish import (
    ConsolidationPublishRequest,
    ConsolidationPublishResponse,
)
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.authorization import Authorizer
from moldau.server.dispatch import Handler
from moldau.server.handlers.diskless import check_cluster_action
from moldau.tiered.consolidation import wire
from moldau.tiered.consolidation.leader import ConsolidationLeader
from moldau.tiered.storage_manager import RemotePlace

LEASE_MAX_MS = 24 * 3_600_000
PLAN_MAX_BYTES = 16 * 1024**3
"""In one answer: its coordinates are about a thousandth of that at small batches."""


class ConsolidationHandlers:
    """Answers for the partitions that this broker leads."""

    def __init__(
        self, leader: ConsolidationLeader | None, authorizer: Authorizer, place: RemotePlace
    ) -> None:
        """``leader`` is None where diskless topics have no remote tier; ``place`` is where that one is."""
        self._leader = leader
        self._authorizer = authorizer
        self._place = place

    def table(self) -> dict[int, Handler]:
        return {
            ConsolidationPlanRequest.API_KEY: self.plan,
            ConsolidationPublishRequest.API_KEY: self.publish,
            ConsolidationLeaseRequest.API_KEY: self.lease,
        }

    def _allowed(self, context: RequestContext) -> ConsolidationLeader:
        check_cluster_action(self._authorizer, context)
        if self._leader is None:
            raise KafkaError(
                ErrorCode.unsupported_version,
                "diskless topics have no remote tier here (diskless.system.enable and"
                " remote.log.storage.system.enable)",
            )
        return self._leader

    async def plan(
        self, context: RequestContext, request: ConsolidationPlanRequest
    ) -> ConsolidationPlanResponse:
        leader = self._allowed(context)
        if request.max_bytes <= 0 or not 0 < request.lease_ms <= LEASE_MAX_MS:
            raise KafkaError(
                ErrorCode.invalid_request, f"a plan needs bytes, and a lease of up to {LEASE_MAX_MS} ms"
            )
        plan = await leader.plan(
            request.engine,
            max_bytes=min(request.max_bytes, PLAN_MAX_BYTES),
            lease_ms=request.lease_ms,
            topics=None if request.topics is None else frozenset(request.topics),
        )
        class_name, url, prefix = self._place
        return replace(
            wire.plan_message(plan), storage_class_name=class_name, storage_url=url, storage_prefix=prefix
        )

    async def publish(
        self, context: RequestContext, request: ConsolidationPublishRequest
    ) -> ConsolidationPublishResponse:
        leader = self._allowed(context)
        published = await leader.publish(request.lease_id, [wire.as_copy(copy) for copy in request.copies])
        return ConsolidationPublishResponse(segments=[wire.published_message(one) for one in published])

    async def lease(
        self, context: RequestContext, request: ConsolidationLeaseRequest
    ) -> ConsolidationLeaseResponse:
        leader = self._allowed(context)
        if request.lease_ms > 0:
            until_ms = leader.renew(request.lease_id, min(request.lease_ms, LEASE_MAX_MS))
            return ConsolidationLeaseResponse(lease_until_ms=-1 if until_ms is None else until_ms)
        partitions = None
        if request.partitions is not None:
            partitions = [wire.as_partition(one) for one in request.partitions]
        await leader.give_up(request.lease_id, partitions)
        return ConsolidationLeaseResponse()
