"""The interface by which subsystems throttle the senders of requests (KIP-219).

The dispatcher follows this contract. A throttle is called once for each request of its APIs, after the
handler has returned. By then the request has taken effect, or waits to take effect. Each throttle returns a
pause, and the connection is not read during the longest of these pauses. The response contains the remaining
time as ``throttle_time_ms``. Therefore a client that waits for the response loses no time. The dispatcher
calls throttles for most requests. A direct handler, which encodes its responses itself, calls them for its
own requests. If an API has no throttle, its requests take no additional time.

Client quotas are not implemented. The only throttle of producers is the back-pressure of diskless topics
(``server/subsystems/diskless/``).
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias, TypeVar

from moldau.network.context import RequestContext
from moldau.protocol.schema import Message

M = TypeVar("M", bound=Message)

Throttle: TypeAlias = Callable[[RequestContext, bool], float]
"""Returns the time in seconds during which the sender's connection is not read. The time 0 means that there
is no throttle.

The second argument is true while the response waits for an upload, for replicas or for records.
"""
Hold: TypeAlias = Callable[[RequestContext, bool], float]
"""Calls all throttles of an API and pauses the connection. Returns the end of the pause in seconds of the
event loop's clock, or 0."""


class Throttles:
    """The throttles of all subsystems, by API key. They are added before the first request is dispatched."""

    def __init__(self) -> None:
        self._throttles: dict[int, list[Throttle]] = {}

    def add(self, throttles: Mapping[int, Throttle]) -> None:
        """Add the throttles of another subsystem. An API may have several throttles."""
        for api_key, throttle in throttles.items():
            self._throttles.setdefault(api_key, []).append(throttle)

    def of(self, api_key: int) -> Hold | None:
        """Return the function that applies all throttles of an API to a request. It is None if the API has no
        throttle."""
        throttles = tuple(self._throttles.get(api_key, ()))
        if not throttles:
            return None

        def hold(context: RequestContext, waits: bool) -> float:
            control = context.connection.control
            if control is None:
                return 0.0
            pause_s = max(throttle(context, waits) for throttle in throttles)
            if pause_s <= 0:
                return 0.0
            control.mute(pause_s)
            return asyncio.get_running_loop().time() + pause_s

        return hold


def rest_ms(until_s: float, now_s: float) -> int:
    """Compute the ``throttle_time_ms`` of a response. The arguments are in seconds of the event loop's clock;
    ``until_s`` is 0 without a throttle."""
    return max(0, round((until_s - now_s) * 1000)) if until_s else 0


def with_throttle_time(answer: M, throttle_time_ms: int) -> M:
    """The response with the throttle time set. It is unchanged when the time is 0 or the response has no
    field for the time."""
    if not throttle_time_ms or "throttle_time_ms" not in type(answer).__dataclass_fields__:
        return answer
    return replace(answer, throttle_time_ms=throttle_time_ms)
