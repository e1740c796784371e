"""The APIs of a controller's listeners. They are the APIs of the quorum, and the APIs for brokers and admin
tools."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from moldau.cluster.controller.channel import Caller, deadline_of
from moldau.cluster.controller.decided_apis import DECIDED_APIS
from moldau.cluster.controller.process_watch import ProcessWatch
from moldau.cluster.controller.quorum_changes import QUORUM_CHANGE_APIS
from moldau.cluster.controller.service import ControllerService
from moldau.cluster.image.registrations import FeatureRanges
from moldau.config.broker import BrokerConfig
from moldau.network.authorization import Authorizer
from moldau.network.context import RequestContext
from moldau.network.own_serving import check_right
from moldau.network.served import Handler, Served
from moldau.protocol.api import ApiKey, Scope, scopes
from moldau.protocol.costs import PARSED_BYTES_MAX
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from moldau.protocol.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from moldau.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from moldau.protocol.schema import Message
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.handlers.admin.envelope import EnvelopeHandler
from moldau.server.handlers.metadata.metadata import ENDPOINT_BROKERS, ENDPOINT_CONTROLLERS
from moldau.server.handlers.metadata.quorum import describe_quorum, quorum_row
from moldau.server.handlers.metadata.versions import VersionHandlers, finalized_features
from moldau.server.identity import Address
from moldau.server.metadata.metadata_node import MetadataNode
from moldau.server.requests.dispatch import routes
from moldau.server.requests.forwarding import decided_by

QUORUM_APIS: Final = (
    ApiKey.VOTE,
    ApiKey.BEGIN_QUORUM_EPOCH,
    ApiKey.END_QUORUM_EPOCH,
    ApiKey.FETCH,
    ApiKey.FETCH_SNAPSHOT,
    ApiKey.UPDATE_RAFT_VOTER,
)

FORWARDED_APIS: Final = frozenset(
    key for key in (*DECIDED_APIS, *QUORUM_CHANGE_APIS, ApiKey.DESCRIBE_QUORUM) if Scope.BROKER in scopes(key)
)
"""Requests that clients send to brokers and that brokers forward to the controller."""


class ControllerApi:
    """The handler table of a controller."""

    def __init__(
        self,
        metadata: MetadataNode,
        service: ControllerService,
        config: BrokerConfig,
        address: Callable[[], Address],
        features: FeatureRanges,
        authorizer: Authorizer,
        watch: ProcessWatch | None = None,
    ) -> None:
        """``address`` returns the listener's address. It is called after the listener has opened.

        ``features`` are the supported feature levels. ``watch`` gets the connections of heartbeats.
        """
        self._watch = watch
        self._metadata = metadata
        self._service = service
        self._address = address
        self._authorizer = authorizer
        versions = VersionHandlers(Scope.CONTROLLER, lambda: self._table, features, self._finalized_features)
        envelope = EnvelopeHandler(lambda: self._table, FORWARDED_APIS, lambda: service.is_active)
        fetch = Served(self._quorum, parsed_bytes_max=PARSED_BYTES_MAX, is_usually_large=True)
        self._table: dict[int, Handler] = routes(
            versions.table(),
            {**dict.fromkeys(QUORUM_APIS, self._quorum), ApiKey.FETCH: fetch},
            {api: decided_by(self._decide, api) for api in (*DECIDED_APIS, *QUORUM_CHANGE_APIS)},
            {
                ApiKey.ENVELOPE: envelope.handle,
                ApiKey.DESCRIBE_CLUSTER: self._describe_cluster,
                ApiKey.DESCRIBE_QUORUM: quorum_row(
                    partial(describe_quorum, metadata.driver.describe, metadata.voters, config)
                ),
            },
        )

    def table(self) -> dict[int, Handler]:
        """Handlers by API key."""
        return self._table

    async def _quorum(self, context: RequestContext, request: Any) -> Message:
        response: Message = await self._metadata.driver.handle_rpc(request)
        return response

    async def _decide(self, context: RequestContext, request: Message) -> Message:
        decided = DECIDED_APIS.get(request.API_KEY)
        if decided is not None and decided.right is not None:
            check_right(self._authorizer, context, decided.right)
        if isinstance(request, ControllerRegistrationRequest) and self._is_unknown_voter(request):
            return ControllerRegistrationResponse(
                error_code=ErrorCode.inconsistent_voter_set,
                error_message=f"The static voters are {list(self._metadata.driver.voters.ids)}.",
            )
        response = await self._service.handle(request, Caller.of(context), deadline_of(context, request))
        if isinstance(request, BrokerHeartbeatRequest):
            self._note_heartbeat(context, request, response)
        return response

    def _note_heartbeat(
        self, context: RequestContext, request: BrokerHeartbeatRequest, response: Message
    ) -> None:
        assert isinstance(response, BrokerHeartbeatResponse)
        if self._watch is not None and response.error_code is ErrorCode.none:
            self._watch.heartbeat_received(context.connection, request.broker_id, request.broker_epoch)

    def _is_unknown_voter(self, request: ControllerRegistrationRequest) -> bool:
        """Whether the controller that registers is not one of the quorum's static voters.

        With static voters, only a voter can be a controller. But a node whose configuration differs from the
        other nodes' may treat itself as a voter. If the quorum has a leader when such a node starts, the node
        sends no vote request, which would show the mistake. Its registration is then the first request that
        shows the mistake.
        """
        driver = self._metadata.driver
        if not driver.is_leader or driver.kraft_version or request.controller_id in driver.voters:
            return False
        driver.voice.refused(request.controller_id, ErrorCode.inconsistent_voter_set, driver.now_ms)
        return True

    def _describe_cluster(
        self, context: RequestContext, request: DescribeClusterRequest
    ) -> DescribeClusterResponse:
        if request.endpoint_type != ENDPOINT_CONTROLLERS:
            is_known = request.endpoint_type == ENDPOINT_BROKERS
            raise KafkaError(
                ErrorCode.mismatched_endpoint_type if is_known else ErrorCode.unsupported_endpoint_type,
                "this listener belongs to a controller: ask for controller endpoints here",
            )
        leader_id, address = self._metadata.driver.leader_id, self._address()
        controllers = {voter.node_id: (voter.host, voter.port) for voter in self._metadata.voters()}
        controllers[self._metadata.identity.node_id] = (address.host, address.port)
        return DescribeClusterResponse(
            endpoint_type=ENDPOINT_CONTROLLERS,
            cluster_id=self._metadata.identity.cluster_id,
            controller_id=-1 if leader_id is None else leader_id,
            brokers=[
                DescribeClusterBroker(broker_id=node_id, host=host, port=port, rack=None)
                for node_id, (host, port) in sorted(controllers.items())
            ],
        )

    def _finalized_features(self) -> tuple[int, dict[str, int]]:
        image = self._metadata.publisher.image
        return image.provenance.offset, finalized_features(image, self._metadata.driver.kraft_version)
