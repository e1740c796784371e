"""Decides whether an EndTxn request is allowed, is a repetition, or comes from a fenced producer. Pure.

Before version 2 a producer keeps its epoch, so a repeated request looks like the first request. From version
2 on the epoch grows by one when the end is decided. Therefore a repeated request can be distinguished from a
request to end the next transaction (KIP-890).
"""

from typing import Final, NamedTuple

from moldau.coordinators.transactions.states import TransactionPhase
from moldau.coordinators.transactions.transaction import (
    EPOCH_MAX,
    VERSION_WITH_BUMPS,
    ProducerIdentity,
    Transaction,
)
from moldau.runtime import ErrorCode, KafkaError

_COMMITS: Final = (TransactionPhase.PREPARE_COMMIT, TransactionPhase.COMPLETE_COMMIT)
_ABORTS: Final = (TransactionPhase.PREPARE_ABORT, TransactionPhase.COMPLETE_ABORT)


class Ending(NamedTuple):
    """An EndTxn request. ``client_version`` is 2 for request version 5 and later."""

    transactional_id: str
    producer: ProducerIdentity
    committed: bool
    client_version: int


def check_end(found: Transaction, request: Ending) -> bool:
    """Return True if the request repeats an end that is already complete. Return False if the end must be
    carried out.

    Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS (the markers of this end are
    being written) and INVALID_TXN_STATE.
    """
    if request.client_version >= VERSION_WITH_BUMPS:
        return _check_bumping(found, request)
    producer = request.producer
    if producer.producer_id != found.producer_id:
        raise KafkaError(ErrorCode.invalid_producer_id_mapping)
    if producer.producer_epoch != found.producer_epoch:
        raise KafkaError(ErrorCode.producer_fenced)
    if found.state is TransactionPhase.ONGOING:
        return False
    if found.state is TransactionPhase.EMPTY:
        raise KafkaError(ErrorCode.invalid_txn_state)
    return _repeats(found, request.committed)


def _check_bumping(found: Transaction, request: Ending) -> bool:
    producer = request.producer
    overflowed = (
        producer.producer_id == found.previous_producer_id
        and producer.producer_epoch == EPOCH_MAX - 1
        and found.producer_epoch == 0
    )
    if producer.producer_id != found.producer_id and not overflowed:
        raise KafkaError(ErrorCode.invalid_producer_id_mapping)
    is_current = producer == found.identity
    is_repeated = overflowed or producer.producer_epoch == found.producer_epoch - 1
    match found.state:
        case TransactionPhase.ONGOING:
            _check_epoch(is_current)
            return False
        case TransactionPhase.EMPTY:
            _check_epoch(is_current)
        case TransactionPhase.PREPARE_COMMIT | TransactionPhase.PREPARE_ABORT:
            _check_epoch(is_repeated)
            return _repeats(found, request.committed)
        case _:
            _check_epoch(is_current or is_repeated)
            if is_repeated:
                return _repeats(found, request.committed)
    if request.committed:
        raise KafkaError(ErrorCode.invalid_txn_state)
    # An abort is carried out even without an open transaction, because it increases the epoch. If batches of
    # a failed produce request arrive later, they are then fenced.
    return False


def _check_epoch(is_valid: bool) -> None:
    if not is_valid:
        raise KafkaError(ErrorCode.producer_fenced)


def _repeats(found: Transaction, committed: bool) -> bool:
    decided = _COMMITS if committed else _ABORTS
    if found.state not in decided:
        raise KafkaError(ErrorCode.invalid_txn_state)
    if found.state.is_prepared:
        raise KafkaError(ErrorCode.concurrent_transactions)
    return True
