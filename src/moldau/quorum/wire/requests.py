"""Converts between the core's messages and Kafka's messages, for one topic with one partition, in all
versions.

Requests arrive as the dataclasses of ``moldau.protocol.messages``. A request for another cluster or partition
is refused, and never reaches the core.
"""

import uuid
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from moldau.protocol.messages import add_raft_voter as add_wire
from moldau.protocol.messages import begin_quorum_epoch as begin_wire
from moldau.protocol.messages import end_quorum_epoch as end_wire
from moldau.protocol.messages import fetch as fetch_wire
from moldau.protocol.messages import fetch_snapshot as snapshot_wire
from moldau.protocol.messages import remove_raft_voter as remove_wire
from moldau.protocol.messages import update_raft_voter as update_wire
from moldau.protocol.messages import vote as vote_wire
from moldau.protocol.metadata_topic import CLUSTER_METADATA_TOPIC
from moldau.quorum.core import messages as core
from moldau.quorum.core.offsets import OffsetAndEpoch
from moldau.quorum.core.voters import NO_DIRECTORY, ReplicaKey, Voter
from moldau.quorum.wire.voters import ChangeRequest, ChangeResponse, change_request, from_change_request
from moldau.runtime import ErrorCode, KafkaError

METADATA_TOPIC_ID = uuid.UUID(int=1)
METADATA_PARTITION = 0

WireRequest: TypeAlias = (
    vote_wire.VoteRequest
    | begin_wire.BeginQuorumEpochRequest
    | end_wire.EndQuorumEpochRequest
    | fetch_wire.FetchRequest
    | snapshot_wire.FetchSnapshotRequest
    | ChangeRequest
)
WireResponse: TypeAlias = (
    vote_wire.VoteResponse
    | begin_wire.BeginQuorumEpochResponse
    | end_wire.EndQuorumEpochResponse
    | fetch_wire.FetchResponse
    | snapshot_wire.FetchSnapshotResponse
    | ChangeResponse
)


def sender_of(message: WireRequest) -> int:
    """Return the id that a request names as its sender; -1 when the request has no such field."""
    match message:
        case fetch_wire.FetchRequest():
            return max(message.replica_id, message.replica_state.replica_id)
        case snapshot_wire.FetchSnapshotRequest():
            return message.replica_id
        case vote_wire.VoteRequest():
            return next((part.replica_id for topic in message.topics for part in topic.partitions), -1)
        case begin_wire.BeginQuorumEpochRequest() | end_wire.EndQuorumEpochRequest():
            return next((part.leader_id for topic in message.topics for part in topic.partitions), -1)
        case _:
            return message.voter_id


