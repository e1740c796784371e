"""Kafka's hash of keys."""

from typing import Final

__all__ = ["murmur2"]

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 hash with Kafka's seed, as an unsigned number."""
    size = len(data)
    state = (_SEED ^ size) & _MASK
    whole = size & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        state = state * _MULTIPLIER & _MASK ^ word
    if size > whole:
        state = (state ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    state = (state ^ state >> 13) * _MULTIPLIER & _MASK
    return state ^ state >> 15
