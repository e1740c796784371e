"""One call to a diskless coordinator. It is declared once, both for the callers and for the broker that
handles the call."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar
from uuid import UUID

from moldau.coordinators.diskless.calls.epochs import NamedEpochs, no_epochs
from moldau.coordinators.diskless.calls.port import ServedCalls
from moldau.network.own_calls import CallDeclaration, Fields
from moldau.protocol.own.rights import Right
from moldau.protocol.schema import Message

__all__ = ["DisklessCall", "Fields"]

A = TypeVar("A")
R = TypeVar("R")


class Lane(Enum):
    """The kinds of connections from a broker to a coordinator's leader. On a connection, the responses come
    in the order of the requests."""

    SHARED = "calls"
    COMMITS = "commits"
    """The connection for commits. No request on it waits for new data, so commits get their responses
    soon."""
    WAITING = "finds"
    """The connection for requests that may wait at the coordinator. It is a separate connection for each
    coordinator."""


def _shared(arguments: object) -> Lane:
    return Lane.SHARED


def _no_topics(request: Any) -> Iterable[UUID]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DisklessCall(CallDeclaration[A, R]):
    """A call whose request names its coordinator."""

    serve: Callable[[ServedCalls, int, A], Awaitable[R]]
    """The operation of the call on a coordinator."""
    topic_ids: Callable[[Any], Iterable[UUID]] = _no_topics
    """Returns the topics that a request names, if a client needs the right READ on these topics."""
    named_epochs: NamedEpochs = no_epochs
    """Yields the epochs that the request names. The broker that handles the request refuses epochs that are
    newer than the epochs in its metadata."""
    lane: Callable[[A], Lane] = _shared
    """The connection on which a broker sends this request."""

    def __post_init__(self) -> None:
        """Raises ``ValueError`` if the call requires READ on topics, and does not name the topics."""
        if self.right is Right.READ_TOPIC and self.topic_ids is _no_topics:
            raise ValueError(f"{self.request.__name__} requires READ on topics: define its topic_ids=")

    def ask(self, coordinator_id: int, arguments: A, version: int, timeout_ms: int) -> Message:
        """Build the request. Raises UNSUPPORTED_VERSION."""
        return self.request_of(arguments, version, coordinator_id=coordinator_id, timeout_ms=timeout_ms)

    async def answer(
        self, coordinators: ServedCalls, request: Any, version: int, waited_ms: float
    ) -> Message:
        """Handle a request as :meth:`answer_by` does."""

        def serve(arguments: A) -> Awaitable[R]:
            return self.serve(coordinators, request.coordinator_id, arguments)

        return await self.answer_by(serve, request, version, waited_ms)
