"""Stores WAL objects, with retries until the last of their producers has timed out."""

import asyncio
import logging

from moldau.diskless.writing.buffer import ClosePolicy
from moldau.diskless.writing.wal_file import WalFile
from moldau.diskless.writing.writer_meters import WriterMeters
from moldau.objects import ObjectStorage, RetryPolicy, StorageError
from moldau.runtime import Entropy

_log = logging.getLogger(__name__)


class Uploader:
    """The uploads of one writer; any number may be in progress."""

    def __init__(
        self, storage: ObjectStorage, retries: RetryPolicy, entropy: Entropy, meters: WriterMeters
    ) -> None:
        self._storage = storage
        self._retries = retries
        self._entropy = entropy
        self._meters = meters

    async def upload(self, file: WalFile, policy: ClosePolicy) -> bool:
        """Store the object; False when all its producers have timed out. ``policy`` gets the duration."""
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
