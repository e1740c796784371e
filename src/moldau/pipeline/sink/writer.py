"""``df.write.format("moldau")`` and ``writeStream``: write rows as records.

The columns are those of Spark's Kafka sink. A streaming query writes each batch exactly once if it writes to
one diskless topic whose partitions have the same coordinator (:mod:`moldau.pipeline.sink.commit`). With the
option ``kafka.transactional.id`` it writes each batch exactly once to any topics, as one transaction
(:mod:`moldau.pipeline.sink.transactions`). Without the option, other topics get each batch at least once,
with a warning.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

from moldau.client.cluster import RETRIABLE, Client, ClusterTopic, connected
from moldau.client.errors import ToolError
from moldau.objects.storage import StorageError
from moldau.pipeline.reading.broker import UNKNOWN_TOPIC
from moldau.pipeline.reading.wal_access import TOPIC_CONFIG, WalAccess, find_config, look_up_wal_access
from moldau.pipeline.sink.commit import CommitTarget, Part, SinkCommitter
from moldau.pipeline.sink.produce import produce
from moldau.pipeline.sink.rows import BatchBuilder, Routing, lay_out_object
from moldau.pipeline.sink.store import open_sink_store
from moldau.pipeline.sink.transactions import (
    TransactionCommitter,
    TransactionTarget,
    check_size,
    joined,
)
from moldau.pipeline.sink_keys import part_key
from moldau.pipeline.source.options import SourceOptions
from moldau.pipeline.source.units import TIMEOUT_S, ask
from moldau.pipeline.tasks import one_line_errors
from moldau.protocol.partitions import TopicPartition
from moldau.records.compression import Compression
from moldau.runtime.clock import SystemClock
from moldau.runtime.entropy import SystemEntropy
from moldau.runtime.errors import KafkaError

logger = logging.getLogger(__name__)

PART_BYTES: Final = 64 * 1024**2
"""Number of bytes that a task collects before it writes them."""
MESSAGE_BYTES_MAX: Final = 1_048_588
"""Kafka's default of ``max.message.bytes``. It applies if rows name their topics."""
QUERY_ID: Final = "sql.streaming.queryId"
_TYPES: Final[dict[str, tuple[type[DataType], ...]]] = {
    "key": (BinaryType, StringType),
    "value": (BinaryType, StringType),
    "topic": (StringType,),
    "partition": (IntegerType,),
}


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """The destination of rows, and how rows are written to it. The object is sent to tasks."""

    bootstrap: str
    routing: Routing
    compression: Compression
    max_message_bytes: int
    exactly: CommitTarget | None
    """The topic, if the sink writes whole objects. Each row is then stored exactly once. ``None`` if the sink
    sends records to the brokers."""
    timeout_s: float = TIMEOUT_S
    """Timeout of a request."""
    transaction: TransactionTarget | None = None
    """If this is set, the driver writes all rows in one transaction. ``None`` if the sink writes without
    transactions."""


@dataclass
class WrittenTask(WriterCommitMessage):
    """The message of a task to its driver."""

    query_id: str
    parts: tuple[Part, ...]
    batches: dict[TopicPartition, list[bytes]] = field(default_factory=dict)
    """The record batches of the task, by topic and partition, if the driver writes them in a transaction.
    Otherwise empty."""


def find_target(options: SourceOptions, schema: StructType) -> SinkTarget:
    """Look up the topic, and decide between exactly once and at least once. Raises :class:`ToolError`."""
    _check(schema, options.topic)
    target: SinkTarget = ask(
        options.bootstrap, lambda client: _find_target(client, options), options.request_timeout_s
    )
    return target


def _check(schema: StructType, topic: str | None) -> None:
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise ToolError("rows need a column 'value'")
    if topic is None and "topic" not in types:
        raise ToolError("rows need a column 'topic', or the option 'topic' names one for all")
    for name, kinds in _TYPES.items():
        if name in types and not isinstance(types[name], kinds):
            expected = " or ".join(kind.typeName().upper() for kind in kinds)
            raise ToolError(f"column {name!r} is {expected}, not {types[name].simpleString()}")
    if "headers" in types and not _are_headers(types["headers"]):
        raise ToolError(
            "column 'headers' is ARRAY<STRUCT<key: STRING, value: BINARY>>, not"
            f" {types['headers'].simpleString()}"
        )


def _are_headers(found: DataType) -> bool:
    if not isinstance(found, ArrayType) or not isinstance(found.elementType, StructType):
        return False
    kinds = [(field.name, type(field.dataType)) for field in found.elementType.fields]
    return kinds == [("key", StringType), ("value", BinaryType)]


