"""FileCommitted in KIP-1164's form (version 0): read for compatibility, written for comparison."""

from moldau.coordinators.diskless.state.producers import last_sequence
from moldau.coordinators.diskless.state.records import (
    FLAG_LOG_APPEND_TIME,
    NO_PRODUCER,
    FileCommitted,
    Run,
)
from moldau.protocol.records import diskless as wire


def encode_kip_file(record: FileCommitted) -> bytes:
    """The value in version 0, which has no fields for rejected batches and for the file's creation time."""
    topics: dict[object, dict[int, list[wire.DisklessCommittedBatch]]] = {}
    position = 0
    for run in record.runs:
        batches = topics.setdefault(run.topic_id, {}).setdefault(run.partition_index, [])
        offset = run.base_offset
        for at in range(position, position + run.batches):
            delta, number = record.offset_deltas[at], record.producer_indexes[at]
            producer = (-1, -1) if number == NO_PRODUCER else record.producers[number - 1]
            sequence = record.base_sequences[at]
            batches.append(
                wire.DisklessCommittedBatch(
                    byte_offset=record.byte_offsets[at],
                    byte_size=record.sizes_bytes[at],
                    assigned_base_offset=offset,
                    assigned_last_offset=offset + delta,
                    log_append_timestamp=record.committed_ms,
                    batch_max_timestamp=record.max_timestamps_ms[at],
                    timestamp_type=record.flags[at] & FLAG_LOG_APPEND_TIME,
                    producer_id=producer[0],
                    producer_epoch=producer[1],
                    base_sequence=sequence,
                    last_sequence=-1 if sequence < 0 else last_sequence(sequence, delta),
                )
            )
            offset += delta + 1
        position += run.batches
    value = wire.DisklessFileCommittedRecord(
        object_key=record.object_key,
        object_format=record.object_format,
        file_size=record.size_bytes,
        uploader_broker_id=record.uploader_broker_id,
        owner_ids=record.owner_ids,
        topics=[
            wire.DisklessCommittedTopic(
                topic_id=topic_id,  # type: ignore[arg-type]
                partitions=[
                    wire.DisklessCommittedPartition(partition_index=index, batches=batches)
                    for index, batches in partitions.items()
                ],
            )
            for topic_id, partitions in topics.items()
        ],
    )
    return wire.RECORDS.encode_value(value, 0)


def decode_kip_file(value: wire.DisklessFileCommittedRecord) -> FileCommitted:
    """The record, with the time of the commit as the file's creation time."""
    record = FileCommitted(
        object_key=value.object_key,
        object_format=value.object_format,
        size_bytes=value.file_size,
        uploader_broker_id=value.uploader_broker_id,
        owner_ids=tuple(value.owner_ids),
        created_ms=-1,
        committed_ms=-1,
        runs=[],
        offset_deltas=[],
        flags=[],
        rejected=[],
        byte_offsets=[],
        sizes_bytes=[],
        max_timestamps_ms=[],
        producers=[],
        producer_indexes=[],
        base_sequences=[],
    )
    numbers: dict[tuple[int, int], int] = {}
    for topic in value.topics:
        for partition in topic.partitions:
            for batch in partition.batches:
                _add(record, topic.topic_id, partition.partition_index, batch, numbers)
    record.producers.extend(numbers)
    return record


def _add(
    record: FileCommitted,
    topic_id: object,
    index: int,
    batch: wire.DisklessCommittedBatch,
    numbers: dict[tuple[int, int], int],
) -> None:
    run = Run(topic_id, index, batch.assigned_base_offset, 1)  # type: ignore[arg-type]
    if record.runs and record.runs[-1][:2] == run[:2]:
        record.runs[-1] = record.runs[-1]._replace(batches=record.runs[-1].batches + 1)
    else:
        record.runs.append(run)
    record.created_ms = record.committed_ms = batch.log_append_timestamp
    record.offset_deltas.append(batch.assigned_last_offset - batch.assigned_base_offset)
    record.flags.append(batch.timestamp_type)
    record.byte_offsets.append(batch.byte_offset)
    record.sizes_bytes.append(batch.byte_size)
    record.max_timestamps_ms.append(batch.batch_max_timestamp)
    producer = (batch.producer_id, batch.producer_epoch)
    number = NO_PRODUCER
    if batch.producer_id >= 0:
        number = numbers.setdefault(producer, len(numbers) + 1)
    record.producer_indexes.append(number)
    record.base_sequences.append(batch.base_sequence)
