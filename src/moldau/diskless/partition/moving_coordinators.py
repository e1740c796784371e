"""Requests of clients that wait while a coordinator moves to another broker.

Some clients repeat a request only for a fraction of a second, for example librdkafka's queries of watermarks
and its deletions of records. A move of a coordinator may take longer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol, TypeVar

from moldau.diskless.partition.client_errors import COORDINATOR_AWAY
from moldau.runtime import ErrorCode

MOVE_TIMEOUT_S: Final = 3.0
"""Time in seconds after the first failed call of a coordinator during which requests wait for it. Later
requests fail at once. So a request for many partitions, whose parts may be answered one after the other,
waits only once, and the later responses on its connection are not delayed for longer."""
FORGOTTEN_S: Final = 10.0
"""If no call has failed for this time, the next failed call begins another absence."""

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 0.4


class CoordinatorRow(Protocol):
    """The part of a coordinator's response for one partition."""

    @property
    def error(self) -> ErrorCode: ...


R = TypeVar("R", bound=CoordinatorRow)


@dataclass(slots=True)
class _Absence:
    """Times of the first and the last failed call, in seconds of the event loop's clock."""

    first_s: float
    last_s: float


class MovingCoordinators:
    """The coordinators that are not available now."""

    def __init__(self) -> None:
        self._absences: dict[int, _Absence] = {}

    async def ask(
        self, coordinator_id: int, ask: Callable[[], Awaitable[Sequence[R]]], until_s: float | None = None
    ) -> R:
        """Return the response for the only partition of a call. While the coordinator is not available, the
        call is repeated, but not after ``until_s`` (in seconds of the event loop's clock). At the end of the
        wait, the response has the coordinator's error."""
        now, until_s, pause_s = asyncio.get_running_loop().time, inf if until_s is None else until_s, 0.0
        while True:
            (row,) = await ask()
            if row.error not in COORDINATOR_AWAY:
                self._absences.pop(coordinator_id, None)
                return row
            pause_s = min(max(_FIRST_PAUSE_S, 2 * pause_s), _LONGEST_PAUSE_S)
            if now() + pause_s > min(until_s, self._note_absence(coordinator_id, now()) + MOVE_TIMEOUT_S):
                return row
            await asyncio.sleep(pause_s)

    def _note_absence(self, coordinator_id: int, now_s: float) -> float:
        """Note a failed call. Returns the time when the absence began."""
        absence = self._absences.get(coordinator_id)
        if absence is None or now_s - absence.last_s > FORGOTTEN_S:
            absence = self._absences[coordinator_id] = _Absence(now_s, now_s)
        absence.last_s = now_s
        return absence.first_s