async def _find_target(client: Client, options: SourceOptions) -> SinkTarget:
    if options.topic is None:
        rows = (await client.metadata()).topics
        counts = {row.name: len(row.partitions) for row in rows if row.name and not row.is_internal}
        if options.transactional_id is None:
            logger.warning("rows are written at least once: each of them names its topic")
        return _target(options, Routing(None, counts), MESSAGE_BYTES_MAX, None)
    topic = await client.topic(options.topic)
    limit = await find_config(client, TOPIC_CONFIG, topic.name, "max.message.bytes")
    exactly = await _exactly(client, topic, options) if options.transactional_id is None else None
    routing = Routing(topic.name, {topic.name: len(topic.leaders)})
    return _target(options, routing, int(limit) if limit else MESSAGE_BYTES_MAX, exactly)


def _target(
    options: SourceOptions, routing: Routing, max_message_bytes: int, exactly: CommitTarget | None
) -> SinkTarget:
    transaction = None
    if options.transactional_id is not None:
        if not routing.partitions:
            raise ToolError("the cluster has no topics")
        transaction = TransactionTarget(
            options.transactional_id,
            options.transaction_timeout_ms,
            options.first_transactional_batch,
            min(routing.partitions),
        )
    return SinkTarget(
        options.bootstrap,
        routing,
        options.compression,
        max_message_bytes,
        exactly,
        options.request_timeout_s,
        transaction,
    )


async def _exactly(client: Client, topic: ClusterTopic, options: SourceOptions) -> CommitTarget | None:
    """Return the target for the writes of whole objects. If objects cannot be written, return ``None``, and
    log the reason."""
    reason, access = await _access(client, topic, options)
    exactly = None
    if access is not None:
        owners = set(access.coordinators.values())
        time = await find_config(client, TOPIC_CONFIG, topic.name, "message.timestamp.type")
        if len(owners) == 1 and len(access.coordinators) == len(topic.leaders):
            reason, exactly = _openable(access.storage, topic, owners.pop(), time == "LogAppendTime")
        else:
            reason = f"its partitions have {len(owners)} coordinators"
    if exactly is None:
        logger.warning("topic %s is written at least once: %s", topic.name, reason)
    return exactly


async def _access(
    client: Client, topic: ClusterTopic, options: SourceOptions
) -> tuple[str, WalAccess | None]:
    """The access for writing objects, or the reason why objects cannot be written. Transient errors are
    raised and not returned as a reason. Otherwise a short failure would change the guarantee from exactly
    once to at least once."""
    if options.from_brokers:
        return "readFrom is brokers", None
    try:
        access = await client.retrying(lambda: look_up_wal_access(client, topic, options.storage))
    except ToolError as error:
        return str(error), None
    except KafkaError as error:
        if error.code in RETRIABLE | UNKNOWN_TOPIC:
            raise
        return f"{error.code.name.upper()}: {error}", None
    return "it is not diskless", access


def _openable(
    storage: Any, topic: Any, coordinator_id: int, log_append_time: bool
) -> tuple[str, CommitTarget | None]:
    try:
        open_sink_store(storage)
    except StorageError as error:
        return str(error), None
    target = CommitTarget(topic.name, str(topic.topic_id), coordinator_id, storage, log_append_time)
    return "", target


class _Tasks:
    """The part of a writer that runs in tasks."""

    def __init__(self, target: SinkTarget, job_id: str | None) -> None:
        self._target = target
        self._job_id = job_id
        """Id of a batch job; ``None`` for a streaming query, whose id Spark provides."""

    def write(self, rows: Iterator[Any]) -> WrittenTask:
        context = TaskContext.get()
        query_id = self._job_id or (context.getLocalProperty(QUERY_ID) if context is not None else None)
        if not query_id:  # without the id, the batches of two queries would be confused
            raise ToolError(f"Spark does not tell which query this is ({QUERY_ID})")
        return asyncio.run(self._write(rows, query_id))

    async def _write(self, rows: Iterator[Any], query_id: str) -> WrittenTask:
        target = self._target
        builder = BatchBuilder(
            target.routing,
            target.compression,
            SystemClock().now_ms(),
            target.max_message_bytes,
            # The start is random, so that tasks begin with different partitions. Otherwise small tasks would
            # all use the same partition.
            first_partition=SystemEntropy().randrange(2**31),
        )
        if target.transaction is not None:
            for some in rows:
                builder.add(some)
                check_size(builder.size_bytes)
            return WrittenTask(query_id, (), builder.drain())
        parts: list[Part] = []
        async with connected(target.bootstrap, target.timeout_s) as client:
            for some in rows:
                builder.add(some)
                if builder.size_bytes >= PART_BYTES:
                    parts += await self._store(client, builder.drain(), query_id)
            batches = builder.drain()
            if batches:
                parts += await self._store(client, batches, query_id)
        return WrittenTask(query_id, tuple(parts))

    async def _store(
        self, client: Client, batches: dict[TopicPartition, list[bytes]], query_id: str
    ) -> list[Part]:
        exactly = self._target.exactly
        if exactly is None:
            await produce(client, batches)
            return []
        by_partition = {partition: some for (_, partition), some in batches.items()}
        now_ms = SystemClock().now_ms()
        content = lay_out_object(UUID(exactly.topic_id), by_partition, created_ms=now_ms, broker_id=-1)
        key = part_key(query_id, SystemEntropy().uuid4())
        await open_sink_store(exactly.storage).put(key, content)
        return [Part(key, len(content))]


