"""Partitions of ``__diskless_metadata`` on this broker: the logs of the diskless coordinators."""

from collections.abc import Callable
from typing import Final

from moldau.server.subsystems.partitions.classic_kind import ClassicKind, ReplicaHost
from moldau.storage.log.config import LogConfig

METADATA_LOG_CONFIG: Final = LogConfig(
    segment_bytes=64 * 1024**2,
    retention_ms=-1,
    retention_bytes=-1,
    cleanup_delete=False,
    max_message_bytes=2**31 - 1,
)
"""Its start is moved by snapshots alone."""


def diskless_metadata_kind(host: ReplicaHost, min_in_sync: Callable[[], int]) -> ClassicKind:
    """Classic partitions whose records count once they are synced, and whose start is moved by snapshots.

    ``min_in_sync``: the topic's ``min.insync.replicas``.
    """
    return ClassicKind(
        host,
        lambda _: METADATA_LOG_CONFIG,
        lambda _: min_in_sync(),
        has_snapshots=True,
    )
