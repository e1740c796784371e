"""The test plan of KIP-1114, sessions of fetches, unclean leaders and commands, on three brokers with an
unmodified client."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from chunk_clients import COMMITTED, LIMIT_S, Chunks, begin, until
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import NewTopic

import moldau.testing
from moldau.chunks.calls import ChunkRead, ChunkRecords
from moldau.chunks.holder import ChunkHolder
from moldau.network.client.rpc_client import RpcClient
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.records.batch import iter_headers
from moldau.runtime.entropy import SystemEntropy

PROPERTIES = {"chunk.redirect.min.bytes": "0", "min.insync.replicas": "1"}
FIRST_CHUNK = ("--partition", "0", "--start-offset", "0")
FIRST_TEN = [(number, number) for number in range(10)]
SECOND_TEN = [(number, number) for number in range(10, 20)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[moldau.testing.Cluster]:
    with moldau.testing.Cluster(brokers=3, properties=PROPERTIES) as cluster:
        begin(cluster)
        yield cluster


@pytest.fixture
def served(cluster: moldau.testing.Cluster, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The reads of inactive chunks: the broker that has read its copy, and the first offset of the chunk."""
    homes = {cluster.log_dirs(broker)[0]: broker for broker in cluster.brokers}
    found: list[tuple[int, int]] = []
    read = ChunkHolder.read

    async def noted(self: ChunkHolder, topic: str, wanted: ChunkRead) -> ChunkRecords:
        found.append((homes[self._store._logs.directories[0].path], wanted.start_offset))
        return await read(self, topic, wanted)

    monkeypatch.setattr(ChunkHolder, "read", noted)
    return found


