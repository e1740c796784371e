"""The network between the replicas of the metadata quorum."""

from typing import Final

from moldau.network.client import RpcClient
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from moldau.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest
from moldau.protocol.messages.fetch import FetchRequest
from moldau.protocol.messages.fetch_snapshot import FetchSnapshotRequest
from moldau.protocol.messages.vote import VoteRequest
from moldau.quorum.voters import VoterSet
from moldau.quorum.wire import WireRequest, WireResponse
from moldau.runtime.errors import ErrorCode, KafkaError

_API_KEYS: Final[dict[type, ApiKey]] = {
    VoteRequest: ApiKey.VOTE,
    BeginQuorumEpochRequest: ApiKey.BEGIN_QUORUM_EPOCH,
    EndQuorumEpochRequest: ApiKey.END_QUORUM_EPOCH,
    FetchRequest: ApiKey.FETCH,
    FetchSnapshotRequest: ApiKey.FETCH_SNAPSHOT,
}


class QuorumPeers:
    """Sends the quorum's requests to voters; a :class:`moldau.quorum.driver.PeerSender`.

    The driver keeps at most one request in flight to each voter and bounds its time.
    """

    def __init__(self, voters: VoterSet, client: RpcClient) -> None:
        self._voters = voters
        self._client = client

    async def send(self, node_id: int, message: WireRequest) -> WireResponse:
        """Return the voter's answer; raise ``KafkaError`` when there is none."""
        voter = self._voters.get(node_id)
        if voter is None:
            raise KafkaError(ErrorCode.network_exception, f"node {node_id} is not a voter")
        response: WireResponse = await self._client.request(
            voter.host, voter.port, _API_KEYS[type(message)], None, message
        )
        return response
