"""Sends consumers of inactive chunks to the brokers that have these chunks (KIP-392).

If a consumer names its rack, the leader sends the consumer to a broker that has the chunk, but only once. If
the consumer then fetches the same chunk from the leader again, the consumer could not reach that broker, or
that broker has sent the consumer back. In this case the leader reads the records from that broker, and sends
them to the consumer. Some clients cannot follow a redirect, because they read only from replicas of the
active chunk.
"""

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Final

from crc32c import crc32c

from moldau.cluster.image.chunks import ChunkRegistration
from moldau.cluster.image.persistent_map import PersistentMap
from moldau.cluster.image.registrations import BrokerRegistration
from moldau.metrics.meters import Counter
from moldau.protocol.partitions import PartitionKey

REMEMBERED_MAX: Final = 1_000
"""Maximum number of chunks that are remembered for a connection. The oldest is forgotten first."""
_MEMORY: Final = "chunks.redirects"

RegisteredBrokers = PersistentMap[int, BrokerRegistration]
"""The brokers in the image, by id."""
ChunkKey = tuple[PartitionKey, int]
"""A chunk: its partition and its first offset."""


def by_preference(
    brokers: Sequence[int],
    place: ChunkKey,
    registered: RegisteredBrokers,
    rack: str | None,
) -> list[int]:
    """The brokers that have a chunk, in the order in which they are asked. Brokers that are not fenced come
    first, then brokers of the consumer's rack. If brokers are equal in both respects, a hash of the chunk
    decides their order, so that the reads of different chunks are spread over the brokers.
    """
    (topic_id, partition), start_offset = place
    key = f"{topic_id}-{partition}-{start_offset}-".encode()
    return sorted(
        brokers,
        key=lambda each: (
            registered[each].fenced,
            rack is None or registered[each].rack != rack,
            crc32c(key + str(each).encode()),
        ),
    )


class ChunkRedirects:
    """Chooses the broker from which a consumer reads a chunk. Pure."""

    def __init__(
        self,
        local_id: int,
        registered: Callable[[], RegisteredBrokers],
        redirects: Counter,
        min_bytes: int = 0,
    ) -> None:
        """``registered`` returns the brokers in the newest image. ``redirects`` counts the consumers that are
        sent to another broker."""
        self._redirects = redirects
        self._min_bytes = min_bytes
        self._local_id = local_id
        self._registered = registered

    def target(
        self, key: PartitionKey, chunk: ChunkRegistration, rack: str | None, memory: MutableMapping[str, Any]
    ) -> int:
        """Return the broker to which the consumer is sent; -1 if this broker responds itself.

        ``memory`` contains the chunks for which this connection was already sent to another broker.
        """
        if chunk.size_bytes < self._min_bytes:
            return -1
        registered = self._registered()
        place = key, chunk.start_offset
        active = [each for each in chunk.isr if each in registered and registered[each].is_active]
        chosen = next(iter(by_preference(active, place, registered, rack)), self._local_id)
        if chosen == self._local_id:
            return -1
        if _was_sent(memory, place):
            return -1
        self._redirects.mark()
        return chosen

    def may_send_back(self, key: PartitionKey, leader_epoch: int, memory: MutableMapping[str, Any]) -> bool:
        """Whether a consumer may be sent to the leader of an epoch. A consumer is sent there only once.
        Otherwise two brokers that do not agree about the leader could send the consumer to each other again
        and again."""
        return not _was_sent(memory, (key, -1 - leader_epoch))


def _was_sent(memory: MutableMapping[str, Any], place: ChunkKey) -> bool:
    """Whether a consumer was sent to another broker before. After this call, the result for ``place`` is
    True."""
    known: dict[ChunkKey, None] = memory.setdefault(_MEMORY, {})
    if place in known:
        return True
    known[place] = None
    if len(known) > REMEMBERED_MAX:
        del known[next(iter(known))]
    return False
