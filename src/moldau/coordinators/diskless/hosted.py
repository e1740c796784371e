"""Diskless coordinators on a broker, over ``__diskless_metadata``."""

from collections.abc import Callable, Sequence
from uuid import UUID

from moldau.cluster.internal_topics import InternalTopic
from moldau.coordinators.diskless.calls.epochs import KnownEpochs
from moldau.coordinators.diskless.handlers import DisklessHandlers
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.coordinators.hosted import HostedKind
from moldau.network.authorization import AclOperation, AclResourceType, Authorizer
from moldau.network.context import RequestContext
from moldau.network.own_serving import CallHandlers, check_cluster_action


class DisklessCoordinatorKind(HostedKind):
    """The kind of coordinators that assign offsets to diskless partitions.

    The subsystem of diskless topics closes the coordinators itself, when it has no more work for them.
    """

    # The start of a node waits until its coordinators are loaded. Otherwise the node would report that it is
    # ready, although it still refuses requests about diskless partitions.
    start_waits = True

    def __init__(
        self,
        topic: InternalTopic,
        coordinators: DisklessCoordinator,
        authorizer: Authorizer,
        topic_name: Callable[[UUID], str | None],
        changed: Callable[[int], None],
        epochs: KnownEpochs | None = None,
    ) -> None:
        """``topic_name`` returns the name of a topic of the cluster. ``changed`` is called when this broker
        begins or stops leading a coordinator. Requests that name a newer epoch than ``epochs`` are
        refused.
        """
        super().__init__("coordinators", coordinators.runtime, topic)
        self._authorizer = authorizer
        self._handlers = DisklessHandlers(coordinators, authorizer, topic_name, epochs)
        self._changed = changed

    def calls(self) -> Sequence[CallHandlers]:
        return (self._handlers,)

    def on_change(self, partition: int) -> None:
        self._changed(partition)

    def check_lookup(self, context: RequestContext) -> None:
        """A client with the right DESCRIBE on the coordinators' topic may also find coordinators. This is
        safe, because such a client can already see the leaders of the topic's partitions in the Metadata API.

        Raises CLUSTER_AUTHORIZATION_FAILED.
        """
        if not self._authorizer.allows(
            context, AclOperation.DESCRIBE, AclResourceType.TOPIC, self.topic.name
        ):
            check_cluster_action(self._authorizer, context)
