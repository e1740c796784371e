"""Kafka's mapping of keys to partitions of a coordinator's topic."""

from functools import lru_cache
from typing import Final

SHORT_KEY: Final = 128
"""Maximum length of a key whose hash is cached. The limit keeps the memory of the cache small."""


def java_string_hash(text: str) -> int:
    """Java's ``String.hashCode``. It is computed from UTF-16 code units, and is a signed 32-bit integer."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for position in range(0, len(units), 2):
        value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def coordinator_partition(key: str, partition_count: int) -> int:
    """Return the partition that stores the state of ``key`` (a group id or a transactional id)."""
    hashed = _cached_hash(key) if len(key) <= SHORT_KEY else java_string_hash(key)
    return (hashed & 0x7FFFFFFF) % partition_count


_cached_hash = lru_cache(maxsize=1024)(java_string_hash)
