"""Converts changes of voters from and to Kafka's messages (KIP-853). It also converts the addresses in these
messages."""

from collections.abc import Iterator
from typing import TypeAlias, assert_never

from moldau.protocol.messages import add_raft_voter as add_wire
from moldau.protocol.messages import begin_quorum_epoch as begin_wire
from moldau.protocol.messages import end_quorum_epoch as end_wire
from moldau.protocol.messages import fetch as fetch_wire
from moldau.protocol.messages import fetch_snapshot as snapshot_wire
from moldau.protocol.messages import remove_raft_voter as remove_wire
from moldau.protocol.messages import update_raft_voter as update_wire
from moldau.protocol.messages import vote as vote_wire
from moldau.protocol.schema import Message
from moldau.quorum.core import messages as core
from moldau.quorum.core.voters import ReplicaKey, Voter
from moldau.records.control import VoterEndpoint
from moldau.runtime import ErrorCode, KafkaError

ChangeRequest: TypeAlias = (
    add_wire.AddRaftVoterRequest | remove_wire.RemoveRaftVoterRequest | update_wire.UpdateRaftVoterRequest
)
ChangeResponse: TypeAlias = (
    add_wire.AddRaftVoterResponse | remove_wire.RemoveRaftVoterResponse | update_wire.UpdateRaftVoterResponse
)
CHANGE_REQUESTS = (
    add_wire.AddRaftVoterRequest,
    remove_wire.RemoveRaftVoterRequest,
    update_wire.UpdateRaftVoterRequest,
)
CHANGE_RESPONSES = (
    add_wire.AddRaftVoterResponse,
    remove_wire.RemoveRaftVoterResponse,
    update_wire.UpdateRaftVoterResponse,
)


def change_request(request: core.VoterChangeRequest, cluster_id: str | None) -> ChangeRequest:
    """Return the message that requests the change from another node."""
    match request:
        case core.AddVoterRequest(voter=voter):
            return add_wire.AddRaftVoterRequest(
                cluster_id=cluster_id,
                timeout_ms=request.timeout_ms,
                voter_id=voter.key.id,
                voter_directory_id=voter.key.directory_id,
                listeners=[
                    add_wire.Listener(name=each.name, host=each.host, port=each.port)
                    for each in voter.endpoints
                ],
                ack_when_committed=request.ack_when_committed,
            )
        case core.RemoveVoterRequest(key=key):
            return remove_wire.RemoveRaftVoterRequest(
                cluster_id=cluster_id, voter_id=key.id, voter_directory_id=key.directory_id
            )
        case core.UpdateVoterRequest(voter=voter):
            return update_wire.UpdateRaftVoterRequest(
                cluster_id=cluster_id,
                current_leader_epoch=request.epoch,
                voter_id=voter.key.id,
                voter_directory_id=voter.key.directory_id,
                listeners=[
                    update_wire.Listener(name=each.name, host=each.host, port=each.port)
                    for each in voter.endpoints
                ],
                k_raft_version_feature=update_wire.KRaftVersionFeature(
                    min_supported_version=voter.kraft_version_min,
                    max_supported_version=voter.kraft_version_max,
                ),
            )
        case core.UpgradeVersionRequest():
            raise ValueError("a raise of kraft.version is decided by the leader itself")
        case _:
            assert_never(request)


def from_change_request(message: ChangeRequest) -> core.VoterChangeRequest:
    """Convert a message to a change of voters. Raises ``KafkaError(invalid_request)`` if the message is not
    valid."""
    key = ReplicaKey(message.voter_id, message.voter_directory_id)
    if key.id < 0:
        raise KafkaError(ErrorCode.invalid_request, f"voter id {key.id} is negative")
    match message:
        case add_wire.AddRaftVoterRequest():
            return core.AddVoterRequest(
                voter=_voter(key, message),
                timeout_ms=message.timeout_ms,
                ack_when_committed=message.ack_when_committed,
            )
        case remove_wire.RemoveRaftVoterRequest():
            return core.RemoveVoterRequest(key=key)
        case update_wire.UpdateRaftVoterRequest():
            feature = message.k_raft_version_feature
            low, high = feature.min_supported_version, feature.max_supported_version
            if not 0 <= low <= high:
                raise KafkaError(ErrorCode.invalid_request, f"no kraft.version is between {low} and {high}")
            return core.UpdateVoterRequest(
                voter=_voter(key, message, low, high), epoch=message.current_leader_epoch
            )
        case _:
            assert_never(message)


