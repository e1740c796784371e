"""Converts ``group.*`` and ``offsets.*`` to the settings of group coordinators."""

from moldau.cluster.internal_topics import CONSUMER_OFFSETS
from moldau.config.broker import BrokerConfig
from moldau.coordinators.groups.settings import GroupSettings
from moldau.records.compression import Compression
from moldau.server.topics.topic_creation import InternalTopic


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
