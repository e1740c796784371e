"""Converts between the core's responses and Kafka's responses. The module ``requests.py`` converts
requests."""

from dataclasses import replace
from typing import Any, TypeAlias, assert_never

from moldau.protocol.messages import begin_quorum_epoch as begin_wire
from moldau.protocol.messages import end_quorum_epoch as end_wire
from moldau.protocol.messages import fetch as fetch_wire
from moldau.protocol.messages import fetch_snapshot as snapshot_wire
from moldau.protocol.messages import vote as vote_wire
from moldau.quorum.core import messages as core
from moldau.quorum.core.offsets import OffsetAndEpoch
from moldau.quorum.core.voters import Voter
from moldau.quorum.wire.requests import RequestCodec, WireRequest, WireResponse
from moldau.quorum.wire.voters import (
    CHANGE_REQUESTS,
    CHANGE_RESPONSES,
    change_error,
    change_response,
    from_change_response,
    leader_endpoint,
)
from moldau.runtime import ErrorCode, KafkaError

QuorumResponse: TypeAlias = (
    core.VoteResponse
    | core.BeginQuorumEpochResponse
    | core.EndQuorumEpochResponse
    | core.FetchResponse
    | core.FetchSnapshotResponse
)
QuorumMessage: TypeAlias = (
    vote_wire.VoteResponse
    | begin_wire.BeginQuorumEpochResponse
    | end_wire.EndQuorumEpochResponse
    | fetch_wire.FetchResponse
    | snapshot_wire.FetchSnapshotResponse
)


def _id(node_id: int | None) -> int:
    return -1 if node_id is None else node_id


def _maybe_id(node_id: int) -> int | None:
    return None if node_id < 0 else node_id


def to_response(
    wire: RequestCodec,
    response: core.Response,
    request: WireRequest | None = None,
    leader: Voter | None = None,
) -> WireResponse:
    """Convert the core's answer to Kafka's message. The message contains the leader's address, if ``leader``
    has an address.

    ``request`` is the answered message. It is needed for changes of voters.
    """
    if isinstance(response, core.VoterChangeResponse):
        assert isinstance(request, CHANGE_REQUESTS)
        return change_response(request, response, leader)
    message = _to_response(wire, response)
    if leader is None or not leader.host:
        return message
    endpoints: Any = leader_endpoint(message, leader)
    return replace(message, node_endpoints=endpoints)


def _to_response(wire: RequestCodec, response: QuorumResponse) -> QuorumMessage:
    error, leader_id, epoch = response.error, _id(response.leader_id), response.epoch
    match response:
        case core.VoteResponse():
            vote = vote_wire.VoteResponsePartitionData(
                partition_index=wire.partition,
                error_code=error,
                leader_id=leader_id,
                leader_epoch=epoch,
                vote_granted=response.granted,
            )
            return vote_wire.VoteResponse(
                topics=[vote_wire.VoteResponseTopicData(topic_name=wire.topic, partitions=[vote])]
            )
        case core.BeginQuorumEpochResponse():
            begin = begin_wire.BeginQuorumEpochResponsePartitionData(
                partition_index=wire.partition, error_code=error, leader_id=leader_id, leader_epoch=epoch
            )
            begin_topic = begin_wire.BeginQuorumEpochResponseTopicData(
                topic_name=wire.topic, partitions=[begin]
            )
            return begin_wire.BeginQuorumEpochResponse(topics=[begin_topic])
        case core.EndQuorumEpochResponse():
            end = end_wire.EndQuorumEpochResponsePartitionData(
                partition_index=wire.partition, error_code=error, leader_id=leader_id, leader_epoch=epoch
            )
            end_topic = end_wire.EndQuorumEpochResponseTopicData(topic_name=wire.topic, partitions=[end])
            return end_wire.EndQuorumEpochResponse(topics=[end_topic])
        case core.FetchResponse():
            return _fetch_response(wire, response)
        case core.FetchSnapshotResponse():
            return _fetch_snapshot_response(wire, response)
        case _:
            assert_never(response)


def _fetch_response(wire: RequestCodec, response: core.FetchResponse) -> fetch_wire.FetchResponse:
    diverging, snapshot_id = fetch_wire.EpochEndOffset(), fetch_wire.SnapshotId()
    if response.diverging is not None:
        diverging = fetch_wire.EpochEndOffset(
            epoch=response.diverging.epoch, end_offset=response.diverging.offset
        )
    if response.snapshot_id is not None:
        snapshot_id = fetch_wire.SnapshotId(
            end_offset=response.snapshot_id.offset, epoch=response.snapshot_id.epoch
        )
    data = fetch_wire.PartitionData(
        partition_index=wire.partition,
        error_code=response.error,
        high_watermark=response.high_watermark,
        log_start_offset=response.log_start_offset,
        diverging_epoch=diverging,
        current_leader=fetch_wire.LeaderIdAndEpoch(
            leader_id=_id(response.leader_id), leader_epoch=response.epoch
        ),
        snapshot_id=snapshot_id,
        records=b"".join(response.records),
    )
    topic = fetch_wire.FetchableTopicResponse(topic=wire.topic, topic_id=wire.topic_id, partitions=[data])
    return fetch_wire.FetchResponse(responses=[topic])


