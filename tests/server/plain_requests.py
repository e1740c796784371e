"""Short calls that send requests like producers and consumers, for tests of a node's responses."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

from moldau.network.client.rpc_client import ClientLimits, RpcClient
from moldau.protocol.messages import create_partitions as growth
from moldau.protocol.messages import create_topics as creation
from moldau.protocol.messages import delete_records as deletion
from moldau.protocol.messages import delete_topics as removal
from moldau.protocol.messages import fetch as fetching
from moldau.protocol.messages import incremental_alter_configs as alteration
from moldau.protocol.messages import list_offsets as listing
from moldau.protocol.messages import metadata
from moldau.protocol.messages import produce as producing
from moldau.protocol.schema import Message
from moldau.records import Record, build_batch
from moldau.records.batch import iter_headers
from moldau.records.record import read_records
from moldau.runtime import ErrorCode, SystemEntropy

NAMED_FETCH_VERSION, NAMED_PRODUCE_VERSION = 12, 12
PATIENT = ClientLimits(connect_timeout_ms=60_000, request_timeout_ms=100_000)
"""Time-out of tests. It is long, because the time until a response depends on the machine."""


def records(*values: bytes, timestamp: int = 1_000, step_ms: int = 0) -> list[Record]:
    return [Record(n, timestamp + n * step_ms, b"k", value) for n, value in enumerate(values)]


class Requests:
    """A client of a node, for use with ``async with``. Calls at the same time use different connections."""

    def __init__(self, bootstrap_servers: str) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self._host, self._port = host, int(port)
        self._clients: list[RpcClient] = []
        self._idle: list[RpcClient] = []

    async def __aenter__(self) -> "Requests":
        return self

    async def __aexit__(self, *error: object) -> None:
        for client in self._clients:
            await client.close()

    async def ask(self, message: Message, version: int | None = None) -> Any:
        if self._idle:
            client = self._idle.pop()
        else:
            client = RpcClient(SystemEntropy(), client_id="test", limits=PATIENT)
            self._clients.append(client)
        try:
            return await client.request(self._host, self._port, type(message).API_KEY, version, message)
        finally:
            self._idle.append(client)

    # -- topics -------------------------------------------------------------------------------

    async def create(self, name: str, partitions: int = 1, **configs: str) -> UUID:
        """Create a topic and return its id. ``configs`` have underscores in place of the dots in Kafka's
        names."""
        rows = [
            creation.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ]
        topic = creation.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, configs=rows
        )
        answer = await self.ask(creation.CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
        assert answer.topics[0].error_code is ErrorCode.none, answer
        found: UUID = answer.topics[0].topic_id
        return found

    async def delete(self, name: str) -> None:
        topic = removal.DeleteTopicState(name=name)
        answer = await self.ask(removal.DeleteTopicsRequest(topics=[topic], timeout_ms=60_000))
        assert answer.responses[0].error_code is ErrorCode.none, answer

    async def add_partitions(self, name: str, count: int) -> None:
        topic = growth.CreatePartitionsTopic(name=name, count=count, assignments=None)
        answer = await self.ask(growth.CreatePartitionsRequest(topics=[topic], timeout_ms=60_000))
        assert answer.results[0].error_code is ErrorCode.none, answer

    async def describe(self, name: str) -> Any:
        topics = [metadata.MetadataRequestTopic(name=name)]
        request = metadata.MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        return (await self.ask(request)).topics[0]

    async def alter(self, name: str, **configs: str) -> ErrorCode:
        """Set configs of a topic. Returns the error, or None."""
        rows = [
            alteration.AlterableConfig(name=key.replace("_", "."), config_operation=0, value=value)
            for key, value in configs.items()
        ]
        resource = alteration.AlterConfigsResource(resource_type=2, resource_name=name, configs=rows)
        answer = await self.ask(alteration.IncrementalAlterConfigsRequest(resources=[resource]))
        code: ErrorCode = answer.responses[0].error_code
        return code

    # -- producing ----------------------------------------------------------------------------

    async def produce_all(
        self,
        batches: dict[tuple[str, int], bytes],
        *,
        acks: int = -1,
        timeout_ms: int = 60_000,
        transactional_id: str | None = None,
    ) -> dict[tuple[str, int], Any]:
        """Send one produce request for several partitions. Returns the response for each partition."""
        topics: dict[str, list[producing.PartitionProduceData]] = {}
        for (topic, index), batch in batches.items():
            topics.setdefault(topic, []).append(producing.PartitionProduceData(index=index, records=batch))
        rows = [producing.TopicProduceData(name=name, partition_data=data) for name, data in topics.items()]
        request = producing.ProduceRequest(
            transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=rows
        )
        answer = await self.ask(request, NAMED_PRODUCE_VERSION)
        return {
            (topic.name, row.index): row for topic in answer.responses for row in topic.partition_responses
        }

    async def produce(self, topic: str, batch: bytes, partition: int = 0) -> Any:
        return (await self.produce_all({(topic, partition): batch}))[topic, partition]

    async def produce_values(self, topic: str, *values: bytes, partition: int = 0, **how: Any) -> int:
        """Append records as one batch. Returns the offset of the first record."""
        answer = await self.produce(topic, build_batch(records(*values, **how)), partition)
        assert answer.error_code is ErrorCode.none, answer
        offset: int = answer.base_offset
        return offset

    # -- consuming ----------------------------------------------------------------------------

    async def fetch_all(
        self,
        offsets: dict[tuple[str, int], int],
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 30,
        partition_max_bytes: int = 1 << 20,
        isolation_level: int = 0,
    ) -> dict[tuple[str, int], Any]:
        topics: dict[str, list[fetching.FetchPartition]] = {}
        for (topic, index), offset in offsets.items():
            row = fetching.FetchPartition(
                partition=index, fetch_offset=offset, partition_max_bytes=partition_max_bytes
            )
            topics.setdefault(topic, []).append(row)
        request = fetching.FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            topics=[fetching.FetchTopic(topic=name, partitions=rows) for name, rows in topics.items()],
        )
        answer = await self.ask(request, NAMED_FETCH_VERSION)
        assert answer.error_code is ErrorCode.none, answer
        return {
            (topic.topic, row.partition_index): row for topic in answer.responses for row in topic.partitions
        }

    async def fetch(self, topic: str, offset: int, partition: int = 0, **how: Any) -> Any:
        return (await self.fetch_all({(topic, partition): offset}, **how))[topic, partition]

    async def read(self, topic: str, offset: int, count: int, partition: int = 0) -> list[Record]:
        """The next ``count`` records. Fails if no record arrives for some time."""
        found: list[Record] = []
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 60
        while len(found) < count:
            answer = await self.fetch(topic, offset, partition, max_wait_ms=5_000)
            assert answer.error_code is ErrorCode.none, answer
            fresh = [record for record in unpack(answer.records) if record.offset >= offset]
            if fresh:
                found += fresh
                offset = found[-1].offset + 1
                deadline = loop.time() + 60
            assert loop.time() < deadline, f"{len(found)} of {count} records"
        return found

    async def offset_at(self, topic: str, timestamp: int, partition: int = 0) -> Any:
        """The row of a ListOffsets response for a timestamp, which may be one of the special timestamps."""
        row = listing.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        topics = [listing.ListOffsetsTopic(name=topic, partitions=[row])]
        answer = await self.ask(listing.ListOffsetsRequest(replica_id=-1, topics=topics, timeout_ms=60_000))
        return answer.topics[0].partitions[0]

    async def delete_records(
        self, topic: str, before_offset: int, partition: int = 0, timeout_ms: int = 60_000
    ) -> Any:
        row = deletion.DeleteRecordsPartition(partition_index=partition, offset=before_offset)
        topics = [deletion.DeleteRecordsTopic(name=topic, partitions=[row])]
        answer = await self.ask(deletion.DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms))
        return answer.topics[0].partitions[0]


def unpack(fetched: Any) -> list[Record]:
    """All records in the bytes of a Fetch response. The bytes begin with a batch."""
    view = memoryview(b"".join(fetched) if isinstance(fetched, list | tuple) else fetched or b"")
    found: list[Record] = []
    for position, header in iter_headers(view):
        found += read_records(view[position : position + header.size_bytes])
    return found


async def eventually(probe: Callable[[], Awaitable[object]], what: str, timeout_s: float = 120.0) -> None:
    """Await ``probe()`` until it returns a true value."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not await probe():
        assert loop.time() < deadline, f"not within {timeout_s:.0f} s: {what}"
        await asyncio.sleep(0.01)


def values(found: Sequence[Record]) -> list[bytes | None]:
    return [record.value for record in found]
