"""Removes files and folders some time after they are no longer used."""

import asyncio
import heapq
import logging

from moldau.runtime import Machine
from moldau.storage.folders.file_names import was_put_aside

logger = logging.getLogger(__name__)


class LateRemovals:
    """Removes files and folders after a delay. The object is created and used on the event loop. A worker
    removes the files."""

    def __init__(self, machine: Machine, stray_delay_ms: int = -1) -> None:
        """``stray_delay_ms`` is the time for which folders of unknown partitions are kept; -1 means
        forever."""
        self._machine = machine
        self._stray_delay_ms = stray_delay_ms
        self._waiting: list[tuple[float, str]] = []

    def add(self, path: str, delay_ms: int) -> None:
        """Remove a file, or a folder with its content, after this delay."""
        due_s = asyncio.get_running_loop().time() + delay_ms / 1000
        heapq.heappush(self._waiting, (due_s, path))

    def add_stray(self, path: str) -> None:
        """Remove a folder that a node has moved aside, after a long delay. Folders that an operator moved
        are kept.
        """
        if self._stray_delay_ms >= 0 and was_put_aside(path.rpartition("/")[2]):
            self.add(path, self._stray_delay_ms)

    async def run_due(self) -> None:
        """Remove all files and folders whose delay is over. A failure is logged."""
        now_s = asyncio.get_running_loop().time()
        while self._waiting and self._waiting[0][0] <= now_s:
            _, path = heapq.heappop(self._waiting)
            try:
                await self._machine.workers.run(self._remove, path)
            except OSError as error:
                logger.error("cannot remove %s: %s", path, error.strerror or error)

    def _remove(self, path: str) -> None:
        disk = self._machine.disk
        if disk.is_dir(path):
            disk.remove_tree(path)
        else:
            disk.remove(path)