def polled(consumer: Consumer, count: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []

    def is_complete() -> bool:
        record = consumer.poll(0.2)
        if record is not None and record.error() is None:
            found.append((record.offset(), int(record.value())))
        return len(found) >= count

    until(is_complete)
    return found


def subscribed(chunks: Chunks, **config: str) -> Consumer:
    consumer = Consumer(
        {**chunks.server, "group.id": chunks.topic, "auto.offset.reset": "earliest", **config}
    )
    consumer.subscribe([chunks.topic])
    return consumer


def test_a_consumer_continues_over_the_border(
    cluster: moldau.testing.Cluster, served: list[tuple[int, int]]
) -> None:
    chunks = Chunks(cluster, "plan-simple")
    chunks.create_topic([1])
    early, late = subscribed(chunks), subscribed(chunks, **{"group.id": "late"})
    chunks.produce(0, 10)
    assert polled(early, 10) == FIRST_TEN
    assert chunks.create([2]) == 10
    chunks.produce(10, 10)
    assert polled(early, 10) == SECOND_TEN
    assert served == [], "the records of the active chunk are read from its leader"
    assert polled(late, 20) == FIRST_TEN + SECOND_TEN
    assert set(served) == {(1, 0)}
    early.close()
    late.close()


def test_a_transaction_that_is_open_at_the_border_is_read_after_its_commit(
    cluster: moldau.testing.Cluster, served: list[tuple[int, int]]
) -> None:
    chunks = Chunks(cluster, "plan-transaction")
    chunks.create_topic([1])
    consumer = subscribed(chunks, **COMMITTED)
    chunks.produce(0, 10)
    producer = Producer({**chunks.server, "transactional.id": "plan"})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    for number in range(10, 20):
        producer.produce(chunks.topic, str(number).encode(), partition=0)
    assert producer.flush(LIMIT_S) == 0
    assert chunks.create([2]) == 20, "the border is the high watermark, and not the last stable offset"
    assert polled(consumer, 10) == FIRST_TEN
    assert consumer.poll(1) is None
    producer.commit_transaction(LIMIT_S)
    assert polled(consumer, 10) == SECOND_TEN
    assert set(served) == {(1, 0)}
    consumer.close()


def test_a_chunk_that_was_moved_is_read_from_its_new_broker(
    cluster: moldau.testing.Cluster, served: list[tuple[int, int]]
) -> None:
    chunks = Chunks(cluster, "plan-moved")
    chunks.create_topic([1])
    chunks.produce(0, 10)
    chunks.create([2])
    chunks.produce(10, 10)
    shown = command(cluster, "chunks", "alter", "--topic", chunks.topic, *FIRST_CHUNK, "--replicas", "3")
    assert shown == "plan-moved-0 at 0: moves to brokers 3\n"
    until(lambda: list(chunks.folders()) == [3])
    consumer = subscribed(chunks)
    assert polled(consumer, 20) == FIRST_TEN + SECOND_TEN
    assert set(served) == {(3, 0)}
    consumer.close()


def command(cluster: moldau.testing.Cluster, *words: str) -> str:
    """The output of a ``moldau`` command."""
    line = [sys.executable, "-m", "moldau", *words, "--bootstrap", cluster.bootstrap_servers]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout


def test_commands_create_show_and_plan_chunks(cluster: moldau.testing.Cluster) -> None:
    chunks = Chunks(cluster, "commands")
    chunks.create_topic([1, 2])
    chunks.produce(0, 10)
    where = ("--topic", chunks.topic)
    created = command(cluster, "chunks", "create", *where, "--partition", "0", "--replicas", "2,3", "--json")
    assert json.loads(created)["start_offset"] == 10
    ended, active = json.loads(command(cluster, "chunks", "list", *where, "--json"))
    size_bytes = ended.pop("bytes")
    assert size_bytes > 0
    assert ended.pop("max_timestamp_ms") > 0
    assert ended == {
        "topic": "commands",
        "partition": 0,
        "active": False,
        "start_offset": 0,
        "stop_offset": 9,
        "end_offset": 9,
        "epoch": 0,
        "replicas": [1, 2],
        "isr": [1, 2],
        "adding": [],
        "removing": [],
    }
    assert active == {
        "topic": "commands",
        "partition": 0,
        "active": True,
        "start_offset": 10,
        "replicas": [2, 3],
        "isr": [2, 3],
    }
    table = command(cluster, "chunks", "list", *where).splitlines()
    assert [row.split()[2:5] for row in table[1:]] == [["0", "9", "1,2"], ["10", "-", "2,3"]]
    described = command(cluster, "topics", "describe", chunks.topic)
    assert "CHUNK START" in described
    assert any(row.split()[:3] == ["0", "0", "9"] for row in described.splitlines())
    (plan,) = json.loads(command(cluster, "chunks", "plan", *where, "--json"))
    assert plan["active"] == [2, 3]
    assert len(plan["replicas"]) == 2


def test_a_session_of_fetches_continues_over_the_borders(cluster: moldau.testing.Cluster) -> None:
    """A session names a partition only in its first request, and again when the offset changes (KIP-227)."""
    chunks = Chunks(cluster, "session")
    chunks.create_topic([1])
    for number in range(2):
        chunks.produce(number, 1)
    chunks.create([2])
    chunks.produce(2, 1)
    chunks.create([3])
    chunks.produce(3, 1)
    host, _, port = cluster.address(3).rpartition(":")
    session = [0, 0]

    async def fetched(client: RpcClient, *offsets: int) -> list[int]:
        """The offsets of the records in the response to the next request of the session."""
        rows = [
            FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1_000_000)
            for offset in offsets
        ]
        request = FetchRequest(
            max_wait_ms=0,
            session_id=session[0],
            session_epoch=session[1],
            topics=[FetchTopic(topic=chunks.topic, partitions=rows)] if rows else [],
        )
        answer: Any = await client.request(host, int(port), request.API_KEY, 12, request, LIMIT_S * 1000)
        assert not answer.error_code, answer
        assert answer.session_id
        session[:] = answer.session_id, session[1] + 1
        found: list[int] = []
        for topic in answer.responses:
            for row in topic.partitions:
                assert not row.error_code, row
                for _, header in iter_headers(memoryview(bytes(row.records or b""))):
                    found += range(header.base_offset, header.last_offset + 1)
        return found

    async def read() -> None:
        client = RpcClient(SystemEntropy(), client_id="session")
        try:
            assert await fetched(client, 0) == [0, 1]
            assert await fetched(client) == [0, 1], "the offset has not changed"
            assert await fetched(client, 2) == [2]
            assert await fetched(client, 3) == [3]
            assert await fetched(client, 4) == []
            assert await fetched(client) == []
            chunks.produce(4, 1)
            assert await fetched(client) == [4]
        finally:
            await client.close()

    asyncio.run(read())


def test_a_log_is_truncated_to_the_border_after_an_unclean_election(cluster: moldau.testing.Cluster) -> None:
    """Broker 3 has no record of the active chunk when it becomes the leader. The inactive chunk is complete,
    so no record before the border is lost."""
    chunks = Chunks(cluster, "unclean")
    settings = {"unclean.leader.election.enable": "true", "retention.ms": "-1"}
    topic = NewTopic(chunks.topic, 1, replica_assignment=[[1, 2]], config=settings)
    chunks.admin.create_topics([topic])[chunks.topic].result(LIMIT_S)
    chunks.produce(0, 10)
    assert chunks.create([2, 3]) == 10
    cluster.kill(3)
    chunks.produce(10, 5)
    cluster.kill(2)
    cluster.restart(3)
    until(lambda: chunks.leader() == 3)
    chunks.produce(100, 3)
    kept = [*FIRST_TEN, (10, 100), (11, 101), (12, 102)]
    assert chunks.read(13) == kept
    cluster.restart(2)
    until(lambda: in_sync(chunks) == {2, 3})
    assert chunks.end_of(0) == (0, 10)
    assert chunks.end_of(1) == (0, 10), "the records of this epoch are lost"
    cluster.kill(3)
    try:
        until(lambda: chunks.leader() == 2)
        assert chunks.read(13) == kept
    finally:
        cluster.restart(3)


def in_sync(chunks: Chunks) -> set[int]:
    metadata = chunks.admin.list_topics(chunks.topic, timeout=LIMIT_S)
    return set(metadata.topics[chunks.topic].partitions[0].isrs)
