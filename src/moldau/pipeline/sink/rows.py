"""Converts rows to record batches, and record batches to WAL objects."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from moldau.client.errors import ToolError
from moldau.diskless.wal import footer_size_bytes, parse_object, write_tail
from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import parse_header
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.hashing import murmur2
from moldau.records.record import Headers, Record
from moldau.runtime.buffers import Buffer

BATCH_BYTES: Final = 512 * 1024
RECORD_OVERHEAD_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Routing:
    """The destination of rows: one topic for all rows, or a topic that each row names."""

    topic: str | None
    partitions: Mapping[str, int]
    """Number of partitions of each topic."""

    def partition_of(
        self, topic: str | None, partition: int | None, key: bytes | None, keyless: int
    ) -> TopicPartition:
        """The partition of a row. It is the partition that the row names. Otherwise it is the partition of
        the row's key by Kafka's partitioner. A row without a partition and without a key may get any
        partition.

        Raises :class:`ToolError` for a topic or a partition that does not exist.
        """
        name = self.topic or topic
        if name is None:
            raise ToolError("a row names no topic, and neither does the option 'topic'")
        count = self.partitions.get(name)
        if count is None:
            raise ToolError(f"topic {name} does not exist")
        if partition is not None:
            if not 0 <= partition < count:
                raise ToolError(f"topic {name} has no partition {partition}")
            return TopicPartition(name, partition)
        if key is None:
            return TopicPartition(name, keyless % count)
        return TopicPartition(name, (murmur2(key) & 0x7FFFFFFF) % count)


class BatchBuilder:
    """Collects rows as batches of their partitions, in the order of the rows."""

    def __init__(
        self,
        routing: Routing,
        compression: Compression,
        now_ms: int,
        max_message_bytes: int,
        first_partition: int = 0,
    ) -> None:
        """``first_partition`` is the partition of the first rows without a key, modulo the number of
        partitions."""
        self._routing = routing
        self._compression = compression
        self._now_ms = now_ms
        self._max_message_bytes = max_message_bytes
        self._batch_bytes = min(BATCH_BYTES, max_message_bytes // 2)
        self._open: dict[TopicPartition, tuple[list[Record], int]] = {}
        self._keyless = first_partition
        self.batches: dict[TopicPartition, list[bytes]] = {}
        self.size_bytes = 0
        """Total size of the complete batches, in bytes."""

    def add(self, rows: Any) -> None:
        """Add all rows of an Arrow record batch with the columns of Spark's Kafka sink."""
        self._keyless += 1  # adjacent rows without a key stay together, as with Kafka's sticky partitioner
        columns = {name: rows.column(name).to_pylist() for name in COLUMNS if name in rows.schema.names}
        nothing = [None] * rows.num_rows
        keys, values, headers, topics, partitions = (columns.get(name, nothing) for name in COLUMNS)
        for key, value, header, topic, partition in zip(
            keys, values, headers, topics, partitions, strict=True
        ):
            record = Record(0, self._now_ms, _bytes(key), _bytes(value), _headers(header))
            self._append(self._routing.partition_of(topic, partition, record.key, self._keyless), record)

    def _append(self, place: TopicPartition, record: Record) -> None:
        records, size = self._open.get(place) or ([], 0)
        more = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
        more += sum(len(name) + len(value or b"") for name, value in record.headers)
        if records and size + more > self._batch_bytes:
            self._close(place, records)
            records, size = [], 0
        records.append(record)
        self._open[place] = (records, size + more)

    def _close(self, place: TopicPartition, records: Sequence[Record]) -> None:
        batch = build_batch(records, compression=self._compression)
        if len(batch) > self._max_message_bytes:
            raise ToolError(
                f"a row for topic {place.topic} makes a batch of {len(batch)} bytes:"
                f" max.message.bytes is {self._max_message_bytes}"
            )
        self.batches.setdefault(place, []).append(batch)
        self.size_bytes += len(batch)

    def drain(self) -> dict[TopicPartition, list[bytes]]:
        """All batches, including unfinished ones. The builder is empty afterwards."""
        for place, (records, _) in self._open.items():
            self._close(place, records)
        taken, self.batches, self._open, self.size_bytes = self.batches, {}, {}, 0
        return taken


COLUMNS: Final = ("key", "value", "headers", "topic", "partition")


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _headers(headers: Iterable[Mapping[str, Any]] | None) -> Headers:
    found = tuple((one["key"], one["value"]) for one in headers or ())
    if any(name is None for name, _ in found):
        raise ToolError("a row has a header without a key")
    return found


def lay_out_object(
    topic_id: UUID, batches: Mapping[int, Sequence[Buffer]], *, created_ms: int, broker_id: int
) -> bytes:
    """A WAL object that contains batches of one topic, sorted by partition."""
    runs = []
    position = 0
    parts: list[Buffer] = []
    for partition in sorted(batches):
        headers = [parse_header(batch) for batch in batches[partition]]
        runs.append((topic_id, partition, position, headers))
        parts += batches[partition]
        position += sum(map(len, batches[partition]))
    count = sum(len(headers) for *_, headers in runs)
    content = bytearray(b"".join(parts))
    content.extend(bytes(footer_size_bytes(len(runs), count)))
    end = write_tail(content, position, runs, created_ms=created_ms, broker_id=broker_id)
    return bytes(memoryview(content)[:end])


def batches_of(objects: Iterable[bytes]) -> dict[int, list[memoryview]]:
    """Read the batches of several objects of one topic, by partition. The batches of a partition are in the
    order of the objects."""
    found: dict[int, list[memoryview]] = {}
    for content in objects:
        view = memoryview(content)
        for batch in parse_object(content, len(content)).batches():
            data = view[batch.byte_offset : batch.byte_offset + batch.size_bytes]
            found.setdefault(batch.partition_index, []).append(data)
    return found


def grouped(sizes: Sequence[tuple[str, int]], size_max: int) -> Iterator[list[str]]:
    """Groups of names whose sizes add up to at most ``size_max`` bytes. If one name alone has a larger size,
    it is a group of its own."""
    group: list[str] = []
    total = 0
    for name, size in sizes:
        if group and total + size > size_max:
            yield group
            group, total = [], 0
        group.append(name)
        total += size
    if group:
        yield group
