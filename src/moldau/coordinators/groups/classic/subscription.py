"""Parser of consumer subscriptions: the topics of the members. Pure."""

import struct
from collections.abc import Iterable


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """All topics of ``ConsumerProtocolSubscription`` blobs; ``None`` when one is unreadable.

    Only the fields of version 0 are read, with which every later version begins.
    """
    topics: set[str] = set()
    try:
        for blob in subscriptions:
            topics.update(_topics(blob))
    except (struct.error, UnicodeDecodeError, ValueError):
        return None
    return frozenset(topics)


def _topics(blob: bytes) -> Iterable[str]:
    (version, count) = struct.unpack_from(">hi", blob)
    if version < 0 or count < 0:
        raise ValueError("not a subscription")
    position = 6
    for _ in range(count):
        (length,) = struct.unpack_from(">h", blob, position)
        position += 2
        name = blob[position : position + length]
        if length < 0 or len(name) != length:
            raise ValueError("a topic name is cut off")
        position += length
        yield name.decode()
