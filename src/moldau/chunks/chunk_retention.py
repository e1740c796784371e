"""The retention of a partition with inactive chunks, which removes whole chunks. Pure."""

from collections.abc import Sequence

from moldau.cluster.image.chunks import ChunkRegistration
from moldau.storage.log.config import LogConfig


def retained_start(
    chunks: Sequence[ChunkRegistration],
    config: LogConfig,
    *,
    log_start_offset: int,
    active_size_bytes: int,
    active_since_ms: int,
    now_ms: int,
) -> int:
    """The first offset that the partition keeps, by ``retention.ms`` and ``retention.bytes``.

    It is the start of the log, or the first offset after the last inactive chunk that must be removed. A
    chunk must be removed if it is too old or if the partition is too large, and if all earlier chunks must be
    removed, too. ``active_size_bytes`` is the size of the active chunk, and ``active_since_ms`` is the time
    when it began. If the records of a chunk have no timestamps, the age of the chunk is the time since the
    chunk ended.
    """
    start_offset = log_start_offset
    if not config.cleanup_delete:
        return start_offset
    kept = [chunk for chunk in chunks if chunk.end_offset >= log_start_offset]
    ends_ms = [*(chunk.start_timestamp_ms for chunk in kept[1:]), active_since_ms]
    excess_bytes = active_size_bytes + sum(chunk.size_bytes for chunk in kept) - config.retention_bytes
    for chunk, end_ms in zip(kept, ends_ms, strict=False):
        newest_ms = chunk.max_timestamp_ms if chunk.max_timestamp_ms >= 0 else end_ms
        is_old = config.retention_ms >= 0 and 0 <= newest_ms < now_ms - config.retention_ms
        is_too_many = config.retention_bytes >= 0 and excess_bytes >= chunk.size_bytes
        if not (is_old or is_too_many):
            break
        excess_bytes -= chunk.size_bytes
        start_offset = chunk.end_offset + 1
    return start_offset


def first_offset(chunks: Sequence[ChunkRegistration], start_offset: int) -> int:
    """The lowest offset that a partition can have if its active chunk begins at ``start_offset``."""
    return chunks[0].start_offset if chunks else start_offset


def has_removable(chunks: Sequence[ChunkRegistration], log_start_offset: int) -> bool:
    """Whether a chunk ends before the start of the log. The leader must report such a chunk to the
    controller."""
    return bool(chunks) and chunks[0].end_offset < log_start_offset
