"""Settings of the diskless part of a broker, from its configuration."""

from dataclasses import dataclass, field

from moldau.diskless.cache.cacher import CacherSettings
from moldau.diskless.reading.cold_reads import ColdReadSettings, check_lifetimes
from moldau.diskless.writing.writer import WriterSettings
from moldau.objects import RetryPolicy, StorageSettings


@dataclass(frozen=True, slots=True)
class DisklessSettings:
    """The settings. Times are in milliseconds, and sizes are in bytes."""

    storage: StorageSettings
    writer: WriterSettings = field(default_factory=WriterSettings)
    cacher: CacherSettings = field(default_factory=CacherSettings)
    cold_reads: ColdReadSettings = field(default_factory=ColdReadSettings)
    spilled_objects_bytes: int = 0
    """Maximum bytes of objects on the disk that left the memory before the whole rack had read them."""
    retries: RetryPolicy = field(default_factory=lambda: RetryPolicy(patience_min_ms=1_000))
    retention_initial_delay_ms: int = 30_000
    retention_check_interval_ms: int = 300_000
    reclaim_interval_ms: int = 10_000
    file_delete_grace_ms: int = 3_600_000
    """Time for which an object is kept after its last batch was removed. An orphan is kept for this time
    after its upload."""
    orphan_scan_interval_ms: int = 3_600_000
    upkeep_interval_ms: int = 10_000
    snapshot_records: int = 20_000
    """Number of new records after which a coordinator takes a snapshot and removes the start of its log."""

    def check(self) -> None:
        """Raises ``ValueError`` if cached coordinates could be used longer than their objects exist."""
        check_lifetimes(
            self.cold_reads.coordinate_lifetime_ms, self.cold_reads.timeout_ms, self.file_delete_grace_ms
        )
