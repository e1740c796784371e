"""Syncs of single files that run while the event loop continues."""

from collections.abc import Callable
from typing import Protocol

from moldau.runtime.files.disk import File
from moldau.runtime.workers import Workers


class FileSyncs(Protocol):
    """Makes written bytes of files durable. A log with few appends at a time, such as the log of a
    coordinator, waits for such a sync before it answers. Only one event loop at a time may use an object."""

    async def sync(self, file: File, then: Callable[[], None]) -> None:
        """Wait until all bytes that were written to ``file`` before this call are durable, and call ``then``.
        ``then`` does not sync. Raises ``DiskError`` if the disk fails."""
        ...

    def close(self) -> None:
        """Wait for the syncs in progress, and release the resources."""
        ...


class WorkerSyncs:
    """Syncs files on worker threads."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    async def sync(self, file: File, then: Callable[[], None]) -> None:
        await self._workers.run(_sync, file, then)

    def close(self) -> None:
        """Do nothing. The owner of the workers closes them."""


def _sync(file: File, then: Callable[[], None]) -> None:
    file.sync()
    then()
