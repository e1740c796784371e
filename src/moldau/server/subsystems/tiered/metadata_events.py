"""Events of ``__remote_log_metadata`` in whole batches of its log.

A broker writes one event of a few hundred bytes a batch and compresses none. Any other batch comes from
another implementation, or was planted: what it can take, in bytes and in time on the event loop, is bounded.
"""

import logging
from typing import Final

from moldau.cluster.internal_topics import REMOTE_LOG_METADATA_TOPIC
from moldau.records.batch import iter_headers
from moldau.records.compression import Compression
from moldau.records.errors import InvalidRecordError
from moldau.records.opening import RECORDS_A_STEP
from moldau.records.record import QUICK_BYTES, iter_opened, open_batch
from moldau.runtime.fair_lane import FairLane, NextTurn, Steps, exhaust
from moldau.tiered.metadata.topic import TopicRecords

__all__ = ["OPENED_BYTES_MAX", "read_events"]

logger = logging.getLogger(__name__)

OPENED_BYTES_MAX: Final = 1 << 20
"""A batch may become this large when it is decompressed; a read ends behind the batch that reaches it."""


async def read_events(opening: FairLane, content: memoryview, partition: int, offset: int) -> TopicRecords:
    """The records of whole batches from ``offset`` on; ``next_offset`` may be that of a later one of them.

    A batch whose records cannot be read is skipped, logged and counted. ``opening`` reads all that takes the
    event loop longer than a millisecond.
    """
    if _is_quick(content):
        return exhaust(_read(content, partition, offset))
    # The view lasts until the log is touched.
    return await opening.put(None, _read(memoryview(bytes(content)), partition, offset))


def _is_quick(content: memoryview) -> bool:
    return len(content) <= QUICK_BYTES and all(
        header.compression is Compression.NONE for _, header in iter_headers(content)
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
            # Of the records of a damaged batch nothing is known: none of them is taken.
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
