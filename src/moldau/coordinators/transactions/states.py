"""The states of a transactional id, and the allowed transitions between them (KIP-98, KIP-890). Pure."""

from enum import Enum
from typing import Final


class TransactionPhase(Enum):
    """The states, with the names that clients receive (DescribeTransactions, ListTransactions)."""

    EMPTY = "Empty"
    """The producer has an id, but has not begun a transaction yet."""
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    """The end of the transaction is decided. Markers are sent again until every partition has its marker."""
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    """Every partition of the transaction has its marker."""
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    """Kafka's state of an id that expires. Only Kafka's brokers write it; Moldau writes a tombstone."""
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """Kafka's state between the fencing of a producer and the abort. It is never written to a log."""

    # Each transition of a transaction looks up several states, and the hash of enums is a Python function.
    __hash__ = object.__hash__

    @property
    def number(self) -> int:
        """The number of the state in records of ``__transaction_state``."""
        return _NUMBERS[self]

    @property
    def is_prepared(self) -> bool:
        """Whether the end of the transaction is decided and its markers must be written."""
        return self is TransactionPhase.PREPARE_COMMIT or self is TransactionPhase.PREPARE_ABORT


STATE_BY_NUMBER: Final = dict(enumerate(TransactionPhase))
_NUMBERS: Final = {state: number for number, state in STATE_BY_NUMBER.items()}
STATE_BY_NAME: Final = {state.value: state for state in TransactionPhase}

PREPARED: Final = frozenset({TransactionPhase.PREPARE_COMMIT, TransactionPhase.PREPARE_ABORT})
QUIET: Final = frozenset(
    {TransactionPhase.EMPTY, TransactionPhase.COMPLETE_COMMIT, TransactionPhase.COMPLETE_ABORT}
)
"""States without a transaction. In these states the producer may begin a transaction or be initialized again,
and the id may expire."""

MOVES: Final = {
    TransactionPhase.EMPTY: frozenset(
        {TransactionPhase.EMPTY, TransactionPhase.ONGOING, TransactionPhase.PREPARE_ABORT}
    ),
    TransactionPhase.ONGOING: frozenset({TransactionPhase.ONGOING, *PREPARED}),
    TransactionPhase.PREPARE_COMMIT: frozenset({TransactionPhase.COMPLETE_COMMIT}),
    TransactionPhase.PREPARE_ABORT: frozenset({TransactionPhase.COMPLETE_ABORT}),
    TransactionPhase.COMPLETE_COMMIT: frozenset(
        {TransactionPhase.EMPTY, TransactionPhase.ONGOING, TransactionPhase.PREPARE_ABORT}
    ),
    TransactionPhase.COMPLETE_ABORT: frozenset(
        {TransactionPhase.EMPTY, TransactionPhase.ONGOING, TransactionPhase.PREPARE_ABORT}
    ),
    TransactionPhase.DEAD: frozenset[TransactionPhase](),
    TransactionPhase.PREPARE_EPOCH_FENCE: frozenset[TransactionPhase](),
}
"""The states that may follow each state. An abort without a transaction is allowed from version 2 on
(KIP-890)."""
