"""Batches of a query that are written as transactions, with a driver that is killed at any request. The tests
do not need Spark.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")

import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic

import moldau.testing
from moldau.client.cluster import Client, parse_bootstrap
from moldau.client.errors import ToolError
from moldau.client.transactions import CommittedText, ProducerOfBatches, committed_texts
from moldau.pipeline.reading.decoding import decode_found
from moldau.pipeline.reading.fetching import fetch_found
from moldau.pipeline.sink import transactions
from moldau.pipeline.sink.rows import BatchBuilder, Routing
from moldau.pipeline.sink.transactions import TransactionCommitter, TransactionTarget, group_of, joined
from moldau.pipeline.source.options import parse_options
from moldau.pipeline.source.snapshot import pin
from moldau.protocol.coordinator_keys import CoordinatorKeyType
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest
from moldau.protocol.partitions import TopicPartition
from moldau.records.compression import Compression
from moldau.runtime.errors import ErrorCode, KafkaError

PARTITIONS = 2
TIMEOUT_S = 60.0
REQUESTS_MAX = 60
KINDS = {"classic": "false", "diskless": "true"}
PROPERTIES = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}

Servers = moldau.testing.Node | moldau.testing.Cluster


class Killed(BaseException):
    """A test raises this exception to simulate a kill of the driver."""


class DyingClient(Client):
    """A client whose process is killed at request number n. The kill is before or after the effect of the
    request."""

    def __init__(self, node: Servers, requests_left: int = 0, *, after: bool = False) -> None:
        super().__init__(parse_bootstrap(node.bootstrap_servers), TIMEOUT_S)
        self._requests_left = requests_left
        self._after = after

    async def ask(self, message: Any, **options: Any) -> Any:
        self._requests_left -= 1
        is_last = self._requests_left == 0
        if is_last and not self._after:
            raise Killed
        answer = await super().ask(message, **options)
        if is_last:
            raise Killed
        return answer


@pytest.fixture(scope="module")
def node() -> Iterator[moldau.testing.Node]:
    with moldau.testing.Node(diskless=True, properties=PROPERTIES) as running:
        yield running


class Sink:
    """A query that writes to one classic and one diskless topic."""

    def __init__(self, node: Servers, name: str) -> None:
        self.node = node
        self.topics = {kind: f"{kind}-{name}" for kind in KINDS}
        self.target = TransactionTarget(f"sink-{name}", 60_000, 0, self.topics["classic"])
        admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
        wanted = [
            NewTopic(self.topics[kind], PARTITIONS, config={"diskless.enable": flag})
            for kind, flag in KINDS.items()
        ]
        for created in admin.create_topics(wanted).values():
            created.result(TIMEOUT_S)

    def create_again(self, kind: str) -> None:
        """Delete a topic, and create it with one partition."""
        topic = self.topics[kind]
        admin = AdminClient({"bootstrap.servers": self.node.bootstrap_servers})
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
        wanted = NewTopic(topic, 1, config={"diskless.enable": KINDS[kind]})
        admin.create_topics([wanted])[topic].result(TIMEOUT_S)

    def batches(self, values: list[str]) -> dict[TopicPartition, list[bytes]]:
        """The rows of two tasks, in several batches of each partition."""
        routing = Routing(None, dict.fromkeys(self.topics.values(), PARTITIONS))
        found = []
        for half in (values[::2], values[1::2]):
            for topic in self.topics.values():
                builder = BatchBuilder(routing, Compression.LZ4, 1_700_000_000_000, 1_000)
                rows = [{"key": value, "value": value.ljust(200, "."), "topic": topic} for value in half]
                if rows:
                    builder.add(pa.RecordBatch.from_pylist(rows))
                found.append(builder.drain())
        return joined(found)

    def commit(self, batch_id: int, values: list[str], client: Client | None = None, **target: Any) -> None:
        changed = TransactionTarget(
            target.get("transactional_id", self.target.transactional_id),
            60_000,
            target.get("first_batch", 0),
            self.target.any_topic,
        )
        self.run(
            lambda client: TransactionCommitter(client, changed).commit_batch(
                "query", batch_id, self.batches(values)
            ),
            client,
        )

    def run(self, work: Callable[[Client], Awaitable[Any]], client: Client | None = None) -> Any:
        async def run() -> Any:
            using = client or DyingClient(self.node)
            try:
                return await work(using)
            finally:
                await using.close()

        return asyncio.run(run())

    def written(self) -> dict[str, list[str]]:
        """The committed values of each kind of topic, when all markers are written."""
        self.run(lambda client: ProducerOfBatches(client, self.target.transactional_id, 60_000).start())
        return {kind: self._values(topic) for kind, topic in self.topics.items()}

    def _values(self, topic: str) -> list[str]:
        options = parse_options(
            {
                "kafka.bootstrap.servers": self.node.bootstrap_servers,
                "subscribe": topic,
                "kafka.isolation.level": "read_committed",
            }
        )
        (found,) = self.run(lambda client: pin(client, options))
        tables = decode_found(fetch_found(found.source, found.ranges), found.ranges, {"value"})
        return sorted(value.decode().rstrip(".") for table in tables for value in table["value"].to_pylist())


@pytest.fixture
def sink(node: moldau.testing.Node, request: pytest.FixtureRequest) -> Sink:
    return Sink(node, "".join(letter if letter.isalnum() else "-" for letter in request.node.name))


def everywhere(values: list[str]) -> dict[str, list[str]]:
    return dict.fromkeys(KINDS, sorted(values))


def test_a_batch_that_is_repeated_is_written_once(sink: Sink) -> None:
    for batch_id in (0, 1):
        for attempt in range(3):
            # If the source is not repeatable, the rows of a repeated batch may differ.
            sink.commit(batch_id, [f"{batch_id}-{attempt}-{n}" for n in range(20 + attempt)])
    expected = [f"{batch_id}-0-{n}" for batch_id in (0, 1) for n in range(20)]
    assert sink.written() == everywhere(expected)
    record = sink.run(lambda client: committed_texts(client, group_of(sink.target.transactional_id, "query")))
    assert record == {(sink.topics["classic"], 0): CommittedText(2, "query")}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_driver_that_is_killed_at_any_request_leaves_each_batch_whole_and_once(
    sink: Sink, after: bool
) -> None:
    expected: list[str] = []
    for batch_id in itertools.count():
        assert batch_id < REQUESTS_MAX
        killed, repeated = ([f"{batch_id}{name}{n}" for n in range(12)] for name in "ab")
        try:
            sink.commit(batch_id, killed, DyingClient(sink.node, batch_id + 1, after=after))
        except Killed:
            sink.commit(batch_id, repeated)
            found = [value for value in sink.written()["classic"] if value in {*killed, *repeated}]
            assert found in (sorted(killed), sorted(repeated))
            expected += found
        else:  # the driver was not killed, because the batch needed fewer requests
            expected += killed
            break
    assert batch_id > 12
    assert sink.written() == everywhere(expected)


def test_a_driver_that_was_replaced_writes_nothing(sink: Sink) -> None:
    """The older driver stops before each of its requests, and the newer driver then writes the batch."""

    class Replaced(DyingClient):
        async def ask(self, message: Any, **options: Any) -> Any:
            if type(message).__name__ == self.at:
                self.at = ""
                await asyncio.to_thread(sink.commit, self.batch_id, [f"new-{self.batch_id}"])
            return await super().ask(message, **options)

        at = ""
        batch_id = 0

    requests = (
        "OffsetFetchRequest",
        "AddPartitionsToTxnRequest",
        "ProduceRequest",
        "AddOffsetsToTxnRequest",
        "TxnOffsetCommitRequest",
        "EndTxnRequest",
    )
    for batch_id, name in enumerate(requests):
        client = Replaced(sink.node)
        client.at, client.batch_id = name, batch_id
        if name == "OffsetFetchRequest":  # the older driver then finds that the batch was written
            sink.commit(batch_id, [f"old-{batch_id}"], client)
            continue
        with pytest.raises(ToolError, match="another process uses the transactional id"):
            sink.commit(batch_id, [f"old-{batch_id}"], client)
    assert sink.written() == everywhere([f"new-{batch_id}" for batch_id in range(len(requests))])


def test_a_transaction_that_takes_too_long_is_written_by_the_next_attempt(sink: Sink) -> None:
    class Slow(DyingClient):
        """The driver is suspended before its transaction commits the offset, until the transaction is
        aborted."""

        async def ask(self, message: Any, **options: Any) -> Any:
            if isinstance(message, AddOffsetsToTxnRequest):
                await self.retrying(lambda: self.look(message.transactional_id))
            return await super().ask(message, **options)

        async def look(self, name: str) -> None:
            wanted = DescribeTransactionsRequest(transactional_ids=[name])
            found = await self.find_coordinator(CoordinatorKeyType.TRANSACTION, name, name)
            (described,) = (await self.ask(wanted, broker=found.endpoint)).transaction_states
            if described.transaction_state != "CompleteAbort":
                raise KafkaError(ErrorCode.request_timed_out, "the transaction is not aborted")

    target = replace(sink.target, timeout_ms=1)
    with pytest.raises(ToolError, match="or the transaction took longer than its time-out of 1 ms"):
        sink.run(
            lambda client: TransactionCommitter(client, target).commit_batch("query", 0, sink.batches(["a"])),
            Slow(sink.node),
        )
    assert sink.written() == everywhere([])
    sink.commit(0, ["a"])
    assert sink.written() == everywhere(["a"])


def test_a_topic_that_is_deleted_while_it_is_written_is_an_error_of_one_line(sink: Sink) -> None:
    class Deleting(DyingClient):
        """The topic is deleted and created again with one partition after it has joined the transaction."""

        async def ask(self, message: Any, **options: Any) -> Any:
            answer = await super().ask(message, **options)
            if isinstance(message, AddPartitionsToTxnRequest):
                await asyncio.to_thread(sink.create_again, "classic")
            return answer

    with pytest.raises(KafkaError, match=r"classic-.*-1: UNKNOWN_TOPIC_OR_PARTITION"):
        sink.commit(0, [str(number) for number in range(20)], Deleting(sink.node))
    assert sink.written() == everywhere([])


def test_batches_without_rows_count_as_written(sink: Sink) -> None:
    for batch_id, values in enumerate(([], ["a"], [], ["b"])):
        sink.commit(batch_id, values)
        sink.commit(batch_id, values)
    assert sink.written() == everywhere(["a", "b"])


def test_a_record_that_is_missing_is_not_guessed(sink: Sink) -> None:
    with pytest.raises(ToolError, match=r"has no record of batch 6.*firstTransactionalBatch=7.*give 8"):
        sink.commit(7, ["a"])
    assert sink.written() == everywhere([])
    sink.commit(7, ["a"], first_batch=7)
    sink.commit(7, ["a"], first_batch=7)
    sink.commit(8, ["b"], first_batch=7)
    sink.commit(9, ["c"])
    sink.commit(10, ["d"], first_batch=11)
    assert sink.written() == everywhere(["a", "b", "c"])


def test_a_batch_that_is_refused_leaves_no_open_transaction(sink: Sink) -> None:
    async def work(client: Client) -> None:
        batches = {**sink.batches(["x"]), (sink.topics["diskless"], PARTITIONS - 1): [b"\0" * 61]}
        with pytest.raises(Exception, match="below the header's size"):
            await TransactionCommitter(client, sink.target).commit_batch("query", 0, batches)

    sink.run(work)
    sink.commit(0, ["a"])
    assert sink.written() == everywhere(["a"])


def test_a_job_is_one_transaction(sink: Sink) -> None:
    sink.run(lambda client: TransactionCommitter(client, sink.target).commit_job(sink.batches(["a", "b"])))
    assert sink.written() == everywhere(["a", "b"])


def test_a_batch_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "TRANSACTION_BYTES_MAX", 5)
    assert joined([{("a", 0): [b"abc"]}, {("a", 0): [b"d"]}]) == {("a", 0): [b"abc", b"d"]}
    with pytest.raises(ToolError, match=r"in one transaction \(5 can\): .*maxOffsetsPerTrigger"):
        joined([{("a", 0): [b"abc"]}, {("a", 1): [b"def"]}])
