"""An API that a listener serves: its handler, and how its large requests and answers are treated."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from moldau.network.context import RequestContext
from moldau.protocol.rows import Cut
from moldau.protocol.schema import Message

Outcome: TypeAlias = "Message | Awaitable[Message | None] | None"
Handler: TypeAlias = Callable[[RequestContext, Any], Outcome]
"""A plain function, or a :class:`Served` where an API needs more than the usual bounds."""
HandlerTable: TypeAlias = Mapping[int, Handler]


@dataclass(frozen=True, slots=True)
class Served:
    """The row of an API in a handler table; callable like the handler in it.

    A large request would block the event loop. One whose rows are answered independently has ``cuts``, and
    is answered in slices; one that is answered as a whole has a bound.
    """

    handle: Handler
    cuts: tuple[Cut, ...] = ()
    """The arrays of rows, of which a version of the API has one."""
    parsed_bytes_max: int | None = None
    """Maximum memory of a parsed request; ``None``: the common bound (``large_requests.py``)."""
    long_answers: tuple[tuple[str, ...], ...] = ()
    """Paths to the rows of an answer that may have many more of them than its request."""

    def __call__(self, context: RequestContext, request: Any) -> Outcome:
        return self.handle(context, request)


def served(handler: Handler) -> Served:
    """The row of a handler."""
    return handler if isinstance(handler, Served) else Served(handler)
