"""Reads a range of offsets through the broker that leads the partition, or through a broker of the task's
rack."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from moldau.client.cluster import EARLIEST, RETRIABLE, RETRY_BACKOFF_S, Client, ClusterTopic
from moldau.client.errors import ToolError
from moldau.client.reader import AbortedTransactions
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.reading.topic_source import TopicSource
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from moldau.records.batch import iter_headers
from moldau.runtime.errors import ErrorCode, KafkaError

FETCH_BYTES: Final = 16 * 1024 * 1024
MAX_WAIT_MS: Final = 500
UNKNOWN_TOPIC: Final = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})


class TopicGoneError(ToolError):
    """A topic was deleted while it was being read."""


async def same_topic(client: Client, source: TopicSource) -> ClusterTopic:
    """The current metadata of the topic. Raises :class:`TopicGoneError` if the topic's id differs from the id
    in the plan."""
    try:
        topic = await client.topic(source.topic)
    except KafkaError as error:
        if error.code not in UNKNOWN_TOPIC:
            raise
        raise TopicGoneError(f"topic {source.topic} was deleted") from error
    if str(topic.topic_id) != source.topic_id:
        raise TopicGoneError(f"topic {topic.name} was deleted and created again")
    return topic


class BrokerReader:
    """Reads one range of offsets, in order."""

    def __init__(self, client: Client, source: TopicSource, wanted: OffsetRange) -> None:
        self._client = client
        self._source = source
        self._wanted = wanted
        self._position = wanted.start
        self.first_offset = wanted.start
        """The log start offset. Records before it are deleted, though a batch may still contain them."""
        self._where = f"{source.topic}-{wanted.partition}"
        self._rack = source.rack
        self._near: int | None = None
        """The broker in the task's rack to which the leader has redirected this reader; ``None`` while this
        reader fetches from the leader."""

    async def chunks(self) -> AsyncIterator[list[memoryview]]:
        """Batches with the range's records. The first and the last batch may extend beyond the range.

        With ``committed_only``, batches of aborted transactions are skipped. Raises :class:`ToolError` when
        records were deleted, :class:`TopicGoneError` when the topic was deleted, and ``KafkaError`` for the
        broker's errors.
        """
        loop = asyncio.get_running_loop()
        topic = await same_topic(self._client, self._source)
        deadline = loop.time() + self._source.timeout_s
        while self._position < self._wanted.end:
            before = self._position
            try:
                data = await self._fetch(topic)
                if self._is_redirected(data):
                    continue
                found = self._batches_to_decode(data)
            except KafkaError as error:
                if self._near is not None:
                    self._return_to_leader()
                elif error.code is ErrorCode.offset_out_of_range:
                    await self._skip_lost(topic)
                elif error.code not in RETRIABLE | UNKNOWN_TOPIC or loop.time() >= deadline:
                    raise
                else:
                    await asyncio.sleep(RETRY_BACKOFF_S)
                    topic = await same_topic(self._client, self._source)
                continue
            if found:
                yield found
            if self._position > before:
                deadline = loop.time() + self._source.timeout_s
            elif loop.time() >= deadline and self._near is not None:
                self._return_to_leader()
                deadline = loop.time() + self._source.timeout_s
            elif loop.time() >= deadline:
                raise ToolError(f"{self._where}: nothing to be read at offset {self._position} for too long")

    async def _fetch(self, topic: ClusterTopic) -> PartitionData:
        partition = self._wanted.partition
        row = FetchPartition(
            partition=partition, fetch_offset=self._position, partition_max_bytes=FETCH_BYTES
        )
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            rack_id=self._rack,
            isolation_level=int(self._source.committed_only),
            topics=[FetchTopic(topic_id=topic.topic_id, topic=topic.name, partitions=[row])],
        )
        broker_id = topic.leaders[partition] if self._near is None else self._near
        response: Any = await self._client.ask(request, broker=broker_id)
        if response.error_code is not ErrorCode.none:
            raise KafkaError(response.error_code, f"{self._where}: {response.error_code.name.upper()}")
        data: PartitionData = response.responses[0].partitions[0]
        if data.error_code is not ErrorCode.none:
            raise KafkaError(data.error_code, f"{self._where}: {data.error_code.name.upper()}")
        return data

    def _is_redirected(self, data: PartitionData) -> bool:
        """Whether the response names another broker, and has no records. If the leader names a broker of the
        rack, the next request goes to this broker. If the broker of the rack names a broker, the next request
        goes to the leader."""
        if data.preferred_read_replica < 0:
            return False
        if self._near is None:
            self._near = data.preferred_read_replica
        else:
            self._return_to_leader()
        return True

    def _return_to_leader(self) -> None:
        """Read the rest of the range from the leader, because the broker of the rack has failed or is
        behind."""
        self._near, self._rack = None, ""

    def _batches_to_decode(self, data: PartitionData) -> list[memoryview]:
        """The batches to decode. The position moves past every processed batch, including skipped batches."""
        found: list[memoryview] = []
        if not data.records:
            return found
        assert isinstance(data.records, memoryview)
        aborted = AbortedTransactions(data) if self._source.committed_only else None
        for at, header in iter_headers(data.records):
            batch = data.records[at : at + header.size_bytes]
            if header.is_control:
                if aborted is not None:
                    aborted.pass_marker(header, batch)
            elif aborted is None or not aborted.covers(header):
                found.append(batch)
            self._position = max(self._position, header.next_offset)
            if self._position >= self._wanted.end:
                break
        return found

    async def _skip_lost(self, topic: ClusterTopic) -> None:
        """Skip to the first remaining record. Raises an error if records must not be lost, or if the
        requested record does not exist yet."""
        partition = self._wanted.partition
        first = (await self._client.offsets(topic, {partition: EARLIEST}))[partition].offset
        if first <= self._position:
            raise ToolError(f"{self._where} has no offset {self._position} (yet)")
        if not self._source.may_lose:
            raise ToolError(f"{self._where}: offsets {self._position} to {first - 1} were deleted meanwhile")
        self._position = self.first_offset = first
