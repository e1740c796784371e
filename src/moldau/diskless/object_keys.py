"""Names of WAL objects: unique without coordination, sorted by time, spread over the store. Pure.

A name is ``wal/<shard>/<yyyymmddhh>/<time>-<broker>-<random>``, with the time in milliseconds as 12
hexadecimal digits. If brokers read whole objects for their racks, ``-<size>`` follows, with the size in
bytes as a hexadecimal number. The size is needed because a broker that reads an object for other brokers
reads the whole object. S3 limits the requests per second for each prefix, and ascending names would all use
the last prefix. With sixteen shards (a random digit) each broker uses sixteen prefixes. Within a shard, keys
are in order of time. Therefore the orphan scan lists each shard only up to the newest objects that are old
enough.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from moldau.runtime import Entropy

__all__ = ["WAL_PREFIX", "ObjectOrigin", "WalKey", "new_object_key", "parse_object_key", "wal_folders"]

WAL_PREFIX = "wal"
_SHARDS = "0123456789abcdef"


class WalKey(NamedTuple):
    """The parts of a WAL object's key."""

    created_ms: int
    broker_id: int
    size_bytes: int = -1
    """Size of the object; -1 when the key does not contain it."""


@dataclass(frozen=True, slots=True)
class ObjectOrigin:
    """The creator and the creation time of new objects, as their keys contain them."""

    broker_id: int
    now_ms: Callable[[], int]
    """Returns the creation time of an object. Coordinators compare it with the time of the cluster."""
    names_sizes: Callable[[], bool] = lambda: False
    """Returns whether the keys of new objects contain their sizes."""


def new_object_key(
    created_ms: int,
    broker_id: int,
    entropy: Entropy,
    prefix: str = WAL_PREFIX,
    size_bytes: int | None = None,
) -> str:
    """A unique key. It has 80 random bits in addition to time and broker. It also has the object's size, if
    the size is given."""
    # The low bits of a version 4 UUID are all random.
    digits = f"{entropy.uuid4().int & (1 << 60) - 1:015x}{entropy.randrange(1 << 20):05x}"
    hour = datetime.fromtimestamp(created_ms / 1000, UTC).strftime("%Y%m%d%H")
    size = "" if size_bytes is None else f"-{size_bytes:x}"
    return f"{prefix}/{digits[-1]}/{hour}/{created_ms:012x}-{broker_id}-{digits}{size}"


def parse_object_key(key: str) -> WalKey | None:
    """The parts of a WAL object's key; None if the key is not the key of a WAL object."""
    name = key.rpartition("/")[2].split("-")
    if len(name) not in (3, 4) or len(name[0]) != 12:
        return None
    try:
        return WalKey(int(name[0], 16), int(name[1]), int(name[3], 16) if len(name) == 4 else -1)
    except ValueError:
        return None


def wal_folders(prefix: str = WAL_PREFIX) -> Sequence[str]:
    """The folders that must be listed to find all WAL objects. Keys in each folder are in order of time."""
    return [f"{prefix}/{shard}/" for shard in _SHARDS]
