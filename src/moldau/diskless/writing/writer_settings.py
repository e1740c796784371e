"""The settings of the writer."""

from dataclasses import dataclass, field
from typing import Final

from moldau.diskless.object_keys import WAL_PREFIX
from moldau.objects import RetryPolicy

__all__ = ["WriterSettings"]

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """The settings ``diskless.append.*``, and settings that have no key. Times are in milliseconds."""

    commit_interval_ms: float = 250
    buffer_max_bytes: int = 8 * MIB
    quiet_ms: float = 5
    puts_per_second: float = 8
    """Number of PUT requests per second up to which buffers are closed early; 0 disables early closing."""
    max_uploads: int = 8
    max_buffered_bytes: int = 128 * MIB
    recent_bytes: int = 128 * MIB
    """Memory in bytes for objects whose committed batches the cacher could not append immediately."""
    prefix: str = WAL_PREFIX
    hold_ms: float = 1_000
    """If the predecessor of a batch is missing, the commit of the batch is repeated for this time (in ms)."""
    commits_in_flight: int = 8
    """Number of commits in progress at each coordinator, if the coordinator keeps their order."""
    retries: RetryPolicy = field(default=RetryPolicy(first_backoff_ms=50, max_backoff_ms=1_000))
