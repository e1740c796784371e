"""The chunks of a tiered partition. The records in the tier are before the first chunk, and unmodified
clients read all records."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from chunk_clients import COMMITTED, FIRST_MS, LIMIT_S, Chunks, ask, begin, until
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

import moldau.testing
from moldau.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from moldau.protocol.own.tiered.describe_topics import (
    TieredDescribedPartition,
    TieredDescribeTopicsRequest,
)
from moldau.protocol.special_timestamps import (
    EARLIEST_LOCAL_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    MAX_TIMESTAMP,
)

TIERED = {"remote.storage.enable": "true", "retention.ms": "-1"}
PROPERTIES = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "50",
    "remote.log.metadata.topic.num.partitions": "1",
    "log.retention.check.interval.ms": "100",
    "chunk.redirect.min.bytes": "0",
}
EVERYTHING = [(number, number) for number in range(30)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[moldau.testing.Cluster]:
    with moldau.testing.Cluster(brokers=3, properties=PROPERTIES) as cluster:
        begin(cluster)
        yield cluster


class TieredChunks(Chunks):
    """A tiered topic of one partition."""

    def create_tiered(self, brokers: list[int], **config: str) -> None:
        given = {**TIERED, **{key.replace("_", "."): value for key, value in config.items()}}
        topic = NewTopic(self.topic, 1, replica_assignment=[brokers], config=given)
        self.admin.create_topics([topic])[self.topic].result(LIMIT_S)

    def configure(self, **config: str) -> None:
        entries = [
            ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for key, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(LIMIT_S)

    def offset(self, timestamp: int) -> int:
        """The offset for one of the special timestamps."""
        row = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        topic = ListOffsetsTopic(name=self.topic, partitions=[row])
        answer = ask(self.cluster.address(self.leader()), ListOffsetsRequest(replica_id=-1, topics=[topic]))
        found = answer.topics[0].partitions[0]
        assert not found.error_code, found
        return int(found.offset)

    def described(self) -> TieredDescribedPartition:
        """The partition as ``moldau tiered topics`` shows it."""
        answer = ask(self.cluster.address(self.leader()), TieredDescribeTopicsRequest(topics=[self.topic]))
        found: TieredDescribedPartition = answer.topics[0].partitions[0]
        return found

    def log_bytes(self, broker: int) -> int:
        """The bytes of the log files of the inactive chunks on a broker."""
        home = Path(self.cluster.log_dirs(broker)[0])
        return sum(
            file.stat().st_size for name in self.folders()[broker] for file in home.glob(f"{name}/*.log")
        )

    def produce_at(self, first: int, count: int) -> None:
        producer = Producer(self.server)
        for number in range(first, first + count):
            producer.produce(self.topic, b"%d" % number, partition=0, timestamp=FIRST_MS + number * 1000)
        assert producer.flush(LIMIT_S) == 0


def test_a_chunk_moves_to_the_tier_and_every_record_is_read_once(cluster: moldau.testing.Cluster) -> None:
    chunks = TieredChunks(cluster, "moved-to-tier")
    chunks.create_tiered([1])
    chunks.produce_at(0, 10)
    assert chunks.create([2]) == 10
    chunks.produce_at(10, 10)
    assert chunks.create([3]) == 20
    chunks.produce_at(20, 10)
    assert sorted(chunks.folders()) == [1, 2]
    assert chunks.read(30) == EVERYTHING
    chunks.configure(local_retention_bytes="1")
    until(lambda: not chunks.folders())
    assert chunks.read(30) == EVERYTHING
    assert chunks.read(30, **COMMITTED) == EVERYTHING


def test_tools_see_the_size_of_the_chunks_that_are_on_the_disks(cluster: moldau.testing.Cluster) -> None:
    chunks = TieredChunks(cluster, "sizes")
    chunks.create_tiered([1, 2])
    chunks.produce_at(0, 10)
    chunks.create([2, 3])
    chunks.produce_at(10, 10)
    until(lambda: sorted(chunks.folders()) == [1, 2])
    row = chunks.described()
    assert (row.local_log_start_offset, row.high_watermark) == (0, 20)
    active_bytes = row.local_size_bytes - chunks.log_bytes(1)
    assert 0 < active_bytes < row.local_size_bytes
    chunks.configure(local_retention_bytes="1")
    until(lambda: not chunks.folders())
    until(lambda: chunks.described().local_log_start_offset == 10)
    assert chunks.described().local_size_bytes == active_bytes


def test_records_are_found_by_time_and_deleted_over_the_tier_and_chunks(
    cluster: moldau.testing.Cluster,
) -> None:
    chunks = TieredChunks(cluster, "timed-tier")
    chunks.create_tiered([1], local_retention_bytes="100")
    chunks.produce_at(0, 10)
    chunks.create([2])
    chunks.produce_at(10, 10)
    chunks.create([3])
    until(lambda: not chunks.folders().get(1))
    chunks.produce_at(20, 10)
    consumer = Consumer({**chunks.server, "group.id": "g"})
    part = TopicPartition(chunks.topic, 0)
    for number in (0, 5, 9, 10, 15, 19, 20, 29):
        wanted = TopicPartition(chunks.topic, 0, FIRST_MS + number * 1000 - 500)
        assert consumer.offsets_for_times([wanted], LIMIT_S)[0].offset == number
    assert consumer.get_watermark_offsets(part, LIMIT_S) == (0, 30)
    assert chunks.offset(MAX_TIMESTAMP) == 29
    until(lambda: chunks.offset(LATEST_TIERED_TIMESTAMP) == 19)
    chunks.leader()
    deletion = chunks.admin.delete_records([TopicPartition(chunks.topic, 0, 5)])
    assert next(iter(deletion.values())).result(LIMIT_S).low_watermark == 5
    assert consumer.get_watermark_offsets(part, LIMIT_S) == (5, 30)
    consumer.close()
    assert chunks.read(25, **{"auto.offset.reset": "earliest"}) == EVERYTHING[5:]


def test_a_transaction_over_the_border_is_aborted_in_the_tier(cluster: moldau.testing.Cluster) -> None:
    chunks = TieredChunks(cluster, "transactional-tier")
    chunks.create_tiered([1], local_retention_bytes="1")
    chunks.produce(0, 5)
    producer = Producer({**chunks.server, "transactional.id": "aborted-in-tier"})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    producer.produce(chunks.topic, b"100", partition=0)
    assert producer.flush(LIMIT_S) == 0
    chunks.produce(5, 3)
    chunks.create([2])
    producer.produce(chunks.topic, b"101", partition=0)
    assert producer.flush(LIMIT_S) == 0
    chunks.produce(8, 2)
    assert sorted(chunks.folders()) == [1], "a chunk with an open transaction is not copied"
    producer.abort_transaction(LIMIT_S)
    until(lambda: not chunks.folders())
    committed = list(range(10))
    assert [value for _, value in chunks.read(10, **COMMITTED)] == committed, (
        "the marker is in the active log"
    )
    chunks.create([3])
    chunks.produce(10, 2)
    assert [value for _, value in chunks.read(12, **COMMITTED)] == [*committed, 10, 11]
    until(lambda: not chunks.folders())
    assert [value for _, value in chunks.read(12, **COMMITTED)] == [*committed, 10, 11]


def test_chunks_that_are_not_in_the_tier_outlive_restarts_and_new_leaders(
    cluster: moldau.testing.Cluster,
) -> None:
    chunks = TieredChunks(cluster, "restarted-tier")
    chunks.create_tiered([1, 2], remote_log_copy_disable="true")
    chunks.produce(0, 10)
    chunks.create([2, 3])
    chunks.produce(10, 10)
    for broker in cluster.brokers:
        cluster.restart(broker)
        assert chunks.read(20) == EVERYTHING[:20]
    chunks.create([3, 1])
    chunks.produce(20, 10)
    chunks.configure(remote_log_copy_disable="false", local_retention_bytes="1")
    until(lambda: not chunks.folders())
    for broker in cluster.brokers:
        cluster.restart(broker)
        assert chunks.read(30) == EVERYTHING


def test_segments_that_were_removed_before_the_chunk_ended_are_read_from_the_tier(
    cluster: moldau.testing.Cluster,
) -> None:
    chunks = TieredChunks(cluster, "shortened-tier")
    chunks.create_tiered([1], segment_ms="1", local_retention_bytes="200")
    for number in range(10):
        chunks.produce(number, 1)
    chunks.produce(10, 1)
    until(lambda: chunks.offset(EARLIEST_LOCAL_TIMESTAMP) > 5)
    chunks.create([2])
    chunks.produce(11, 9)
    assert chunks.read(20) == EVERYTHING[:20]
    follows = {"client.rack": "a", "fetch.error.backoff.ms": "100"}
    assert chunks.read(20, **follows) == EVERYTHING[:20]


def test_a_chunk_is_read_from_the_tier_while_none_of_its_brokers_runs(
    cluster: moldau.testing.Cluster,
) -> None:
    chunks = TieredChunks(cluster, "unavailable-chunk")
    chunks.create_tiered([1])
    chunks.produce_at(0, 10)
    chunks.create([2])
    chunks.produce_at(10, 10)
    until(lambda: chunks.offset(LATEST_TIERED_TIMESTAMP) == 9)
    assert list(chunks.folders()) == [1]
    cluster.kill(1)
    try:
        for settings in (COMMITTED, {"client.rack": "a", "fetch.error.backoff.ms": "100"}):
            assert chunks.read(20, **settings) == EVERYTHING[:20]
        consumer = Consumer({**chunks.server, "group.id": "g"})
        wanted = TopicPartition(chunks.topic, 0, FIRST_MS + 4_500)
        assert consumer.offsets_for_times([wanted], LIMIT_S)[0].offset == 5
        consumer.close()
    finally:
        cluster.restart(1)


def test_retention_ends_the_records_of_a_chunk_in_the_tier(cluster: moldau.testing.Cluster) -> None:
    chunks = TieredChunks(cluster, "expired-tier")
    chunks.create_tiered([1], local_retention_bytes="1")
    chunks.produce_at(0, 10)
    chunks.create([2])
    chunks.produce(10, 10)  # The local retention keeps the chunk while the active chunk is empty.
    until(lambda: not chunks.folders())
    chunks.configure(retention_ms="86400000")
    consumer = Consumer({**chunks.server, "group.id": "g"})
    part = TopicPartition(chunks.topic, 0)
    until(lambda: consumer.get_watermark_offsets(part, LIMIT_S) == (10, 20))
    consumer.close()
    assert chunks.read(10, **{"auto.offset.reset": "earliest"}) == EVERYTHING[10:20]


def test_a_topic_with_chunks_stays_tiered_or_not(cluster: moldau.testing.Cluster) -> None:
    chunks = TieredChunks(cluster, "fixed-tier")
    chunks.create_tiered([1])
    chunks.produce(0, 10)
    chunks.create([2])
    with pytest.raises(KafkaException, match="cannot be changed"):
        chunks.configure(remote_storage_enable="false", remote_log_delete_on_disable="true")
    plain = TieredChunks(cluster, "fixed-local")
    plain.create_topic([1])
    plain.produce(0, 10)
    plain.create([2])
    with pytest.raises(KafkaException, match="cannot be changed"):
        plain.configure(remote_storage_enable="true")
