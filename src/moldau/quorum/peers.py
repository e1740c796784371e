"""Limits the requests to each peer. There is at most one request in flight per peer. Each request has a
time-out, and after a failed request there is a pause."""

from dataclasses import dataclass

from moldau.quorum.core.messages import Request
from moldau.quorum.settings import RaftSettings


@dataclass(frozen=True, slots=True)
class InFlight:
    correlation_id: int
    node_id: int
    request: Request
    deadline_ms: int


class Peers:
    """Requests in flight to each peer.

    When the role changes, all requests in flight are forgotten. If an answer to a request of the former role
    arrives later, it is ignored. The new role may send requests immediately.
    """

    def __init__(self, settings: RaftSettings) -> None:
        self._settings = settings
        self._next_correlation_id = 0
        self._in_flight: dict[int, InFlight] = {}
        self._by_node: dict[int, InFlight] = {}
        self._retry_at_ms: dict[int, int] = {}

    def is_ready(self, node_id: int, now_ms: int) -> bool:
        pending = self._by_node.get(node_id)
        if pending is not None:
            if now_ms < pending.deadline_ms:
                return False
            self._forget(pending)
        return now_ms >= self._retry_at_ms.get(node_id, now_ms)

    def sent(self, node_id: int, request: Request, now_ms: int, wait_ms: int = 0) -> int:
        """Record that a request was sent. ``wait_ms`` is the time for which the peer may delay its answer, in
        addition to the usual time-out. Returns the correlation id of the request."""
        self._next_correlation_id += 1
        deadline_ms = now_ms + self._settings.request_timeout_ms + wait_ms
        pending = InFlight(self._next_correlation_id, node_id, request, deadline_ms)
        self._in_flight[pending.correlation_id] = self._by_node[node_id] = pending
        return pending.correlation_id

    def answered(self, correlation_id: int) -> InFlight | None:
        pending = self._in_flight.get(correlation_id)
        if pending is not None:
            self._forget(pending)
        return pending

    def back_off(self, node_id: int, now_ms: int) -> None:
        self._retry_at_ms[node_id] = now_ms + self._settings.retry_backoff_ms

    def forget_all(self) -> None:
        self._in_flight.clear()
        self._by_node.clear()
        self._retry_at_ms.clear()

    def next_ready_ms(self, node_id: int, now_ms: int) -> int:
        """Return the earliest time of the next request to the peer, if the peer does not answer the request
        in flight."""
        pending = self._by_node.get(node_id)
        retry_at_ms = self._retry_at_ms.get(node_id, now_ms)
        return retry_at_ms if pending is None else max(retry_at_ms, pending.deadline_ms)

    def _forget(self, pending: InFlight) -> None:
        self._in_flight.pop(pending.correlation_id, None)
        self._by_node.pop(pending.node_id, None)
