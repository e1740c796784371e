"""The responses of a broker to a fixed sequence of transactional requests, as text.

``python tests/integration/transaction_answers.py`` runs the sequence against Apache Kafka's broker and
rewrites ``golden/transaction_answers.txt``. The tests compare this file with the responses of Moldau.
"""

import asyncio
import dataclasses
import socket
import sys
import tempfile
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any, Final

from moldau.network.client.rpc_client import ClientLimits, RpcClient
from moldau.protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    create_topics,
    describe_producers,
    describe_transactions,
    end_txn,
    fetch,
    find_coordinator,
    init_producer_id,
    list_offsets,
    list_transactions,
    offset_fetch,
    produce,
    txn_offset_commit,
)
from moldau.protocol.schema import Message
from moldau.protocol.special_timestamps import LATEST_TIMESTAMP
from moldau.records.batch import iter_headers
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime import ErrorCode, SystemEntropy

GOLDEN: Final = Path(__file__).parent / "golden" / "transaction_answers.txt"
TOPIC: Final = "t"
_LIMITS: Final = ClientLimits(connect_timeout_ms=60_000, request_timeout_ms=60_000)
_LEFT_OUT: Final = frozenset(
    {"throttle_time_ms", "error_message", "last_timestamp", "transaction_start_time_ms", "session_id"}
)
_LATER: Final = frozenset(
    {
        ErrorCode.concurrent_transactions,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unstable_offset_commit,
    }
)
"""Errors that a broker returns while it is still busy with an earlier step."""
Identity = tuple[int, int]


class Answers:
    """Sends the requests, and stores a line for each response."""

    def __init__(self, bootstrap_servers: str) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self._address = host, int(port)
        self._rpc = RpcClient(SystemEntropy(), client_id="answers", limits=_LIMITS)
        self._ids: dict[int, str] = {}
        self.lines: list[str] = []

    async def send(self, message: Message, version: int) -> Any:
        """The response to a request. While the broker is busy, the request is repeated."""
        for _ in range(600):
            answer = await self._rpc.request(*self._address, type(message).API_KEY, version, message)
            if not _codes(answer) & _LATER:
                return answer
            await asyncio.sleep(0.05)
        return answer

    async def note(self, step: str, message: Message, version: int) -> Any:
        answer = await self.send(message, version)
        self.lines += [f"{step} ({type(message).__name__} {version})", *self._shown(answer, "  "), ""]
        return answer

    async def close(self) -> None:
        await self._rpc.close()

    def _shown(self, value: Any, indent: str) -> Iterable[str]:
        for field in dataclasses.fields(value):
            found = getattr(value, field.name)
            if field.name in _LEFT_OUT:
                continue
            if isinstance(found, list | tuple) and found and isinstance(found[0], Message):
                for each in found:
                    yield f"{indent}{field.name}:"
                    yield from self._shown(each, indent + "  ")
            else:
                yield f"{indent}{field.name}: {self._text(field.name, found)}"

    def _text(self, name: str, value: Any) -> str:
        if isinstance(value, Enum):
            return value.name
        if name.endswith("producer_id") and value >= 0:
            return self._ids.setdefault(value, f"id {len(self._ids) + 1}")
        if name == "records":
            content = b"".join(value) if isinstance(value, list | tuple) else bytes(value or b"")
            return str(
                [
                    (header.base_offset, header.last_offset, header.is_control, header.is_transactional)
                    for _, header in iter_headers(memoryview(content))
                ]
            )
        return "none" if value is None or value == () or value == [] else str(value)


def _codes(value: Any) -> set[ErrorCode]:
    found: set[ErrorCode] = set()
    queue = [value]
    while queue:
        each = queue.pop()
        if isinstance(each, ErrorCode):
            found.add(each)
        elif isinstance(each, list | tuple):
            queue.extend(each)
        elif isinstance(each, Message):
            queue.extend(getattr(each, field.name) for field in dataclasses.fields(each))
    return found


# -- requests ----------------------------------------------------------------------------------


