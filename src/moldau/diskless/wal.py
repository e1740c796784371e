"""The format of WAL objects: batches of many partitions, and a footer that explains them. Pure.

======== =============================================================================
part     content
======== =============================================================================
data     record batches as producers sent them, one directly after the other; the batches of
         a partition are together, in the order in which they arrived; partitions are in the
         order of (topic id, index), so that adjacent partitions form a single range
footer   a run for each partition (topic id, index, its position, its number of batches), then
         an entry for each batch: sizes, counts, timestamps, producer, sequence, CRC
trailer  44 bytes: time and broker of its creation, counts and sizes, version, CRC, magic
======== =============================================================================

Offsets are not in the object, because it is written before they are assigned. With the footer and the log of
``__diskless_metadata`` each batch can be found. Without that log, footers and the order of keys (times) still
show which batches existed, their producers, and the order in which each broker received them. All numbers are
big-endian. The CRC-32C covers footer and trailer. Each batch has its own CRC, which covers the bytes of the
batch. The footer repeats these CRCs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from moldau.records import BatchHeader
from moldau.runtime.buffers import Buffer

__all__ = [
    "MAGIC",
    "TAIL_READ_BYTES",
    "TRAILER_SIZE_BYTES",
    "CorruptWalObjectError",
    "WalBatch",
    "WalObject",
    "WalRun",
    "data_size_of",
    "describe",
    "footer_size_bytes",
    "parse_object",
    "tail_size_bytes",
    "write_tail",
]


MAGIC = b"MOLDAUWL"
VERSION = 1

TAIL_READ_BYTES = 64 * 1024
"""Number of bytes that are read from the end of an object. They contain the footer and trailer of most
objects. This is enough for 1,300 batches."""

_RUN = Struct(">16siII")
_BATCH = Struct(">IiiqqqhihI")
"""Field types of a batch's entry in the footer. They match the fields in the header of the batch, whose
attributes have 16 bits."""
_TRAILER = Struct(">qiIIIIHHI8s")
_BEFORE_CRC = Struct(">qiIIIIHH")
_CRC = Struct(">I")

TRAILER_SIZE_BYTES = _TRAILER.size


class CorruptWalObjectError(Exception):
    """The bytes are not a WAL object, or the WAL object is damaged."""


class WalBatch(NamedTuple):
    """A batch of an object. Timestamps are in milliseconds since the epoch."""

    topic_id: UUID
    partition_index: int
    byte_offset: int
    size_bytes: int
    last_offset_delta: int
    records_count: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    attributes: int
    crc: int


class WalRun(NamedTuple):
    """The batches of a partition in an object, which form a range of bytes."""

    topic_id: UUID
    partition_index: int
    byte_offset: int
    batches: Sequence[WalBatch]

    @property
    def size_bytes(self) -> int:
        return sum(batch.size_bytes for batch in self.batches)


@dataclass(frozen=True, slots=True)
class WalObject:
    """The content of an object's footer."""

    created_ms: int
    broker_id: int
    data_size_bytes: int
    runs: Sequence[WalRun]

    def batches(self) -> Iterator[WalBatch]:
        for run in self.runs:
            yield from run.batches


def footer_size_bytes(run_count: int, batch_count: int) -> int:
    """Size of footer and trailer: the bytes of an object beyond its batches."""
    return run_count * _RUN.size + batch_count * _BATCH.size + TRAILER_SIZE_BYTES


def write_tail(
    target: bytearray | memoryview,
    data_size_bytes: int,
    runs: Sequence[tuple[UUID, int, int, Sequence[BatchHeader]]],
    *,
    created_ms: int,
    broker_id: int,
) -> int:
    """Write footer and trailer after the data. Returns the size of the whole object.

    Each element of ``runs`` is (topic id, partition, byte offset, headers of its batches). They are in the
    order of the data. ``target`` must have space for :func:`footer_size_bytes` more bytes.
    """
    position = data_size_bytes
    batch_count = 0
    for topic_id, partition_index, byte_offset, headers in runs:
        _RUN.pack_into(target, position, topic_id.bytes, partition_index, byte_offset, len(headers))
        position += _RUN.size
        batch_count += len(headers)
    pack, size = _BATCH.pack_into, _BATCH.size
    for _, _, _, headers in runs:
        for h in headers:
            # Fields are read by index, because reading a named field of a tuple costs twice as much and this
            # code runs for every batch.
            pack(target, position, h[1] + 12, h[6], h[12], h[7], h[8], h[9], h[10], h[11], h[5], h[4])
            position += size
    footer_bytes = position - data_size_bytes
    _BEFORE_CRC.pack_into(
        *(target, position, created_ms, broker_id, data_size_bytes),
        *(footer_bytes, len(runs), batch_count, VERSION, 0),
    )
    checksum = crc32c(memoryview(target)[data_size_bytes : position + _BEFORE_CRC.size])
    position += _BEFORE_CRC.size
    _CRC.pack_into(target, position, checksum)
    end = position + _CRC.size + len(MAGIC)
    target[position + _CRC.size : end] = MAGIC
    return end


