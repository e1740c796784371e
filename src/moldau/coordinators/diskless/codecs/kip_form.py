"""FileCommitted in KIP-1164's form (version 0), which is read for compatibility."""

from moldau.coordinators.diskless.state.records import (
    NO_PRODUCER,
    FileCommitted,
    Run,
)
from moldau.protocol.records import diskless as wire


def decode_kip_file(value: wire.DisklessFileCommittedRecord) -> FileCommitted:
    """Decode the record. The time of the commit is used as the file's creation time."""
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