def initialization(name: str | None, timeout_ms: int = 60_000, of: Identity = (-1, -1)) -> Message:
    return init_producer_id.InitProducerIdRequest(
        transactional_id=name, transaction_timeout_ms=timeout_ms, producer_id=of[0], producer_epoch=of[1]
    )


def addition(name: str, of: Identity, topic: str = TOPIC, partitions: tuple[int, ...] = (0,)) -> Message:
    return add_partitions_to_txn.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=of[0],
        v3_and_below_producer_epoch=of[1],
        v3_and_below_topics=[
            add_partitions_to_txn.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))
        ],
    )


def batch(name: str | None, of: Identity, sequence: int, partition: int = 0, *, count: int = 2) -> Message:
    content = build_batch(
        [Record(index, 1_700_000_000_000, None, b"value") for index in range(count)],
        producer_id=of[0],
        producer_epoch=of[1],
        base_sequence=sequence,
        transactional=True,
    )
    data = [produce.PartitionProduceData(index=partition, records=bytes(content))]
    rows = [produce.TopicProduceData(name=TOPIC, partition_data=data)]
    return produce.ProduceRequest(transactional_id=name, acks=-1, timeout_ms=30_000, topic_data=rows)


def ending(name: str, of: Identity, *, committed: bool) -> Message:
    return end_txn.EndTxnRequest(
        transactional_id=name, producer_id=of[0], producer_epoch=of[1], committed=committed
    )


def group_addition(name: str, of: Identity, group: str = "g") -> Message:
    return add_offsets_to_txn.AddOffsetsToTxnRequest(
        transactional_id=name, producer_id=of[0], producer_epoch=of[1], group_id=group
    )


def offsets(name: str, of: Identity, offset: int, generation: int = -1, member: str = "") -> Message:
    row = txn_offset_commit.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    return txn_offset_commit.TxnOffsetCommitRequest(
        transactional_id=name,
        group_id="g",
        producer_id=of[0],
        producer_epoch=of[1],
        generation_id=generation,
        member_id=member,
        topics=[txn_offset_commit.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[row])],
    )


def committed_offset(*, stable: bool) -> Message:
    topic = offset_fetch.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
    return offset_fetch.OffsetFetchRequest(group_id="g", topics=[topic], require_stable=stable)


def fetched(offset: int, isolation: int) -> Message:
    row = fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return fetch.FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        isolation_level=isolation,
        topics=[fetch.FetchTopic(topic=TOPIC, partitions=[row])],
    )


def latest(isolation: int) -> Message:
    row = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=LATEST_TIMESTAMP)
    return list_offsets.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[list_offsets.ListOffsetsTopic(name=TOPIC, partitions=[row])],
    )


def producers() -> Message:
    topic = describe_producers.TopicRequest(name=TOPIC, partition_indexes=[0])
    return describe_producers.DescribeProducersRequest(topics=[topic])


def described(*names: str) -> Message:
    return describe_transactions.DescribeTransactionsRequest(transactional_ids=list(names))


# -- the sequence ------------------------------------------------------------------------------


async def sequence(bootstrap_servers: str, configs: dict[str, str]) -> str:
    """Run the sequence on a topic with these configs, and return all responses."""
    peer = Answers(bootstrap_servers)
    try:
        await _begin(peer, configs)
        await _initializations(peer)
        await _version_1(peer)
        await _version_2(peer)
        await _zombies(peer)
        await _offsets(peer)
        await _lists(peer)
    finally:
        await peer.close()
    return "\n".join(peer.lines)


async def _begin(peer: Answers, configs: dict[str, str]) -> None:
    kept = {"retention.ms": "-1", **configs}
    rows = [create_topics.CreatableTopicConfig(name=name, value=value) for name, value in kept.items()]
    topic = create_topics.CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=1, configs=rows)
    request = create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
    assert _codes(await peer.send(request, 5)) == {ErrorCode.none}
    for key_type in (0, 1):
        await peer.send(find_coordinator.FindCoordinatorRequest(key_type=key_type, coordinator_keys=["g"]), 4)


