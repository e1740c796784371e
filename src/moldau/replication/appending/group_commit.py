"""Syncs a log while it has appends that are not durable. Concurrent appends share one sync.

This module is for logs with the policy FSYNCED. The module ``flushes.py`` describes the difference from
``flush.messages``.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from moldau.runtime.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)


class SyncedLog(Protocol):
    """A log that a group commit can sync."""

    @property
    def log_end_offset(self) -> int: ...

    async def flush(self) -> int:
        """Make all earlier appends durable. Returns the offset below which all records are durable."""
        ...


class GroupCommit:
    """Syncs one partition's log, with one sync at a time. A term is one leader epoch of the partition.

    The contract is: call :meth:`begin_term` before the first append of a term, :meth:`plan` after each
    append, and :meth:`truncated` after each truncation. ``on_synced`` gets the durable offset after each
    sync. ``on_failure`` is called once when a sync has failed. Records that could not be synced may be lost,
    so no more records are accepted in that term.
    """

    def __init__(
        self,
        name: str,
        log: SyncedLog,
        on_synced: Callable[[int], None],
        on_failure: Callable[[KafkaError], None],
    ) -> None:
        self._name = name
        self._log = log
        self._on_synced = on_synced
        self._on_failure = on_failure
        self._running: asyncio.Task[None] | None = None
        self._synced_offset = -1
        self.failure: KafkaError | None = None

    def begin_term(self) -> None:
        """Begin a term. Its first sync also covers the existing log, because some records of this log are
        perhaps not durable."""
        self._synced_offset, self.failure = -1, None

    def check(self) -> None:
        """Raise ``KafkaError`` if a sync of this term has failed."""
        if self.failure is not None:
            raise KafkaError(self.failure.code, self.failure.message)

    def plan(self) -> None:
        """Plan a sync, because records were appended."""
        if (self._running is None or self._running.done()) and self.failure is None:
            loop = asyncio.get_running_loop()
            self._running = loop.create_task(self._run(), name=f"sync {self._name}")

    def truncated(self, log_end_offset: int) -> None:
        """Record a truncation of the log. Records that are appended after the truncation are not durable
        yet."""
        self._synced_offset = min(self._synced_offset, log_end_offset)

    async def settled(self) -> None:
        """Wait until all appended records are durable, or until it is certain that they will never be
        durable."""
        while self._running is not None and not self._running.done():
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        log = self._log
        try:
            while self._synced_offset < log.log_end_offset:
                self._synced_offset = await log.flush()
                self._on_synced(self._synced_offset)
        except Exception as error:
            # A KafkaError says what has happened, for example that the partition was deleted.
            is_known = isinstance(error, KafkaError)
            logger.error("%s could not be synced: %s", self._name, error, exc_info=not is_known)
            reason = f"The log could not be synced: {error}"
            self.failure = KafkaError(ErrorCode.kafka_storage_error, reason)
            self._on_failure(self.failure)
