"""The APIs for the cluster as a whole. They concern metadata, topics, configurations and the quorum."""

from collections.abc import Callable
from functools import partial

from moldau.cluster.controller.decided_apis import DECIDED_APIS
from moldau.cluster.controller.quorum_changes import QUORUM_CHANGE_APIS
from moldau.network.context import RequestContext
from moldau.protocol.api import ApiKey, Scope, scopes
from moldau.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from moldau.server.context import BrokerContext
from moldau.server.handlers.admin.config_changes import ConfigChangeHandlers
from moldau.server.handlers.admin.configs import ConfigHandlers
from moldau.server.handlers.admin.forwarded_apis import ForwardedHandlers
from moldau.server.handlers.metadata.metadata import MetadataHandlers
from moldau.server.handlers.metadata.quorum import describe_quorum, quorum_row
from moldau.server.handlers.metadata.topic_partitions import TopicPartitionHandlers
from moldau.server.requests.dispatch import routes
from moldau.server.requests.forwarding import forward
from moldau.server.subsystem import Contribution, Subsystem
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.server.subsystems.topic_creation_subsystem import TopicsSubsystem


class AdministrationSubsystem(Subsystem):
    """Answers requests from the image, and forwards changes to the active controller."""

    def __init__(
        self, context: BrokerContext, partitions: PartitionsSubsystem, topics: TopicsSubsystem
    ) -> None:
        self._context = context
        self._partitions = partitions
        self._topics = topics

    def contribution(self) -> Contribution:
        context, config, creator = self._context, self._context.config, self._topics.creator
        view, metadata, authorizer = context.view, context.metadata, context.authorizer
        partition_limit = config.integer("max.request.partition.size.limit")
        changes = ConfigChangeHandlers(view.local_id, context.channel, authorizer).table()
        of_clients = {
            ApiKey(key) for key in (*DECIDED_APIS, *QUORUM_CHANGE_APIS) if Scope.BROKER in scopes(key)
        }
        describe = partial(describe_quorum, metadata.quorum.describe, metadata.voters, config)
        return Contribution(
            handlers=routes(
                MetadataHandlers(view, creator, authorizer).table(),
                ForwardedHandlers(
                    context.channel,
                    of_clients - changes.keys(),
                    metadata.publisher.until,
                    self._partitions.settled,
                    self._partition_count,
                ).table(),
                TopicPartitionHandlers(view, creator, authorizer, partition_limit).table(),
                ConfigHandlers(view, metadata.configs).table(),
                changes,
                {ApiKey.DESCRIBE_QUORUM: quorum_row(partial(self._quorum, describe))},
            )
        )

    async def _quorum(
        self,
        describe: Callable[[RequestContext, DescribeQuorumRequest], DescribeQuorumResponse],
        context: RequestContext,
        request: DescribeQuorumRequest,
    ) -> DescribeQuorumResponse:
        """Answer DescribeQuorum. Only the quorum's leader can answer it, so a broker that is not the leader
        forwards the request to the leader."""
        if self._context.metadata.quorum.is_leader:
            return describe(context, request)
        response: DescribeQuorumResponse = await forward(self._context.channel, context, request)
        return response

    def _partition_count(self, topic: str) -> int:
        found = self._context.view.image.topics.get(topic)
        return 0 if found is None else len(found.partitions)