@dataclass(frozen=True, slots=True)
class RequestCodec:
    """Converts messages of one replicated partition. It adds the topic name, the topic id and the partition
    number to the messages."""

    cluster_id: str | None = None
    topic: str = CLUSTER_METADATA_TOPIC
    topic_id: uuid.UUID = METADATA_TOPIC_ID
    partition: int = METADATA_PARTITION

    # Requests

    def to_request(self, request: core.Request, own: Voter | None = None) -> WireRequest:
        """Convert the core's request to Kafka's message. ``own`` is the voter entry of this node. It is
        needed for requests in which a leader sends its own address."""
        match request:
            case core.VoteRequest():
                return self._vote_request(request)
            case core.BeginQuorumEpochRequest():
                begin = begin_wire.BeginQuorumEpochRequestPartitionData(
                    partition_index=self.partition,
                    voter_directory_id=request.voter.directory_id if request.voter else NO_DIRECTORY,
                    leader_id=request.leader_id,
                    leader_epoch=request.epoch,
                )
                return begin_wire.BeginQuorumEpochRequest(
                    cluster_id=self.cluster_id,
                    voter_id=request.voter.id if request.voter else -1,
                    leader_endpoints=[
                        begin_wire.LeaderEndpoint(name=each.name, host=each.host, port=each.port)
                        for each in (own.endpoints if own is not None else ())
                    ],
                    topics=[
                        begin_wire.BeginQuorumEpochRequestTopicData(topic_name=self.topic, partitions=[begin])
                    ],
                )
            case core.EndQuorumEpochRequest():
                end = end_wire.EndQuorumEpochRequestPartitionData(
                    partition_index=self.partition,
                    leader_id=request.leader_id,
                    leader_epoch=request.epoch,
                    preferred_successors=list(request.preferred_successors),
                    preferred_candidates=[
                        end_wire.ReplicaInfo(candidate_id=node_id) for node_id in request.preferred_successors
                    ],
                )
                return end_wire.EndQuorumEpochRequest(
                    cluster_id=self.cluster_id,
                    topics=[end_wire.EndQuorumEpochRequestTopicData(topic_name=self.topic, partitions=[end])],
                )
            case core.FetchRequest():
                return self._fetch_request(request)
            case core.FetchSnapshotRequest():
                return self._fetch_snapshot_request(request)
            case _:
                return change_request(request, self.cluster_id)

    def from_request(self, message: WireRequest) -> core.Request:
        """Convert a message to the core's request. Raises ``KafkaError`` when it is for another cluster or
        another partition."""
        if message.cluster_id is not None and self.cluster_id not in (None, message.cluster_id):
            raise KafkaError(
                ErrorCode.inconsistent_cluster_id, f"the request is for the cluster {message.cluster_id}"
            )
        match message:
            case (
                add_wire.AddRaftVoterRequest()
                | remove_wire.RemoveRaftVoterRequest()
                | update_wire.UpdateRaftVoterRequest()
            ):
                return from_change_request(message)
            case vote_wire.VoteRequest():
                vote = self._only(message.topics, message.topics and message.topics[0].topic_name)
                assert isinstance(vote, vote_wire.VoteRequestPartitionData)
                return core.VoteRequest(
                    candidate=ReplicaKey(vote.replica_id, vote.replica_directory_id),
                    epoch=vote.replica_epoch,
                    log_end=OffsetAndEpoch(vote.last_offset, vote.last_offset_epoch),
                    pre_vote=vote.pre_vote,
                    voter=_voter(message.voter_id, vote.voter_directory_id),
                )
            case begin_wire.BeginQuorumEpochRequest():
                begin = self._only(message.topics, message.topics and message.topics[0].topic_name)
                assert isinstance(begin, begin_wire.BeginQuorumEpochRequestPartitionData)
                return core.BeginQuorumEpochRequest(
                    leader_id=begin.leader_id,
                    epoch=begin.leader_epoch,
                    voter=_voter(message.voter_id, begin.voter_directory_id),
                )
            case end_wire.EndQuorumEpochRequest():
                end = self._only(message.topics, message.topics and message.topics[0].topic_name)
                assert isinstance(end, end_wire.EndQuorumEpochRequestPartitionData)
                candidates = tuple(candidate.candidate_id for candidate in end.preferred_candidates)
                return core.EndQuorumEpochRequest(
                    leader_id=end.leader_id,
                    epoch=end.leader_epoch,
                    preferred_successors=candidates or tuple(end.preferred_successors),
                )
            case fetch_wire.FetchRequest():
                return self._from_fetch(message)
            case snapshot_wire.FetchSnapshotRequest():
                return self._from_fetch_snapshot(message)
            case _:
                assert_never(message)

    def _vote_request(self, request: core.VoteRequest) -> WireRequest:
        vote = vote_wire.VoteRequestPartitionData(
            partition_index=self.partition,
            replica_epoch=request.epoch,
            replica_id=request.candidate.id,
            replica_directory_id=request.candidate.directory_id,
            voter_directory_id=request.voter.directory_id if request.voter else NO_DIRECTORY,
            last_offset_epoch=request.log_end.epoch,
            last_offset=request.log_end.offset,
            pre_vote=request.pre_vote,
        )
        return vote_wire.VoteRequest(
            cluster_id=self.cluster_id,
            voter_id=request.voter.id if request.voter else -1,
            topics=[vote_wire.VoteRequestTopicData(topic_name=self.topic, partitions=[vote])],
        )

    def _fetch_request(self, request: core.FetchRequest) -> WireRequest:
        partition = fetch_wire.FetchPartition(
            partition=self.partition,
            current_leader_epoch=request.epoch,
            fetch_offset=request.log_end.offset,
            last_fetched_epoch=request.log_end.epoch,
            partition_max_bytes=request.max_bytes,
            replica_directory_id=request.replica.directory_id,
            high_watermark=request.high_watermark,
        )
        topic = fetch_wire.FetchTopic(topic=self.topic, topic_id=self.topic_id, partitions=[partition])
        return fetch_wire.FetchRequest(
            cluster_id=self.cluster_id,
            replica_id=request.replica.id,
            replica_state=fetch_wire.ReplicaState(replica_id=request.replica.id),
            max_wait_ms=request.max_wait_ms,
            max_bytes=request.max_bytes,
            topics=[topic],
        )

    def _from_fetch(self, message: fetch_wire.FetchRequest) -> core.FetchRequest:
        topic = message.topics[0] if len(message.topics) == 1 else None
        is_ours = topic is not None and (topic.topic == self.topic or topic.topic_id == self.topic_id)
        partition = self._only(message.topics, self.topic if is_ours else None)
        assert isinstance(partition, fetch_wire.FetchPartition)
        replica_id = max(message.replica_id, message.replica_state.replica_id)
        return core.FetchRequest(
            replica=ReplicaKey(replica_id, partition.replica_directory_id),
            epoch=partition.current_leader_epoch,
            log_end=OffsetAndEpoch(partition.fetch_offset, partition.last_fetched_epoch),
            max_wait_ms=message.max_wait_ms,
            max_bytes=min(message.max_bytes, partition.partition_max_bytes),
            high_watermark=partition.high_watermark,
        )

    def _fetch_snapshot_request(self, request: core.FetchSnapshotRequest) -> WireRequest:
        partition = snapshot_wire.FetchSnapshotRequestPartitionSnapshot(
            partition=self.partition,
            current_leader_epoch=request.epoch,
            snapshot_id=snapshot_wire.FetchSnapshotRequestSnapshotId(
                end_offset=request.snapshot_id.offset, epoch=request.snapshot_id.epoch
            ),
            position=request.position,
            replica_directory_id=request.replica.directory_id,
        )
        topic = snapshot_wire.FetchSnapshotRequestTopicSnapshot(name=self.topic, partitions=[partition])
        return snapshot_wire.FetchSnapshotRequest(
            cluster_id=self.cluster_id,
            replica_id=request.replica.id,
            max_bytes=request.max_bytes,
            topics=[topic],
        )

    def _from_fetch_snapshot(self, message: snapshot_wire.FetchSnapshotRequest) -> core.FetchSnapshotRequest:
        partition = self._only(message.topics, message.topics and message.topics[0].name)
        assert isinstance(partition, snapshot_wire.FetchSnapshotRequestPartitionSnapshot)
        snapshot_id = OffsetAndEpoch(partition.snapshot_id.end_offset, partition.snapshot_id.epoch)
        return core.FetchSnapshotRequest(
            replica=ReplicaKey(message.replica_id, partition.replica_directory_id),
            epoch=partition.current_leader_epoch,
            snapshot_id=snapshot_id,
            position=partition.position,
            max_bytes=message.max_bytes,
        )

    def _only(self, topics: object, name: object) -> object:
        """Find the row of this codec's partition in a request. Raises ``KafkaError`` if the request does not
        contain exactly this partition."""
        if isinstance(topics, list | tuple) and len(topics) == 1 and name == self.topic:
            partitions = topics[0].partitions
            if len(partitions) == 1:
                partition = partitions[0]
                index = getattr(partition, "partition_index", getattr(partition, "partition", None))
                if index == self.partition:
                    return partition
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"only {self.topic} is served here")


def _voter(voter_id: int, directory_id: uuid.UUID) -> ReplicaKey | None:
    return None if voter_id < 0 else ReplicaKey(voter_id, directory_id)
