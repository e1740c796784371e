"""Requests that add partitions to a transaction. Pure.

A producer may begin its next transaction while the markers of the last one are still being written. Kafka
answers such a request with CONCURRENT_TRANSACTIONS, and the client sends it again after a pause. Here the
request waits at the coordinator until the last transaction is complete, for a limited time. This saves the
repeated requests and the pauses.

Requests of other brokers do not wait, because requests of many producers share the connection of a broker,
and are answered in order. The broker repeats such a request.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from moldau.coordinators.effects import Token
from moldau.coordinators.transactions.transaction import ProducerIdentity, Transaction
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import ErrorCode, KafkaError


class Joining(NamedTuple):
    """An AddPartitionsToTxn or AddOffsetsToTxn request, or a partition that a broker adds (KIP-890)."""

    transactional_id: str
    producer: ProducerIdentity
    partitions: Sequence[TopicPartition]
    client_version: int
    may_wait: bool = True
    """Whether the request may wait for the end of the producer's last transaction."""


@dataclass(frozen=True, slots=True)
class JoinLimit:
    """Timer of the time after which requests no longer wait for the end of an id's last transaction."""

    transactional_id: str


def check_joining(found: Transaction | None, producer: ProducerIdentity) -> Transaction:
    """Return the state of a transactional id if the producer may add partitions to its transaction.

    Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, and CONCURRENT_TRANSACTIONS (the markers of the last
    transaction are being written).
    """
    if found is not None and found.gives_way_to(producer):
        raise KafkaError(ErrorCode.concurrent_transactions)
    if found is None or found.producer_id != producer.producer_id:
        raise KafkaError(ErrorCode.invalid_producer_id_mapping)
    if found.producer_epoch != producer.producer_epoch or producer.is_for_fencing:
        raise KafkaError(ErrorCode.producer_fenced)
    if found.state.is_prepared:
        raise KafkaError(ErrorCode.concurrent_transactions)
    return found


class WaitingJoins:
    """Requests that wait until the last transaction of their transactional id is complete."""

    def __init__(self) -> None:
        self._by_id: dict[str, list[tuple[Token, Joining]]] = {}

    def add(self, token: Token, joining: Joining) -> bool:
        """Add a request. Returns whether it is the first request that waits for this id."""
        waiting = self._by_id.setdefault(joining.transactional_id, [])
        waiting.append((token, joining))
        return len(waiting) == 1

    def of(self, transactional_id: str) -> Sequence[tuple[Token, Joining]]:
        """The requests that wait for an id, in the order of their arrival."""
        return self._by_id.get(transactional_id, ())

    def remove(self, transactional_id: str) -> Sequence[tuple[Token, Joining]]:
        """Remove and return the requests that wait for an id."""
        return self._by_id.pop(transactional_id, ())
