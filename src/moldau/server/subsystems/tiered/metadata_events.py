"""Reads the events of ``__remote_log_metadata`` from whole batches of its log.

Moldau's brokers write each event of a few hundred bytes in its own batch, uncompressed. A batch of another
form comes from another implementation or from an attacker. Therefore the memory and the time on the event
loop for such a batch are limited.
"""

import logging
from typing import Final

from moldau.cluster.internal_topics import REMOTE_LOG_METADATA_TOPIC
from moldau.records.batch import iter_headers
from moldau.records.errors import InvalidRecordError
from moldau.records.record import QUICK_BYTES, iter_opened, open_batch
from moldau.records.unpacking import RECORDS_A_STEP
from moldau.runtime.fair_lane import FairLane
from moldau.runtime.steps import NextTurn, Steps, exhaust
from moldau.tiered.metadata.topic import TopicRecords

__all__ = ["OPENED_BYTES_MAX", "read_events"]

logger = logging.getLogger(__name__)

OPENED_BYTES_MAX: Final = 1 << 20
"""Maximum decompressed size of a batch in bytes. A read also ends when the batches that it has decompressed
reach this size in total."""


async def read_events(opening: FairLane, content: memoryview, partition: int, offset: int) -> TopicRecords:
    """Read the records of whole batches, beginning at ``offset``. The result's ``next_offset`` is the
    offset after the last batch that was read, even if this batch was skipped.

    An unreadable batch is skipped, logged and counted. ``opening`` decompresses batches whose decompression
    takes longer than a millisecond.
    """
    if _is_quick(content):
        return exhaust(_read(content, partition, offset))
    # The bytes are copied for the worker, because the view ``content`` is valid only until the log is used
    # again.
    return await opening.put(None, _read(memoryview(bytes(content)), partition, offset))


def _is_quick(content: memoryview) -> bool:
    return len(content) <= QUICK_BYTES and not any(
        header.is_compressed for _, header in iter_headers(content)
    )


def _read(content: memoryview, partition: int, offset: int) -> Steps[TopicRecords]:
    records: list[tuple[int, bytes]] = []
    next_offset, epoch, unreadable, left_bytes, count = offset, -1, 0, OPENED_BYTES_MAX, 0
    for position, header in iter_headers(content):
        if left_bytes <= 0:
            break
        next_offset = max(next_offset, header.last_offset + 1)
        epoch = header.partition_leader_epoch
        if header.is_control:
            continue
        batch = content[position : position + header.size_bytes]
        found: list[tuple[int, bytes]] = []
        try:
            _, data = open_batch(batch, max(OPENED_BYTES_MAX, len(batch)))
            left_bytes -= len(data)
            for record in iter_opened(header, data):
                count += 1
                if count % RECORDS_A_STEP == 0:
                    yield NextTurn.NEXT
                if record.offset >= offset and record.value is not None:
                    found.append((record.offset, bytes(record.value)))
        except InvalidRecordError as error:
            # A damaged batch may contain any records, so no record of the batch is applied.
            unreadable += 1
            logger.error(
                "the batch at offset %d of %s-%d is skipped: %s",
                header.base_offset,
                REMOTE_LOG_METADATA_TOPIC,
                partition,
                error,
            )
            continue
        records += found
    return TopicRecords(records, next_offset, epoch, unreadable)
