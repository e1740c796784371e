"""The parts of a broker that both handlers of Fetch use."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from moldau.network.authorization import Authorizer
from moldau.network.context import Buffers, RequestContext
from moldau.protocol.partitions import PartitionKey
from moldau.replication.throttling import ReplicationQuota
from moldau.replication.waiters import WaitingRoom
from moldau.server.handlers.records.fetch_rows import FetchRows
from moldau.server.metadata.current_leaders import CurrentLeaders
from moldau.server.requests.fetch_sessions import FetchScope, FetchSessions
from moldau.server.topics.registry import PartitionRegistry

FailureOf: TypeAlias = Callable[[RequestContext, BaseException], Buffers]
"""Returns the response to a request after an unexpected error."""


@dataclass(frozen=True, slots=True)
class FetchServices:
    """The partitions, the waiting requests and the sessions of a broker, and the limits of its responses."""

    partitions: PartitionRegistry
    arrivals: WaitingRoom[PartitionKey]
    sessions: FetchSessions
    authorizer: Authorizer
    fetch_max_bytes: int
    leader_quota: ReplicationQuota | None = None
    leaders: CurrentLeaders | None = None
    """Finds the leaders of partitions that other brokers lead."""

    def rows(self, scope: FetchScope, listener_name: str | None) -> FetchRows:
        """Begin a response. ``listener_name`` is None if the response names no leaders (KIP-951)."""
        return FetchRows(scope, self.leader_quota, self.arrivals.loop.time, self.leaders, listener_name)
