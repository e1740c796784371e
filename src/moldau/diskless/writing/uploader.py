"""Stores WAL objects. Each upload is retried until all its producers have timed out."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from moldau.diskless.writing.buffers.buffer import ClosePolicy
from moldau.diskless.writing.wal_file import WalFile
from moldau.diskless.writing.writer_meters import WriterMeters
from moldau.objects import ObjectStorage, RetryPolicy, StorageError
from moldau.runtime import Entropy, UnexpectedErrors

_log = logging.getLogger(__name__)


class Uploader:
    """The uploads of a writer. Any number of uploads may be in progress."""

    def __init__(
        self, storage: ObjectStorage, retries: RetryPolicy, entropy: Entropy, meters: WriterMeters
    ) -> None:
        self._storage = storage
        self._retries = retries
        self._entropy = entropy
        self._meters = meters

    async def upload(self, file: WalFile, policy: ClosePolicy) -> bool:
        """Store the object. Returns False when all its producers have timed out. ``policy`` gets the duration
        of the upload."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        size = file.object.size_bytes
        view = memoryview(file.object.arena)[:size]
        retry = 0
        try:
            async with asyncio.timeout_at(file.waiters.last_deadline):
                while True:
                    try:
                        await self._storage.upload(file.key, view, size)
                        break
                    except StorageError as error:
                        self._meters.upload_failed()
                        log = _log.warning if retry == 0 else _log.debug
                        log("upload of %s: %s; trying again", file.key, error)
                    await asyncio.sleep(self._retries.backoff_ms(retry, self._entropy) / 1000)
                    retry += 1
        except TimeoutError:
            _log.warning("upload of %s given up: all its producers have timed out", file.key)
            return False
        took_ms = (loop.time() - begin) * 1000
        policy.uploaded(took_ms)
        self._meters.uploaded(size, took_ms)
        return True

    async def delete(self, key: str) -> None:
        """Delete the object, because nothing refers to it or will refer to it. If the deletion fails, the
        orphan scan finds the object later."""
        try:
            await self._storage.delete([key])
            self._meters.deleted()
        except StorageError as error:
            _log.info("%s stays as an orphan: %s", key, error)


class WriterTasks:
    """Owns the running tasks of a writer (uploads, deletions, allocation of memory). It exists so that a stop
    can wait for these tasks."""

    def __init__(self, unexpected: UnexpectedErrors) -> None:
        self._unexpected = unexpected
        self._running: set[asyncio.Task[None]] = set()

    def run(self, body: Coroutine[Any, Any, None], name: str) -> None:
        """Start a task. Unexpected errors in the task are reported."""
        task = asyncio.get_running_loop().create_task(body, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        self._unexpected.watch(task, "writing WAL objects")

    async def finished(self) -> None:
        """Wait until no task is left. Tasks that start during the wait are included."""
        while self._running:
            await asyncio.wait(set(self._running))

    async def cancel(self) -> None:
        """Cancel all tasks, and return when they have ended."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


class UploadSlots:
    """Owns the files that wait for an upload, and the number of uploads in progress.

    ``upload`` stores a file's object, and always sets the file's result. ``on_free`` is called when a slot is
    free again and no file waits for a slot.
    """

    def __init__(
        self,
        tasks: WriterTasks,
        upload: Callable[[WalFile], Coroutine[Any, Any, None]],
        on_free: Callable[[], None],
        slots: int,
    ) -> None:
        self._tasks = tasks
        self._upload = upload
        self._on_free = on_free
        self.slots = slots
        self.waiting: deque[WalFile] = deque()
        self.busy = 0

    def is_free(self) -> bool:
        """Whether an upload could begin now."""
        return self.busy < self.slots

    def put(self, file: WalFile) -> None:
        """Upload a file as soon as a slot is free."""
        self.waiting.append(file)
        self._start()

    def discard(self, file: WalFile) -> None:
        """Remove a file whose upload has not begun."""
        if file in self.waiting:
            self.waiting.remove(file)

    def _start(self) -> None:
        while self.waiting and self.busy < self.slots:
            self.busy += 1
            file = self.waiting.popleft()
            self._tasks.run(self._upload_and_free(file), f"upload {file.key}")

    async def _upload_and_free(self, file: WalFile) -> None:
        try:
            await self._upload(file)
        finally:
            self.busy -= 1
            self._start()
            self._on_free()
