"""An API that a listener serves. It has a handler, and rules for large requests and responses."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from moldau.network.context import RequestContext
from moldau.protocol.own.rights import Right
from moldau.protocol.rows import Cut
from moldau.protocol.schema import Message

Outcome: TypeAlias = "Message | Awaitable[Message | None] | None"
Handler: TypeAlias = Callable[[RequestContext, Any], Outcome]
"""A plain function, or a :class:`Served` if the API does not use the default limits."""
HandlerTable: TypeAlias = Mapping[int, Handler]


@dataclass(frozen=True, slots=True)
class Served:
    """The row of an API in a handler table. It can be called like its handler.

    A large request would block the event loop. If the rows of an API are answered independently, the API has
    ``cuts``, and its large requests are answered in slices. If an API answers a request as a whole, it has a
    memory limit.
    """

    handle: Handler
    cuts: tuple[Cut, ...] = ()
    """The arrays of rows. Each version of the API has one of these arrays."""
    parsed_bytes_max: int | None = None
    """Maximum memory of a parsed request; ``None`` means the common limit (``large_requests.py``)."""
    long_answers: tuple[tuple[str, ...], ...] = ()
    """Paths to the rows of a response. Such a response may have many more rows than its request."""

    is_usually_large: bool = False
    """Whether large requests are usual for the API. The cost of such a request grows with its records and not
    with its rows. Several of them may be handled in one turn of a connection."""
    right: Right | None = None
    """The right that the handler checks, which each of our own APIs declares; ``None`` for Kafka's APIs."""

    def __call__(self, context: RequestContext, request: Any) -> Outcome:
        return self.handle(context, request)


def served(handler: Handler) -> Served:
    """The handler-table row of a handler."""
    return handler if isinstance(handler, Served) else Served(handler)
