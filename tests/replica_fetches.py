"""Fetches between two replicas without a network."""

from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.partition_interface import ReadOutcome, ReadRequest
from moldau.runtime import ErrorCode


async def fetch_once(follower: ClassicPartition, follower_id: int, leader: ClassicPartition) -> ReadOutcome:
    """Make one fetch and process its response, as a fetcher does."""
    following = follower.following
    position = following.position()
    answer = leader.read(
        ReadRequest(
            position.offset,
            1 << 20,
            current_leader_epoch=position.leader_epoch,
            last_fetched_epoch=position.last_fetched_epoch,
            log_start_offset=position.log_start_offset,
            replica_id=follower_id,
            acknowledged_offset=following.acknowledged_offset(),
        )
    )
    assert isinstance(answer, ReadOutcome)
    assert answer.error is ErrorCode.none
    if answer.diverging_epoch is not None:
        await following.truncate(position.leader_epoch, *answer.diverging_epoch)
    else:
        following.append(
            position.leader_epoch,
            b"".join(answer.views),
            high_watermark=answer.high_watermark,
            log_start_offset=answer.log_start_offset,
        )
    return answer
