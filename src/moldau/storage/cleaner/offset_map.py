"""Stores the last offset of each key in the part of a log that will be compacted."""

from hashlib import blake2b

ENTRY_SIZE_BYTES = 166
"""Measured size of one entry in bytes. An entry is a digest and an offset, with their space in a dict."""

_DIGEST_SIZE_BYTES = 16


class OffsetMap:
    """Keys and offsets in limited memory.

    Keys of 16 bytes or more are stored as digests of 16 bytes, so that the memory depends only on the number
    of keys. Shorter keys are stored unchanged. They cannot be equal to a digest.
    """

    def __init__(self, memory_bytes: int) -> None:
        self.capacity = max(1, memory_bytes // ENTRY_SIZE_BYTES)
        self._offsets: dict[bytes, int] = {}
        self.latest_offset = -1
        """The map covers the log up to this offset (inclusive)."""
        self.is_full = False
        """Whether a key was refused, so that the remaining log needs another round."""

    def __len__(self) -> int:
        return len(self._offsets)

    def put(self, key: bytes, offset: int) -> bool:
        """Store the offset of a key. If there is no room for another key, stores nothing and returns
        False."""
        if len(key) >= _DIGEST_SIZE_BYTES:
            key = blake2b(key, digest_size=_DIGEST_SIZE_BYTES).digest()
        offsets = self._offsets
        if len(offsets) >= self.capacity and key not in offsets:
            self.is_full = True
            return False
        offsets[key] = offset
        self.latest_offset = offset
        return True

    def get(self, key: bytes) -> int:
        """The last offset of a key; -1 when the map does not contain the key."""
        if len(key) >= _DIGEST_SIZE_BYTES:
            key = blake2b(key, digest_size=_DIGEST_SIZE_BYTES).digest()
        return self._offsets.get(key, -1)
