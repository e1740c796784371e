"""Converts TxnOffsetCommit requests into OffsetCommit requests, and the responses back. Pure."""

from typing import Final

from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from moldau.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from moldau.runtime import ErrorCode

COMMIT_VERSION: Final = 9
"""The last version of OffsetCommit that uses topic names. TxnOffsetCommit uses topic names, too."""


def as_commit(request: TxnOffsetCommitRequest) -> OffsetCommitRequest:
    """Return the offsets of a transaction as an OffsetCommit request for their group."""
    return OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        committed_metadata=each.committed_metadata,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def as_transactional(answer: OffsetCommitResponse) -> TxnOffsetCommitResponse:
    """Convert the response to an OffsetCommit into the response to a TxnOffsetCommit."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=each.error_code
                    )
                    for each in topic.partitions
                ],
            )
            for topic in answer.topics
        ]
    )


def refused(request: TxnOffsetCommitRequest, error: ErrorCode) -> TxnOffsetCommitResponse:
    """A response with one error for all partitions."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
