"""The calls of brokers to the leader of a partition of ``__remote_log_metadata`` (APIs 11662 and 11663).

Brokers read events from the leader by Fetch. If an append returns REQUEST_TIMED_OUT, it is unknown whether
the event was appended. Every other error means that nothing was appended.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from moldau.network.own_calls import BrokerCall
from moldau.protocol.own.rights import Right
from moldau.protocol.own.tiered import append_event as append_wire
from moldau.protocol.own.tiered import event_offsets as offsets_wire
from moldau.tiered.metadata.topic import TopicOffsets

__all__ = [
    "APPEND_EVENT",
    "EVENT_OFFSETS",
    "METADATA_CALLS",
    "AppendEventCall",
    "EventOffsetsCall",
    "MetadataPartitionCalls",
]


class AppendEventCall(NamedTuple):
    """Append an event. The writer is the leader of the partition that the event describes."""

    metadata_partition: int
    metadata_leader_epoch: int
    topic_id: UUID
    partition_index: int
    leader_epoch: int
    event: bytes


class EventOffsetsCall(NamedTuple):
    """Request the offsets of a metadata partition, and the end of ``epoch`` in that partition."""

    metadata_partition: int
    metadata_leader_epoch: int
    epoch: int


class MetadataPartitionCalls(Protocol):
    """The metadata partitions that a broker leads, as other brokers use them.

    A call raises ``KafkaError``: FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER.
    """

    async def append_event(self, call: AppendEventCall) -> int:
        """Append an event. Returns the offset of the event when the event is committed."""
        ...

    async def event_offsets(self, call: EventOffsetsCall) -> TopicOffsets: ...


async def _serve_append(partitions: MetadataPartitionCalls, call: AppendEventCall) -> int:
    return await partitions.append_event(call)


APPEND_EVENT: Final[BrokerCall[MetadataPartitionCalls, AppendEventCall, int]] = BrokerCall(
    request=append_wire.REQUEST,
    response=append_wire.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=_serve_append,
    request_fields=lambda call, version: call._asdict(),
    arguments=lambda request: AppendEventCall(
        request.metadata_partition,
        request.metadata_leader_epoch,
        request.topic_id,
        request.partition_index,
        request.leader_epoch,
        bytes(request.event),
    ),
    response_fields=lambda offset, version: {"offset": offset},
    result=lambda response: int(response.offset),
)


async def _serve_offsets(partitions: MetadataPartitionCalls, call: EventOffsetsCall) -> TopicOffsets:
    return await partitions.event_offsets(call)


EVENT_OFFSETS: Final[BrokerCall[MetadataPartitionCalls, EventOffsetsCall, TopicOffsets]] = BrokerCall(
    request=offsets_wire.REQUEST,
    response=offsets_wire.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=_serve_offsets,
    request_fields=lambda call, version: call._asdict(),
    arguments=lambda request: EventOffsetsCall(
        request.metadata_partition, request.metadata_leader_epoch, request.epoch
    ),
    response_fields=lambda offsets, version: offsets._asdict(),
    result=lambda response: TopicOffsets(
        response.start_offset, response.end_offset, response.log_end_offset, response.epoch_end_offset
    ),
)

METADATA_CALLS: Final[Mapping[int, BrokerCall[MetadataPartitionCalls, Any, Any]]] = MappingProxyType(
    {call.api_key: call for call in (APPEND_EVENT, EVENT_OFFSETS)}
)
