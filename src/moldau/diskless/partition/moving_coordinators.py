"""Requests of clients that wait while a coordinator moves to another broker.

Some clients repeat a request only for a fraction of a second, for example librdkafka's queries of watermarks
and its deletions of records. A move of a coordinator may take longer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

from moldau.diskless.partition.client_errors import COORDINATOR_AWAY
from moldau.runtime import ErrorCode

MOVE_TIMEOUT_S: Final = 3.0
"""The longest wait. It is short, because later responses on the client's connection must wait, too."""

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 0.2


class CoordinatorRow(Protocol):
    """The part of a coordinator's response for one partition."""

    @property
    def error(self) -> ErrorCode: ...


R = TypeVar("R", bound=CoordinatorRow)


async def ask_moving(ask: Callable[[], Awaitable[Sequence[R]]], timeout_s: float | None = None) -> R:
    """Return the response for the only partition of a call. The call is repeated while the coordinator is not
    available, for at most ``timeout_s`` seconds (and at most :data:`MOVE_TIMEOUT_S`). After that, the
    response has the coordinator's error."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + min(MOVE_TIMEOUT_S, MOVE_TIMEOUT_S if timeout_s is None else timeout_s)
    pause_s = _FIRST_PAUSE_S
    while True:
        (row,) = await ask()
        if row.error not in COORDINATOR_AWAY or loop.time() + pause_s > until_s:
            return row
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
