"""Information about racks that the diskless part of a broker needs."""

from collections.abc import Callable
from dataclasses import dataclass

from moldau.diskless.reading.rack_call import RackPeers
from moldau.protocol.partitions import PartitionKey


def _alone(key: PartitionKey, client_rack: str) -> int:
    return -1


def _unshared(object_key: str, writer_id: int) -> int | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RackView:
    """The racks in this broker's metadata. The default is a single broker without a rack."""

    own_rack: Callable[[], str | None] = lambda: None
    has_peers: Callable[[], bool] = lambda: False
    """Whether other live brokers are in this broker's rack."""
    has_rack_readers: Callable[[], bool] = lambda: False
    """Whether another live broker reads whole objects for a rack. The keys of new objects must then contain
    the size of the object."""
    nearest_broker: Callable[[PartitionKey, str], int] = _alone
    """The broker that serves consumers of a rack (KIP-392); -1 for this broker."""
    reader_of: Callable[[str, int], int | None] = _unshared
    """The broker of this rack that reads a whole object. The arguments are the object's key and writer.
    ``None`` means that this broker reads the ranges that it needs."""
    peers: RackPeers | None = None
