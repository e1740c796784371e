"""A process of the simulation. It owns every callback, timer and task that its program schedules."""

import asyncio
import contextvars
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

PROCESS: contextvars.ContextVar["Process"] = contextvars.ContextVar("moldau_simulated_process")
"""The process to which the running callback belongs. Each handle and each task has it in its context."""

_TASKS_PRUNE_MIN = 256
_SIMULATION = "moldau/simulation/"


class Process:
    """A process of a program on a host.

    A killed process keeps strong references to its unfinished tasks. Otherwise these tasks would be collected
    and their ``finally`` blocks would run. After a real SIGKILL they do not run.
    """

    __slots__ = (
        "_prune_at",
        "alive",
        "exhibit",
        "host",
        "loop_syncs",
        "main",
        "name",
        "on_exit",
        "paused",
        "ready",
        "serves",
        "synced",
        "tasks",
        "working",
    )

    def __init__(self, name: str, host: Any = None) -> None:
        self.name = name
        self.host = host
        self.exhibit: Any = None
        """An object of the program, for example the node. The checks of the scenario examine it."""
        self.alive = True
        self.main: asyncio.Task[Any] | None = None
        self.paused = False
        self.ready: deque[Any] = deque()
        """The handles of callbacks that are ready."""
        self.tasks: list[asyncio.Task[Any]] = []
        self.on_exit: list[Callable[[], None]] = []
        self.serves = False
        """Whether the process serves clients on its event loop. While it serves clients, only workers may
        wait for a disk."""
        self.working = 0
        """Number of simulated worker threads that are running a job at this moment. It is 0 while code of the
        event loop runs."""
        self.loop_syncs: list[str] = []
        """Descriptions of syncs that blocked the event loop while the process served clients."""
        self.synced: list[str] = []
        """The paths that the running job of a worker thread has synced."""
        self._prune_at = _TASKS_PRUNE_MIN

    def context(self) -> contextvars.Context:
        """Return a new context in which everything belongs to this process."""
        context = contextvars.Context()
        context.run(PROCESS.set, self)
        return context

    def adopt(self, task: "asyncio.Task[Any]") -> None:
        """Keep a reference to a task until the task has finished."""
        self.tasks.append(task)
        if len(self.tasks) >= self._prune_at:
            self.tasks = self.pending_tasks()
            self._prune_at = max(_TASKS_PRUNE_MIN, 2 * len(self.tasks))

    def note_sync(self, path: str) -> None:
        """Called at the beginning of a sync. If the process serves clients and this code does not run in a
        worker thread, record a violation."""
        if self.working:
            self.synced.append(path)
        elif self.serves:
            calls = [call.name for call in traceback.extract_stack() if _SIMULATION not in call.filename]
            self.loop_syncs.append(f"{self.name}: sync of {path} on the loop, in {' > '.join(calls[-8:])}")

    def pending_tasks(self) -> "list[asyncio.Task[Any]]":
        return [task for task in self.tasks if not task.done()]

    def __repr__(self) -> str:
        return f"<Process {self.name} {'alive' if self.alive else 'dead'}>"


def serving() -> None:
    """Declare that the calling program serves clients from now on; see :attr:`Process.serves`."""
    PROCESS.get().serves = True