class _Trailer(NamedTuple):
    created_ms: int
    broker_id: int
    data_size_bytes: int
    footer_size_bytes: int
    run_count: int
    batch_count: int
    version: int
    flags: int
    crc: int
    magic: bytes


def data_size_of(whole: Buffer) -> int:
    """Number of bytes of a whole object before its footer. Raises :class:`CorruptWalObjectError`."""
    size_bytes = len(whole)
    return _trailer(memoryview(whole)[-TRAILER_SIZE_BYTES:], size_bytes).data_size_bytes


def _trailer(tail: Buffer, object_size_bytes: int) -> _Trailer:
    if len(tail) < TRAILER_SIZE_BYTES or object_size_bytes < len(tail):
        raise CorruptWalObjectError(f"{object_size_bytes} bytes are too few for a WAL object")
    trailer = _Trailer._make(_TRAILER.unpack_from(tail, len(tail) - TRAILER_SIZE_BYTES))
    if trailer.magic != MAGIC:
        raise CorruptWalObjectError("no WAL object: the magic at its end is missing")
    if trailer.version != VERSION:
        raise CorruptWalObjectError(f"WAL object of version {trailer.version}; {VERSION} is known")
    expected = trailer.data_size_bytes + trailer.footer_size_bytes + TRAILER_SIZE_BYTES
    entries = footer_size_bytes(trailer.run_count, trailer.batch_count) - TRAILER_SIZE_BYTES
    if expected != object_size_bytes or entries != trailer.footer_size_bytes:
        raise CorruptWalObjectError(
            f"the trailer says {expected} bytes, but the object has {object_size_bytes}"
        )
    return trailer


def tail_size_bytes(tail: Buffer, object_size_bytes: int) -> int:
    """Number of bytes from the end of the object that :func:`parse_object` needs. ``tail`` is a part of any
    size at the end of the object. It must contain the trailer."""
    return _trailer(tail, object_size_bytes).footer_size_bytes + TRAILER_SIZE_BYTES


def parse_object(tail: Buffer, object_size_bytes: int) -> WalObject:
    """Parse an object's footer from its last bytes (at least :func:`tail_size_bytes`).

    Raises :class:`CorruptWalObjectError`.
    """
    trailer = _trailer(tail, object_size_bytes)
    begin = len(tail) - TRAILER_SIZE_BYTES - trailer.footer_size_bytes
    if begin < 0:
        raise CorruptWalObjectError(
            f"the footer begins {-begin} bytes before what was read; see tail_size_bytes"
        )
    covered = len(tail) - _CRC.size - len(MAGIC)
    if crc32c(memoryview(tail)[begin:covered]) != trailer.crc:
        raise CorruptWalObjectError("the footer's CRC does not match")
    return WalObject(
        trailer.created_ms,
        trailer.broker_id,
        trailer.data_size_bytes,
        tuple(_runs(tail, begin, trailer)),
    )


def _runs(tail: Buffer, position: int, trailer: _Trailer) -> Iterator[WalRun]:
    entry = position + trailer.run_count * _RUN.size
    byte_offset = 0
    seen = 0
    for index in range(trailer.run_count):
        topic, partition_index, begin, count = _RUN.unpack_from(tail, position + index * _RUN.size)
        topic_id = UUID(bytes=topic)
        seen += count
        if begin != byte_offset or seen > trailer.batch_count:
            raise CorruptWalObjectError(f"run {index} does not follow the one before it")
        batches: list[WalBatch] = []
        for _ in range(count):
            size, *facts = _BATCH.unpack_from(tail, entry)
            entry += _BATCH.size
            batches.append(WalBatch(topic_id, partition_index, byte_offset, size, *facts))
            byte_offset += size
        yield WalRun(topic_id, partition_index, begin, tuple(batches))
    if byte_offset != trailer.data_size_bytes or seen != trailer.batch_count:
        raise CorruptWalObjectError("the batches of the footer are not those of the data")


def describe(found: WalObject, object_key: str = "") -> Iterator[str]:
    """Lines of text for people: the object, then each run and batch (``moldau dump-log``)."""
    count = sum(len(run.batches) for run in found.runs)
    yield (
        f"WAL object {object_key or '(no key)'} version: {VERSION} createTime: {found.created_ms}"
        f" broker: {found.broker_id} dataSize: {found.data_size_bytes}"
        f" partitions: {len(found.runs)} batches: {count}"
    )
    for run in found.runs:
        yield (
            f"topicId: {run.topic_id} partition: {run.partition_index} position: {run.byte_offset}"
            f" size: {run.size_bytes} batches: {len(run.batches)}"
        )
        for batch in run.batches:
            yield (
                f"| position: {batch.byte_offset} size: {batch.size_bytes} count: {batch.records_count}"
                f" lastOffsetDelta: {batch.last_offset_delta} baseTimestamp: {batch.base_timestamp_ms}"
                f" maxTimestamp: {batch.max_timestamp_ms} producerId: {batch.producer_id}"
                f" producerEpoch: {batch.producer_epoch} baseSequence: {batch.base_sequence}"
                f" isTransactional: {batch.attributes & 0x10 != 0} compression: {batch.attributes & 7}"
                f" crc: {batch.crc}"
            )
