"""A storage manager from a plug-in. The results of the plug-in are checked against the protocol.

Any exception that the plug-in raises becomes a :class:`RemoteStorageError`. Such an error is counted, delayed
and retried like a failure of a store. If the plug-in cannot store one segment, the other segments continue.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from moldau.objects.fence import NoFence, StoreFence
from moldau.objects.storage import StorageError
from moldau.runtime.buffers import Buffer
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata
from moldau.tiered.storage.storage_manager import (
    IndexType,
    LogSegmentData,
    RemoteStorageError,
    RemoteStorageManager,
)

__all__ = ["METHODS", "ForeignStorageManager"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

METHODS: Final = (
    "copy_log_segment_data",
    "fetch_log_segment",
    "fetch_index",
    "delete_log_segment_data",
    "close",
)
"""The methods of a ``RemoteStorageManager``."""
CLOSE_TIMEOUT_S: Final = 10.0
TRACEBACK_INTERVAL_S: Final = 10.0
"""The caller logs each failure in one line. A stack trace is logged at most once in this interval."""


class ForeignStorageManager:
    """A ``HostedStorageManager`` around a plug-in. A plug-in reports no problems, and its objects cannot
    be listed.
    """

    problem: None = None
    listable: None = None

    def __init__(self, inner: RemoteStorageManager, name: str) -> None:
        """``name`` is the name of the plug-in's class, for messages."""
        self.inner = inner
        self._name = name
        self.fence: StoreFence = NoFence()
        self._last_traceback_s = float("-inf")

    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        await self._allowed("copying", metadata, self.fence.before_upload)
        custom = await self._told(
            "copying", metadata, lambda: self.inner.copy_log_segment_data(metadata, data)
        )
        if custom is None or isinstance(custom, bytes | bytearray | memoryview):
            return None if custom is None else bytes(custom)
        raise self._no_promise(metadata, f"custom metadata that are {type(custom).__name__} and not bytes")

    async def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> memoryview:
        found = await self._told(
            "reading",
            metadata,
            lambda: self.inner.fetch_log_segment(metadata, start_position, end_position),
        )
        return self._as_view(metadata, found)

    async def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> Buffer:
        found = await self._told("reading", metadata, lambda: self.inner.fetch_index(metadata, index_type))
        return self._as_view(metadata, found)

    async def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        await self._allowed("deleting", metadata, self.fence.before_delete)
        await self._told("deleting", metadata, lambda: self.inner.delete_log_segment_data(metadata))

    async def _allowed(
        self, doing: str, metadata: RemoteLogSegmentMetadata, ask: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            await ask()
        except StorageError as error:
            raise RemoteStorageError(f"{doing} {metadata.id}: {error}", transient=error.transient) from error

    async def close(self) -> None:
        """Close the manager within a time limit. This method never raises an error, because the node ends in
        any case."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.inner.close()
        except Exception:
            logger.exception("%s cannot be closed", self._name)

    async def _told(
        self, doing: str, metadata: RemoteLogSegmentMetadata, call: Callable[[], Awaitable[T]]
    ) -> T:
        try:
            return await call()  # the call may raise before it returns an awaitable
        except RemoteStorageError:
            raise
        except Exception as error:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._last_traceback_s >= TRACEBACK_INTERVAL_S:
                self._last_traceback_s = now_s
                logger.exception("%s failed", self._name)
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            raise RemoteStorageError(f"{doing} {metadata.id}: {self._name}: {reason}") from error

    def _as_view(self, metadata: RemoteLogSegmentMetadata, content: object) -> memoryview:
        if isinstance(content, bytes | bytearray | memoryview):
            return memoryview(content)
        raise self._no_promise(metadata, f"{type(content).__name__} and not bytes")

    def _no_promise(self, metadata: RemoteLogSegmentMetadata, given: str) -> RemoteStorageError:
        return RemoteStorageError(f"{metadata.id}: {self._name} gave {given}", transient=False)
