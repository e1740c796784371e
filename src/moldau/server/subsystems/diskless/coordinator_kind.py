"""Diskless coordinators, over ``__diskless_metadata``."""

from collections.abc import Callable
from functools import partial
from uuid import UUID

from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.network.context import RequestContext
from moldau.server.authorization import AclOperation, AclResourceType, Authorizer
from moldau.server.coordinators.entry import CoordinatorEntry, entry_of
from moldau.server.handlers.own.diskless import DisklessHandlers
from moldau.server.handlers.own.own_calls import check_cluster_action
from moldau.server.topics.topic_creation import InternalTopic


def diskless_coordinators(
    topic: InternalTopic,
    coordinators: DisklessCoordinator,
    authorizer: Authorizer,
    topic_name: Callable[[UUID], str | None],
    on_change: Callable[[int], None],
) -> CoordinatorEntry:
    """The kind that assigns offsets to diskless partitions.

    ``topic_name`` returns the name of a topic of the cluster. ``on_change`` is called with a coordinator
    whose leadership this broker begins or ends.
    """
    return entry_of(
        coordinators.runtime,
        topic,
        DisklessHandlers(coordinators, authorizer, topic_name).table(),
        check=partial(_check_lookup, authorizer, topic.name),
        on_change=on_change,
        # Without loaded coordinators, a ready node would refuse producers and readers of diskless partitions.
        start_waits=True,
    )


def _check_lookup(authorizer: Authorizer, topic: str, context: RequestContext) -> None:
    """Readers may find coordinators, too, because the Metadata API shows the brokers of the topic's
    partitions anyway.

    Raises CLUSTER_AUTHORIZATION_FAILED.
    """
    if not authorizer.allows(context, AclOperation.DESCRIBE, AclResourceType.TOPIC, topic):
        check_cluster_action(authorizer, context)
