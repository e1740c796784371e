"""Transactional batches of clients: the first of a transaction in a partition waits for the coordinator."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

from moldau.coordinators.transactions.transaction import ProducerIdentity, TxnPartition
from moldau.diskless.partition.partition import DisklessPartition
from moldau.diskless.partition.passage import DisklessPassage
from moldau.records.batch import parse_header
from moldau.replication.classic import ClassicPartition
from moldau.replication.partition import AppendAnswer, AppendOutcome, Partition, PartitionKey
from moldau.runtime import UnexpectedErrors
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.fair_lane import FairClient
from moldau.server.handlers.records.transactional import Admit, Participation

JOINING_VERSION: Final = 12
"""From this version of Produce on, partitions join by the first batch (KIP-890)."""
ABORTABLE_VERSION: Final = 11
"""From this version of Produce on, clients know TRANSACTION_ABORTABLE."""


_RETRIABLE: Final = frozenset(
    {
        ErrorCode.concurrent_transactions,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.broker_not_available,
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
        ErrorCode.unsupported_version,
    }
)
"""Errors of a check that may pass later: a broker is busy, moves, or is older than this one."""


class TransactionalProduce(NamedTuple):
    """The fields of a Produce request beside its batches."""

    transactional_id: str
    api_version: int
    required_acks: int
    timeout_ms: int
    client: FairClient | None = None


class TransactionalAppends:
    """Appends batches in the order in which they came, for each producer and partition."""

    def __init__(self, admit: Admit, unexpected: UnexpectedErrors) -> None:
        self._admit = admit
        self._unexpected = unexpected
        self._last: dict[tuple[PartitionKey, int], asyncio.Future[None]] = {}
        """By partition and producer: the newest batch that waits; done once it is appended or refused."""

    def append(
        self, partition: Partition, records: memoryview, request: TransactionalProduce
    ) -> AppendAnswer:
        """As ``Partition.append``, for a transactional batch. ``records`` hold a header, at least."""
        if isinstance(partition, DisklessPartition | DisklessPassage):
            return self._append_diskless(partition, records, request)
        if not isinstance(partition, ClassicPartition) or not partition.is_leader:
            # It refuses by itself, and knows why.
            return partition.append(
                records,
                required_acks=request.required_acks,
                timeout_ms=request.timeout_ms,
                client=request.client,
            )
        header = parse_header(records)
        producer = ProducerIdentity(header.producer_id, header.producer_epoch)
        key = (partition.key, producer.producer_id)
        before = self._last.get(key)
        try:
            is_open = partition.transactions.is_open(*producer)
        except KafkaError as error:
            return _refusal(error, request.api_version)
        if is_open and before is None:
            return partition.append(
                records,
                required_acks=request.required_acks,
                timeout_ms=request.timeout_ms,
                client=request.client,
            )
        batch = bytes(records)
        return self._in_turn(
            key, lambda: self._checked(partition, batch, producer, request), request.api_version
        )

    def _append_diskless(
        self,
        partition: DisklessPartition | DisklessPassage,
        records: memoryview,
        request: TransactionalProduce,
    ) -> AppendAnswer:
        """The coordinator of the partition is asked for a guard before each batch."""
        header = parse_header(records)
        producer = ProducerIdentity(header.producer_id, header.producer_epoch)
        batch = bytes(records)
        return self._in_turn(
            (partition.key, producer.producer_id),
            lambda: self._guarded(partition, batch, producer, request),
            request.api_version,
        )

    def _in_turn(
        self,
        key: tuple[PartitionKey, int],
        append: Callable[[], Awaitable[AppendAnswer]],
        api_version: int,
    ) -> "asyncio.Task[AppendOutcome]":
        """Append after the producer's batches that came before; ``append`` may raise ``KafkaError``."""
        loop = asyncio.get_running_loop()
        before = self._last.get(key)
        issued = self._last[key] = loop.create_future()

        async def append_later() -> AppendOutcome:
            answer: AppendAnswer = AppendOutcome(ErrorCode.unknown_server_error, message="unexpected error")
            try:
                if before is not None:
                    await asyncio.wait([before])
                answer = await append()
            except KafkaError as error:
                answer = _refusal(error, api_version)
            except Exception as error:
                self._unexpected.report("appending a transactional batch", error)
            finally:
                issued.set_result(None)
                if self._last.get(key) is issued:
                    del self._last[key]
            return answer if isinstance(answer, AppendOutcome) else await answer

        return loop.create_task(append_later(), name="transactional append")

    async def _guarded(
        self,
        partition: DisklessPartition | DisklessPassage,
        batch: bytes,
        producer: ProducerIdentity,
        request: TransactionalProduce,
    ) -> AppendAnswer:
        transactions, producer_id = partition.transactions, producer.producer_id
        guard = await transactions.guard(*producer)
        if not transactions.is_verified(producer_id, guard):
            place = TxnPartition(partition.topic, partition.key.partition)
            joins = request.api_version >= JOINING_VERSION
            await self._admit(Participation(request.transactional_id, producer, place, joins))
            transactions.verified(producer_id, guard)
        return partition.append(
            memoryview(batch),
            required_acks=request.required_acks,
            timeout_ms=request.timeout_ms,
            client=request.client,
            guard=guard,
        )

    async def _checked(
        self,
        partition: ClassicPartition,
        batch: bytes,
        producer: ProducerIdentity,
        request: TransactionalProduce,
    ) -> AppendAnswer:
        checks = partition.transactions
        guard = checks.guard(*producer)
        answer: AppendAnswer | None = None
        try:
            if guard is not None:
                place = TxnPartition(partition.topic, partition.key.partition)
                joins = request.api_version >= JOINING_VERSION
                await self._admit(Participation(request.transactional_id, producer, place, joins))
            answer = partition.append(
                memoryview(batch),
                required_acks=request.required_acks,
                timeout_ms=request.timeout_ms,
                client=request.client,
                guard=guard,
            )
            return answer
        finally:
            if guard is not None:
                _withdraw_after(answer, partial(checks.withdraw, producer.producer_id, guard))


def _withdraw_after(answer: "AppendAnswer | None", withdraw: Callable[[], None]) -> None:
    """A guard is needed until the batch is appended or refused, which a worker may do later."""
    if answer is None or isinstance(answer, AppendOutcome):
        withdraw()
    else:
        answer.add_done_callback(lambda _: withdraw())


def _refusal(error: KafkaError, api_version: int) -> AppendOutcome:
    """The refusal in a code that the client knows: older ones retry after NOT_ENOUGH_REPLICAS only."""
    code = error.code
    if code in _RETRIABLE:
        reason = f"the transaction could not be checked yet: {error}"
        return AppendOutcome(ErrorCode.not_enough_replicas, message=reason)
    if code is ErrorCode.producer_fenced:
        code = ErrorCode.invalid_producer_epoch
    elif code is ErrorCode.transaction_abortable and api_version < ABORTABLE_VERSION:
        code = ErrorCode.invalid_txn_state
    return AppendOutcome(code, message=error.message)
