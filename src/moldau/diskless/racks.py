"""The racks as the diskless half of a broker uses them."""

from collections.abc import Callable
from dataclasses import dataclass

from moldau.replication.partition import PartitionKey


def _alone(key: PartitionKey, client_rack: str) -> int:
    return -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RackView:
    """The racks as of this broker's metadata; one broker without a rack by default."""

    own_rack: Callable[[], str | None] = lambda: None
    nearer_broker: Callable[[PartitionKey, str], int] = _alone
    """The broker that serves consumers of a rack (KIP-392); -1: this one."""
