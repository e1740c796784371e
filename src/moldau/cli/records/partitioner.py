"""Assigns records to partitions by the Java client's rule, so that all producers agree on a key."""

from moldau.records.hashing import murmur2

__all__ = ["murmur2", "partition_of_key"]


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition of a key, given the number of partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
