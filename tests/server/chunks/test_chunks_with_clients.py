"""A partition's chunks on three brokers, written and read by an unmodified client."""

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from chunk_clients import COMMITTED, FIRST_MS, LIMIT_S, UNCOMMITTED, Chunks, ask, begin, until
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

import moldau.testing
from moldau.chunks.calls import ChunkRead, ChunkRecords
from moldau.chunks.holder import ChunkHolder
from moldau.protocol.own.chunks.alter_chunk_assignments import (
    AlterChunkAssignment,
    AlterChunkAssignmentsRequest,
)
from moldau.protocol.special_timestamps import EARLIEST_LOCAL_TIMESTAMP
from moldau.server.subsystems.chunks.peers import ChunkPeers

FAST = {"log.retention.check.interval.ms": "200", "chunk.redirect.min.bytes": "0"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[moldau.testing.Cluster]:
    with moldau.testing.Cluster(brokers=3, properties=FAST) as cluster:
        begin(cluster)
        yield cluster


def test_a_client_reads_all_chunks_in_order(
    cluster: moldau.testing.Cluster,
) -> None:
    everything = [(number, number) for number in range(30)]
    chunks = Chunks(cluster, "simple")
    chunks.create_topic([1])
    chunks.produce(0, 10)
    assert chunks.create([2]) == 10
    chunks.produce(10, 10)
    assert chunks.leader() == 2
    assert chunks.read(20) == everything[:20]
    assert chunks.create([3]) == 20
    chunks.produce(20, 10)
    assert chunks.read(30) == everything


def test_a_transaction_over_the_border_is_read_whole_or_not_at_all(cluster: moldau.testing.Cluster) -> None:
    chunks = Chunks(cluster, "transactional")
    chunks.create_topic([1, 2])
    chunks.produce(0, 5)
    open_ones = []
    for name in ("aborted", "committed"):
        producer = Producer({**chunks.server, "transactional.id": name})
        producer.init_transactions(LIMIT_S)
        producer.begin_transaction()
        open_ones.append(producer)
    for producer, number in zip(open_ones, (100, 200), strict=True):
        producer.produce(chunks.topic, str(number).encode(), partition=0)
        assert producer.flush(LIMIT_S) == 0
    chunks.produce(5, 3)
    assert chunks.create([2, 3]) == 10
    for producer, number in zip(open_ones, (101, 201), strict=True):
        producer.produce(chunks.topic, str(number).encode(), partition=0)
        assert producer.flush(LIMIT_S) == 0
    assert [value for _, value in chunks.read(5, **COMMITTED)] == [0, 1, 2, 3, 4], "the rest is undecided"
    open_ones[0].abort_transaction(LIMIT_S)
    open_ones[1].commit_transaction(LIMIT_S)
    committed = [0, 1, 2, 3, 4, 200, 5, 6, 7, 201]
    assert [value for _, value in chunks.read(10, **COMMITTED)] == committed
    assert [value for _, value in chunks.read(12, **UNCOMMITTED)] == [
        0,
        1,
        2,
        3,
        4,
        100,
        200,
        5,
        6,
        7,
        101,
        201,
    ]
    assert chunks.create([3, 1]) == 14
    chunks.produce(8, 2)
    for broker in cluster.brokers:
        cluster.restart(broker)
    assert [value for _, value in chunks.read(12, **COMMITTED)] == [*committed, 8, 9]


def test_producers_and_a_consumer_continue_while_chunks_are_created(cluster: moldau.testing.Cluster) -> None:
    chunks = Chunks(cluster, "busy")
    chunks.create_topic([1, 2, 3])
    producer = Producer({**chunks.server, "enable.idempotence": True, "linger.ms": 1})
    number = 0
    for brokers in ([2, 3, 1], [3, 2, 1], [1, 2, 3], [2, 1, 3]):
        done: list[int] = []
        thread = threading.Thread(target=lambda to=brokers, out=done: out.append(chunks.create(to)))
        for _ in range(100):
            producer.produce(chunks.topic, str(number).encode(), partition=0)
            number += 1
        assert producer.flush(LIMIT_S) == 0
        thread.start()
        while thread.is_alive():
            producer.produce(chunks.topic, str(number).encode(), partition=0)
            producer.poll(0.001)
            number += 1
        thread.join()
        assert done
        assert chunks.leader() == brokers[0]
    assert producer.flush(LIMIT_S) == 0
    assert chunks.read(number) == [(each, each) for each in range(number)]


def test_records_are_found_by_time_and_deleted_over_chunks(cluster: moldau.testing.Cluster) -> None:
    chunks = Chunks(cluster, "timed")
    chunks.create_topic([1])
    producer = Producer(chunks.server)
    for number in range(30):
        producer.produce(chunks.topic, str(number).encode(), partition=0, timestamp=FIRST_MS + number * 1000)
        assert producer.flush(LIMIT_S) == 0
        if number in (9, 19):
            chunks.create([2 if number == 9 else 1])
    consumer = Consumer({**chunks.server, "group.id": "g"})
    for number in (0, 5, 9, 10, 15, 19, 20, 29):
        wanted = TopicPartition(chunks.topic, 0, FIRST_MS + number * 1000 - 500)
        assert consumer.offsets_for_times([wanted], LIMIT_S)[0].offset == number
    assert consumer.get_watermark_offsets(TopicPartition(chunks.topic, 0), LIMIT_S) == (0, 30)
    assert chunks.offset_of(EARLIEST_LOCAL_TIMESTAMP) == 0, "all chunks are on the disks of brokers"
    chunks.leader()  # With this request for metadata, the admin client learns the new leader.
    deletion = chunks.admin.delete_records([TopicPartition(chunks.topic, 0, 15)])
    assert next(iter(deletion.values())).result(LIMIT_S).low_watermark == 15
    assert consumer.get_watermark_offsets(TopicPartition(chunks.topic, 0), LIMIT_S) == (15, 30)
    assert chunks.offset_of(EARLIEST_LOCAL_TIMESTAMP) == 15
    consumer.close()
    assert chunks.read(15, **{"auto.offset.reset": "earliest"}) == [(each, each) for each in range(15, 30)]


def test_each_leader_epoch_ends_where_its_chunk_ends(cluster: moldau.testing.Cluster) -> None:
    chunks = Chunks(cluster, "epochs")
    chunks.create_topic([1])
    chunks.produce(0, 10)
    chunks.create([2])
    chunks.produce(10, 10)
    chunks.create([3])
    chunks.produce(20, 10)
    for _ in range(2):
        assert [chunks.end_of(epoch) for epoch in range(3)] == [(0, 10), (1, 20), (2, 30)]
        # After a restart the leader has the epochs of the chunks, which are on other brokers.
        cluster.restart(3)
        until(lambda: chunks.leader() == 3)


def test_a_chunk_is_copied_to_a_broker_and_removed_by_retention(cluster: moldau.testing.Cluster) -> None:
    chunks = Chunks(cluster, "moved")
    chunks.create_topic([1])
    chunks.produce(0, 10)
    chunks.create([2])
    chunks.produce(10, 10)
    row = AlterChunkAssignment(topic_name="moved", partition_id=0, start_offset=0, broker_ids=[3])
    controller = cluster.address(cluster.controllers[0])
    answer = ask(controller, AlterChunkAssignmentsRequest(chunks=[row]))
    assert not answer.results[0].error_code, answer
    until(lambda: chunks.folders() == {3: ["moved-0.00000000000000000000-chunk"]})
    assert chunks.read(20) == [(number, number) for number in range(20)]
    chunks.leader()
    deletion = chunks.admin.delete_records([TopicPartition("moved", 0, 12)])
    assert next(iter(deletion.values())).result(LIMIT_S).low_watermark == 12
    until(lambda: not chunks.folders())
    assert chunks.read(8, **{"auto.offset.reset": "earliest"}) == [(each, each) for each in range(12, 20)]
    chunks.create([1])
    until(lambda: bool(chunks.folders()))
    cluster.kill(2)
    try:
        chunks.delete_topic(1)
        until(lambda: list(chunks.folders()) == [2])
    finally:
        cluster.restart(2)
    until(lambda: not chunks.folders())
    assert any(each.endswith("-stray") for each in os.listdir(cluster.log_dirs(2)[0]))


def test_a_replica_joins_the_active_chunk_while_no_broker_of_the_old_chunk_lives(
    cluster: moldau.testing.Cluster,
) -> None:
    chunks = Chunks(cluster, "joined")
    chunks.create_topic([1])
    chunks.produce(0, 10)
    chunks.create([2])
    chunks.produce(10, 10)
    cluster.kill(1)
    try:
        chunks.reassign([3])
        until(lambda: chunks.leader() == 3)
    finally:
        cluster.restart(1)
    assert chunks.read(20) == [(number, number) for number in range(20)]


def test_a_consumer_with_a_rack_reads_each_chunk_from_a_broker_that_has_it(
    cluster: moldau.testing.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = Chunks(cluster, "followed")
    chunks.create_topic([1])
    chunks.produce(0, 10)
    for number, brokers in enumerate(([2], [3]), 1):
        chunks.create(brokers)
        chunks.produce(number * 10, 10)
    served: list[int] = []
    read = ChunkHolder.read

    async def noted(self: ChunkHolder, topic: str, wanted: ChunkRead) -> ChunkRecords:
        served.append(wanted.start_offset)
        return await read(self, topic, wanted)

    async def never(*arguments: Any) -> None:
        pytest.fail("the leader reads the chunk for the consumer")

    monkeypatch.setattr(ChunkHolder, "read", noted)
    monkeypatch.setattr(ChunkPeers, "read", never)
    follows = {"client.rack": "a", "fetch.error.backoff.ms": "100"}
    assert chunks.read(30, **follows) == [(number, number) for number in range(30)]
    assert served == [0, 10]


def test_a_broker_to_which_consumers_are_sent_returns_no_deleted_records(
    cluster: moldau.testing.Cluster,
) -> None:
    chunks = Chunks(cluster, "shortened")
    chunks.create_topic([1])
    for number in range(10):
        chunks.produce(number, 1)
    chunks.create([2])
    until(lambda: bool(chunks.fetched(1, 0)))

    def is_deleted() -> bool:
        chunks.leader()
        deletion = chunks.admin.delete_records([TopicPartition(chunks.topic, 0, 5)])
        try:
            return bool(next(iter(deletion.values())).result(LIMIT_S).low_watermark == 5)
        except KafkaException as error:
            # The new leader may not know yet that it leads. librdkafka does not repeat the request.
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
            return False

    until(is_deleted)
    until(lambda: not chunks.fetched(1, 0))
    assert chunks.fetched(1, 5), "the other records are still there"


def test_chunks_are_created_automatically_on_the_broker_with_the_fewest_bytes(
    cluster: moldau.testing.Cluster,
) -> None:
    chunks = Chunks(cluster, "rolled")
    rolling = {"chunk.roll.bytes": str(2**20), "retention.ms": "-1"}
    chunks.admin.create_topics([NewTopic("rolled", 1, replica_assignment=[[1]], config=rolling)])[
        "rolled"
    ].result(LIMIT_S)
    producer, count, seen = Producer({**chunks.server, "enable.idempotence": True}), 0, {1}

    def goes_on() -> bool:
        nonlocal count
        for _ in range(40):
            producer.produce("rolled", b"%d" % count, key=bytes(2**15), partition=0)
            count += 1
        assert producer.flush(LIMIT_S) == 0
        seen.add(chunks.leader())
        return len(seen) == 3

    until(goes_on)
    assert chunks.read(count) == [(number, number) for number in range(count)]