def change_response(
    request: ChangeRequest, response: core.VoterChangeResponse, leader: Voter | None
) -> ChangeResponse:
    """The answer to ``request``. ``leader`` has the leader's address, if the address is known."""
    text = response.message or None
    match request:
        case add_wire.AddRaftVoterRequest():
            return add_wire.AddRaftVoterResponse(error_code=response.error, error_message=text)
        case remove_wire.RemoveRaftVoterRequest():
            return remove_wire.RemoveRaftVoterResponse(error_code=response.error, error_message=text)
        case update_wire.UpdateRaftVoterRequest():
            return update_wire.UpdateRaftVoterResponse(
                error_code=response.error,
                current_leader=update_wire.CurrentLeader(
                    leader_id=-1 if response.leader_id is None else response.leader_id,
                    leader_epoch=response.epoch,
                    host=leader.host if leader is not None else "",
                    port=leader.port if leader is not None else 0,
                ),
            )
        case _:
            assert_never(request)


def from_change_response(message: ChangeResponse) -> core.VoterChangeResponse:
    """Convert a leader's answer to a change of voters for the core."""
    if isinstance(message, update_wire.UpdateRaftVoterResponse):
        leader = message.current_leader
        return core.VoterChangeResponse(
            error=message.error_code,
            leader_id=leader.leader_id if leader.leader_id >= 0 else None,
            epoch=leader.leader_epoch,
        )
    return core.VoterChangeResponse(
        error=message.error_code, leader_id=None, epoch=-1, message=message.error_message or ""
    )


def change_error(request: ChangeRequest, error: ErrorCode, message: str | None = None) -> ChangeResponse:
    """Return the answer to a change that never reached the core."""
    response = core.VoterChangeResponse(error=error, leader_id=None, epoch=-1, message=message or "")
    return change_response(request, response, None)


# Addresses


def endpoints_of_request(message: Message) -> Iterator[tuple[int, str, int]]:
    """Id, host and port of the leader that sent a request. Host and port come from the leader's first
    listener."""
    if isinstance(message, begin_wire.BeginQuorumEpochRequest | end_wire.EndQuorumEpochRequest):
        leader_ids = [part.leader_id for topic in message.topics for part in topic.partitions]
        for endpoint in message.leader_endpoints[:1]:
            yield from ((leader_id, endpoint.host, endpoint.port) for leader_id in leader_ids)


def endpoints_of_response(message: Message) -> Iterator[tuple[int, str, int]]:
    """Ids, hosts and ports in a replica's answer."""
    if isinstance(message, update_wire.UpdateRaftVoterResponse):
        leader = message.current_leader
        yield leader.leader_id, leader.host, leader.port
    for endpoint in getattr(message, "node_endpoints", ()):
        yield endpoint.node_id, endpoint.host, endpoint.port


def leader_endpoint(message: Message, leader: Voter) -> list[Message]:
    """Return the field ``node_endpoints`` of the answer ``message``. The field contains the leader's
    address."""
    kinds: dict[type[Message], type[Message]] = {
        vote_wire.VoteResponse: vote_wire.NodeEndpoint,
        begin_wire.BeginQuorumEpochResponse: begin_wire.NodeEndpoint,
        end_wire.EndQuorumEpochResponse: end_wire.NodeEndpoint,
        fetch_wire.FetchResponse: fetch_wire.NodeEndpoint,
        snapshot_wire.FetchSnapshotResponse: snapshot_wire.NodeEndpoint,
    }
    kind = kinds[type(message)]
    return [kind(node_id=leader.key.id, host=leader.host, port=leader.port)]  # type: ignore[call-arg]


def _voter(
    key: ReplicaKey,
    message: add_wire.AddRaftVoterRequest | update_wire.UpdateRaftVoterRequest,
    low: int = 0,
    high: int = 1,
) -> Voter:
    endpoints = tuple(VoterEndpoint(each.name, each.host, each.port) for each in message.listeners)
    try:
        return Voter.at(key, endpoints, kraft_version_min=low, kraft_version_max=high)
    except ValueError as error:
        raise KafkaError(ErrorCode.invalid_request, str(error)) from None
