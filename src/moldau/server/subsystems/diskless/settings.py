"""Converts the keys ``diskless.*`` to the settings of the diskless packages."""

from dataclasses import replace
from typing import Final

from moldau.cluster.internal_topics import DISKLESS_METADATA, InternalTopic
from moldau.config.broker import BrokerConfig
from moldau.coordinators.diskless.state.file_memory import CoordinatorTimes
from moldau.diskless.cache.cacher import CacherSettings
from moldau.diskless.settings import DisklessSettings
from moldau.diskless.writing.writer import WriterSettings
from moldau.objects import StorageSettings
from moldau.objects.factory import OWNER_OPTION
from moldau.storage.log.config import LogConfig
from moldau.tiered.consolidation.engine import DEFAULT_UNIT_BYTES, EngineSettings
from moldau.tiered.consolidation.plan import SegmentRules

OPTION_PREFIX: Final = "diskless.storage."
_FREE_PUTS_PER_SECOND: Final = 100.0
"""The limit for PUT requests per second if the store does not bill requests. The limit is high. So, when a
producer sends records after a pause, the upload can begin at once and does not wait for the commit
interval."""


def is_enabled(config: BrokerConfig) -> bool:
    """Whether this broker can host diskless topics."""
    return config.flag("diskless.system.enable")


def has_foreign_coordinator(config: BrokerConfig) -> bool:
    """Whether the batch coordinator is a plug-in, and not the built-in one."""
    return config.optional_text("diskless.batch.coordinator.class.name") is not None


def manager_settings(config: BrokerConfig) -> DisklessSettings:
    """Raises ``ValueError`` when the configuration names no object store."""
    url = config.optional_text("diskless.storage.url")
    if url is None:
        raise ValueError("diskless.storage.url: diskless.system.enable=true needs an object store")
    options = dict(config.passed_on(OPTION_PREFIX))
    if url.startswith("file:"):
        options[OWNER_OPTION] = f"node{config.node_id}-"
    return DisklessSettings(
        storage=StorageSettings(url, config.optional_text("diskless.storage.class.name"), options),
        writer=writer_settings(config),
        cacher=CacherSettings(
            cache_max_bytes=config.integer("diskless.cache.max.bytes"),
            unread_ms=config.integer("diskless.cache.unread.ms"),
        ),
        spilled_objects_bytes=config.integer("diskless.cache.spilled.objects.max.bytes"),
        retention_initial_delay_ms=config.integer("log.initial.task.delay.ms"),
        retention_check_interval_ms=config.integer("log.retention.check.interval.ms"),
        file_delete_grace_ms=config.integer("diskless.coordinator.orphan.scan.grace.period.ms"),
        orphan_scan_interval_ms=config.integer("diskless.coordinator.orphan.scan.interval.ms"),
        snapshot_records=config.integer("diskless.metadata.max.new.records.between.snapshots"),
    )


def coordinator_times(config: BrokerConfig) -> CoordinatorTimes:
    """Return the time limits of the coordinators that this broker leads."""
    return CoordinatorTimes(clock_skew_ms=config.integer("diskless.coordinator.clock.skew.max.ms"))


def deletion_hold_ms(config: BrokerConfig) -> int:
    """Return the time for which no shared data are deleted after a start that truncated a log."""
    return config.integer("diskless.coordinator.orphan.scan.grace.period.ms")


def consolidation_engine(config: BrokerConfig) -> EngineSettings:
    """Return the limits for the consolidation work that runs on a broker at the same time."""
    segment_bytes = config.integer("diskless.consolidation.segment.bytes")
    return EngineSettings(unit_bytes=max(DEFAULT_UNIT_BYTES, segment_bytes))


def consolidation_rules(config: BrokerConfig, topic: LogConfig) -> SegmentRules:
    """Return the rules that determine how a topic's batches form segments."""
    return SegmentRules(
        segment_bytes=min(config.integer("diskless.consolidation.segment.bytes"), topic.segment_bytes),
        max_age_ms=min(config.integer("diskless.consolidation.max.age.ms"), topic.segment_ms),
    )


def writer_settings(config: BrokerConfig) -> WriterSettings:
    """Return the settings of the writer that may change while the node runs."""
    settings = WriterSettings(
        commit_interval_ms=config.integer("diskless.append.commit.interval.ms"),
        buffer_max_bytes=config.integer("diskless.append.buffer.max.bytes"),
    )
    puts_per_second = config.integer("diskless.append.early.close.puts.per.second")
    if puts_per_second >= 0:
        return replace(settings, puts_per_second=puts_per_second)
    url = config.optional_text("diskless.storage.url") or ""
    # The store of a plug-in may bill its requests.
    is_free = url.startswith(("file:", "memory:")) and not config.optional_text("diskless.storage.class.name")
    return replace(settings, puts_per_second=_FREE_PUTS_PER_SECOND) if is_free else settings


def metadata_topic(config: BrokerConfig) -> InternalTopic:
    """The properties of ``__diskless_metadata`` at its creation."""
    count = config.integer("diskless.metadata.topic.num.partitions")
    return InternalTopic.of(DISKLESS_METADATA, count, config.integer(DISKLESS_METADATA.factor_key))
