"""The batches of a CommitFile request, and of its response, as columns (API 11642 from version 1 on). Pure.

Each pair of topic and partition is listed once, and each producer is listed once. A batch takes about 12
bytes.
"""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from moldau.coordinators.diskless.calls import MAX_FILE_BATCHES, BatchToCommit, CommittedBatch
from moldau.coordinators.diskless.codecs.columns import ColumnReader, put_column, put_varint
from moldau.runtime import ErrorCode

NO_GUARD: Final = 0

_INT16: Final = (-(1 << 15), (1 << 15) - 1)
_INT32: Final = (-(1 << 31), (1 << 31) - 1)


def encode_batches(batches: Sequence[BatchToCommit], *, with_guards: bool = True) -> bytes:
    """Encode batches as bytes: their number, the lists of partitions and producers, and the columns. The
    column of the guards, if there is one, is the last column."""
    out = bytearray()
    put_varint(out, len(batches))
    if not batches:
        return bytes(out)
    topics: dict[UUID, int] = {}
    producers: dict[tuple[int, int], int] = {}
    for batch in batches:
        topics.setdefault(batch.topic_id, len(topics))
        producers.setdefault((batch.producer_id, batch.producer_epoch), len(producers))
    put_varint(out, len(topics))
    for topic_id in topics:
        out += topic_id.bytes
    put_varint(out, len(producers))
    producer_ids, epochs = zip(*producers, strict=True)
    put_column(out, producer_ids)
    put_column(out, epochs)
    put_column(out, [topics[batch.topic_id] for batch in batches])
    put_column(out, [producers[batch.producer_id, batch.producer_epoch] for batch in batches])
    gaps, end = [], 0
    for batch in batches:
        gaps.append(batch.byte_offset - end)
        end = batch.byte_offset + batch.size_bytes
    put_column(out, gaps)
    columns = list(zip(*batches, strict=True))
    for number in (1, 2, 4, 5, 7, 8, 11):
        put_column(out, columns[number])
    put_column(out, [batch.records_count - batch.last_offset_delta for batch in batches])
    put_column(out, [_sequence_slack(batch) for batch in batches])
    put_column(out, [batch.flags for batch in batches])
    guards = [batch.guard for batch in batches]
    if with_guards and any(guards):
        put_column(out, guards)
    return bytes(out)


def _sequence_slack(batch: BatchToCommit) -> int:
    """Return the difference between a batch's last sequence and the expected last sequence. The expected last
    sequence is computed from the base sequence and the last offset delta. The difference is 0 in a valid
    batch."""
    if batch.base_sequence < 0:
        return batch.last_sequence - batch.base_sequence
    return batch.last_sequence - (batch.base_sequence + batch.last_offset_delta) % (1 << 31)


def decode_batches(content: bytes | memoryview, at_most: int = MAX_FILE_BATCHES) -> list[BatchToCommit]:
    """Decode the batches. Raises :class:`ColumnError` for invalid bytes, and for more than ``at_most``
    batches.
    """
    reader = ColumnReader(content)
    count = reader.count(at_most)
    if not count:
        reader.end()
        return []
    topics = [UUID(bytes=reader.raw(16)) for _ in range(reader.count(count))]
    producer_count = reader.count(count)
    producers = list(zip(reader.column(producer_count), reader.column(producer_count, _INT16), strict=True))
    topic_numbers = reader.column(count, (0, len(topics) - 1))
    numbers = reader.column(count, (0, producer_count - 1))
    gaps, indexes = reader.column(count), reader.column(count, _INT32)
    requests, sizes, deltas, timestamps, types = (reader.column(count) for _ in range(5))
    sequences = reader.column(count, _INT32)
    extras, slacks, flags = (reader.column(count) for _ in range(3))
    guards = [NO_GUARD] * count if reader.is_at_end else reader.column(count)
    reader.end()
    batches: list[BatchToCommit] = []
    end = 0
    for at in range(count):
        start = end + gaps[at]
        end = start + sizes[at]
        sequence, delta = sequences[at], deltas[at]
        last = sequence if sequence < 0 else (sequence + delta) % (1 << 31)
        producer = producers[numbers[at]]
        batches.append(
            BatchToCommit(topics[topic_numbers[at]], indexes[at], requests[at], start, sizes[at], delta,
                          delta + extras[at], timestamps[at], types[at], producer[0], producer[1], sequence,
                          last + slacks[at], flags[at], guards[at])
        )  # fmt: skip
    return batches


def encode_results(results: Sequence[CommittedBatch]) -> bytes:
    """Encode the results of the batches. Only refused batches have messages."""
    out = bytearray()
    put_varint(out, len(results))
    if not results:
        return bytes(out)
    errors, offsets, times, starts, messages, duplicates = zip(*results, strict=True)
    put_column(out, [error.value for error in errors])
    put_column(out, offsets)
    put_column(out, times)
    put_column(out, starts)
    put_column(out, [int(duplicate) for duplicate in duplicates])
    distinct = {message: None for message in messages if message is not None}
    put_varint(out, len(distinct))
    for message in distinct:
        encoded = message.encode()
        put_varint(out, len(encoded))
        out += encoded
    numbers = {message: number for number, message in enumerate(distinct, 1)}
    put_column(out, [0 if message is None else numbers[message] for message in messages])
    return bytes(out)


def decode_results(content: bytes | memoryview) -> list[CommittedBatch]:
    """Decode the results of the batches. Raises :class:`ColumnError`."""
    reader = ColumnReader(content)
    count = reader.count(MAX_FILE_BATCHES)
    if not count:
        reader.end()
        return []
    errors, offsets, times, starts, duplicates = (reader.column(count) for _ in range(5))
    messages: list[str | None] = [None]
    for _ in range(reader.count(count)):
        messages.append(reader.raw(reader.count(len(content))).decode(errors="replace"))
    numbers = reader.column(count, (0, len(messages) - 1))
    reader.end()
    return [
        CommittedBatch(ErrorCode(errors[at]), offsets[at], times[at], starts[at], messages[numbers[at]],
                       bool(duplicates[at]))
        for at in range(count)
    ]  # fmt: skip
