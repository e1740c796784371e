"""Failures of log folders. When the disk of a folder fails, the folder and all its logs go offline."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator

from moldau.runtime.files.descriptor_cache import LACK_OF_DESCRIPTORS
from moldau.storage.folders.log_directory import LogDirectory
from moldau.storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


class DirectoryFailures:
    """Takes folders offline. A folder stays offline until the next start of the node."""

    def __init__(
        self,
        logs_of: Callable[[LogDirectory], Iterable[PartitionLog]],
        on_offline: Callable[[str, str], None] | None,
    ) -> None:
        """``on_offline`` gets the folder's path and the reason. It is called at once, on the thread that
        detects the failure."""
        self._logs_of = logs_of
        self._on_offline = on_offline
        self._loop: asyncio.AbstractEventLoop | None = None
        self.listeners: list[Callable[[LogDirectory], None]] = []
        """Functions that are called on the event loop soon after a folder went offline. They are not called
        for folders that were already offline at the start."""

    def begin(self) -> None:
        """Set the event loop. Call this method on the event loop, before the folders are used."""
        self._loop = asyncio.get_running_loop()

    def log_failed(self, directory: LogDirectory, error: OSError) -> None:
        """Handle an error of the disk, which has refused an operation on a log or on the folder."""
        self.disk_failed(directory, error, f"{error.filename or directory.path}: {error.strerror or error}")

    def disk_failed(self, directory: LogDirectory, error: OSError, reason: str) -> None:
        """Take the folder offline after an error of its disk. A lack of file descriptors is not an error of
        the disk. In that case only the operation, or its log, has failed."""
        if error.errno in LACK_OF_DESCRIPTORS:
            logger.error("%s: %s", directory.path, reason)
        else:
            self.take_offline(directory, reason)

    def take_offline(self, directory: LogDirectory, reason: str) -> None:
        """Take a folder offline. From now on, all its logs refuse operations."""
        if not directory.is_online:
            return
        directory.offline_reason = reason
        logger.error("log folder %s is offline: %s", directory.path, reason)
        for log in tuple(self._logs_of(directory)):
            log.take_offline(f"log folder {directory.path} is offline: {reason}")
        if self._on_offline is not None:
            self._on_offline(directory.path, reason)
        if self._loop is not None:
            for listener in self.listeners:
                self._loop.call_soon_threadsafe(listener, directory)

    @contextlib.contextmanager
    def disk_work(self, directory: LogDirectory) -> Iterator[None]:
        """A context for work on the folder's disk. If the disk fails in this context, the folder goes offline
        and the error is not raised."""
        try:
            yield
        except OSError as error:
            self.log_failed(directory, error)
