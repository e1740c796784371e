"""Batches as their producers sent them, and the log that Kafka's rules make from these batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import parse_header, set_base_offset_and_epoch, set_log_append_time
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.control import build_end_transaction_marker
from moldau.records.record import Record
from moldau.runtime import Machine
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog
from moldau.tiered.storage.segment_builder import BatchRun

CODECS = list(Compression)


@dataclass(frozen=True)
class Sent:
    """A batch to build. If ``marker`` is True, it is a commit marker of ``producer``. If it is False, it is
    an abort marker."""

    records: int = 1
    producer: int = -1
    timestamp_ms: int = 1_700_000_000_000
    append_time_ms: int = -1
    codec: int = 0
    size: int = 30
    transactional: bool = False
    marker: bool | None = None


class Producers:
    """Assigns sequence numbers to batches, like producers."""

    def __init__(self) -> None:
        self._sequences: dict[int, int] = {}

    def batch(self, sent: Sent) -> bytes:
        if sent.marker is not None:
            return build_end_transaction_marker(
                *(sent.producer, 0), committed=sent.marker, coordinator_epoch=1, timestamp=sent.timestamp_ms
            )
        sequence = self._sequences.get(sent.producer, 0) if sent.producer >= 0 else -1
        self._sequences[sent.producer] = sequence + sent.records
        return build_batch(
            [
                Record(0, sent.timestamp_ms - number, b"key", bytes([65 + number % 26]) * sent.size, ())
                for number in range(sent.records)
            ],
            compression=CODECS[sent.codec],
            producer_id=sent.producer,
            producer_epoch=0 if sent.producer >= 0 else -1,
            base_sequence=sequence,
            transactional=sent.transactional,
        )


def wal_batches(batches: Sequence[Sent], first_offset: int = 0) -> list[tuple[BatchRun, bytes]]:
    """Build the batches. Returns, for each of them, its position in a WAL object and its bytes. Each batch is
    a run of its own."""
    producers = Producers()
    parts, offset = [], first_offset
    for sent in batches:
        content = bytes(producers.batch(sent))
        last = offset + parse_header(content).last_offset_delta
        parts.append((BatchRun(offset, last, len(content), sent.append_time_ms), content))
        offset = last + 1
    return parts


def write_log(parts: Sequence[tuple[BatchRun, bytes]], folder: Path, index_interval_bytes: int) -> None:
    """A log with these batches. Its active segment is closed at the end. The files of this log are the
    expected result."""
    config = LogConfig(index_interval_bytes=index_interval_bytes)
    log = PartitionLog.open(
        Machine.real(), str(folder), TopicPartition("t", 0), config, log_start_offset=parts[0][0].base_offset
    )
    if parts[0][0].base_offset:
        log.truncate_fully_now(parts[0][0].base_offset)
    for run, content in parts:
        copy = bytearray(content)
        if run.append_time_ms >= 0:
            set_log_append_time(copy, 0, run.append_time_ms)
        set_base_offset_and_epoch(copy, 0, run.base_offset, 0)
        log.append_as_follower(memoryview(copy))
    log.roll()
    log.close()
