"""Transactional batches of clients. The first batch of a transaction in a partition waits until the
coordinator has checked it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from moldau.coordinators.transactions.transaction import ProducerIdentity
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.records.batch import parse_header
from moldau.replication.partition_interface import AppendAnswer, AppendOutcome, Partition, TransactionalBatch
from moldau.runtime import UnexpectedErrors
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.fair_lane import FairClient
from moldau.server.handlers.records.transaction_markers import IsConfirmed, Participation, VerifyParticipation

JOINING_VERSION: Final = 12
"""From this version of Produce on, the first batch adds its partition to the transaction (KIP-890)."""
ABORTABLE_VERSION: Final = 11
"""From this version of Produce on, clients can handle TRANSACTION_ABORTABLE."""


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
"""The errors after which the check of a transaction may be repeated with success. For example, a broker is
busy, a coordinator has moved, or another broker runs an older version."""


class TransactionalProduce(NamedTuple):
    """The fields that all batches of a Produce request share."""

    transactional_id: str
    api_version: int
    required_acks: int
    timeout_ms: int
    client: FairClient | None = None


class _BatchTurn(NamedTuple):
    """The order of a batch relative to the other batches of its producer in the partition. Implements
    :class:`moldau.replication.partition_interface.ProducerTurn`."""

    is_free: bool
    has_own_epoch: bool
    wait: Callable[[Callable[[], Awaitable[AppendAnswer]]], "asyncio.Future[AppendOutcome]"]
    is_confirmed: Callable[[], bool]
    verify: Callable[[], Awaitable[None]]


class TransactionalAppends:
    """Appends batches. The batches of one producer to one partition are appended in the order in which they
    arrived."""

    def __init__(
        self,
        verify: VerifyParticipation,
        unexpected: UnexpectedErrors,
        is_confirmed: IsConfirmed = lambda _: False,
    ) -> None:
        """``is_confirmed`` spares batches the wait for ``verify``. By default no batch is spared."""
        self._verify = verify
        self._unexpected = unexpected
        self._is_confirmed = is_confirmed
        self._last: dict[tuple[PartitionKey, int], asyncio.Future[None]] = {}
        """The newest batch that waits, by partition and producer. Its future is done once the batch is
        appended or refused.
        """

    def append(
        self, partition: Partition, records: memoryview, request: TransactionalProduce
    ) -> AppendAnswer:
        """Append a transactional batch, like ``Partition.append``. ``records`` contain at least a batch
        header."""
        header = parse_header(records)
        producer = ProducerIdentity(header.producer_id, header.producer_epoch)
        batch = TransactionalBatch(
            records, *producer, request.required_acks, request.timeout_ms, request.client
        )
        try:
            return partition.transactions.append(batch, self._turn(partition, producer, request))
        except KafkaError as error:
            return _refusal(error, request.api_version)

    def _turn(
        self, partition: Partition, producer: ProducerIdentity, request: TransactionalProduce
    ) -> "_BatchTurn":
        key = (partition.key, producer.producer_id)
        place = TopicPartition(partition.topic, partition.key.partition)
        joins = request.api_version >= JOINING_VERSION
        participation = Participation(request.transactional_id, producer, place, joins)
        return _BatchTurn(
            key not in self._last,
            joins,
            lambda append: self._in_turn(key, append, request.api_version),
            lambda: self._is_confirmed(participation),
            lambda: self._verify(participation),
        )

    def _in_turn(
        self,
        key: tuple[PartitionKey, int],
        append: Callable[[], Awaitable[AppendAnswer]],
        api_version: int,
    ) -> "asyncio.Task[AppendOutcome]":
        """Call ``append`` when the earlier batches of the producer in this partition are appended or refused.
        ``append`` may raise ``KafkaError``."""
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


def _refusal(error: KafkaError, api_version: int) -> AppendOutcome:
    """Return the outcome of a refused append, with an error code that the client can handle. Older clients
    retry only after NOT_ENOUGH_REPLICAS."""
    code = error.code
    if code in _RETRIABLE:
        reason = f"the transaction could not be checked yet: {error}"
        return AppendOutcome(ErrorCode.not_enough_replicas, message=reason)
    if code is ErrorCode.producer_fenced:
        code = ErrorCode.invalid_producer_epoch
    elif code is ErrorCode.transaction_abortable and api_version < ABORTABLE_VERSION:
        code = ErrorCode.invalid_txn_state
    return AppendOutcome(code, message=error.message)
