"""An asyncio event loop in virtual time. It jumps to the next timer, and a seed always produces the same
order of events.

Callbacks of a process run in the order in which they were scheduled, as asyncio guarantees. If several
processes are ready at the same moment, the seed chooses one, as the operating system would. An iteration of
the event loop takes one virtual microsecond. Therefore time also passes when a program polls.
"""

import asyncio
import contextlib
import contextvars
import heapq
import zlib
from collections.abc import Callable, Coroutine, Generator, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from moldau.simulation.seeds import stream
from moldau.simulation.world.handles import SimulatedFuture, SimulatedHandle, SimulatedTask, SimulatedTimer
from moldau.simulation.world.process import PROCESS, Process

if TYPE_CHECKING:
    from moldau.simulation.world.network import Network

T = TypeVar("T")

TURN_COST_S = 1e-6
START_TIME_S = 1_000.0
_TIMERS_PRUNE_MIN = 400
_PENDING_SHOWN_MAX = 20
_CLOSES_MAX = 1_000


class SimulationError(Exception):
    """An error of the simulation itself, which therefore cannot continue."""


class DeadlockError(SimulationError):
    """No callback is ready and no timer is set, while a task is waiting."""


class LimitError(SimulationError):
    """The run exceeded its limit of virtual time or its number of steps."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """The event loop of a world. It passes network calls to ``network``, which the world sets."""

    network: "Network"
    _closed: bool
    _stopping: bool

    def __init__(self, seed: int, *, time_limit_s: float = 3_600.0, step_limit: int = 20_000_000) -> None:
        super().__init__()
        self.processes: list[Process] = []
        self.world_process = self.new_process("world")
        self.steps = 0
        self.digest = 0
        self.errors: list[dict[str, Any]] = []
        self._now_s = START_TIME_S
        self._time_limit_s = START_TIME_S + time_limit_s
        self._step_limit = step_limit
        self._random = stream(seed, "loop").random
        self._runnable: list[Process] = []
        self._timers: list[tuple[float, int, SimulatedTimer]] = []
        self._timers_prune_at = _TIMERS_PRUNE_MIN
        self._sequence = 0
        self.set_exception_handler(SimulatedLoop._keep_error)

    # Time ------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now_s

    get_debug = staticmethod(bool)
    """Return false, because debug mode is always off. Every future calls this method. For speed, the method
    is the builtin ``bool`` and not a Python function."""

    def trace(self, event: bytes) -> None:
        """Add an event to the digest of this run's history."""
        self.digest = zlib.crc32(event, self.digest)

    def _refuse_when_closed(self) -> None:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")

    # Scheduling ------------------------------------------------------------------------------

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self._closed:
            self._refuse_when_closed()
        if context is None:
            context = contextvars.copy_context()
        process = context.get(PROCESS) or self.world_process
        handle = SimulatedHandle(callback, args, context)
        if not process.alive:
            handle.cancel()
            return handle
        ready = process.ready
        if not ready and not process.paused:
            self._runnable.append(process)
        ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self._call_at(self._now_s + delay, callback, args, context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self._call_at(when, callback, args, context)

    def _call_at(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> asyncio.TimerHandle:
        if self._closed:
            self._refuse_when_closed()
        if context is None:
            context = contextvars.copy_context()
        process = context.get(PROCESS) or self.world_process
        timer = SimulatedTimer(when, callback, args, context, process)
        if not process.alive:
            timer.cancel()
            return timer
        self._sequence += 1
        timers = self._timers
        heappush(timers, (when, self._sequence, timer))
        if len(timers) > self._timers_prune_at:
            self._prune_timers()
        return timer

    def _prune_timers(self) -> None:
        """Remove timers that were cancelled or whose process has ended. The order of the others stays."""
        timers = self._timers
        timers[:] = [timer for timer in timers if not timer[2]._cancelled and timer[2]._process.alive]
        heapq.heapify(timers)
        self._timers_prune_at = max(_TIMERS_PRUNE_MIN, 2 * len(timers))

    def create_future(self) -> asyncio.Future[Any]:
        self._sequence += 1
        future: SimulatedFuture[Any] = SimulatedFuture(loop=self)
        future.order = self._sequence
        return future

    def create_task(  # type: ignore[override]
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **_options: Any,
    ) -> asyncio.Task[T]:
        if self._closed:
            self._refuse_when_closed()
        process = (PROCESS.get(None) if context is None else context.get(PROCESS)) or self.world_process
        self._sequence += 1
        name = name or f"{process.name}/{self._sequence}"
        task: SimulatedTask[T] = SimulatedTask(self._sequence, coro, loop=self, name=name, context=context)
        process.adopt(task)
        return task

    # One turn of the loop ----------------------------------------------------------------------

    def _run_once(self) -> None:
        """Run turns until the loop is asked to stop."""
        runnable, timers, choose = self._runnable, self._timers, self._random
        time_limit_s, step_limit = self._time_limit_s, self._step_limit
        while True:
            if not runnable:
                self._jump()
            now_s = self._now_s = self._now_s + TURN_COST_S
            while timers and timers[0][0] <= now_s:
                self._enqueue_timer(heappop(timers)[2])
            self.steps += 1
            if self.steps > step_limit or now_s > time_limit_s:
                raise LimitError(
                    f"no end after {self.steps} steps and {self.elapsed_s():.3f} s; {self.pending()}"
                )
            waiting = len(runnable[0].ready) if len(runnable) == 1 else sum([len(p.ready) for p in runnable])
            for _ in range(waiting):
                count = len(runnable)
                if count > 1:
                    index = int(choose() * count)
                elif count:
                    index = 0
                else:
                    break  # in this turn, a kill or a pause has removed the other processes
                process = runnable[index]
                ready = process.ready
                handle = ready.popleft()
                if not ready:
                    runnable[index] = runnable[-1]
                    runnable.pop()
                if not handle._cancelled:
                    try:
                        handle._context.run(handle._callback, *handle._args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        self._report(handle, error)
            if self._stopping:
                return

    def _report(self, handle: "SimulatedHandle | SimulatedTimer", error: BaseException) -> None:
        """Pass on the exception of a callback, as asyncio does."""
        self.call_exception_handler(
            {"message": f"Exception in callback {handle._callback!r}", "exception": error, "handle": handle}
        )

    def _jump(self) -> None:
        """Advance the time to the next active timer."""
        timers = self._timers
        while timers:
            when, _, timer = timers[0]
            if not timer._cancelled and timer._process.alive:
                if when > self._now_s:
                    self._now_s = when
                return
            heappop(timers)
        if not self._stopping:
            raise DeadlockError(f"nothing is ready and no timer is set; {self.pending()}")

    def _enqueue_timer(self, timer: SimulatedTimer) -> None:
        """Make the callback of a timer ready, unless the timer was cancelled or its process has ended."""
        process = timer._process
        if not timer._cancelled and process.alive:
            if not process.ready and not process.paused:
                self._runnable.append(process)
            process.ready.append(timer)

    def elapsed_s(self) -> float:
        """Virtual seconds since the world began."""
        return self._now_s - START_TIME_S

    def pending(self) -> str:
        """Return the tasks that have not finished, for error messages."""
        tasks = [task for process in self.processes if process.alive for task in process.pending_tasks()]
        shown = "; ".join(f"{task.get_name()} at {_position(task)}" for task in tasks[:_PENDING_SHOWN_MAX])
        return f"{len(tasks)} pending tasks: {shown}"

    # Processes -------------------------------------------------------------------------------

    def new_process(self, name: str, host: Any = None) -> Process:
        """Make a process. It has no callbacks yet."""
        process = Process(name, host)
        self.processes.append(process)
        return process

    def pause(self, process: Process) -> None:
        """SIGSTOP: callbacks and timers wait until the process continues."""
        if process.alive and not process.paused:
            process.paused = True
            if process in self._runnable:
                self._runnable.remove(process)

    def resume(self, process: Process) -> None:
        """SIGCONT: callbacks and timers of the process run again."""
        if process.alive and process.paused:
            process.paused = False
            if process.ready:
                self._runnable.append(process)

    def kill(self, process: Process) -> None:
        """SIGKILL: no code of this process runs any more, not even a ``finally`` block."""
        if not process.alive:
            return
        process.alive = False
        process.tasks = process.pending_tasks()
        process.ready.clear()
        if process in self._runnable:
            self._runnable.remove(process)
        for callback in process.on_exit:
            callback()

    # Failures ----------------------------------------------------------------------------------

    @staticmethod
    def _keep_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        assert isinstance(loop, SimulatedLoop)
        loop.errors.append(context)

    def dispose(self) -> None:
        """End the world: drop every task. This has no effect that a program could see."""
        errors = list(self.errors)
        for process in self.processes:
            self.kill(process)
        self._timers.clear()
        for task in [task for process in self.processes for task in process.pending_tasks()]:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _close_quietly(task.get_coro())
        self.errors = errors
        self.close()

    # Features that a simulated world lacks -----------------------------------------------------

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> NoReturn:  # type: ignore[override]
        raise SimulationError("no threads here: blocking work goes through moldau.runtime.Workers")

    def _process_events(self, event_list: Any) -> None:
        raise SimulationError("no selector here")

    def _write_to_self(self) -> None:
        pass

    async def getaddrinfo(self, host: Any, port: Any, **_options: Any) -> list[Any]:
        return self.network.addresses(host, port)

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        return await self.network.listen(protocol_factory, host, port, **options)

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        return await self.network.connect(protocol_factory, host, port, **options)


def _position(task: "asyncio.Task[Any]") -> str:
    frames: Sequence[Any] = task.get_stack(limit=1)
    if not frames:
        return repr(task.get_coro())
    frame = frames[-1]
    return f"{frame.f_code.co_qualname}:{frame.f_lineno}"


def _close_quietly(coroutine: Any) -> None:
    """Close a coroutine and the coroutines that it awaits, beginning with the innermost. Their ``finally``
    blocks may await repeatedly.

    If only the outermost coroutine were closed, the garbage collector would close the inner coroutines and
    log warnings.
    """
    for _ in range(_CLOSES_MAX):
        innermost = coroutine
        while _suspended(awaited := getattr(innermost, "cr_await", None)):
            innermost = awaited
        if not _suspended(innermost):
            return
        with contextlib.suppress(BaseException):  # a finally block may use the ended world
            innermost.close()


def _suspended(coroutine: Any) -> bool:
    return getattr(coroutine, "cr_frame", None) is not None


def current_process(loop: SimulatedLoop) -> Process:
    """The process that owns the running callback."""
    return PROCESS.get(None) or loop.world_process
