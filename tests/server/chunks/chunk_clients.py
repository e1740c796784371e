"""A topic of one partition whose chunks a test creates, writes and reads with unmodified clients."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import moldau.testing
from moldau.network.client.rpc_client import RpcClient
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.protocol.own.chunks.create_chunks import CreateChunksRequest, CreateChunksTopicPartition
from moldau.protocol.schema import Message
from moldau.runtime.entropy import SystemEntropy

QUIET = {"log_level": 0}
LIMIT_S = 120
COMMITTED = {"isolation.level": "read_committed"}
UNCOMMITTED = {"isolation.level": "read_uncommitted"}
FIRST_MS = 1_700_000_000_000


def ask(address: str, request: Message, version: int | None = None) -> Any:
    """The answer of a broker."""

    async def asking() -> Any:
        client = RpcClient(SystemEntropy(), client_id="test")
        host, _, port = address.rpartition(":")
        try:
            if version is None:
                await client.version_of(host, int(port), request.API_KEY)
            return await client.request(host, int(port), request.API_KEY, version, request, LIMIT_S * 1000)
        finally:
            await client.close()

    return asyncio.run(asking())


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.05)


class Chunks:
    """A topic of one partition. A command creates its chunks."""

    def __init__(self, cluster: moldau.testing.Cluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.server = {"bootstrap.servers": cluster.bootstrap_servers, **QUIET}
        self.admin = AdminClient(self.server)

    def create_topic(self, brokers: Sequence[int]) -> None:
        keeping = {"retention.ms": "-1"}
        topic = NewTopic(self.topic, 1, replica_assignment=[list(brokers)], config=keeping)
        self.admin.create_topics([topic])[self.topic].result(LIMIT_S)

    def leader(self) -> int:
        """The leader of the active chunk. A request to a killed broker is repeated."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                metadata = self.admin.list_topics(self.topic, timeout=LIMIT_S)
                return metadata.topics[self.topic].partitions[0].leader
            except KafkaException as failure:
                if failure.args[0].code() != KafkaError._TRANSPORT or time.monotonic() > deadline:
                    raise

    def create(self, brokers: Sequence[int]) -> int:
        row = CreateChunksTopicPartition(topic_name=self.topic, partition_id=0, broker_ids=brokers)
        answer = ask(self.cluster.address(self.leader()), CreateChunksRequest(topic_partitions=[row]))
        result = answer.results[0]
        assert not result.error_code, (result.error_code, result.error_message)
        return int(result.start_offset)

    def reassign(self, brokers: Sequence[int]) -> None:
        """Move the active chunk to other brokers."""
        row = ReassignableTopic(
            name=self.topic, partitions=[ReassignablePartition(partition_index=0, replicas=list(brokers))]
        )
        request = AlterPartitionReassignmentsRequest(topics=[row])
        answer = ask(self.cluster.address(self.leader()), request, 0)
        assert not answer.error_code, answer
        assert not answer.responses[0].partitions[0].error_code, answer

    def end_of(self, leader_epoch: int) -> tuple[int, int]:
        """An epoch and the offset after its last record (KIP-101), from the leader."""
        row = OffsetForLeaderPartition(partition=0, leader_epoch=leader_epoch)
        topic = OffsetForLeaderTopic(topic=self.topic, partitions=[row])
        answer = ask(self.cluster.address(self.leader()), OffsetForLeaderEpochRequest(topics=[topic]))
        found = answer.topics[0].partitions[0]
        assert not found.error_code, found
        return int(found.leader_epoch), int(found.end_offset)

    def offset_of(self, timestamp_ms: int) -> int:
        """The result of ListOffsets for a timestamp, from the leader."""
        row = ListOffsetsPartition(partition_index=0, timestamp=timestamp_ms)
        topic = ListOffsetsTopic(name=self.topic, partitions=[row])
        request = ListOffsetsRequest(replica_id=-1, topics=[topic])
        found = ask(self.cluster.address(self.leader()), request).topics[0].partitions[0]
        assert not found.error_code, found
        return int(found.offset)

    def fetched(self, broker: int, offset: int) -> bytes:
        """The batches that a broker returns to a consumer that was sent to it."""
        row = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1000)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1000,
            topics=[FetchTopic(topic=self.topic, partitions=[row])],
            rack_id="a",
        )
        found = ask(self.cluster.address(broker), request, 12).responses[0].partitions[0]
        assert not found.error_code, found
        return bytes(found.records or b"")

    def delete_topic(self, broker: int) -> None:
        """Delete the topic with a request to this broker. An admin client chooses the broker by its cached
        metadata, so it may send the request to a killed broker."""
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=self.topic)], timeout_ms=LIMIT_S * 1000)
        answer = ask(self.cluster.address(broker), request)
        assert not answer.responses[0].error_code, answer

    def folders(self) -> dict[int, list[str]]:
        """The folders of the topic's chunks on each broker."""
        names = {
            broker: [each for each in os.listdir(self.cluster.log_dirs(broker)[0]) if self.is_chunk(each)]
            for broker in self.cluster.brokers
        }
        return {broker: found for broker, found in names.items() if found}

    def is_chunk(self, name: str) -> bool:
        return name.startswith(f"{self.topic}-0.") and name.endswith("-chunk")

    def produce(self, first: int, count: int) -> None:
        producer = Producer({**self.server, "enable.idempotence": True})
        for number in range(first, first + count):
            producer.produce(self.topic, str(number).encode(), partition=0)
        assert producer.flush(LIMIT_S) == 0

    def read(self, count: int, **config: str) -> list[tuple[int, int]]:
        """Read the topic from its first record. Returns the offsets and the values of all records."""
        consumer = Consumer({**self.server, "group.id": "g", "enable.auto.commit": False, **config})
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        found: list[tuple[int, int]] = []
        deadline = time.monotonic() + LIMIT_S
        while len(found) < count and time.monotonic() < deadline:
            record = consumer.poll(0.2)
            if record is not None and record.error() is None:
                found.append((record.offset(), int(record.value())))
        consumer.close()
        return found


def begin(cluster: moldau.testing.Cluster) -> None:
    """Allow chunks in a cluster."""
    update = FeatureUpdateKey(feature="moldau.chunk.version", max_version_level=1, upgrade_type=1)
    answer = ask(cluster.address(1), UpdateFeaturesRequest(feature_updates=[update]), 1)
    assert not answer.error_code, answer
