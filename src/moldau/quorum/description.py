"""The state of the quorum for DescribeQuorum (KIP-595, KIP-836)."""

from dataclasses import dataclass

from moldau.protocol.messages import describe_quorum as wire
from moldau.protocol.metadata_topic import CLUSTER_METADATA_TOPIC
from moldau.quorum.core.progress import ReplicaProgress
from moldau.quorum.core.raft import RaftCore
from moldau.quorum.core.roles import Leader
from moldau.quorum.core.voters import ReplicaKey
from moldau.quorum.wire.requests import METADATA_PARTITION
from moldau.runtime import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """One replica, as its leader knows it; -1 means that a value is unknown. Times are in milliseconds since
    the Unix epoch."""

    key: ReplicaKey
    log_end_offset: int
    last_fetch_timestamp_ms: int
    last_caught_up_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    leader_id: int
    epoch: int
    high_watermark: int
    voters: tuple[ReplicaDescription, ...]
    observers: tuple[ReplicaDescription, ...]


def describe(core: RaftCore, wall_clock_ms: int) -> QuorumDescription:
    """The description for DescribeQuorum. Raises ``KafkaError(not_leader_or_follower)`` if this node does not
    lead, because only the leader has the data."""
    leader = core.role
    if not isinstance(leader, Leader):
        raise KafkaError(ErrorCode.not_leader_or_follower, "only the leader can describe the quorum")
    to_wall_ms = wall_clock_ms - core.now_ms

    def replica(key: ReplicaKey, progress: ReplicaProgress) -> ReplicaDescription:
        fetched, caught_up = progress.last_fetch_ms, progress.last_caught_up_ms
        return ReplicaDescription(
            key,
            progress.end_offset,
            -1 if fetched is None else fetched + to_wall_ms,
            -1 if caught_up is None else caught_up + to_wall_ms,
        )

    voters = [
        ReplicaDescription(core.local, core.log.log_end.offset, -1, wall_clock_ms)
        if voter.key.id == core.local.id
        else replica(voter.key, leader.voter_progress[voter.key.id])
        for voter in core.voters
    ]
    observers = [replica(key, progress) for key, progress in leader.progress.items()]
    high_watermark = -1 if leader.high_watermark is None else leader.high_watermark
    return QuorumDescription(core.local.id, core.epoch, high_watermark, tuple(voters), tuple(observers))


def to_wire(description: QuorumDescription) -> wire.DescribeQuorumResponse:
    """Return the answer to a DescribeQuorum request for the metadata partition."""

    def states(replicas: tuple[ReplicaDescription, ...]) -> list[wire.ReplicaState]:
        return [
            wire.ReplicaState(
                replica_id=replica.key.id,
                replica_directory_id=replica.key.directory_id,
                log_end_offset=replica.log_end_offset,
                last_fetch_timestamp=replica.last_fetch_timestamp_ms,
                last_caught_up_timestamp=replica.last_caught_up_timestamp_ms,
            )
            for replica in replicas
        ]

    partition = wire.DescribeQuorumResponsePartitionData(
        partition_index=METADATA_PARTITION,
        leader_id=description.leader_id,
        leader_epoch=description.epoch,
        high_watermark=description.high_watermark,
        current_voters=states(description.voters),
        observers=states(description.observers),
    )
    topic = wire.DescribeQuorumResponseTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])
    return wire.DescribeQuorumResponse(topics=[topic])
