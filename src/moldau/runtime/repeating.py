"""Background work that is repeated at an interval, and that continues after a failure."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.unexpected import UnexpectedErrors

logger = logging.getLogger(__name__)

_FIRST_BACKOFF_S: Final = 0.5


class Repeating:
    """Runs ``work`` every ``interval_ms``, and sooner after a failure. :meth:`nudge` runs it at once."""

    def __init__(
        self,
        name: str,
        work: Callable[[], Awaitable[None]],
        interval_ms: float,
        *,
        initial_delay_ms: float | None = None,
        unexpected: UnexpectedErrors | None = None,
    ) -> None:
        self._name = name
        self._work = work
        self._interval_s = interval_ms / 1000
        self._initial_delay_s = self._interval_s if initial_delay_ms is None else initial_delay_ms / 1000
        self._unexpected = unexpected
        self._nudged = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.failures = 0
        """Number of consecutive failures."""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    def nudge(self) -> None:
        """Run the work soon, because there is new work."""
        self._nudged.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        await self._wait(self._initial_delay_s)
        while True:
            self._nudged.clear()
            try:
                await self._work()
                self.failures = 0
            except Exception as error:
                self.failures += 1
                if self._unexpected is not None and _is_bug(error):
                    self._unexpected.report(self._name, error)
                else:
                    told = (10, 100) if _is_passing(error) else (1, 10, 100)
                    log = logger.warning if self.failures in told else logger.debug
                    log("%s failed and will be tried again: %s", self._name, error, exc_info=_is_bug(error))
            backoff_s = _FIRST_BACKOFF_S * 2 ** min(self.failures, 6)
            await self._wait(min(self._interval_s, backoff_s) if self.failures else self._interval_s)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._nudged.wait()
        except TimeoutError:
            pass


def _is_passing(error: Exception) -> bool:
    """Whether the error is usual shortly after the start of a node. Such an error is logged only if it occurs
    several times in succession.
    """
    return isinstance(error, KafkaError) and error.code is ErrorCode.coordinator_load_in_progress


def _is_bug(error: Exception) -> bool:
    """Whether the error shows a bug, so that its stack trace is logged. Errors of stores and coordinators are
    not bugs.
    """
    return isinstance(error, AssertionError | TypeError | AttributeError | LookupError)
