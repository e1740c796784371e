"""The broker configs of groups, with Kafka's defaults, and the properties of ``__consumer_offsets``."""

from dataclasses import dataclass

from moldau.cluster.internal_topics import CONSUMER_OFFSETS, InternalTopic
from moldau.config.broker import BrokerConfig
from moldau.records.compression import Compression


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings of groups. Each field names its Kafka config."""

    min_session_timeout_ms: int = 6_000
    """``group.min.session.timeout.ms``"""
    max_session_timeout_ms: int = 1_800_000
    """``group.max.session.timeout.ms``"""
    initial_rebalance_delay_ms: int = 3_000
    """``group.initial.rebalance.delay.ms``"""
    max_size: int = 2**31 - 1
    """``group.max.size``"""
    new_member_join_timeout_ms: int = 300_000
    """Maximum time for which the first join of a new member may wait for its response. After the response,
    the member's session timeout applies (KIP-394)."""
    offset_metadata_max_bytes: int = 4_096
    """``offset.metadata.max.bytes``"""
    offsets_retention_ms: int = 10_080 * 60_000
    """``offsets.retention.minutes``"""
    offsets_retention_check_interval_ms: int = 600_000
    """``offsets.retention.check.interval.ms``"""
    offsets_topic_partitions: int = 50
    """``offsets.topic.num.partitions``"""
    offsets_compression: Compression = Compression.NONE
    """``offsets.topic.compression.codec``"""
    offset_commit_timeout_ms: int = 5_000
    """``offsets.commit.timeout.ms``"""
    metadata_max_bytes: int = 64 * 1024 * 1024
    """Maximum size of the members' metadata, added up over all groups of a node. A member with a small amount
    of metadata is accepted even above this limit."""
    small_metadata_bytes: int = 4_096
    max_write_bytes: int = 1_048_588
    """Maximum size of the records that one request writes. They must fit in one batch of the offsets
    topic."""


def group_settings(config: BrokerConfig) -> GroupSettings:
    """Settings of consumer groups."""
    return GroupSettings(
        min_session_timeout_ms=config.integer("group.min.session.timeout.ms"),
        max_session_timeout_ms=config.integer("group.max.session.timeout.ms"),
        initial_rebalance_delay_ms=config.integer("group.initial.rebalance.delay.ms"),
        max_size=config.integer("group.max.size"),
        offset_metadata_max_bytes=config.integer("offset.metadata.max.bytes"),
        offsets_retention_ms=config.integer("offsets.retention.minutes") * 60_000,
        offsets_retention_check_interval_ms=config.integer("offsets.retention.check.interval.ms"),
        offsets_topic_partitions=config.integer("offsets.topic.num.partitions"),
        offsets_compression=Compression.of_id(config.integer("offsets.topic.compression.codec")),
        offset_commit_timeout_ms=config.integer("offsets.commit.timeout.ms"),
        max_write_bytes=config.integer("message.max.bytes"),
    )


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
