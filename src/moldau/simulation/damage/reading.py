"""Reads the contents of a node as a client does: topics, records with checksums, the health page."""

import asyncio
import random
from typing import Final

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.partitions import TopicPartition
from moldau.protocol.special_timestamps import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from moldau.records.batch import check_batch
from moldau.records.errors import CorruptRecordError
from moldau.records.record import read_records
from moldau.runtime import ErrorCode
from moldau.simulation.clients.client import (
    FETCH_VERSION,
    METADATA_VERSION,
    Bootstrap,
    RetryError,
    SimulatedClient,
    joined,
)
from moldau.simulation.clients.rpc import RpcConnection
from moldau.simulation.history import History

PATIENCE_S: Final = 60.0
"""If each read returns the same error for this time, the record counts as unreadable."""


class Reader(SimulatedClient):
    """Reads like a client that checks checksums. If all attempts to read an offset fail, it stops at this
    offset."""

    def __init__(self, name: str, bootstrap: Bootstrap, history: History, chance: random.Random) -> None:
        super().__init__(name, bootstrap, history, chance)
        self.epochs: dict[int, int] = {}
        """Leader epochs of the records that were read, by offset."""

    async def topics(self) -> dict[str, int]:
        """The number of partitions of each topic, without internal topics."""
        while True:
            try:
                connection = await RpcConnection.open(self.name, self.bootstrap.host, self.bootstrap.port)
                request = MetadataRequest(topics=None)
                response = await connection.request(ApiKey.METADATA, METADATA_VERSION, request)
                connection.close()
                return {
                    topic.name: len(topic.partitions) for topic in response.topics if not topic.is_internal
                }
            except OSError:
                await self.pause()

    async def read(self, partition: TopicPartition) -> tuple[list[tuple[int, bytes]], str | None]:
        """Read all records. If reading stops early, the error is also returned."""
        found: list[tuple[int, bytes]] = []
        position = end = -1
        error = ""
        failing_since_s = self.history.now_s()
        while True:
            try:
                if position < 0:
                    # The high watermark in a Fetch response covers only the commits that the broker has read.
                    # Therefore the end of the partition is requested, too.
                    end = await self.list_offset(partition, LATEST_TIMESTAMP)
                    position = await self.list_offset(partition, EARLIEST_TIMESTAMP)
                position, high_watermark, batch_records = await self._fetch(partition, position)
                found += batch_records
                if position >= max(end, high_watermark):
                    return found, None
                if batch_records:
                    failing_since_s = self.history.now_s()
                continue
            except CorruptRecordError as corrupt:
                return found, f"offset {position}: {corrupt}"
            except (OSError, RetryError) as failed:
                error = repr(failed)
            if self.history.now_s() - failing_since_s > PATIENCE_S:
                return found, f"offset {position}: {error}"
            self.disconnect()
            await self.pause()

    async def _fetch(
        self, partition: TopicPartition, position: int
    ) -> tuple[int, int, list[tuple[int, bytes]]]:
        """The next position, the high watermark, and the records at ``position`` and after it."""
        connection = await self.leader(partition)
        wanted = FetchPartition(
            partition=partition.partition, fetch_offset=position, partition_max_bytes=1_000_000
        )
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=10_000_000,
            topics=[FetchTopic(topic=partition.topic, partitions=[wanted])],
        )
        response = await connection.request(ApiKey.FETCH, FETCH_VERSION, request)
        if response.error_code is not ErrorCode.none:
            raise RetryError(response.error_code.name)
        answer = response.responses[0].partitions[0]
        if answer.error_code is ErrorCode.offset_out_of_range:
            # Retention can delete the next record between two requests.
            start = await self.list_offset(partition, EARLIEST_TIMESTAMP)
            if start > position:
                return start, -1, []
        if answer.error_code is not ErrorCode.none:
            raise RetryError(answer.error_code.name)
        records: list[tuple[int, bytes]] = []
        view = memoryview(joined(answer.records))
        at = 0
        while at < len(view):
            header = check_batch(view, at)
            for record in read_records(view[at : at + header.size_bytes]):
                if record.offset >= position:
                    records.append((record.offset, record.value or b""))
                    self.epochs[record.offset] = header.partition_leader_epoch
            at += header.size_bytes
        return records[-1][0] + 1 if records else position, answer.high_watermark, records


async def health(host: str, port: int) -> str:
    """The body of the health page; raises OSError."""
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
    return answer.partition(b"\r\n\r\n")[2].decode()
