"""Converts an uploaded batch to the batch that consumers get.

The values that the coordinator has assigned (base offset, append time) are written into a copy. The checksum
covers the append time, but not offset and epoch. Therefore the checksum is verified before the append time is
written, and computed again after that.
"""

from collections.abc import Sequence

from moldau.cluster.image.log_generations import LogGenerations
from moldau.coordinators.diskless.calls import LOG_APPEND_TIME, BatchCoordinate
from moldau.records.batch import check_batch, set_base_offset_and_epoch, set_log_append_time
from moldau.records.control import build_end_transaction_marker
from moldau.records.errors import CorruptRecordError


def finish_batch(
    buffer: bytearray | memoryview, position: int, coordinate: BatchCoordinate, generations: LogGenerations
) -> None:
    """Write the coordinator's values into the batch at ``position`` of a writable buffer. The batch's leader
    epoch is its generation, because the coordinator alone determines the order of records.

    Raises :class:`CorruptRecordError` when the bytes differ from the bytes of the committed batch.
    """
    header = check_batch(buffer, position)
    span = coordinate.last_offset - coordinate.base_offset
    if header.size_bytes != coordinate.size_bytes or header.last_offset_delta != span:
        raise CorruptRecordError(
            f"{coordinate.object_key} at byte {coordinate.byte_offset}: a batch of {header.size_bytes} bytes"
            f" and {header.last_offset_delta + 1} offsets, committed were {coordinate.size_bytes} bytes and"
            f" {span + 1} offsets"
        )
    if coordinate.timestamp_type == LOG_APPEND_TIME:
        set_log_append_time(buffer, position, coordinate.log_append_time_ms)
    epoch = generations.epoch_for_offset(coordinate.base_offset)
    set_base_offset_and_epoch(buffer, position, coordinate.base_offset, epoch)


def marker_batch(coordinate: BatchCoordinate) -> memoryview:
    """The control batch of a marker. No object contains it. Its offset and epoch are not set yet."""
    end = coordinate.marker
    assert end is not None
    return memoryview(
        build_end_transaction_marker(
            end.producer_id,
            end.producer_epoch,
            committed=end.committed,
            coordinator_epoch=end.coordinator_epoch,
            timestamp=coordinate.max_timestamp_ms,
        )
    )


def finish_batches(
    batches: Sequence[tuple[BatchCoordinate, memoryview]], generations: LogGenerations
) -> memoryview:
    """A finished copy of adjacent batches. Raises the same errors as :func:`finish_batch`."""
    copy = bytearray(sum(len(view) for _, view in batches))
    position = 0
    for coordinate, view in batches:
        copy[position : position + len(view)] = view
        finish_batch(copy, position, coordinate, generations)
        position += len(view)
    return memoryview(copy)
