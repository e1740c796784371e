"""The events that wait for the core, and the background work that submits more events."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from moldau.quorum.core import events as ev


class EventQueue:
    """Owns the events of one driver, in order, and the driver's tasks.

    ``on_failure`` is called with the exception when background work raises an exception. The replica must
    then stop, because this work is incomplete.
    """

    def __init__(self, on_failure: Callable[[Exception], None]) -> None:
        self._on_failure = on_failure
        self._events: deque[ev.Event] = deque()
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._events)

    def submit(self, event: ev.Event) -> None:
        """Queue an event for the core."""
        self._events.append(event)
        self._wake.set()

    def submit_first(self, event: ev.Event) -> None:
        """Queue an event of the log. It is handled before all other events."""
        self._events.appendleft(event)
        self._wake.set()

    def pop(self) -> ev.Event:
        """Remove the next event from the queue and return it. There must be at least one."""
        return self._events.popleft()

    async def wait(self) -> None:
        """Wait until an event is submitted or :meth:`wake` is called. If an event was submitted since the
        last call of this method, return at once."""
        await self._wake.wait()
        self._wake.clear()

    def wake(self) -> None:
        """End :meth:`wait` without an event."""
        self._wake.set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in parallel to the driver's loop. If the work fails, this replica stops."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def cancel(self) -> "list[asyncio.Task[None]]":
        """Cancel all work. Returns the tasks, and the caller waits for them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks

    def _on_task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            error = task.exception()
            if isinstance(error, Exception):
                self._on_failure(error)
