"""The check of a controller before it becomes a voter (KIP-853). It checks the controller's address and
supported versions."""

from collections.abc import Callable

from moldau.cluster.decisions.kinds.levels import check_knows_own_levels
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.registrations import SupportedFeature
from moldau.config.broker import BrokerConfig
from moldau.network.client.rpc_client import RpcClient
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest
from moldau.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from moldau.quorum.core.voters import KRAFT_VERSION_FEATURE, KRAFT_VERSION_MAX
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server import settings


class VoterCheck:
    """Checks a controller before it becomes a voter. The active controller makes this check for each request
    to add a voter."""

    def __init__(self, config: BrokerConfig, client: RpcClient) -> None:
        self._config = config
        self._client = client

    async def __call__(self, request: AddRaftVoterRequest, image: Callable[[], MetadataImage]) -> None:
        """Raises ``KafkaError``, with a sentence for the operator, if the controller must not become a voter.

        ``image`` returns the active controller's image. It includes changes that are decided but not
        committed yet.
        """
        if settings.is_whole_cluster(self._config):
            raise KafkaError(
                ErrorCode.invalid_request,
                f"node {self._config.node_id} is configured as the only controller: replace"
                " controller.quorum.voters by controller.quorum.bootstrap.servers and restart it first",
            )
        if not request.listeners:
            raise KafkaError(ErrorCode.invalid_request, f"voter {request.voter_id} names no listener")
        listener = request.listeners[0]
        where = f"voter {request.voter_id} at {listener.host}:{listener.port}"
        try:
            answer: ApiVersionsResponse = await self._client.request(
                listener.host,
                listener.port,
                ApiKey.API_VERSIONS,
                None,
                ApiVersionsRequest(client_software_name="moldau", client_software_version="0"),
                self._config.integer("controller.quorum.request.timeout.ms"),
            )
        except KafkaError as error:
            raise KafkaError(
                ErrorCode.request_timed_out, f"{where} cannot be reached: {error.message}"
            ) from error
        if not any(row.api_key == ApiKey.VOTE for row in answer.api_keys):
            raise KafkaError(ErrorCode.invalid_request, f"{where} is not the listener of a controller")
        features = [
            SupportedFeature(row.name, row.min_version, row.max_version) for row in answer.supported_features
        ]
        supported = {feature.name: feature.max_level for feature in features}
        if supported.get(KRAFT_VERSION_FEATURE, 0) < KRAFT_VERSION_MAX:
            raise KafkaError(
                ErrorCode.invalid_request, f"{where} does not support kraft.version {KRAFT_VERSION_MAX}"
            )
        check_knows_own_levels(image(), where, features, ErrorCode.invalid_request)
