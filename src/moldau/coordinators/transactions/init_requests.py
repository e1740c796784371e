"""Decides on InitProducerId requests: whether the producer is accepted, and which producer id and epoch it
gets. Pure.

A producer that sends its producer id and epoch may request a new epoch (KIP-360). If the response is lost, it
repeats the request and gets the same epoch again. A producer that sends no id fences every earlier producer.
"""

from typing import NamedTuple

from moldau.coordinators.transactions.states import TransactionPhase
from moldau.coordinators.transactions.transaction import EPOCH_MAX, NO_EPOCH, ProducerIdentity, Transaction
from moldau.runtime import ErrorCode, KafkaError


class Initialization(NamedTuple):
    """An InitProducerId request for a transactional id. ``expected`` is the producer id and epoch that the
    producer has (KIP-360)."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdentity | None = None


def check_initialization(found: Transaction, request: Initialization) -> None:
    """Check that the producer may get an id and an epoch now, or after an abort of its ongoing transaction.

    Raises PRODUCER_FENCED and CONCURRENT_TRANSACTIONS (markers are being written).
    """
    expected = request.expected
    if expected is not None and found.producer_epoch != NO_EPOCH and not found.gives_way_to(expected):
        _check_expected(found, expected)
    if found.state.is_prepared:
        raise KafkaError(ErrorCode.concurrent_transactions)


def next_identity(found: Transaction, request: Initialization) -> tuple[ProducerIdentity | None, int]:
    """Return the producer's next id and epoch, and the epoch before the increase. The epoch before the
    increase is -1 if the producer did not request the increase itself.

    A repeated request gets the current id and epoch again. If the id has no more epochs for clients, the
    first value is ``None``, and the caller gives the producer a new id.
    """
    expected = request.expected
    is_first = expected is None or expected == found.identity or found.producer_epoch == NO_EPOCH
    if not is_first and found.producer_epoch < EPOCH_MAX:
        return found.identity, found.last_producer_epoch
    last_epoch = NO_EPOCH if expected is None else found.producer_epoch
    if found.is_exhausted:
        return None, last_epoch
    return ProducerIdentity(found.producer_id, found.producer_epoch + 1), last_epoch


def _check_expected(found: Transaction, expected: ProducerIdentity) -> None:
    """Check a producer that sends its id and epoch. They must be the current id and epoch, or the request
    must be a repetition.

    Raises PRODUCER_FENCED.
    """
    if expected == found.identity and not expected.is_for_fencing:
        return
    # A repetition: an earlier request has increased the epoch or replaced the producer id, and its response
    # was lost.
    repeats = (
        expected.producer_id in (found.producer_id, found.previous_producer_id)
        and expected.producer_epoch == found.last_producer_epoch != NO_EPOCH
    )
    # A transaction that is open with the new epoch shows that the producer has got the earlier response. In
    # this case the request is not a repetition.
    if not repeats or found.state is TransactionPhase.ONGOING:
        raise KafkaError(ErrorCode.producer_fenced)