async def _identity(peer: Answers, name: str) -> Identity:
    answer = await peer.send(initialization(name), 5)
    peer._text("producer_id", answer.producer_id)
    return answer.producer_id, answer.producer_epoch


async def _initializations(peer: Answers) -> None:
    first = await peer.note("a new transactional id", initialization("a"), 5)
    known = first.producer_id, first.producer_epoch
    await peer.note("the same id again", initialization("a"), 5)
    await peer.note("with the old epoch", initialization("a", of=known), 5)
    await peer.note("with the current epoch", initialization("a", of=(known[0], 1)), 5)
    await peer.note("with another producer id", initialization("a", of=(known[0] + 77_777, 0)), 5)
    await peer.note("with an id and without an epoch", initialization("a", of=(known[0], -1)), 5)
    await peer.note("a time-out above the maximum", initialization("b", 900_001), 5)
    await peer.note("a time-out of 0", initialization("b", 0), 5)
    await peer.note("a negative time-out", initialization("b", -1), 5)
    await peer.note("an empty transactional id", initialization(""), 5)
    await peer.note("a producer id for an id that is not known", initialization("c", of=(known[0], 3)), 5)


async def _version_1(peer: Answers) -> None:
    of = await _identity(peer, "one")
    await peer.note("end of an empty transaction", ending("one", of, committed=True), 4)
    await peer.note("a batch of a partition that was not added", batch("one", of, 0), 11)
    await peer.note("addition for an unknown id", addition("nobody", of), 3)
    await peer.note("addition for another producer id", addition("one", (of[0] + 77_777, 0)), 3)
    await peer.note("addition for a newer epoch", addition("one", (of[0], 9)), 3)
    await peer.note("addition of an unknown topic", addition("one", of, "gone"), 3)
    await peer.note("addition of an unknown partition", addition("one", of, partitions=(0, 9)), 3)
    await peer.note("addition", addition("one", of), 3)
    await peer.note("a batch", batch("one", of, 0), 11)
    await peer.note("the batch again", batch("one", of, 0), 11)
    await peer.note("a batch out of order", batch("one", of, 7), 11)
    await peer.note("a batch of the other partition", batch("one", of, 0, 1), 11)
    await peer.note("read_committed in an open transaction", fetched(0, 1), 12)
    await peer.note("read_uncommitted in an open transaction", fetched(0, 0), 12)
    await peer.note("latest stable offset", latest(1), 6)
    await peer.note("latest offset", latest(0), 6)
    await peer.note("producers in a transaction", producers(), 0)
    await peer.note("the open transaction", described("one", "nobody", ""), 0)
    await peer.note("end by another producer id", ending("one", (of[0] + 77_777, 0), committed=True), 4)
    await peer.note("end by a newer epoch", ending("one", (of[0], 9), committed=True), 4)
    await peer.note("end of an unknown id", ending("nobody", of, committed=True), 4)
    await peer.note("abort", ending("one", of, committed=False), 4)
    await peer.note("the abort again", ending("one", of, committed=False), 4)
    await peer.note("commit after the abort", ending("one", of, committed=True), 4)
    await peer.send(addition("one", of), 3)  # returns when all markers are written
    await peer.note("an aborted transaction", fetched(0, 1), 12)
    await peer.note("the next batch", batch("one", of, 2), 11)
    await peer.note("commit", ending("one", of, committed=True), 4)
    await peer.note("the commit again", ending("one", of, committed=True), 4)
    await peer.note("abort after the commit", ending("one", of, committed=False), 4)


async def _version_2(peer: Answers) -> None:
    of = await _identity(peer, "two")
    await peer.note("version 2: commit of nothing", ending("two", of, committed=True), 5)
    empty = await peer.note("version 2: abort of nothing", ending("two", of, committed=False), 5)
    of = max(of, (empty.producer_id, empty.producer_epoch))
    await peer.note("version 2: a batch of a partition that was not added", batch("two", of, 0), 12)
    await peer.note("version 2: the next batch", batch("two", of, 2), 12)
    ended = await peer.note("version 2: commit", ending("two", of, committed=True), 5)
    await peer.note("version 2: the commit again", ending("two", of, committed=True), 5)
    await peer.note("version 2: abort after the commit", ending("two", of, committed=False), 5)
    await peer.note("version 2: a batch of the old epoch", batch("two", of, 4), 12)
    of = ended.producer_id, ended.producer_epoch
    await peer.note("version 2: the new epoch begins at 4", batch("two", of, 4), 12)
    await peer.note("version 2: the new epoch begins at 0", batch("two", of, 0), 12)
    await peer.note("version 2: abort", ending("two", of, committed=False), 5)
    await peer.note("version 2: the abort again", ending("two", of, committed=False), 5)


