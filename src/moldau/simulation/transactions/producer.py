"""A transactional producer. It begins transactions, writes, commits offsets and ends transactions. Sometimes
it is fenced."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from moldau.protocol.messages.end_txn import EndTxnRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from moldau.protocol.partitions import TopicPartition
from moldau.protocol.schema import Message
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime import ErrorCode
from moldau.simulation.clients.client import Bootstrap, RetryError, SimulatedClient
from moldau.simulation.clients.rpc import RpcConnection
from moldau.simulation.history import History
from moldau.simulation.transactions.record import ZOMBIE, Fate, RecordedTransaction

TIMEOUT_MS: Final = 4_000
_COMMIT_CHANCE: Final = 0.65
_OFFSETS_CHANCE: Final = 0.5
_ZOMBIE_CHANCE: Final = 0.5
_LATE_CHANCE: Final = 0.5
RETRIED: Final = frozenset(
    {
        ErrorCode.concurrent_transactions,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.not_enough_replicas,
    }
)
_UNKNOWN_OUTCOME: Final = frozenset(
    {
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.not_leader_or_follower,
        ErrorCode.request_timed_out,
    }
)
"""Errors of produce requests whose records may be stored nevertheless."""


class TransactionalProducer(SimulatedClient):
    """Sends transactions one after another. With ``bumps`` it uses transaction version 2 (KIP-890)."""

    def __init__(
        self,
        name: str,
        bootstrap: Bootstrap,
        history: History,
        chance: random.Random,
        places: Sequence[TopicPartition],
        *,
        bumps: bool,
        sends_late: bool = False,
    ) -> None:
        """With ``sends_late`` the producer sometimes aborts a transaction while one of its batches is in
        flight."""
        super().__init__(name, bootstrap, history, chance)
        self._places = places
        """The partitions to which the producer writes. The other fields name a partition by its position in
        this list."""
        self._bumps = bumps
        self._sends_late = sends_late
        self._identity: tuple[int, int] | None = None
        self._fenced: tuple[int, int] | None = None
        """A producer id and epoch that are fenced, because the producer was initialized again."""
        self._sequences: dict[int, int] = {}
        self.transactions: list[RecordedTransaction] = []

    async def run(self, count: int) -> None:
        """Send ``count`` transactions. Each of them may end in any way. A later call sends further
        transactions."""
        first = len(self.transactions)
        for number in range(first, first + count):
            each = RecordedTransaction(
                f"{self.name}/{number}", self.name, number, began_s=self.history.now_s()
            )
            self.transactions.append(each)
            try:
                await self._transact(each)
            except (OSError, RetryError) as error:
                self.history.note(f"{each.name} is given up: {error}")
                self.disconnect()
                self._forget()
                await self.pause()
            self.history.note(f"{each.name} is {each.fate.value}")
            await asyncio.sleep(self.chance.expovariate(10.0))
        self.disconnect()

    def _forget(self) -> None:
        if self._identity is not None:
            self._fenced = self._identity
        self._identity = None

    async def _transact(self, each: RecordedTransaction) -> None:
        if self._identity is None:
            await self._init()
        count = self.chance.randint(1, len(self._places))
        partitions = sorted(self.chance.sample(range(len(self._places)), count))
        if not self._bumps:
            await self._add(partitions)
        for partition in partitions:
            values = [f"{each.name}/{partition}/{index}" for index in range(self.chance.randint(1, 3))]
            each.values[partition] = values
            await self._produce(partition, values)
            await self._poll(each)
        if self.chance.random() < _OFFSETS_CHANCE:
            each.offset = each.number
            await self._commit_offset(each.offset)
        if self._fenced is not None and self.chance.random() < _ZOMBIE_CHANCE:
            await self._haunt(self._fenced, partitions[0], each.name)
        if self.chance.random() < _COMMIT_CHANCE:
            each.fate = Fate.UNKNOWN
            each.commit_requested_s = self.history.now_s()
            await self._end(committed=True)
            each.fate = Fate.COMMITTED
            each.ended_s = self.history.now_s()
        else:
            late = self._send_late(each) if self._sends_late and self.chance.random() < _LATE_CHANCE else None
            await self._end(committed=False)
            if late is not None:
                await late
            each.ended_s = self.history.now_s()

    async def _poll(self, each: RecordedTransaction) -> None:
        """Read during the transaction. This producer reads nothing; subclasses may read."""

    def _send_late(self, each: RecordedTransaction) -> "asyncio.Task[None]":
        """Send a batch. Its broker receives the batch before the transaction is aborted, but may store the
        batch after the abort."""
        partition = self.chance.choice(sorted(each.values))
        value = f"{each.name}/{partition}/late"
        each.values[partition] = [*each.values[partition], value]
        batch = self._batch(self._known(), partition, [value], self._sequences[partition])

        async def send() -> None:
            broker = await self._address_of(self._places[partition])
            connection = await RpcConnection.open(self.name, broker.host, broker.port)
            try:
                answer = await connection.request(ApiKey.PRODUCE, 12 if self._bumps else 11, batch)
            except OSError:
                self._forget()
                return
            finally:
                connection.close()
            if self._bumps:
                return  # the next transaction has a new epoch, in which sequences begin at 0 again
            code = _produced(answer)
            if code is ErrorCode.none:
                self._sequences[partition] += 1
            elif code in _UNKNOWN_OUTCOME:
                # The leader may have stored the batch before it stopped leading. Then the next batch needs
                # another sequence, because otherwise it would be dropped as a repeated batch.
                self._forget()

        return asyncio.get_running_loop().create_task(send())

    async def _address_of(self, place: TopicPartition) -> Bootstrap:
        """Return a broker that accepts records of a partition."""
        return self.bootstrap

    # Requests of a transaction

    async def _init(self) -> None:
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=TIMEOUT_MS)
        answer = await self._ask(ApiKey.INIT_PRODUCER_ID, 5, request)
        self._check(answer.error_code)
        self._identity = (answer.producer_id, answer.producer_epoch)
        self._sequences.clear()

    async def _add(self, partitions: list[int]) -> None:
        producer_id, epoch = self._known()
        topics: dict[str, list[int]] = {}
        for partition in partitions:
            topics.setdefault(self._places[partition].topic, []).append(self._places[partition].partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()
            ],
        )
        answer = await self._ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request)
        for found in answer.results_by_topic_v3_and_below:
            for row in found.results_by_partition:
                self._check(row.partition_error_code)

    async def _produce(self, partition: int, values: list[str]) -> None:
        sequence = self._sequences.get(partition, 0)
        answer = await self._ask(
            ApiKey.PRODUCE,
            12 if self._bumps else 11,
            self._batch(self._known(), partition, values, sequence),
        )
        self._check(_produced(answer))
        self._sequences[partition] = sequence + len(values)

    def _batch(
        self, identity: tuple[int, int], partition: int, values: list[str], sequence: int
    ) -> ProduceRequest:
        batch = build_batch(
            [Record(index, 1_000, b"k", value.encode(), ()) for index, value in enumerate(values)],
            producer_id=identity[0],
            producer_epoch=identity[1],
            base_sequence=sequence,
            transactional=True,
        )
        place = self._places[partition]
        data = [PartitionProduceData(index=place.partition, records=bytes(batch))]
        rows = [TopicProduceData(name=place.topic, partition_data=data)]
        return ProduceRequest(transactional_id=self.name, acks=-1, timeout_ms=5_000, topic_data=rows)

    async def _haunt(self, identity: tuple[int, int], partition: int, name: str) -> None:
        """During a transaction, send a batch with an older producer id and epoch, which are fenced."""
        batch = self._batch(identity, partition, [f"{ZOMBIE} of {name}"], 0)
        answer = await self._ask(ApiKey.PRODUCE, 12 if self._bumps else 11, batch)
        if _produced(answer) is ErrorCode.none:
            self.history.violate(f"{self.name}: a batch of the fenced {identity} was taken")

    async def _commit_offset(self, offset: int) -> None:
        producer_id, epoch = self._known()
        if not self._bumps:
            added = AddOffsetsToTxnRequest(
                transactional_id=self.name, producer_id=producer_id, producer_epoch=epoch, group_id=self.name
            )
            self._check((await self._ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, added)).error_code)
        row = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=self.name,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[TxnOffsetCommitRequestTopic(name=self._places[0].topic, partitions=[row])],
        )
        answer = await self._ask(ApiKey.TXN_OFFSET_COMMIT, 5 if self._bumps else 4, request)
        self._check(answer.topics[0].partitions[0].error_code)

    async def _end(self, *, committed: bool) -> None:
        """End the transaction. The request is repeated over new connections. The coordinator must distinguish
        a repeated request from the end of the next transaction."""
        producer_id, epoch = self._known()
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=producer_id, producer_epoch=epoch, committed=committed
        )
        for _ in range(20):
            try:
                answer = await self._ask(ApiKey.END_TXN, 5 if self._bumps else 4, request)
            except OSError:
                self.disconnect()
                await self.pause()
                continue
            self._check(answer.error_code)
            if self._bumps:
                self._identity = (answer.producer_id, answer.producer_epoch)
                self._sequences.clear()
            return
        raise RetryError("no answer to EndTxn")

    async def _ask(self, api_key: ApiKey, version: int, request: Message) -> Any:
        """Repeat a request until its response is not a transient error. Raises OSError and RetryError."""
        for _ in range(100):
            connection = await self._connected()
            answer = await connection.request(api_key, version, request)
            if not errors_of(answer) & RETRIED:
                return answer
            await asyncio.sleep(0.05)
        raise RetryError(f"{api_key.name} is put off again and again")

    async def _connected(self) -> RpcConnection:
        if self._connection is None or self._connection.closed:
            opened = await RpcConnection.open(self.name, self.bootstrap.host, self.bootstrap.port)
            self._connection = opened
            for key_type in (0, 1):
                request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[self.name])
                answer = await opened.request(ApiKey.FIND_COORDINATOR, 4, request)
                if answer.coordinators[0].error_code is not ErrorCode.none:
                    self.disconnect()
                    raise RetryError(answer.coordinators[0].error_code.name)
        return self._connection

    def _known(self) -> tuple[int, int]:
        assert self._identity is not None
        return self._identity

    @staticmethod
    def _check(code: ErrorCode) -> None:
        if code is not ErrorCode.none:
            raise RetryError(code.name)


def _produced(answer: Any) -> ErrorCode:
    code: ErrorCode = answer.responses[0].partition_responses[0].error_code
    return code


def errors_of(answer: Any) -> set[ErrorCode]:
    """Return all error codes of a response, at every level."""
    found: set[ErrorCode] = set()
    queue: list[Any] = [answer]
    while queue:
        each = queue.pop()
        if isinstance(each, list | tuple):
            queue.extend(each)
        elif isinstance(each, ErrorCode):
            found.add(each)
        elif isinstance(each, Message):
            queue.extend(getattr(each, field.name) for field in fields(each))
    return found
