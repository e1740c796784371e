"""Worker threads without real threads. A job takes effect at a later moment, and its result arrives after
that.

A ``sync`` takes effect at one moment, and its result arrives later. Bytes that are written between these two
moments are not synced, as with a real thread. A kill may happen before the effect, or between the effect and
the result.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from moldau.simulation.world.defects import DefectPlace, Defects
from moldau.simulation.world.loop import SimulatedLoop, current_process

P = ParamSpec("P")
T = TypeVar("T")

_SLOW_CHANCE = 0.03
_BRITTLE = "_write_all"
"""The job that may raise an injected exception. It writes the broker's own commits into caches."""


@dataclass(frozen=True, slots=True)
class SyncJob:
    """A job that has synced files or folders. Its times are in seconds of the event loop."""

    began_s: float
    ended_s: float
    """The time at which the result arrives. It may be in the future."""
    paths: tuple[str, ...]


class SimulatedWorkers:
    """The simulated worker threads of a process. Implements :class:`moldau.runtime.Workers`. A job may
    overtake an earlier job."""

    def __init__(
        self,
        loop: SimulatedLoop,
        chance: random.Random,
        *,
        delay_s: float = 0.001,
        defects: Defects | None = None,
        sync_jobs: list[SyncJob] | None = None,
    ) -> None:
        """Each job that syncs is added to ``sync_jobs`` when it takes effect."""
        self._loop = loop
        self._chance = chance
        self._delay_s = delay_s
        self._defects = defects
        self._sync_jobs: list[SyncJob] = [] if sync_jobs is None else sync_jobs
        self._waiting: dict[int, Callable[[], None]] = {}
        self._number = 0

    def _delay(self) -> float:
        slow = 20.0 if self._chance.random() < _SLOW_CHANCE else 1.0
        return self._chance.expovariate(1.0) * self._delay_s * slow

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        answer: asyncio.Future[T] = self._loop.create_future()
        self._number += 1
        number = self._number
        began_s = self._loop.time()

        def take_effect() -> None:
            if self._waiting.pop(number, None) is None:
                return  # the job took effect when the workers were closed
            result: Any = None
            error: BaseException | None = None
            process = current_process(self._loop)
            process.working += 1
            process.synced.clear()
            try:
                if self._defects is not None and getattr(function, "__name__", "") == _BRITTLE:
                    self._defects.meet(DefectPlace.WORKER)
                result = function(*args, **kwargs)
            except Exception as raised:
                error = raised
            finally:
                process.working -= 1
            delay_s = self._delay()
            if process.synced:
                ended_s = self._loop.time() + delay_s
                self._sync_jobs.append(SyncJob(began_s, ended_s, tuple(process.synced)))
            self._loop.call_later(delay_s, _give, answer, result, error)

        self._waiting[number] = take_effect
        self._loop.call_later(self._delay(), take_effect)
        return await answer

    def apart(self, thread_count: int, name: str) -> "SimulatedWorkers":
        return self

    def lane(self, name: str) -> "SimulatedWorkers":
        return self

    def close(self) -> None:
        for take_effect in list(self._waiting.values()):
            take_effect()


def _give(answer: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if answer.done():
        return  # the task that waits was cancelled, but the job was done
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)