async def _zombies(peer: Answers) -> None:
    zombie = await _identity(peer, "z")
    await peer.send(addition("z", zombie), 3)
    await peer.note("a batch before the fence", batch("z", zombie, 0), 11)
    await _identity(peer, "z")
    for version in (11, 12):
        await peer.note("a zombie's batch", batch("z", zombie, 2), version)
    await peer.note("a zombie's addition", addition("z", zombie), 3)
    await peer.note("a zombie's group", group_addition("z", zombie), 3)
    for version in (4, 5):
        await peer.note("a zombie's commit", ending("z", zombie, committed=True), version)
    await peer.note("a zombie's initialization", initialization("z", of=zombie), 5)
    await peer.note("a batch without the transactional id", batch(None, zombie, 2), 11)


async def _offsets(peer: Answers) -> None:
    of = await _identity(peer, "o")
    await peer.note("offsets of a group that was not added", offsets("o", of, 3), 4)
    await peer.note("an empty group", group_addition("o", of, ""), 3)
    await peer.note("a group of an unknown id", group_addition("nobody", of), 3)
    await peer.note("a group", group_addition("o", of), 3)
    await peer.note("offsets", offsets("o", of, 3), 4)
    await peer.note("offsets of an unknown member", offsets("o", of, 3, 5, "somebody"), 4)
    await peer.note("offsets of an old epoch", offsets("o", (of[0], of[1] - 1), 3), 4)
    await peer.note("pending offsets", committed_offset(stable=False), 7)
    await peer.note("commit of offsets", ending("o", of, committed=True), 4)
    await peer.send(group_addition("o", of), 3)  # returns when all markers are written
    await peer.note("committed offsets", committed_offset(stable=True), 7)
    await peer.send(ending("o", of, committed=False), 4)
    of = await _identity(peer, "p")
    await peer.note("version 2: offsets", offsets("p", of, 8), 5)
    await peer.note("version 2: commit of offsets", ending("p", of, committed=True), 5)
    await peer.note("version 2: committed offsets", committed_offset(stable=True), 7)


async def _lists(peer: Answers) -> None:
    make = list_transactions.ListTransactionsRequest
    await peer.note("unknown states", make(state_filters=["Odd"]), 2)
    await peer.note("a pattern without an end", make(transactional_id_pattern="("), 2)
    await peer.note("open for more than a day", make(duration_filter=86_400_000), 2)
    await peer.note("by a pattern", make(transactional_id_pattern="tw."), 2)
    await peer.note("the whole partition", fetched(0, 1), 12)


def _accepts(bootstrap_servers: str) -> bool:
    host, _, port = bootstrap_servers.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def of_kafka() -> str:
    """The responses of Apache Kafka's broker."""
    from confluent_kafka.admin import AdminClient
    from foreign_clients import Java
    from kafka_nodes import KafkaNode, created, wait_for

    with tempfile.TemporaryDirectory() as folder:
        node = KafkaNode(Java("java"), 1, Path(folder))
        with node.config.open("a") as config:
            config.write("transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n")
            config.write("transaction.state.log.num.partitions=4\n")
        node.format("bW9sZGF1LWFuc3dlcnMxMw")
        with node.running():
            wait_for(lambda: _accepts(node.bootstrap_servers))
            created(AdminClient({"bootstrap.servers": node.bootstrap_servers}), "first", 1)
            return asyncio.run(sequence(node.bootstrap_servers, {}))


if __name__ == "__main__":
    GOLDEN.write_text(of_kafka())
    sys.exit(0)
