"""Hedged requests for stores that lose answers. A request without an answer gets a second attempt.

A lost answer looks like a slow answer. A time limit that is safe for slow answers (many seconds) would delay
every producer. Therefore an attempt that takes much longer than usual gets a second attempt in parallel, and
the first answer is used. Second attempts are safe, because requests can be repeated. All attempts after the
first are called added attempts. Their number per second is limited. A store that is slow because of its load
therefore gets only a little more load.

At most three attempts of a request run at the same time. If one more attempt is added, the oldest added
attempt is cancelled, and never the first attempt. Therefore a slow answer to the first attempt still arrives,
and its duration is included in the mean. Later requests then wait longer before a second attempt.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from moldau.objects.storage import StorageError

__all__ = ["HedgeBudget", "Patience", "hedged"]

T = TypeVar("T")

_SIDE_BY_SIDE: Final = 3
"""Maximum number of running attempts. The running attempts are the first attempt and the two latest
attempts."""
_UNKNOWN_FACTOR: Final = 2.0
_AGAIN_FACTOR: Final = 0.25
_PAUSE_MIN_S: Final = 0.01


class Patience:
    """The time to wait before an added attempt. It is computed from the mean duration of attempts and its
    deviation. TCP computes its retransmission timer in the same way."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._mean_s = -1.0
        self._deviation_s = 0.0

    def took(self, seconds: float) -> None:
        """Include the duration of a successful attempt in the mean and the deviation."""
        if self._mean_s < 0:
            self._mean_s, self._deviation_s = seconds, seconds / 2
            return
        self._deviation_s += (abs(seconds - self._mean_s) - self._deviation_s) / 4
        self._mean_s += (seconds - self._mean_s) / 8

    @property
    def seconds(self) -> float:
        """The wait before the second attempt, in seconds."""
        return self._at_least(self._least_s)

    @property
    def again_s(self) -> float:
        """The wait, in seconds, before the third attempt and each later attempt. Its minimum is lower than
        the minimum wait before the second attempt, because the answers to two attempts are probably lost.
        """
        return self._at_least(self._least_s * _AGAIN_FACTOR)

    def _at_least(self, least_s: float) -> float:
        if self._mean_s < 0:
            return self._least_s * _UNKNOWN_FACTOR
        return max(least_s, self._mean_s + 4 * self._deviation_s)


class HedgeBudget:
    """A limit on added attempts per second. After a time without added attempts, several of them are allowed
    at once (a burst).

    If several requests wait for an added attempt, the oldest request gets the next attempt. Commits follow
    the order of objects, so the oldest object without an answer delays all later objects.
    """

    def __init__(self, per_second: float = 6.0, burst: float = 12.0) -> None:
        self._per_second = per_second
        self._burst = burst
        self._tokens = burst
        self._counted_s = 0.0
        self._refused: dict[object, float] = {}
        """Requests that wait for an added attempt, with their start times."""

    def spend(self, now_s: float, request: object, begun_s: float) -> bool:
        """Use a token of the budget to add an attempt for a request that began at ``begun_s``.

        Returns False when there is no token, or when an older request waits for one. The request then waits
        for ``wait_s`` and tries again, or leaves the queue (``leave``).
        """
        earned = (now_s - self._counted_s) * self._per_second
        self._tokens, self._counted_s = min(self._burst, self._tokens + earned), now_s
        self._refused[request] = begun_s
        if self._tokens < 1.0 or min(self._refused.values()) < begun_s:
            return False
        del self._refused[request]
        self._tokens -= 1.0
        return True

    def leave(self, request: object) -> None:
        """Remove a request that ended."""
        self._refused.pop(request, None)

    def wait_s(self) -> float:
        """Return the number of seconds until the budget has a token again, after a refusal."""
        return max(_PAUSE_MIN_S, (1.0 - self._tokens) / self._per_second) if self._per_second else math.inf


async def hedged(
    attempt: Callable[[], Awaitable[T]], patience: Patience, budget: HedgeBudget, limit_s: float
) -> T:
    """The first answer to ``attempt``. While there is no answer, ``attempt`` is called again, and its calls
    run in parallel.

    Raises ``TimeoutError`` at ``limit_s`` (a time of the event loop's clock). Raises the last attempt's error
    when all attempts have failed.
    """
    return await _Hedge(attempt, patience, budget, limit_s).run()


class _Hedge(Generic[T]):
    def __init__(
        self, attempt: Callable[[], Awaitable[T]], patience: Patience, budget: HedgeBudget, limit_s: float
    ) -> None:
        self._attempt = attempt
        self._patience = patience
        self._budget = budget
        self._limit_s = limit_s
        self._begun: dict[asyncio.Future[T], float] = {}
        """Running attempts, the oldest first, with their start times."""
        self._given_up: list[asyncio.Future[T]] = []

    async def run(self) -> T:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        self._begin(begun_s)
        next_s = begun_s + self._patience.seconds
        try:
            while True:
                wait_s = min(next_s, self._limit_s) - loop.time()
                done, _ = await asyncio.wait(
                    self._begun, timeout=max(0.0, wait_s), return_when=asyncio.FIRST_COMPLETED
                )
                now = loop.time()
                if done:
                    found = self._first_success(done, now)
                    if found is not None:
                        return found.result()
                elif now >= self._limit_s:
                    raise TimeoutError
                elif now < next_s:
                    continue
                elif self._budget.spend(now, self, begun_s):
                    self._begin(now)
                    next_s = now + self._patience.again_s
                else:
                    # The request tries again as soon as the budget can have a token, and does not wait for
                    # the whole ``patience``. By then the store may work again, and every delay of the oldest
                    # object delays the commits of all later objects.
                    next_s = now + self._budget.wait_s()
        finally:
            self._budget.leave(self)
            await self._end([*self._begun, *self._given_up])

    def _begin(self, now: float) -> None:
        while len(self._begun) >= _SIDE_BY_SIDE:
            replaced = next(islice(self._begun, 1, None))
            del self._begun[replaced]
            replaced.cancel()
            self._given_up.append(replaced)
        self._begun[asyncio.ensure_future(self._attempt())] = now

    def _first_success(self, done: "set[asyncio.Future[T]]", now: float) -> "asyncio.Future[T] | None":
        """A successful result among the finished attempts. If no attempt can succeed any more, raises the
        error of the last attempt."""
        for one in [one for one in self._begun if one in done]:
            begun = self._begun.pop(one)
            error = asyncio.CancelledError() if one.cancelled() else one.exception()
            if error is None:
                self._patience.took(now - begun)
                return one
            if not self._begun or not isinstance(error, StorageError):
                raise error
        return None

    @staticmethod
    async def _end(left: "list[asyncio.Future[Any]]") -> None:
        for one in left:
            one.cancel()
        if left:
            await asyncio.gather(*left, return_exceptions=True)
