"""Reads partitions. There is one fetch in flight to each leader. The records of each partition are in
order."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from typing import Any, Final, NamedTuple

from moldau.client.cluster import RETRIABLE, RETRY_BACKOFF_S, Client, ClusterTopic
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from moldau.records.batch import BatchHeader, TimestampType, iter_headers
from moldau.records.control import ControlType, parse_control_type
from moldau.records.record import Record, iter_records
from moldau.runtime.errors import ErrorCode, KafkaError

MAX_WAIT_MS: Final = 500
PARTITION_MAX_BYTES: Final = 4 * 1024 * 1024
MAX_BYTES: Final = 32 * 1024 * 1024


class Fetched(NamedTuple):
    """A record and its position."""

    partition: int
    record: Record
    timestamp_type: TimestampType


class TopicReader:
    """Reads some partitions of a topic from given offsets.

    ``positions`` are the next offsets, by partition. If ``ends`` has an end for a partition, the partition is
    done when this end is reached. The iteration ends when all partitions are done. If some partition has no
    end, the iteration never ends.
    """

    def __init__(
        self,
        client: Client,
        topic: ClusterTopic,
        positions: Mapping[int, int],
        ends: Mapping[int, int] | None = None,
        *,
        committed_only: bool = False,
    ) -> None:
        self._client = client
        self._topic = topic
        self.positions = dict(positions)
        self._ends = ends
        self._committed_only = committed_only

    def _is_done(self, partition: int) -> bool:
        return self._ends is not None and self.positions[partition] >= self._ends[partition]

    def _wanted(self) -> dict[int, list[int]]:
        """Partitions whose end is not reached yet, by leader."""
        found: dict[int, list[int]] = {}
        for partition in self.positions:
            if not self._is_done(partition):
                found.setdefault(self._topic.leaders[partition], []).append(partition)
        return found

    async def chunks(self) -> AsyncGenerator[list[Fetched], None]:
        """Yield groups of records, in the order in which the records are fetched. ``positions`` is updated
        for a group only when the next group is requested."""
        flights: dict[int, asyncio.Task[Any]] = {}
        try:
            while wanted := self._wanted():
                for leader, partitions in wanted.items():
                    if leader not in flights:
                        flights[leader] = asyncio.create_task(self._fetch(leader, partitions))
                await asyncio.wait(flights.values(), return_when=asyncio.FIRST_COMPLETED)
                for leader in [leader for leader, flight in flights.items() if flight.done()]:
                    for data in await self._answer(flights.pop(leader)):
                        async for chunk in self._records_of(data):
                            yield chunk
        finally:
            for flight in flights.values():
                flight.cancel()
            await asyncio.gather(*flights.values(), return_exceptions=True)

    async def _fetch(self, leader: int, partitions: Iterable[int]) -> list[PartitionData]:
        rows = [
            FetchPartition(
                partition=partition,
                fetch_offset=self.positions[partition],
                partition_max_bytes=PARTITION_MAX_BYTES,
            )
            for partition in partitions
        ]
        topic = FetchTopic(topic_id=self._topic.topic_id, topic=self._topic.name, partitions=rows)
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            isolation_level=int(self._committed_only),
            topics=[topic],
        )
        response = await self._client.ask(request, broker=leader)
        if response.error_code is not ErrorCode.none:
            raise KafkaError(response.error_code)
        return [data for answered in response.responses for data in answered.partitions]

    async def _answer(self, flight: "asyncio.Task[list[PartitionData]]") -> list[PartitionData]:
        """The partitions in the response. If a leader has moved, leaders are looked up again."""
        try:
            data = flight.result()
            for row in data:
                if row.error_code is not ErrorCode.none:
                    raise self._problem(row)
        except KafkaError as error:
            if error.code not in RETRIABLE:
                raise
            await asyncio.sleep(RETRY_BACKOFF_S)
            self._topic = await self._client.topic(self._topic.name)
            return []
        return data

    def _problem(self, row: PartitionData) -> KafkaError:
        where = f"{self._topic.name}-{row.partition_index}"
        if row.error_code is ErrorCode.offset_out_of_range:
            position = self.positions[row.partition_index]
            return KafkaError(row.error_code, f"{where} has no offset {position} (any more, or yet)")
        return KafkaError(row.error_code, f"{where}: {row.error_code.name.upper()}")

    async def _records_of(self, data: PartitionData) -> AsyncIterator[list[Fetched]]:
        if not data.records:
            return
        partition = data.partition_index
        aborted = AbortedTransactions(data) if self._committed_only else None
        assert isinstance(data.records, memoryview)
        view = data.records
        for at, header in iter_headers(view):
            batch = view[at : at + header.size_bytes]
            if header.is_control:
                if aborted is not None:
                    aborted.pass_marker(header, batch)
            elif aborted is None or not aborted.covers(header):
                position = self.positions[partition]
                chunk = [
                    Fetched(partition, record, header.timestamp_type)
                    for record in iter_records(batch)
                    if record.offset >= position
                ]
                if chunk:
                    yield chunk
            self.positions[partition] = max(self.positions[partition], header.next_offset)
            if self._is_done(partition):
                return


class AbortedTransactions:
    """Finds out which transactional batches of a partition belong to aborted transactions."""

    def __init__(self, data: PartitionData) -> None:
        rows = sorted(data.aborted_transactions or (), key=lambda row: row.first_offset)
        self._ahead = [(row.first_offset, row.producer_id) for row in rows]
        self._open: set[int] = set()

    def covers(self, header: BatchHeader) -> bool:
        self._move_to(header)
        return header.is_transactional and header.producer_id in self._open

    def _move_to(self, header: BatchHeader) -> None:
        while self._ahead and self._ahead[0][0] <= header.last_offset:
            self._open.add(self._ahead.pop(0)[1])

    def pass_marker(self, header: BatchHeader, batch: memoryview) -> None:
        self._move_to(header)  # the marker may be the first batch of a response
        for record in iter_records(batch):
            if parse_control_type(record.key) is ControlType.ABORT:
                self._open.discard(header.producer_id)
