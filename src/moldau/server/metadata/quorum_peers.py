"""The network between the replicas of the metadata quorum."""

from collections.abc import Callable
from typing import Final

from moldau.network.client.rpc_client import ClientLimits, RpcClient
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest
from moldau.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from moldau.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)
from moldau.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest
from moldau.protocol.messages.fetch import FetchRequest
from moldau.protocol.messages.fetch_snapshot import FetchSnapshotRequest
from moldau.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from moldau.protocol.messages.update_raft_voter import UpdateRaftVoterRequest
from moldau.protocol.messages.vote import VoteRequest
from moldau.protocol.metadata_topic import CLUSTER_METADATA_TOPIC
from moldau.quorum.core.voters import Voter
from moldau.quorum.wire.requests import METADATA_PARTITION, WireRequest, WireResponse
from moldau.runtime.errors import ErrorCode, KafkaError

_API_KEYS: Final[dict[type, ApiKey]] = {
    VoteRequest: ApiKey.VOTE,
    BeginQuorumEpochRequest: ApiKey.BEGIN_QUORUM_EPOCH,
    EndQuorumEpochRequest: ApiKey.END_QUORUM_EPOCH,
    FetchRequest: ApiKey.FETCH,
    FetchSnapshotRequest: ApiKey.FETCH_SNAPSHOT,
    AddRaftVoterRequest: ApiKey.ADD_RAFT_VOTER,
    RemoveRaftVoterRequest: ApiKey.REMOVE_RAFT_VOTER,
    UpdateRaftVoterRequest: ApiKey.UPDATE_RAFT_VOTER,
}


RECONNECT_LIMITS: Final = ClientLimits(reconnect_backoff_ms=20, reconnect_backoff_max_ms=100)
"""The backoff of connections to controllers. With a longer backoff, elections would take longer."""


class QuorumPeers:
    """Sends the quorum's requests to voters; a :class:`moldau.quorum.driver.PeerSender`.

    The driver keeps at most one request in flight to each voter and limits its duration.
    """

    def __init__(self, find: Callable[[int], Voter | None], client: RpcClient) -> None:
        """``find`` returns a node with its address, by the node's id."""
        self._find = find
        self._client = client

    async def send(self, node_id: int, message: WireRequest) -> WireResponse:
        """Return the voter's answer. Raises ``KafkaError`` when the voter does not answer."""
        voter = self._find(node_id)
        if voter is None:
            raise KafkaError(ErrorCode.network_exception, f"the address of node {node_id} is not known")
        response: WireResponse = await self._client.request(
            voter.host, voter.port, _API_KEYS[type(message)], None, message
        )
        return response

    async def high_watermark(self, leader_id: int | None) -> int:
        """Ask the quorum's leader for the committed end of the metadata log. The result is -1 before the
        leader's first commit.

        Raises ``KafkaError`` when the leader is unknown, does not answer, or no longer leads.
        """
        leader = None if leader_id is None else self._find(leader_id)
        if leader is None:
            raise KafkaError(ErrorCode.not_controller, "this node knows of no leader of the metadata quorum")
        partition = DescribeQuorumRequestPartitionData(partition_index=METADATA_PARTITION)
        topic = DescribeQuorumRequestTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])
        response: DescribeQuorumResponse = await self._client.request(
            leader.host,
            leader.port,
            ApiKey.DESCRIBE_QUORUM,
            None,
            DescribeQuorumRequest(topics=[topic]),
        )
        if response.error_code is not ErrorCode.none:
            raise KafkaError(response.error_code, response.error_message)
        answer = response.topics[0].partitions[0]
        if answer.error_code is not ErrorCode.none:
            raise KafkaError(answer.error_code, answer.error_message)
        return answer.high_watermark
