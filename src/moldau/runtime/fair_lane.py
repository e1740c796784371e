"""One worker thread that clients share fairly. Jobs consist of steps. The thread runs one step of one client,
then one step of the next client, and so on.

A job is a generator. Between two steps of a job the thread may run steps of other clients' jobs. Before each
step of its own, a client therefore waits for at most one step of each other client, even if the jobs of the
other clients are expensive. The jobs of one client run in order. Clients on one host with one principal form
a group, so that many connections do not give a client a larger share.

A job that needs much memory yields ``NextTurn.LARGE`` (:mod:`moldau.runtime.steps`). Only one such job
continues at a time. Other large jobs wait, and jobs that need little memory overtake them.
"""

import asyncio
import traceback
from collections import deque
from collections.abc import Hashable
from typing import Any, Final, Protocol, TypeVar

from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.steps import NextTurn, Steps
from moldau.runtime.workers import Workers

__all__ = ["ClientGoneError", "FairClient", "FairLane"]

T = TypeVar("T")


class FairClient(Protocol):
    """Two properties of a connection that partitions need: its identity for fair sharing, and its rack."""

    @property
    def closed(self) -> bool: ...

    @property
    def principal(self) -> Hashable: ...

    @property
    def peer_host(self) -> str: ...

    @property
    def rack(self) -> str | None:
        """The rack of the client; None if the rack is not known."""
        ...


class ClientGoneError(KafkaError):
    """The client has closed its connection, so the remaining steps of its job were not executed."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.network_exception, "the connection is closed")


class _LaneJob:
    __slots__ = ("answer", "is_large", "is_lasting", "steps")

    def __init__(self, steps: Steps[Any], answer: "asyncio.Future[Any]", *, is_lasting: bool) -> None:
        self.steps = steps
        self.answer = answer
        self.is_lasting = is_lasting
        self.is_large = False


class _Queue:
    """The jobs of one client."""

    __slots__ = ("client", "jobs")

    def __init__(self, client: FairClient | None) -> None:
        self.client = client
        self.jobs: deque[_LaneJob] = deque()


class FairLane:
    """Runs the jobs of clients fairly on one worker thread. Use it on one event loop."""

    def __init__(self, workers: Workers) -> None:
        """``workers`` must have exactly one thread. Otherwise steps of several jobs would run at the same
        time."""
        self._workers = workers
        self._queues: dict[FairClient | None, _Queue] = {}
        self._groups: dict[Hashable, deque[_Queue]] = {}
        self._large: _LaneJob | None = None
        self._task: asyncio.Task[None] | None = None

    def put(
        self, client: FairClient | None, steps: Steps[T], *, is_lasting: bool = False
    ) -> "asyncio.Future[T]":
        """Run a job of a client. The client ``None`` means the node itself. Returns the result of ``steps``.

        When the client closes its connection, the remaining steps of its job are cancelled
        (:class:`ClientGoneError`). A job that ``is_lasting`` is not cancelled, because other work may depend
        on it.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        queue = self._queues.get(client)
        if queue is None:
            queue = self._queues[client] = _Queue(client)
            self._groups.setdefault(_group_of(client), deque()).append(queue)
        queue.jobs.append(_LaneJob(steps, answer, is_lasting=is_lasting))
        if self._task is None:
            self._task = loop.create_task(self._run())
        return answer

    async def _run(self) -> None:
        try:
            while (queue := self._next()) is not None:
                await self._step(queue)
        finally:
            self._task = None
            self._large = None
            for queue in self._queues.values():
                for job in queue.jobs:
                    job.answer.cancel()
            self._queues.clear()
            self._groups.clear()

    def _next(self) -> _Queue | None:
        """Return the client whose step is next. The client and its group move to the ends of their queues."""
        for group, queues in self._groups.items():
            for queue in queues:
                job = queue.jobs[0]
                if not job.is_large or self._large is None or self._large is job:
                    queues.remove(queue)
                    queues.append(queue)
                    del self._groups[group]
                    self._groups[group] = queues
                    return queue
        return None

    async def _step(self, queue: _Queue) -> None:
        job = queue.jobs[0]
        gone = queue.client is not None and queue.client.closed and not job.is_lasting
        if gone or job.answer.done():
            job.steps.close()
            self._end(queue, None, ClientGoneError())
            return
        if job.is_large:
            self._large = job
        try:
            is_over, result = await self._workers.run(_advance, job.steps)
        except Exception as error:
            self._end(queue, None, error)
            return
        if is_over:
            self._end(queue, result, None)
        elif result is NextTurn.LARGE:
            job.is_large = True

    def _end(self, queue: _Queue, result: Any, error: Exception | None) -> None:
        job = queue.jobs.popleft()
        if self._large is job:
            self._large = None
        if not queue.jobs:
            del self._queues[queue.client]
            group = _group_of(queue.client)
            self._groups[group].remove(queue)
            if not self._groups[group]:
                del self._groups[group]
        if job.answer.done():
            return
        if error is None:
            job.answer.set_result(result)
        else:
            job.answer.set_exception(error)


_NODE: Final = ("",)


def _group_of(client: FairClient | None) -> Hashable:
    return _NODE if client is None else (client.principal, client.peer_host)


def _advance(steps: Steps[Any]) -> tuple[bool, Any]:
    """Run one step of a job. Returns whether it was the last step, and the job's result or the yielded
    value."""
    try:
        return False, next(steps)
    except StopIteration as done:
        return True, done.value
    except Exception as error:
        _release_locals(error)
        raise


def _release_locals(error: BaseException) -> None:
    """Clear the local variables of the frames in an error's traceback.

    The error and the future that gets the error refer to each other. Without this call, decompressed records
    of many mebibytes would stay in memory until a garbage collection. This collection may come late, because
    the collector counts objects and not bytes.
    """
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__
