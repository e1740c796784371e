"""Writes FileCommitted in KIP-1164's form (version 0), which the coordinator only reads."""

from moldau.coordinators.diskless.state.producers import last_sequence
from moldau.coordinators.diskless.state.records import FLAG_LOG_APPEND_TIME, NO_PRODUCER, FileCommitted
from moldau.protocol.records import diskless as wire


def encode_kip_file(record: FileCommitted) -> bytes:
    """The value in version 0. This version has no fields for rejected batches and for the file's creation
    time."""
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
