"""The size of a decision: whether it would block the event loop for too long."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from moldau.cluster.image.image import MetadataImage
from moldau.protocol.messages.alter_configs import AlterConfigsRequest
from moldau.protocol.messages.alter_partition import AlterPartitionRequest
from moldau.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.broker_registration import BrokerRegistrationRequest
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest
from moldau.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from moldau.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest
from moldau.protocol.schema import Message

LARGE_ROWS: Final = 256
"""Rows decided without a break: some 5 ms."""


def _inner(rows: Iterable[Any] | None, field: str, image: MetadataImage) -> int:
    """Number of rows and of their items; for a null array, which means all partitions, their replicas."""
    if rows is None:
        return _replicas(image)
    return sum(1 + len(getattr(row, field)) for row in rows)


def _created(request: CreateTopicsRequest) -> int:
    return sum(
        1 + len(topic.configs) + max(len(topic.assignments), topic.num_partitions) for topic in request.topics
    )


def _added(request: CreatePartitionsRequest) -> int:
    return sum(1 + max(topic.count, len(topic.assignments or ())) for topic in request.topics)


def _replicas(image: MetadataImage) -> int:
    return sum(image.topics.replica_load.values())


def _ended(request: BrokerRegistrationRequest, image: MetadataImage) -> int:
    """A new incarnation ends the previous one, and with it the leaderships of its replicas."""
    existing = image.brokers.get(request.broker_id)
    is_new = existing is None or existing.incarnation_id == request.incarnation_id
    return 0 if is_new else image.topics.replica_load.get(request.broker_id, 0)


def _changed_by_heartbeat(request: BrokerHeartbeatRequest, image: MetadataImage) -> int:
    """A broker that stays in its state changes nothing; a change of its state may concern all its
    replicas."""
    broker = image.brokers.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        return 0
    stays = not (broker.fenced or broker.in_controlled_shutdown or request.want_fence)
    is_quick = stays and not request.want_shut_down
    return 0 if is_quick else image.topics.replica_load.get(request.broker_id, 0)


_SIZES: Final[Mapping[type[Message], Callable[[Any, MetadataImage], int]]] = MappingProxyType(
    {
        CreateTopicsRequest: lambda request, _: _created(request),
        CreatePartitionsRequest: lambda request, _: _added(request),
        DeleteTopicsRequest: lambda request, _: len(request.topics) + len(request.topic_names),
        AlterPartitionRequest: lambda request, image: _inner(request.topics, "partitions", image),
        ElectLeadersRequest: lambda request, image: _inner(request.topic_partitions, "partitions", image),
        AlterConfigsRequest: lambda request, image: _inner(request.resources, "configs", image),
        IncrementalAlterConfigsRequest: lambda request, image: _inner(request.resources, "configs", image),
        AlterPartitionReassignmentsRequest: lambda request, image: _inner(
            request.topics, "partitions", image
        ),
        ListPartitionReassignmentsRequest: lambda request, image: _inner(
            request.topics, "partition_indexes", image
        ),
        BrokerRegistrationRequest: _ended,
        BrokerHeartbeatRequest: _changed_by_heartbeat,
        UnregisterBrokerRequest: lambda request, image: image.topics.replica_load.get(request.broker_id, 0),
    }
)


def is_large(request: Message, image: MetadataImage) -> bool:
    """Whether a worker must decide a request."""
    size = _SIZES.get(type(request))
    return size is not None and size(request, image) > LARGE_ROWS


def has_many_replicas(image: MetadataImage) -> bool:
    """Whether a worker must make a decision that concerns all partitions."""
    return _replicas(image) > LARGE_ROWS
