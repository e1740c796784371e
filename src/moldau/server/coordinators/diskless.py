"""Diskless coordinators, over ``__diskless_metadata``."""

from collections.abc import Callable
from functools import partial
from uuid import UUID

from moldau.coordinators.diskless.calls import METADATA_MAX_MESSAGE_BYTES
from moldau.coordinators.diskless.led import MetadataLog
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.coordinators.log import SnapshottedCoordinatorLog
from moldau.network.context import RequestContext
from moldau.replication.classic import ClassicPartition
from moldau.server.authorization import Authorizer, Operation, ResourceType
from moldau.server.coordinators.entry import CoordinatorEntry, KeyLookup
from moldau.server.handlers.diskless import DisklessHandlers
from moldau.server.handlers.own_calls import check_cluster_action
from moldau.server.topic_creation import InternalTopic


def diskless_coordinators(
    topic: InternalTopic,
    coordinators: DisklessCoordinator,
    authorizer: Authorizer,
    topic_name: Callable[[UUID], str | None],
    on_change: Callable[[int], None],
) -> CoordinatorEntry[MetadataLog]:
    """The kind that gives offsets to diskless partitions.

    ``topic_name`` gives the name of a topic of the cluster. ``on_change`` is called with
    a coordinator that this broker begins or ends to lead.
    """
    kind = coordinators.kind
    assert kind.key_type is not None

    def load(coordinator_id: int, epoch: int, log: MetadataLog) -> None:
        coordinators.load(coordinator_id, epoch, log)
        on_change(coordinator_id)

    def unload(coordinator_id: int, epoch: int) -> None:
        coordinators.unload(coordinator_id, epoch)
        on_change(coordinator_id)

    return CoordinatorEntry(
        topic=topic,
        open_log=open_metadata_log,
        load=load,
        unload=unload,
        # Without them producers and readers of diskless partitions would be refused by a node that is ready.
        until_loaded=coordinators.until_all_loaded,
        lookup=KeyLookup(
            key_type=kind.key_type,
            # Keys are numbers of coordinators, whatever their count.
            partition_of=lambda key: kind.partition_of(key, 0),
            check=partial(_check_lookup, authorizer, topic.name),
        ),
        handlers=DisklessHandlers(coordinators, authorizer, topic_name).table(),
    )


def _check_lookup(authorizer: Authorizer, topic: str, context: RequestContext) -> None:
    """Readers find coordinators, too: where one is, Metadata says of the topic's partitions.

    Raises CLUSTER_AUTHORIZATION_FAILED.
    """
    if not authorizer.allows(context, Operation.DESCRIBE, ResourceType.TOPIC, topic):
        check_cluster_action(authorizer, context)


def open_metadata_log(partition: ClassicPartition, epoch: int) -> SnapshottedCoordinatorLog:
    """The log of a coordinator for one term."""
    return SnapshottedCoordinatorLog(partition, max_batch_bytes=METADATA_MAX_MESSAGE_BYTES)
