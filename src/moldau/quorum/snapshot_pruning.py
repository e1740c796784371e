"""Deletes old snapshots of the metadata log, and the records before them, by Kafka's two rules.

The oldest snapshot is deleted while one of these conditions is true:

* segments and snapshots together have more bytes than ``metadata.max.retention.bytes``;
* the last record in the oldest snapshot is older than ``metadata.max.retention.ms``.

The log then begins at the end of the next snapshot. The newest snapshot and the records after it always stay.
Only whole segments are deleted, so the active segment stays, too. A negative limit disables its rule.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from moldau.records.control import SnapshotHeader, parse_control_record
from moldau.records.record import iter_records
from moldau.runtime import KafkaError
from moldau.storage.snapshots.replicated_log import LogPosition, ReplicatedLog

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0
"""Interval of the check, in seconds. Kafka uses the same interval."""


@dataclass(frozen=True, slots=True)
class SnapshotRetention:
    """``metadata.max.retention.bytes`` and ``.ms``, with Kafka's defaults. A negative value means that there
    is no limit."""

    max_bytes: int = 100 * 1024 * 1024
    max_age_ms: int = 7 * 24 * 3_600_000


class _Kept(NamedTuple):
    """The size and the last timestamp of a snapshot. They never change."""

    size_bytes: int
    last_timestamp_ms: int


class SnapshotPruning:
    """Prunes one log, once a minute and after each new snapshot."""

    def __init__(self, log: ReplicatedLog, retention: SnapshotRetention, now_ms: Callable[[], int]) -> None:
        """``now_ms`` returns the time of the wall clock, with which the timestamps of records are
        compared."""
        self._log = log
        self._retention = retention
        self._now_ms = now_ms
        self._kept: dict[LogPosition, _Kept] = {}
        self._is_pruning = False

    async def run(self) -> None:
        """Prune at intervals, until this task is cancelled. Raises ``KafkaError`` when the log has failed."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.prune()

    async def prune(self) -> None:
        """Delete old snapshots and records until the two rules require no more deletions. Does nothing while
        another call of this method is running."""
        if self._is_pruning:
            return
        self._is_pruning = True
        try:
            while (start := self._next_start()) is not None:
                if not await self._log.delete_before_snapshot(start):
                    break
        finally:
            self._is_pruning = False

    def _next_start(self) -> LogPosition | None:
        """Return the second oldest snapshot if the oldest snapshot must be deleted; otherwise None."""
        snapshots = self._log.snapshot_ids()
        if len(snapshots) < 2:
            return None
        self._kept = {each: self._kept.get(each) or self._facts_of(each) for each in snapshots}
        retention, oldest = self._retention, self._kept[snapshots[0]]
        size_bytes = self._log.size_bytes + sum(kept.size_bytes for kept in self._kept.values())
        age_ms = self._now_ms() - oldest.last_timestamp_ms
        if 0 <= retention.max_bytes < size_bytes:
            reason = f"{size_bytes} bytes are more than metadata.max.retention.bytes={retention.max_bytes}"
        elif 0 <= retention.max_age_ms < age_ms:
            reason = f"its records are older than metadata.max.retention.ms={retention.max_age_ms}"
        else:
            return None
        logger.info("the metadata snapshot at offset %d is deleted: %s", snapshots[0].offset, reason)
        return snapshots[1]

    def _facts_of(self, snapshot_id: LogPosition) -> _Kept:
        """Return the size of a snapshot, and the timestamp in its header. A damaged snapshot gets a very old
        timestamp, so that it is deleted as soon as there is a newer snapshot."""
        reader = self._log.open_snapshot(snapshot_id)
        assert reader is not None, snapshot_id
        try:
            first = next(iter(reader.batches()), memoryview(b""))
            headers = (parse_control_record(record) for record in iter_records(first))
            header = next((each for each in headers if isinstance(each, SnapshotHeader)), None)
            return _Kept(reader.size_bytes, -1 if header is None else header.last_contained_log_timestamp)
        except KafkaError as error:
            logger.warning("%s", error.message)
            return _Kept(reader.size_bytes, -1)
        finally:
            reader.close()
