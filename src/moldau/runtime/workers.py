"""Worker threads for blocking calls (fsync, SQLite, decompression of large batches)."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Workers(Protocol):
    """Runs blocking functions outside the event loop."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``function``. Returns its result, or raises its exception."""
        ...

    def apart(self, thread_count: int, name: str) -> "Workers":
        """Return a separate pool for functions that take long, so that other functions do not wait for them.

        The separate pool is closed together with this pool.
        """
        ...

    def lane(self, name: str) -> "Workers":
        """A single thread with this name. All callers that give this name share the thread. Its functions run
        one after the other.

        The thread is for functions that process the input of clients. If two such functions ran at the same
        time, they would need too much time and memory.
        """
        ...

    def close(self) -> None:
        """Wait for running functions and release the threads."""
        ...


class ThreadWorkers:
    """A thread pool with a maximum number of threads."""

    def __init__(self, thread_count: int, name: str = "moldau-worker") -> None:
        self._pool = ThreadPoolExecutor(thread_count, thread_name_prefix=name)
        self._apart: list[ThreadWorkers] = []
        self._lanes: dict[str, ThreadWorkers] = {}

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))

    def apart(self, thread_count: int, name: str) -> "ThreadWorkers":
        made = ThreadWorkers(thread_count, name)
        self._apart.append(made)
        return made

    def lane(self, name: str) -> "ThreadWorkers":
        found = self._lanes.get(name)
        if found is None:
            found = self._lanes[name] = self.apart(1, name)
        return found

    def close(self) -> None:
        for each in self._apart:
            each.close()
        self._pool.shutdown(wait=True)


class InlineWorkers:
    """Runs each function at once on the event loop. It is for tools, and for tests without concurrency."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    def apart(self, thread_count: int, name: str) -> "InlineWorkers":
        return self

    def lane(self, name: str) -> "InlineWorkers":
        return self

    def close(self) -> None:
        pass
