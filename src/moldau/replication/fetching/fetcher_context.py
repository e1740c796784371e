"""The settings and the ports that all fetchers of a broker share."""

from dataclasses import dataclass, field
from typing import Protocol

from moldau.network.client.node_connection import NodeAddress
from moldau.replication.fetching.fetch_session import FetchLimits
from moldau.replication.throttling import ReplicationQuota
from moldau.runtime.entropy import Entropy
from moldau.runtime.unexpected import UnexpectedErrors


class Brokers(Protocol):
    """The cluster information that a fetcher needs."""

    @property
    def local_epoch(self) -> int:
        """Epoch of this broker's registration; -1 before the registration."""
        ...

    def address(self, broker_id: int) -> NodeAddress | None:
        """The address of another broker; ``None`` while it is unknown."""
        ...

    def fetched(self, size_bytes: int) -> None:
        """Count bytes that were fetched from a leader and appended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherSettings:
    """Settings of followers, with Kafka's config names."""

    limits: FetchLimits = field(default_factory=FetchLimits)
    backoff_ms: int = 1_000
    """Longest pause after an error, in ms."""
    request_timeout_ms: int = 30_000
    fetcher_count: int = 1
    """Number of connections to one leader (``num.replica.fetchers``), without the connection for copies."""
    copy_bytes_per_second: int = 320 << 20
    """Rate of all copies of a broker together (``replica.catch.up.max.bytes.per.second``)."""


@dataclass(frozen=True, slots=True)
class FetcherContext:
    """The settings and the ports of the fetchers of one broker."""

    local_id: int
    settings: FetcherSettings
    brokers: Brokers
    entropy: Entropy
    unexpected: UnexpectedErrors
    quota: ReplicationQuota
    """Limits the bytes that followers on this broker fetch (KIP-73)."""
