"""Writes a batch of a streaming query as one transaction, exactly once, to topics of any kind.

Tasks send their record batches to the driver, and write nothing themselves. The driver does these steps:

1. It starts a producer with the transactional id. This fences all earlier drivers with this id. The last
   transaction of the earlier drivers is then either committed or aborted, and they cannot begin another
   transaction.
2. It reads the *record* of the query. The record is an offset of the query's own consumer group: the id of
   the batch that follows the last committed batch. If the record shows that the batch of this call is already
   committed, the driver does nothing more.
3. It sends the batches and the new record in one transaction, and commits the transaction.

The rows and the record are visible together or not at all. Therefore a batch is in the topics completely and
once, even if a driver is killed at any step or if two drivers run. Spark writes the source's offsets of a
batch to the checkpoint before it runs the batch. So the batch id in the record identifies the source's
offsets.

Each batch writes the record, even if the batch has no rows. The record of the previous batch can be missing
for two reasons. Its offset has expired, or earlier batches were written without transactions. The driver
cannot know then whether the batch was written, so it raises an error.
"""

import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from moldau.client.cluster import Client
from moldau.client.errors import ToolError
from moldau.client.transactions import CommittedText, ProducerOfBatches, committed_texts
from moldau.protocol.partitions import TopicPartition
from moldau.runtime.errors import KafkaError

logger = logging.getLogger(__name__)

TRANSACTION_BYTES_MAX: Final = 64 * 1024**2
"""Maximum size of a transaction in bytes. It is limited because Spark sends the rows to the driver, and the
driver has all of them in memory."""

PartitionBatches = Mapping[TopicPartition, list[bytes]]


@dataclass(frozen=True, slots=True)
class TransactionTarget:
    """How a sink writes transactions. ``any_topic`` is an existing topic, whose name is used for the records
    of batches without rows."""

    transactional_id: str
    timeout_ms: int
    first_batch: int
    any_topic: str


def group_of(transactional_id: str, query_id: str) -> str:
    """The consumer group with the record of a query."""
    return f"{transactional_id}-{query_id}"


def check_size(size_bytes: int) -> None:
    """Raises :class:`ToolError` if ``size_bytes`` is more than :data:`TRANSACTION_BYTES_MAX`."""
    if size_bytes > TRANSACTION_BYTES_MAX:
        raise ToolError(
            f"a batch of {size_bytes} bytes cannot be written in one transaction ({TRANSACTION_BYTES_MAX}"
            " can): let the source give less at a time, for example by maxOffsetsPerTrigger"
        )


def joined(some: Iterable[PartitionBatches]) -> dict[TopicPartition, list[bytes]]:
    """The batches of all tasks. Raises :class:`ToolError` if they have more than
    :data:`TRANSACTION_BYTES_MAX` in total."""
    found: dict[TopicPartition, list[bytes]] = {}
    for batches in some:
        for place, rows in batches.items():
            found.setdefault(place, []).extend(rows)
    check_size(sum(len(batch) for rows in found.values() for batch in rows))
    return found


class TransactionCommitter:
    """Writes the rows that tasks sent. Raises ``KafkaError`` and :class:`ToolError`."""

    def __init__(self, client: Client, target: TransactionTarget) -> None:
        self._client = client
        self._target = target

    async def commit_batch(self, query_id: str, batch_id: int, batches: PartitionBatches) -> None:
        """Write a batch of a streaming query, unless the batch was written before."""
        producer = await self._started()
        group = group_of(self._target.transactional_id, query_id)
        record = await self._record(group)
        next_batch = self._target.first_batch
        if record is not None:
            next_batch = max(next_batch, record[1].offset)
        if batch_id < next_batch:
            logger.info("batch %d of query %s was written before", batch_id, query_id)
            return
        if batch_id > next_batch:
            raise _unknown(group, batch_id)
        topic = min(batches)[0] if batches else record[0][0] if record else self._target.any_topic
        committed = CommittedText(batch_id + 1, query_id)
        async with _aborting(producer):
            await producer.send(batches)
            await producer.commit_offset(group, TopicPartition(topic, 0), committed)
        await producer.commit()

    async def commit_job(self, batches: PartitionBatches) -> None:
        """Write the rows of a batch job."""
        if batches:
            producer = await self._started()
            async with _aborting(producer):
                await producer.send(batches)
            await producer.commit()

    async def _started(self) -> ProducerOfBatches:
        target = self._target
        producer = ProducerOfBatches(self._client, target.transactional_id, target.timeout_ms)
        await producer.start()
        return producer

    async def _record(self, group: str) -> tuple[TopicPartition, CommittedText] | None:
        """The latest record of a query. The group has a record for each topic that was the first topic of a
        batch, and the record with the largest batch id is the latest."""
        found = await committed_texts(self._client, group)
        return max(found.items(), key=lambda one: one[1].offset, default=None)


@contextlib.asynccontextmanager
async def _aborting(producer: ProducerOfBatches) -> AsyncIterator[None]:
    """Abort the transaction after an error, so that readers do not wait for its time-out."""
    try:
        yield
    except (KafkaError, ToolError, OSError):
        with contextlib.suppress(KafkaError, ToolError, OSError):
            await producer.abort()
        raise


def _unknown(group: str, batch_id: int) -> ToolError:
    return ToolError(
        f"group {group} has no record of batch {batch_id - 1}, so it is not known whether batch {batch_id}"
        " was written: look whether its rows are in the topics. To write the batch, give the option"
        f" firstTransactionalBatch={batch_id}; if it was written, give {batch_id + 1}"
    )