def _fetch_snapshot_response(
    wire: RequestCodec, response: core.FetchSnapshotResponse
) -> snapshot_wire.FetchSnapshotResponse:
    data = snapshot_wire.FetchSnapshotResponsePartitionSnapshot(
        index=wire.partition,
        error_code=response.error,
        snapshot_id=snapshot_wire.FetchSnapshotResponseSnapshotId(
            end_offset=response.snapshot_id.offset, epoch=response.snapshot_id.epoch
        ),
        current_leader=snapshot_wire.LeaderIdAndEpoch(
            leader_id=_id(response.leader_id), leader_epoch=response.epoch
        ),
        size=response.size_bytes,
        position=response.position,
        unaligned_records=response.data,
    )
    topic = snapshot_wire.FetchSnapshotResponseTopicSnapshot(name=wire.topic, partitions=[data])
    return snapshot_wire.FetchSnapshotResponse(topics=[topic])


def error_response(request: WireRequest, error: ErrorCode, text: str | None = None) -> WireResponse:
    """Return the answer to a request that never reached the core. The error is at the top level."""
    if isinstance(request, CHANGE_REQUESTS):
        return change_error(request, error, text)
    match request:
        case vote_wire.VoteRequest():
            return vote_wire.VoteResponse(error_code=error)
        case begin_wire.BeginQuorumEpochRequest():
            return begin_wire.BeginQuorumEpochResponse(error_code=error)
        case end_wire.EndQuorumEpochRequest():
            return end_wire.EndQuorumEpochResponse(error_code=error)
        case fetch_wire.FetchRequest():
            return fetch_wire.FetchResponse(error_code=error)
        case snapshot_wire.FetchSnapshotRequest():
            return snapshot_wire.FetchSnapshotResponse(error_code=error)
        case _:
            assert_never(request)


def from_response(message: WireResponse) -> core.Response:
    """Convert a peer's answer for the core. Raises ``KafkaError`` if the answer lacks the partition."""
    if isinstance(message, CHANGE_RESPONSES):
        return from_change_response(message)
    if message.error_code is not ErrorCode.none:
        raise KafkaError(message.error_code)
    topics = message.responses if isinstance(message, fetch_wire.FetchResponse) else message.topics
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        raise KafkaError(ErrorCode.unknown_server_error, "the answer is not about one partition")
    match message:
        case vote_wire.VoteResponse():
            vote = message.topics[0].partitions[0]
            return core.VoteResponse(
                error=vote.error_code,
                leader_id=_maybe_id(vote.leader_id),
                epoch=vote.leader_epoch,
                granted=vote.vote_granted,
            )
        case begin_wire.BeginQuorumEpochResponse():
            begin = message.topics[0].partitions[0]
            return core.BeginQuorumEpochResponse(
                error=begin.error_code, leader_id=_maybe_id(begin.leader_id), epoch=begin.leader_epoch
            )
        case end_wire.EndQuorumEpochResponse():
            end = message.topics[0].partitions[0]
            return core.EndQuorumEpochResponse(
                error=end.error_code, leader_id=_maybe_id(end.leader_id), epoch=end.leader_epoch
            )
        case fetch_wire.FetchResponse():
            return _from_fetch(message.responses[0].partitions[0])
        case snapshot_wire.FetchSnapshotResponse():
            part = message.topics[0].partitions[0]
            return core.FetchSnapshotResponse(
                error=part.error_code,
                leader_id=_maybe_id(part.current_leader.leader_id),
                epoch=part.current_leader.leader_epoch,
                snapshot_id=OffsetAndEpoch(part.snapshot_id.end_offset, part.snapshot_id.epoch),
                size_bytes=part.size,
                position=part.position,
                data=_bytes(part.unaligned_records),
            )
        case _:
            assert_never(message)


def _from_fetch(data: fetch_wire.PartitionData) -> core.FetchResponse:
    diverging, snapshot_id = data.diverging_epoch, data.snapshot_id
    records = _bytes(data.records)
    return core.FetchResponse(
        error=data.error_code,
        leader_id=_maybe_id(data.current_leader.leader_id),
        epoch=data.current_leader.leader_epoch,
        high_watermark=data.high_watermark,
        log_start_offset=data.log_start_offset,
        diverging=OffsetAndEpoch(diverging.end_offset, diverging.epoch) if diverging.epoch >= 0 else None,
        snapshot_id=(
            OffsetAndEpoch(snapshot_id.end_offset, snapshot_id.epoch) if snapshot_id.epoch >= 0 else None
        ),
        records=(records,) if records else (),
    )


def _bytes(records: object) -> bytes:
    """Return the records, which are in one or several buffers, as bytes. Bytes that are stored must not refer
    to a socket's buffer."""
    if records is None:
        return b""
    if isinstance(records, bytes | bytearray | memoryview):
        return bytes(records)
    assert isinstance(records, list | tuple)
    return b"".join(records)