class _Driver:
    """The part of a writer that runs in the driver. Spark passes only the messages of the tasks to the
    driver's process."""

    def __init__(self, target: SinkTarget) -> None:
        self._target = target

    def commit(self, messages: Sequence[WrittenTask | None], batch_id: int | None) -> None:
        told = [message for message in messages if message is not None]
        if not told:
            return
        parts = [part for message in told for part in message.parts]
        query_id = told[0].query_id
        transaction = self._target.transaction
        if transaction is not None:
            batches = joined(message.batches for message in told)
            self._ask(lambda client: _in_transaction(client, transaction, query_id, batch_id, batches))
            return
        self._with_committer(
            lambda committer: (
                committer.commit_job(parts)
                if batch_id is None
                else committer.commit_batch(query_id, batch_id, parts)
            )
        )

    def abort(self, messages: Sequence[WrittenTask | None]) -> None:
        # Remove the parts. Spark also calls this method after a failed commit. Even then the parts may be
        # removed, because a commit never refers to them.
        parts = [part for message in messages if message is not None for part in message.parts]
        try:
            self._with_committer(lambda committer: committer.discard(parts))
        except (StorageError, KafkaError, OSError) as error:
            logger.warning("parts are left in the store: %s", error)

    def _with_committer(self, work: Callable[[SinkCommitter], Any]) -> None:
        exactly = self._target.exactly
        if exactly is None:
            return
        store = open_sink_store(exactly.storage)
        clock, entropy = SystemClock(), SystemEntropy()
        self._ask(lambda client: work(SinkCommitter(client, store, exactly, clock, entropy)))

    def _ask(self, work: Callable[[Client], Any]) -> None:
        ask(self._target.bootstrap, work, self._target.timeout_s)


async def _in_transaction(
    client: Client,
    target: TransactionTarget,
    query_id: str,
    batch_id: int | None,
    batches: dict[TopicPartition, list[bytes]],
) -> None:
    committer = TransactionCommitter(client, target)
    if batch_id is None:
        await committer.commit_job(batches)
    else:
        await committer.commit_batch(query_id, batch_id, batches)


class MoldauWriter(DataSourceArrowWriter):
    """Writes the rows of a batch job. The records appear when all tasks are done."""

    def __init__(self, target: SinkTarget) -> None:
        self._target = target
        self._job_id = f"job-{SystemEntropy().uuid4()}"

    @one_line_errors()
    def write(self, iterator: Iterator[Any]) -> WrittenTask:
        return _Tasks(self._target, self._job_id).write(iterator)

    @one_line_errors()
    def commit(self, messages: list[Any]) -> None:
        _Driver(self._target).commit(messages, None)

    @one_line_errors()
    def abort(self, messages: list[Any]) -> None:
        _Driver(self._target).abort(messages)


if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
elif hasattr(datasource, "DataSourceStreamArrowWriter"):
    StreamArrowWriter = datasource.DataSourceStreamArrowWriter
else:

    class StreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """The base class under Spark 4.0. This version has no ``DataSourceStreamArrowWriter``. But it passes
        record batches to any ``DataSourceArrowWriter``."""


class MoldauStreamWriter(StreamArrowWriter):
    """Writes one batch of a streaming query. Spark creates one writer in the driver and one in each task."""

    def __init__(self, target: SinkTarget) -> None:
        self._target = target

    @one_line_errors()
    def write(self, iterator: Iterator[Any]) -> WrittenTask:
        return _Tasks(self._target, None).write(iterator)

    @one_line_errors()
    def commit(self, messages: list[Any], batchId: int) -> None:
        _Driver(self._target).commit(messages, batchId)

    @one_line_errors()
    def abort(self, messages: list[Any], batchId: int) -> None:
        _Driver(self._target).abort(messages)
