"""Describes an API that a listener serves: its handler, and rules for large requests and responses."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from moldau.network.context import RequestContext
from moldau.protocol.own.rights import Right
from moldau.protocol.rows import Cut
from moldau.protocol.schema import Message

HandlerResult: TypeAlias = "Message | Awaitable[Message | None] | None"
Handler: TypeAlias = Callable[[RequestContext, Any], HandlerResult]
"""A plain function, or a :class:`Served` if the API does not use the default limits."""
HandlerTable: TypeAlias = Mapping[int, Handler]


@dataclass(frozen=True, slots=True)
class Served:
    """A handler of an API, with the rules for its requests and responses. It can be called like the plain
    handler.

    A large request would block the event loop. Most requests contain an array of items, for example
    partitions. If the items of this array are handled independently, large requests are answered in slices of
    the array. ``cuts`` names the arrays whose items are independent. An API that answers a request only as a
    whole has a memory limit instead.
    """

    handle: Handler
    cuts: tuple[Cut, ...] = ()
    """The arrays that are divided into slices. Each version of the API has one of these arrays. ``cuts`` is
    empty if a request is answered as a whole."""
    parsed_bytes_max: int | None = None
    """Maximum memory of a parsed request; ``None`` means the common limit (``large_requests.py``)."""
    long_answers: tuple[tuple[str, ...], ...] = ()
    """Arrays of the response that may have many more items than the request. Each of them is a path of field
    names."""

    is_usually_large: bool = False
    """Whether large requests are usual for the API. The cost of such a request grows with its records and not
    with its partitions. Several such requests may be handled before another connection is served.
    """
    right: Right | None = None
    """The right that the handler checks. Each of our own APIs declares such a right. It is ``None`` for
    Kafka's APIs."""

    def __call__(self, context: RequestContext, request: Any) -> HandlerResult:
        return self.handle(context, request)


def served(handler: Handler) -> Served:
    """Return the :class:`Served` of a handler. For a plain function, the result has the default rules."""
    return handler if isinstance(handler, Served) else Served(handler)
