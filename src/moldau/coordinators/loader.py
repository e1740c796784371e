"""Loads a shard from its log: restores the store, then replays records in chunks of limited size.

In some logs, records are independent of each other (committed offsets, groups, transactional ids). In such a
log, one unreadable record must not make the whole partition unavailable forever. Therefore the record is
skipped, logged and counted. In other logs, later records depend on earlier records (diskless metadata). In
such a log, loading stops at the unreadable record and reports its offset. If records are independent, records
of unknown types are also skipped, as in Kafka, because a later version may have written them. Loading also
stops at a damaged batch that may have contained the decision about a transaction.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from moldau.coordinators.effects import BatchKind
from moldau.coordinators.kind import LogPolicy
from moldau.coordinators.log import CoordinatorLog
from moldau.coordinators.shard import RecordCodec, ReplayedRun, RunReplay, Shard, UnreadableRecordError
from moldau.records.batch import BatchHeader, check_batch, iter_headers
from moldau.records.control import EndTransactionMarker, parse_control_record
from moldau.records.errors import CorruptRecordError
from moldau.records.record import Record, RecordCursor, iter_records, open_batch
from moldau.runtime import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

R = TypeVar("R")

CHUNK_BYTES: Final = 1 << 20
RECORDS_PER_TURN: Final = 250
"""Number of records that are replayed in one iteration of the event loop. The number is limited, because a
longer replay would delay the requests of other coordinators. A record of a group takes about 25 µs."""
RUN_RECORDS_PER_TURN: Final = 500
"""The same number for records that are replayed in runs. Such a record takes 0.5 µs, or up to 10 µs if it is
alone in its batch and its group is new."""


LOGGED_MAX: Final = 10
"""Number of broken records that one load logs. Further broken records are only counted."""


class BrokenRecordError(KafkaError):
    """An unreadable record in a log whose records depend on each other."""

    def __init__(self, reason: str) -> None:
        super().__init__(ErrorCode.kafka_storage_error, reason)


class BrokenRecords:
    """The records of a log that could not be read and were skipped."""

    def __init__(self) -> None:
        self.count = 0
        self.first_offset = -1

    def add(self, offset: int) -> None:
        if not self.count:
            self.first_offset = offset
        self.count += 1

    def __str__(self) -> str:
        return f"{self.count} broken records were skipped, the first at offset {self.first_offset}"


class ShardLoader(Generic[R]):
    """Replays the log from ``offset`` up to its end, including uncommitted records.

    Decisions must be based on the whole log, because all records of a leader's log will be committed unless
    this node stops leading. Therefore replay does not stop at the high watermark. The response to a read is
    therefore delayed until all replayed records that it may depend on are committed. If a shard has a store,
    its load waits until the whole log is committed.
    """

    def __init__(
        self,
        shard: Shard[R],
        codec: RecordCodec[R],
        log: CoordinatorLog,
        on_record: Callable[[int, R], None] | None = None,
        *,
        name: str = "the log",
        policy: LogPolicy | None = None,
        runs: RunReplay | None = None,
    ) -> None:
        """The kind's ``policy`` decides whether a load continues after an unreadable record. ``runs`` is only
        for loads without ``on_record``."""
        self._shard = shard
        self._codec = codec
        self._log = log
        self._on_record = on_record
        self._name = name
        self._policy = policy or LogPolicy()
        self._runs = runs
        self._room_in_turn = RUN_RECORDS_PER_TURN
        """Number of records of runs that may still be replayed in this iteration of the event loop. Any other
        record counts as several records of runs."""
        self.records_replayed = 0
        self.records_unknown = 0
        self.broken = BrokenRecords()

    async def run(self, offset: int, after_chunk: Callable[[], None] | None = None) -> int:
        """Replay from ``offset``. Returns the offset after the last replayed record."""
        while offset < self._log.log_end_offset:
            chunk = memoryview(await self._log.read(offset, CHUNK_BYTES))
            reached = offset
            for position, header in iter_headers(chunk):
                batch = chunk[position : position + header.size_bytes]
                await self._replay(header, batch, offset)
                reached = max(reached, header.last_offset + 1)
            if reached == offset:
                raise KafkaError(ErrorCode.kafka_storage_error, f"No batch could be read at offset {offset}.")
            offset = reached
            if after_chunk is not None:
                after_chunk()
        return offset

    async def _replay(self, header: BatchHeader, batch: memoryview, from_offset: int) -> None:
        offset = header.base_offset
        try:
            check_batch(batch)
            if header.is_control:
                self._replay_marker(header, batch)
                return
            cursor = RecordCursor(*open_batch(batch))
            while cursor.left:
                run = self._replay_run(cursor, from_offset)
                if run is not None:
                    offset = run.last_offset
                else:
                    entry = cursor.read()
                    self._room_in_turn -= RUN_RECORDS_PER_TURN // RECORDS_PER_TURN
                    offset = entry.offset
                    if offset >= from_offset:
                        self._replay_record(header, entry)
                if self._room_in_turn <= 0:
                    self._room_in_turn = RUN_RECORDS_PER_TURN
                    await asyncio.sleep(0)
            cursor.end()
        except BrokenRecordError:
            raise
        except Exception as error:
            # The rest of the batch is skipped. If the batch has a wrong checksum, none of its records is
            # applied, because the bytes may have any content.
            self._skip(offset, error)

    def _replay_run(self, cursor: RecordCursor, from_offset: int) -> ReplayedRun | None:
        # The first batch may begin with records before the offset from which the load starts.
        if self._runs is None or cursor.header.base_offset < from_offset:
            return None
        count_max = min(cursor.left, self._room_in_turn)
        run = self._runs.replay_run(cursor.header, cursor.data, cursor.position, count_max)
        if run is not None:
            cursor.skip(run.records_count, run.end_position)
            self._room_in_turn -= run.records_count
            self.records_replayed += run.records_count
        return run

    def _replay_record(self, header: BatchHeader, entry: Record) -> None:
        try:
            self._apply(header, entry)
        except Exception as error:
            self._skip(entry.offset, error)

    def _apply(self, header: BatchHeader, entry: Record) -> None:
        kind = BatchKind(header.producer_id, header.producer_epoch, header.is_transactional)
        try:
            record = self._codec.decode(entry.key, entry.value)
        except UnreadableRecordError as error:
            stand_in: Any = error.stand_in
            self._shard.replay(entry.offset, stand_in, kind)
            raise
        if record is None:
            self.records_unknown += 1
            return
        self._shard.replay(entry.offset, record, kind)
        self.records_replayed += 1
        if self._on_record is not None:
            self._on_record(entry.offset, record)

    def _skip(self, offset: int, error: Exception) -> None:
        reason = f"{self._name} has a broken record at offset {offset}: {type(error).__name__}: {error}"
        is_damaged = isinstance(error, CorruptRecordError)
        if not self._policy.skips_broken or (is_damaged and not self._policy.skips_damaged):
            raise BrokenRecordError(reason) from error
        self.broken.add(offset)
        if self.broken.count <= LOGGED_MAX:
            logger.error("%s. It is skipped.", reason)

    def _replay_marker(self, header: BatchHeader, batch: memoryview) -> None:
        for entry in iter_records(batch):
            marker = parse_control_record(entry)
            if isinstance(marker, EndTransactionMarker):
                self._shard.replay_marker(header.producer_id, header.producer_epoch, marker.committed)
