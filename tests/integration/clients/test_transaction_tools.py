"""Kafka's own tool for transactions, ``kafka-transactions``, on classic and on diskless topics."""

import asyncio
import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deadlines import TIMEOUT_S, eventually
from foreign_clients import Java

from moldau.client.cluster import Client, connected
from moldau.cluster.internal_topics import TRANSACTION_STATE_TOPIC
from moldau.protocol.coordinator_keys import CoordinatorKeyType
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records.batch import with_producer
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime.clock import SystemClock
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.testing import Node

pytestmark = pytest.mark.java

TOOL = "org.apache.kafka.tools.TransactionsCommand"
EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)
"""The states of a transaction in ``__transaction_state``."""
LAST_VERSION_BEFORE_KIP_890 = 11


@pytest.fixture(scope="module")
def node(kind: str) -> Iterator[Node]:
    """A node that does not verify partitions, so that a producer can leave a hanging transaction."""
    properties = {"transaction.partition.verification.enable": "false"}
    with Node(diskless=kind == "diskless", properties=properties) as running:
        yield running


def create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(TIMEOUT_S)


def rows(shown: str) -> list[dict[str, str]]:
    """The table that the tool prints. Its columns are separated by tabs or spaces."""
    lines = [line.split() for line in shown.splitlines() if line.strip()]
    return [dict(zip(lines[0], line, strict=False)) for line in lines[1:]]


def hang(bootstrap: str, topic: str) -> None:
    """Append two transactional batches that their transaction coordinator does not know. The first batch
    begins the transaction."""

    async def write(client: Client) -> None:
        name = f"{topic}-lost"
        found = await client.find_coordinator(CoordinatorKeyType.TRANSACTION, name, name)
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        producer = await client.ask(request, broker=found.endpoint)
        place = await client.topic(topic)
        for sequence in range(2):
            record = Record(0, SystemClock().now_ms(), None, b"hanging")
            batch = with_producer(
                build_batch([record]), producer.producer_id, producer.producer_epoch, sequence
            )
            row = PartitionProduceData(index=0, records=batch)
            data = TopicProduceData(name=topic, topic_id=place.topic_id, partition_data=[row])
            produce = ProduceRequest(
                transactional_id=name, acks=-1, timeout_ms=client.timeout_ms, topic_data=[data]
            )
            response = await client.ask(
                produce, broker=place.leaders[0], version_max=LAST_VERSION_BEFORE_KIP_890
            )
            (answer,) = response.responses[0].partition_responses
            if answer.error_code is not ErrorCode.none:
                raise KafkaError(answer.error_code, str(answer.error_message))

    async def run() -> None:
        async with connected(bootstrap, TIMEOUT_S) as client:
            await client.retrying(lambda: write(client))

    asyncio.run(run())


def last_stable_offset(bootstrap: str, topic: str) -> int:
    async def look() -> int:
        async with connected(bootstrap, TIMEOUT_S) as client:
            found = await client.offsets(await client.topic(topic), {0: -1}, committed_only=True)
            return found[0].offset

    return asyncio.run(look())


def test_an_open_transaction_is_listed_and_described(java: Java, bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, "open", partition=0)
    producer.flush()
    server = [TOOL, "--bootstrap-server", bootstrap]
    listed, described, producers = java.tools(
        [*server, "list"],
        [*server, "describe", "--transactional-id", topic],
        [*server, "describe-producers", "--topic", topic, "--partition", "0"],
    )
    (listing,) = [row for row in rows(listed) if row["TransactionalId"] == topic]
    assert listing["TransactionState"] == "Ongoing"
    (description,) = rows(described)
    assert description["ProducerId"] == listing["ProducerId"]
    assert description["TopicPartitions"] == f"{topic}-0"
    (state,) = rows(producers)
    assert (state["ProducerId"], state["CurrentTransactionStartOffset"]) == (listing["ProducerId"], "0")
    producer.commit_transaction(TIMEOUT_S)
    (described,) = java.tools([*server, "describe", "--transactional-id", topic])
    assert rows(described)[0]["TransactionState"] == "CompleteCommit"


def test_kafkas_formatter_shows_the_records_of_a_coordinator(java: Java, bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(TIMEOUT_S)
    for commits in (True, False):
        producer.begin_transaction()
        producer.produce(topic, "value", partition=1)
        producer.flush()
        if commits:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)
    reading = ["--topic", TRANSACTION_STATE_TOPIC, "--from-beginning", "--timeout-ms", "5000"]
    formatter = ["--formatter", "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"]
    shown = java.tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server",
        bootstrap,
        *reading,
        *formatter,
    )
    # The formatter writes no line ends.
    records = json.loads(f"[{shown.strip().replace('}{', '},{')}]")
    mine = [each["value"]["data"] for each in records if each["key"]["data"]["transactionalId"] == topic]
    states = [each["transactionStatus"] for each in mine]
    assert states == [EMPTY, ONGOING, PREPARE_COMMIT, COMPLETE_COMMIT, ONGOING, PREPARE_ABORT, COMPLETE_ABORT]


def test_a_hanging_transaction_is_found_and_aborted(java: Java, bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, "open, but not hanging", partition=1)
    producer.flush()
    hang(bootstrap, topic)
    assert last_stable_offset(bootstrap, topic) == 0
    server = [TOOL, "--bootstrap-server", bootstrap]
    # By default the tool looks only for transactions that are open for longer than 15 minutes.
    find = [*server, "find-hanging", "--topic", topic, "--max-transaction-timeout", "0"]
    (found,) = java.tools(find)
    (hanging,) = rows(found)
    assert (hanging["Topic"], hanging["Partition"], hanging["StartOffset"]) == (topic, "0", "0")
    aborting = ["abort", "--topic", topic, "--partition", "0", "--start-offset", hanging["StartOffset"]]
    _, left = java.tools([*server, *aborting], find)
    assert rows(left) == []
    eventually(lambda: last_stable_offset(bootstrap, topic) == 3, "the marker is written")
    producer.commit_transaction(TIMEOUT_S)
