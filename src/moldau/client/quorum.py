"""The metadata quorum, for tools. Tools can ask any broker or any controller (KIP-919)."""

from moldau.client.cluster import Client
from moldau.client.errors import ToolError
from moldau.network.client.node_connection import NodeAddress
from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from moldau.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)
from moldau.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from moldau.protocol.metadata_topic import CLUSTER_METADATA_TOPIC
from moldau.runtime.errors import ErrorCode, KafkaError

ENDPOINT_BROKERS = 1
ENDPOINT_CONTROLLERS = 2


async def describe_cluster(client: Client, endpoint_type: int) -> DescribeClusterResponse:
    """Request the cluster's nodes of a type, including fenced brokers. Raises ``ToolError``,
    ``KafkaError``.
    """
    request = DescribeClusterRequest(endpoint_type=endpoint_type, include_fenced_brokers=True)
    response: DescribeClusterResponse = await client.ask(request)
    if response.error_code is ErrorCode.mismatched_endpoint_type:
        raise ToolError(
            "the node is no controller: name it with --bootstrap"
            if endpoint_type == ENDPOINT_CONTROLLERS
            else "the node is a controller: name it with --bootstrap-controller"
        )
    if response.error_code is not ErrorCode.none:
        raise KafkaError(response.error_code, response.error_message)
    return response


async def active_controller(client: Client) -> NodeAddress:
    """The controller that leads the quorum, according to the node that answers the request.

    Raises a retriable ``KafkaError`` while no controller leads.
    """
    answer = await describe_cluster(client, ENDPOINT_CONTROLLERS)
    found = {row.broker_id: NodeAddress(row.host, row.port) for row in answer.brokers}.get(
        answer.controller_id
    )
    if found is None:
        raise KafkaError(ErrorCode.leader_not_available, "the metadata quorum has no leader")
    return found


async def describe_quorum(client: Client, *, through_controllers: bool) -> DescribeQuorumResponse:
    """Request the state of the quorum's replicas from its leader. Waits until there is a leader.

    Raises ``ToolError``, ``KafkaError``.
    """

    async def attempt() -> DescribeQuorumResponse:
        leader = await active_controller(client) if through_controllers else None
        partition = DescribeQuorumRequestPartitionData(partition_index=0)
        topic = DescribeQuorumRequestTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])
        request = DescribeQuorumRequest(topics=[topic])
        response: DescribeQuorumResponse = await client.ask(request, broker=leader)
        codes = [(response.error_code, response.error_message)]
        codes += [(row.error_code, row.error_message) for each in response.topics for row in each.partitions]
        for code, message in codes:
            if code is ErrorCode.not_controller:
                raise KafkaError(ErrorCode.leader_not_available, message)
            if code is not ErrorCode.none:
                raise KafkaError(code, message)
        return response

    return await client.retrying(attempt)


async def change_voters(
    client: Client, request: AddRaftVoterRequest | RemoveRaftVoterRequest, *, through_controllers: bool
) -> None:
    """Add or remove a voter (KIP-853). Returns when the change is committed.

    If the leader cannot make the change at the moment, the request is retried. Raises ``ToolError``,
    ``KafkaError``.
    """
    is_made = (
        ErrorCode.duplicate_voter if isinstance(request, AddRaftVoterRequest) else ErrorCode.voter_not_found
    )
    attempts = 0

    async def change() -> None:
        nonlocal attempts
        attempts += 1
        leader = await active_controller(client) if through_controllers else None
        response: AddRaftVoterResponse | RemoveRaftVoterResponse = await client.ask(request, broker=leader)
        code = response.error_code
        if code in (ErrorCode.not_controller, ErrorCode.not_leader_or_follower):
            raise KafkaError(ErrorCode.leader_not_available, response.error_message)
        if code is is_made and attempts > 1:
            return  # An earlier attempt, whose response was lost, has made the change.
        if code is not ErrorCode.none:
            raise KafkaError(code, response.error_message)

    await client.retrying(change)
