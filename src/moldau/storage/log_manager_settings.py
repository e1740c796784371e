"""Settings of the log manager's periodic work: intervals, and the amount of work in one step."""

from dataclasses import dataclass, field

from moldau.storage.cleaner.cleaner import CleanerSettings


@dataclass(frozen=True, slots=True)
class LogManagerSettings:
    """Kafka's broker configs of the same names, in milliseconds, and Moldau's own limits."""

    log_retention_check_interval_ms: int = 300_000
    log_retention_initial_delay_ms: int = 30_000
    log_flush_scheduler_interval_ms: int = 3_000
    log_flush_offset_checkpoint_interval_ms: int = 60_000
    replica_high_watermark_checkpoint_interval_ms: int = 5_000
    producer_id_expiration_check_interval_ms: int = 600_000
    stray_delete_delay_ms: int = -1
    """Time for which folders of partitions that are not in the metadata image are kept; -1 means forever."""
    num_recovery_threads: int = 2
    retention_segments_per_round: int = 1_000
    cleaner: CleanerSettings = field(default_factory=CleanerSettings)
