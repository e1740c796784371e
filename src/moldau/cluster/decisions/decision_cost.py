"""Computes the sizes of decisions.

The size is the number of rows of the request or of the metadata that a decision reads or changes. If a
decision is large, it would block the event loop for too long, so a worker thread makes it.
"""

from collections.abc import Iterable
from typing import Any, Final

from moldau.cluster.image.image import MetadataImage
from moldau.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.broker_registration import BrokerRegistrationRequest
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.own.chunks.drop_chunks import DropChunksRequest

LARGE_ROWS: Final = 256
"""Maximum number of rows that are decided in one iteration of the event loop. This takes about 5 ms."""


def inner_rows(rows: Iterable[Any] | None, field: str, image: MetadataImage) -> int:
    """Count the entries in ``rows``, and the items of the array ``field`` in each entry. If ``rows`` is
    ``None``, the request means all partitions, and the result is the number of all replicas in the
    cluster."""
    if rows is None:
        return all_replicas(image)
    return sum(1 + len(getattr(row, field)) for row in rows)


def created_partitions(request: CreateTopicsRequest, image: MetadataImage) -> int:
    return sum(
        1 + len(topic.configs) + max(len(topic.assignments), topic.num_partitions) for topic in request.topics
    )


def added_partitions(request: CreatePartitionsRequest, image: MetadataImage) -> int:
    return sum(1 + max(topic.count, len(topic.assignments or ())) for topic in request.topics)


def all_replicas(image: MetadataImage) -> int:
    return sum(image.topics.replica_load.values())


def ended_replicas(request: BrokerRegistrationRequest, image: MetadataImage) -> int:
    """Return the number of the broker's replicas if a new incarnation of the broker replaces the previous
    incarnation; otherwise 0. Each of these replicas may leave an in-sync set."""
    existing = image.brokers.get(request.broker_id)
    is_new = existing is None or existing.incarnation_id == request.incarnation_id
    return 0 if is_new else image.topics.replica_load.get(request.broker_id, 0)


def replicas_changed_by_heartbeat(request: BrokerHeartbeatRequest, image: MetadataImage) -> int:
    """Number of replicas that a heartbeat may change. The number is 0 if the broker stays in its state."""
    broker = image.brokers.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        return 0
    stays = not (broker.fenced or broker.in_controlled_shutdown or request.want_fence)
    is_quick = stays and not request.want_shut_down and not request.offline_log_dirs
    return 0 if is_quick else image.topics.replica_load.get(request.broker_id, 0)


def assigned_replicas(request: AssignReplicasToDirsRequest, image: MetadataImage) -> int:
    return sum(len(topic.partitions) for directory in request.directories for topic in directory.topics)


def chunks_of_partitions(request: DropChunksRequest, image: MetadataImage) -> int:
    """Return the number of chunks that the controller examines to find the chunks that must be removed."""
    partitions = (image.topics.partition(row.topic_id, row.partition_index) for row in request.partitions)
    return sum(1 + (0 if partition is None else len(partition.chunks)) for partition in partitions)


def has_many_replicas(image: MetadataImage) -> bool:
    """Whether the cluster has so many replicas that a worker must make decisions about all partitions."""
    return all_replicas(image) > LARGE_ROWS
