"""Handles, tasks and futures of the simulated event loop.

One run of a story creates hundreds of thousands of them, so their constructors do only the necessary
work. The handles of asyncio also keep data for its debug mode, which is never used here.
"""

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any, TypeVar

from moldau.simulation.world.process import Process

T = TypeVar("T")


class _CancellableHandle(asyncio.Handle):
    """The fields of handles and timers, and their cancellation."""

    __slots__ = ()
    _callback: Callable[..., object]
    _args: tuple[Any, ...]
    _context: contextvars.Context
    _cancelled: bool
    _repr = None
    _source_traceback = None

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = _nothing
        self._args = ()


class SimulatedHandle(_CancellableHandle):
    """A callback that is ready. The loop runs it at the current virtual time, unless its process is
    paused."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False


class SimulatedTimer(_CancellableHandle, asyncio.TimerHandle):
    """A callback that becomes ready at a certain virtual time."""

    __slots__ = ("_process",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
        process: Process,
    ) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False
        self._process = process


def _nothing() -> None:
    """The callback of a cancelled handle."""


class SimulatedTask(asyncio.Task[T]):
    """A task. Its hash is its number in the order of creation. Sets of tasks therefore have the same order in
    every run."""

    __slots__ = ("_order",)

    def __init__(self, order: int, coro: Any, **options: Any) -> None:
        self._order = order
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._order


class SimulatedFuture(asyncio.Future[T]):
    """A future. Its hash is its number in the order of creation, which :meth:`SimulatedLoop.create_future`
    sets."""

    __slots__ = ("order",)
    order: int

    def __hash__(self) -> int:
        return self.order
