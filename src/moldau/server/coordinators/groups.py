"""Group coordinators, over ``__consumer_offsets``."""

from moldau.cluster.internal_topics import CONSUMER_OFFSETS
from moldau.config.broker import BrokerConfig
from moldau.coordinators.groups.service import GroupService
from moldau.server.authorization import Authorizer
from moldau.server.coordinators.entry import CoordinatorEntry, entry_of
from moldau.server.handlers.groups import GroupHandlers
from moldau.server.topics.topic_creation import InternalTopic


def group_coordinators(
    config: BrokerConfig, groups: GroupService, authorizer: Authorizer
) -> CoordinatorEntry:
    """The kind with the classic group protocol and committed offsets."""
    return entry_of(groups.runtime, offsets_topic(config), GroupHandlers(groups, authorizer).table())


def offsets_topic(config: BrokerConfig) -> InternalTopic:
    """The properties of ``__consumer_offsets`` at its creation."""
    return InternalTopic.of(
        CONSUMER_OFFSETS,
        config.integer("offsets.topic.num.partitions"),
        config.integer(CONSUMER_OFFSETS.factor_key),
        {
            "compression.type": "producer",
            "segment.bytes": str(config.integer("offsets.topic.segment.bytes")),
        },
    )
