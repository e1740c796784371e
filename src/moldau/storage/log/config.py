"""The part of a topic's configuration that a partition log uses."""

from dataclasses import dataclass

from moldau.config.key_fields import from_key
from moldau.records.batch import TimestampType
from moldau.records.recompression import TargetCompression

_INT64_MAX = 2**63 - 1
_HOUR_MS = 3_600_000
_TIMESTAMP_TYPES = {"CreateTime": TimestampType.CREATE_TIME, "LogAppendTime": TimestampType.LOG_APPEND_TIME}


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Kafka's topic configs, with Kafka's defaults; -1 means unlimited.

    ``log_config`` (``server/settings.py``) makes this object. If a field is declared with ``from_key``,
    ``log_config`` needs no code for it.
    """

    segment_bytes: int = from_key("segment.bytes", 1024**3)
    segment_ms: int = from_key("segment.ms", 7 * 24 * _HOUR_MS)
    segment_jitter_ms: int = from_key("segment.jitter.ms", 0)
    segment_index_bytes: int = from_key("segment.index.bytes", 10 * 1024**2)
    index_interval_bytes: int = from_key("index.interval.bytes", 4096)
    retention_bytes: int = from_key("retention.bytes", -1)
    retention_ms: int = from_key("retention.ms", 7 * 24 * _HOUR_MS)
    cleanup_delete: bool = from_key("cleanup.policy", True, lambda policies: "delete" in policies)
    cleanup_compact: bool = from_key("cleanup.policy", False, lambda policies: "compact" in policies)
    min_compaction_lag_ms: int = from_key("min.compaction.lag.ms", 0)
    max_compaction_lag_ms: int = from_key("max.compaction.lag.ms", _INT64_MAX)
    delete_retention_ms: int = from_key("delete.retention.ms", 24 * _HOUR_MS)
    min_cleanable_dirty_ratio: float = from_key("min.cleanable.dirty.ratio", 0.5)
    file_delete_delay_ms: int = from_key("file.delete.delay.ms", 60_000)
    flush_messages: int = from_key("flush.messages", _INT64_MAX)
    flush_ms: int = from_key("flush.ms", _INT64_MAX)
    max_message_bytes: int = from_key("max.message.bytes", 1024**2 + 12)
    compression: TargetCompression | None = None
    """The config ``compression.type`` with the level of the codec; ``None`` means the value ``producer``."""
    message_timestamp_type: TimestampType = from_key(
        "message.timestamp.type", TimestampType.CREATE_TIME, _TIMESTAMP_TYPES.__getitem__
    )
    message_timestamp_before_max_ms: int = from_key("message.timestamp.before.max.ms", _INT64_MAX)
    message_timestamp_after_max_ms: int = from_key("message.timestamp.after.max.ms", _HOUR_MS)
    producer_id_expiration_ms: int = 24 * _HOUR_MS
    remote_storage_enable: bool = False
    remote_log_copy_disable: bool = from_key("remote.log.copy.disable", False)
    chunk_roll_bytes: int = from_key("chunk.roll.bytes", -1)
    chunk_roll_ms: int = from_key("chunk.roll.ms", -1)
    local_retention_ms: int = -1
    """Local retention in ms. A configured -2 is replaced by the retention of the whole log, in this field and
    in ``local_retention_bytes``."""
    local_retention_bytes: int = -1
    is_cache: bool = False
    """Whether the log is a cache. A cache has only one leader epoch, which is in its first batch. The epoch
    is not stored in a file, so no append waits for a file of epochs."""

    @property
    def copies_to_remote(self) -> bool:
        """Whether closed segments are copied to the remote tier. If so, a segment may be removed from the
        disk only after it was copied."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def roll_ms(self) -> int:
        """``segment.ms``, or a shorter time. The time is shorter if records of a compacted topic must leave
        the active segment earlier."""
        if self.cleanup_compact and self.max_compaction_lag_ms > 0:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms
