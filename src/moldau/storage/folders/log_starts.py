"""Makes log start offsets durable before a client gets them (DeleteRecords). One write can contain many of
them.

A log without a remote tier cannot compute its start from its own files, for two reasons. Its first segment
may also contain batches before the start. And its first leader epoch may begin after the start, because there
may be a gap between the start and the first batch. The start is in the checkpoint of the log's folder, which
is normally written only once a minute. After a restart the start in the checkpoint is used only if no leader
epoch begins below this start. Therefore the files of leader epochs are written first.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from moldau.runtime import Machine
from moldau.storage.folders.file_names import LOG_START_OFFSETS
from moldau.storage.folders.log_checkpoints import LogCheckpoints
from moldau.storage.folders.log_directory import LogDirectory
from moldau.storage.log.files.disk_steps import run_whole
from moldau.storage.log.partition_log import PartitionLog


class LogStarts:
    """Makes the starts of the logs in one log folder durable."""

    def __init__(
        self,
        machine: Machine,
        directory: LogDirectory,
        checkpoints: LogCheckpoints,
        save_epochs: Callable[[Sequence[PartitionLog]], Coroutine[Any, Any, None]],
    ) -> None:
        """``save_epochs`` makes the files of leader epochs durable."""
        self._machine = machine
        self._directory = directory
        self._checkpoints = checkpoints
        self._save_epochs = save_epochs
        self._round = asyncio.Lock()
        self._moved: dict[PartitionLog, None] = {}
        self._asked = 0
        self._persisted = 0

    async def persist(self, log: PartitionLog) -> None:
        """Wait until the current start of ``log`` is durable. Raises ``OSError`` if the disk fails.

        Concurrent calls share a write. Calls that arrive during a write are completed by the next write. An
        offline log is skipped.
        """
        self._moved[log] = None
        self._asked += 1
        mine = self._asked
        async with self._round:
            if self._persisted < mine:
                await run_whole(self._persist_all())

    async def _persist_all(self) -> None:
        asked, moved, self._moved = self._asked, self._moved, {}
        logs = [log for log in moved if not log.is_offline]
        try:
            if logs:
                await self._save_epochs([log for log in logs if not log.epochs.is_saved])
                write = self._checkpoints.prepare(self._directory, LOG_START_OFFSETS)
                await self._machine.workers.run(write)
        except BaseException:
            self._moved = moved | self._moved  # The waiting callers then begin another write.
            raise
        self._persisted = asked
