"""A compacted log and its expected content, for tests of the cleaner."""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import iter_headers, parse_header, validate_produce
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.control import build_end_transaction_marker
from moldau.records.record import Record, iter_records
from moldau.storage.cleaner.cleaner import CleanerSettings, LogCleaner
from moldau.storage.cleaner.offset_map import ENTRY_SIZE_BYTES
from moldau.storage.log.append_info import AppendOrigin
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog

CONFIG = LogConfig(
    segment_bytes=1500,
    index_interval_bytes=200,
    cleanup_delete=False,
    cleanup_compact=True,
    delete_retention_ms=1000,
    min_cleanable_dirty_ratio=0.0,
    # The states of producers never expire. Otherwise a marker could create an expired state again, and the
    # producer could not continue with its sequence numbers.
    producer_id_expiration_ms=10**15,
)
NAME = TopicPartition("t", 0)

logging.getLogger("moldau.storage.cleaner.cleaner").setLevel(logging.ERROR)


class OneLog:
    """The part of a node that the cleaner uses, with one log."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.offset: int | None = None
        self.removed: list[str] = []

    def __iter__(self) -> Iterator[PartitionLog]:
        return iter([self.log])

    def cleaner_offset(self, topic_partition: TopicPartition) -> int | None:
        return self.offset

    async def note_cleaned(self, log: PartitionLog, offset: int) -> None:
        self.offset = offset

    async def make_recoverable(self, log: PartitionLog) -> None:
        pass

    def remove_files_later(self, log: PartitionLog, paths: Iterable[str]) -> None:
        self.removed += paths


class CleanedLog:
    """A log, the records that were written to it, and the records that compaction may keep."""

    def __init__(self, box: Any, config: LogConfig = CONFIG) -> None:
        self.box = box
        self.config = config
        self.records: dict[int, Record] = {}
        self.live: dict[bytes, Record] = {}
        self.sequences: dict[int, int] = {}
        self.open_transactions: dict[int, list[Record]] = {}
        self.logs: OneLog
        self.open(recovery_point=0, clean=False)

    def open(self, *, recovery_point: int, clean: bool, offset: int | None = None) -> None:
        self.log = PartitionLog.open(
            self.box.machine, "/data/t-0", NAME, self.config,
            recovery_point=recovery_point, clean_shutdown=clean,
        )  # fmt: skip
        self.log.high_watermark = self.log.log_end_offset
        self.logs = OneLog(self.log)
        self.logs.offset = offset

    def append(
        self,
        pairs: list[tuple[bytes, bytes | None]],
        codec: Compression = Compression.NONE,
        producer_id: int = -1,
        *,
        transactional: bool = False,
    ) -> None:
        now = self.box.clock.time_ms
        batch = build_batch(
            [Record(0, now + index, key, value, (("h", b"x"),)) for index, (key, value) in enumerate(pairs)],
            compression=codec,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=self.sequences.get(producer_id, 0) if producer_id >= 0 else -1,
            transactional=transactional,
        )
        if producer_id >= 0:
            self.sequences[producer_id] = self.sequences.get(producer_id, 0) + len(pairs)
        info = self.log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**6), 0)
        for record in iter_records(batch):
            stored = record._replace(offset=info.first_offset + record.offset)
            self.records[stored.offset] = stored
            if transactional:
                self.open_transactions.setdefault(producer_id, []).append(stored)
            else:
                self.settle(stored)
        self.log.high_watermark = self.log.log_end_offset

    def settle(self, record: Record) -> None:
        """Add a valid record. It is the last record of its key until a later record of this key is added."""
        assert record.key is not None
        known = self.live.get(record.key)
        if known is None or known.offset < record.offset:
            self.live[record.key] = record

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        marker = build_end_transaction_marker(
            producer_id, 0, committed=commit, coordinator_epoch=1, timestamp=self.box.clock.time_ms
        )
        self.log.append_as_leader(marker, [parse_header(marker)], 0, origin=AppendOrigin.COORDINATOR)
        self.log.high_watermark = self.log.log_end_offset
        for record in self.open_transactions.pop(producer_id, []):
            if commit:
                self.settle(record)

    def clean(self, keys_at_once: int = 10_000, rounds: int | None = None) -> int:
        """Clean until the log needs no cleaning, or for ``rounds`` rounds. Returns the number of rounds."""
        settings = CleanerSettings(
            dedupe_buffer_bytes=keys_at_once * ENTRY_SIZE_BYTES, io_buffer_load_factor=1.0
        )
        cleaner = self.cleaner = LogCleaner(self.box.machine, self.logs, settings)

        async def run() -> int:
            count = 0
            while (rounds is None or count < rounds) and await cleaner.clean_dirtiest():
                count += 1
                assert count < 1000, "cleaning never ends"
            return count

        count = asyncio.run(run())
        assert not cleaner.uncleanable
        return count

    def read_from(self, offset: int, *, committed: bool = False, max_bytes: int = 400) -> list[Record]:
        """The records that a consumer gets if it begins at ``offset``. Each record occurs once."""
        found: list[Record] = []
        while offset < self.log.log_end_offset:
            result = self.log.read(offset, max_bytes)
            content = b"".join(result.views)
            if not content:
                break
            aborted = self.log.aborted_transactions(offset, result)
            found += _visible(content, offset, aborted if committed else [])
            assert result.next_offset > offset
            offset = result.next_offset
        return found

    def check(self) -> None:
        """Check the cleaned log. All its records existed before at the same offsets, the last value of every
        key still exists, and every reader can continue."""
        everything = self.read_from(0)
        offsets = [record.offset for record in everything]
        assert offsets == sorted(set(offsets))
        assert all(record == self.records[record.offset] for record in everything)
        stable = self.log.last_stable_offset(self.log.high_watermark)
        last = {r.key: r for r in self.read_from(0, committed=True) if r.offset < stable}
        for key, record in self.live.items():
            if record.offset >= stable:
                continue
            if record.value is None:
                assert last.get(key, record).value is None, "a deleted key is back"
            else:
                assert last.get(key) == record
        assert last.keys() <= self.live.keys() | {
            r.key for records in self.open_transactions.values() for r in records
        }
        for start in range(0, self.log.log_end_offset + 1, 3):
            assert self.read_from(start, max_bytes=1) == [r for r in everything if r.offset >= start]
        assert self.log.size_bytes == sum(s.size_bytes for s in self.log.segments.segments)


def _visible(content: bytes, offset: int, aborted: list[Any]) -> list[Record]:
    found = []
    for position, header in iter_headers(content):
        if header.is_control:
            continue
        hidden = header.is_transactional and any(
            one.producer_id == header.producer_id and one.first_offset <= header.base_offset < one.last_offset
            for one in aborted
        )
        batch = content[position : position + header.size_bytes]
        if not hidden:
            found += [record for record in iter_records(batch) if record.offset >= offset]
    return found
