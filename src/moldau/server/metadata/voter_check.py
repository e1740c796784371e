"""The check of a controller before it becomes a voter (KIP-853): its address and its supported versions."""

from moldau.config.broker import BrokerConfig
from moldau.network.client import RpcClient
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest
from moldau.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from moldau.quorum.core.voters import KRAFT_VERSION_MAX
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server import settings


class VoterCheck:
    """Made by the active controller for each request to add a voter."""

    def __init__(self, config: BrokerConfig, client: RpcClient) -> None:
        self._config = config
        self._client = client

    async def __call__(self, request: AddRaftVoterRequest) -> None:
        """Raises ``KafkaError`` with one sentence for the operator."""
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
        supported = {row.name: row.max_version for row in answer.supported_features}
        if supported.get("kraft.version", 0) < KRAFT_VERSION_MAX:
            raise KafkaError(
                ErrorCode.invalid_request, f"{where} does not support kraft.version {KRAFT_VERSION_MAX}"
            )
