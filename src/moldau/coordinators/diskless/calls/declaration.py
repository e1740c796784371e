"""One call to a diskless coordinator, declared once for the callers and for the broker that answers."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from moldau.coordinators.diskless.calls.port import DisklessCoordinatorCalls
from moldau.network.own_calls import CallDeclaration, Fields
from moldau.protocol.schema import Message

__all__ = ["DisklessCall", "Fields"]

A = TypeVar("A")
R = TypeVar("R")


def _no_topics(request: Any) -> Iterable[UUID]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DisklessCall(CallDeclaration[A, R]):
    """A call whose request names its coordinator."""

    serve: Callable[[DisklessCoordinatorCalls, int, A], Awaitable[R]]
    """The operation of the call on a coordinator."""
    topic_ids: Callable[[Any], Iterable[UUID]] = _no_topics
    """The topics that a request names, for calls that require READ on them."""

    def ask(self, coordinator_id: int, arguments: A, version: int, timeout_ms: int) -> Message:
        """Build the request. Raises UNSUPPORTED_VERSION."""
        return self.request_of(arguments, version, coordinator_id=coordinator_id, timeout_ms=timeout_ms)

    async def answer(
        self, coordinators: DisklessCoordinatorCalls, request: Any, version: int, waited_ms: float
    ) -> Message:
        """Answer a request as :meth:`answer_by` does."""

        def serve(arguments: A) -> Awaitable[R]:
            return self.serve(coordinators, request.coordinator_id, arguments)

        return await self.answer_by(serve, request, version, waited_ms)
