"""The transaction coordinator for request handlers. The arguments of calls are plain values, and errors are
reported by error codes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from moldau.cluster.internal_topics import TRANSACTION_STATE
from moldau.coordinators.effects import Effects, Token
from moldau.coordinators.kind import CoordinatorKind, LogPolicy
from moldau.coordinators.partitioning import coordinator_partition
from moldau.coordinators.transactions.codec import TransactionCodec, TransactionRecord
from moldau.coordinators.transactions.completion import (
    MarkerWriter,
    TransactionCompletion,
    TransactionRuntime,
)
from moldau.coordinators.transactions.end_requests import Ending
from moldau.coordinators.transactions.init_requests import Initialization
from moldau.coordinators.transactions.join_requests import Joining
from moldau.coordinators.transactions.settings import TransactionSettings
from moldau.coordinators.transactions.shard import (
    NewProducerIdNeededError,
    ProducerAnswer,
    TransactionFilter,
    TransactionShard,
)
from moldau.coordinators.transactions.transaction import ProducerIdentity, Transaction
from moldau.protocol.coordinator_keys import CoordinatorKeyType
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import Clock, ErrorCode, KafkaError, UnexpectedErrors

T = TypeVar("T")
TransactionOperation = Callable[[TransactionShard, int, Token], Effects[TransactionRecord]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPorts:
    """The functions of the node that the coordinator uses."""

    new_producer_id: Callable[[], Awaitable[int]]
    """Returns a producer id that no producer of the cluster has ever had. Raises ``KafkaError`` (retriable).
    """
    markers: MarkerWriter
    level: Callable[[], int]
    """Returns the cluster's ``transaction.version``."""
    partition_count: Callable[[str], int]
    """Returns the number of partitions of a topic; 0 when it does not exist."""


class TransactionService:
    """The transactional ids that this node coordinates.

    All calls raise ``KafkaError`` with the runtime's codes (NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE), with INVALID_REQUEST for an empty transactional id, and with the codes of the
    shard.
    """

    def __init__(
        self,
        clock: Clock,
        settings: TransactionSettings,
        ports: TransactionPorts,
        unexpected: UnexpectedErrors,
    ) -> None:
        self.settings = settings
        self._ports = ports
        kind: CoordinatorKind[TransactionShard, TransactionRecord] = CoordinatorKind(
            topic=TRANSACTION_STATE,
            new_shard=self._new_shard,
            codec=TransactionCodec(),
            # Each record is the whole state of one id. A damaged batch may have contained the decision about
            # a transaction.
            policy=LogPolicy(skips_broken=True, skips_damaged=False),
            key_type=CoordinatorKeyType.TRANSACTION,
            partition_of=coordinator_partition,
        )
        self.runtime = TransactionRuntime(kind, clock, unexpected)
        self.completion = TransactionCompletion(self.runtime, ports.markers, unexpected)

    def _new_shard(self, partition: int) -> TransactionShard:
        def max_batch_bytes() -> int:
            host = self.runtime.led(partition)
            return self.settings.max_record_bytes if host is None else host.term.log.max_batch_bytes

        return TransactionShard(
            self.settings,
            self._ports.level,
            lambda: self.completion.find_prepared(partition),
            max_batch_bytes,
        )

    async def close(self) -> None:
        """Stop leading all partitions."""
        await self.runtime.close()
        await self.completion.close()

    def partition_of(self, transactional_id: str) -> int:
        """The partition of ``__transaction_state`` that stores an id. Raises INVALID_REQUEST for an empty
        id."""
        if not transactional_id:
            raise KafkaError(ErrorCode.invalid_request, "The transactional id is empty.")
        count = self._ports.partition_count(TRANSACTION_STATE.name) or self.settings.topic_partitions
        return self.runtime.kind.partition_of(transactional_id, count)

    async def init_producer(self, request: Initialization) -> ProducerAnswer:
        """Handle InitProducerId for a transactional id. This method also raises
        INVALID_TRANSACTION_TIMEOUT."""
        partition = self.partition_of(request.transactional_id)
        if not 0 < request.timeout_ms <= self.settings.max_timeout_ms:
            raise KafkaError(ErrorCode.invalid_transaction_timeout)
        return await self._with_new_id(
            partition,
            lambda new_id: lambda shard, now_ms, token: shard.init_producer(token, request, new_id, now_ms),
        )

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
        client_version: int,
        *,
        may_wait: bool = True,
    ) -> None:
        """Add partitions to a transaction. The first partitions begin the transaction. With ``may_wait`` the
        call waits while the producer's last transaction is being completed, for ``join_wait_ms`` at most."""
        joining = Joining(transactional_id, producer, partitions, client_version, may_wait)
        await self.runtime.write(
            self.partition_of(transactional_id),
            lambda shard, now_ms, token: shard.add_partitions(token, joining, now_ms),
        )

    async def verify(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Check whether partitions belong to a transaction (KIP-890)."""
        return await self._read(
            transactional_id, lambda shard, now_ms: shard.verify(transactional_id, producer, partitions)
        )

    def confirms(self, transactional_id: str, producer: ProducerIdentity, partition: TopicPartition) -> bool:
        """Whether this node leads the coordinator of the transactional id, and a committed record says that
        the partition belongs to the transaction. Otherwise :meth:`verify` finds out more."""
        return bool(
            self.runtime.peek(
                self.partition_of(transactional_id),
                lambda shard, committed_end: shard.confirms(
                    transactional_id, producer, partition, committed_end
                ),
            )
        )

    async def end(self, request: Ending) -> ProducerAnswer:
        """Handle EndTxn. The response is sent when the end is decided. The markers are written later."""
        return await self._with_new_id(
            self.partition_of(request.transactional_id),
            lambda new_id: lambda shard, now_ms, token: shard.end(token, request, new_id, now_ms),
        )

    async def describe(self, transactional_id: str) -> Transaction:
        """Handle DescribeTransactions for one id."""
        return await self._read(transactional_id, lambda shard, now_ms: shard.describe(transactional_id))

    async def list_transactions(self, wanted: TransactionFilter) -> list[tuple[str, Transaction]]:
        """Handle ListTransactions: the transactions of the partitions that this node leads."""
        waiting = [
            self.runtime.read_in_turns(
                partition,
                lambda shard: tuple(shard.by_id),
                lambda shard, now_ms, names: shard.list_transactions(names, wanted, now_ms),
            )
            for partition in self.runtime.partitions
        ]
        found: list[tuple[str, Transaction]] = []
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(result, KafkaError) and result.code is ErrorCode.not_coordinator:
                continue
            if isinstance(result, BaseException):
                raise result
            found.extend(result)
        return found

    async def _read(self, transactional_id: str, operation: Callable[[TransactionShard, int], T]) -> T:
        return await self.runtime.read(self.partition_of(transactional_id), operation)

    async def _with_new_id(
        self, partition: int, operation: Callable[[int | None], TransactionOperation]
    ) -> ProducerAnswer:
        """Run an operation. If the operation needs a new producer id, allocate an id and run the operation
        again with this id."""
        new_id: int | None = None
        while True:
            try:
                answer: ProducerAnswer = await self.runtime.write(partition, operation(new_id))
                return answer
            except NewProducerIdNeededError:
                new_id = await self._ports.new_producer_id()
