"""A transactional id with its producer and its transaction. The object is immutable, so each transition
returns a new object. Pure.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from moldau.coordinators.transactions.states import MOVES, TransactionPhase
from moldau.protocol.partitions import TopicPartition

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
EPOCH_MAX: Final = 2**15 - 1
NO_TIME: Final = -1
VERSION_WITH_BUMPS: Final = 2
"""From this transaction version on, every end of a transaction increases the producer's epoch (KIP-890)."""


class ProducerIdentity(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    producer_epoch: int

    @property
    def is_for_fencing(self) -> bool:
        """Whether this is the last possible epoch. Only markers may have this epoch; clients never get it."""
        return self.producer_epoch >= EPOCH_MAX


class EndedTransaction(NamedTuple):
    """Identifies one prepared transaction of a transactional id. The producer id and epoch are not enough,
    because before transaction version 2 the next transaction has the same producer id and epoch."""

    identity: ProducerIdentity
    start_ms: int
    updated_ms: int


class Transaction(NamedTuple):
    """The state of one transactional id.

    ``last_producer_epoch`` is the epoch before the last increase that the producer requested. This value is
    not written to the log, so a new coordinator does not have it. If a producer repeats its request at a new
    coordinator, it is therefore fenced, as in Kafka.
    """

    producer_id: int
    timeout_ms: int
    producer_epoch: int = NO_EPOCH
    last_producer_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """The id with which the producer continues after the end of the transaction. It is set if all epochs of
    the current id are used."""
    state: TransactionPhase = TransactionPhase.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIME
    updated_ms: int = NO_TIME
    client_version: int = 0
    """The transaction version of the client, known from its requests (KIP-890)."""

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def ended(self) -> EndedTransaction:
        """A key of the prepared transaction. It contains only values from the log, so every coordinator
        computes the same key."""
        return EndedTransaction(self.identity, self.start_ms, self.updated_ms)

    @property
    def is_exhausted(self) -> bool:
        """Whether clients can get no further epoch of this id. The last epoch is reserved for fencing."""
        return self.producer_epoch >= EPOCH_MAX - 1

    @property
    def commits(self) -> bool:
        """Whether a prepared transaction ends with a commit."""
        return self.state is TransactionPhase.PREPARE_COMMIT

    def is_timed_out(self, now_ms: int) -> bool:
        """Whether an ongoing transaction has exceeded its timeout and must be aborted (KIP-98)."""
        return self.start_ms + self.timeout_ms < now_ms

    def gives_way_to(self, producer: ProducerIdentity) -> bool:
        """Whether ``producer`` already has the next producer id of this transactional id. If so, it must wait
        until the end of the current transaction is complete.
        """
        return self.state.is_prepared and producer == (self.next_producer_id, 0)

    def initialized(
        self, timeout_ms: int, now_ms: int, identity: ProducerIdentity, last_epoch: int
    ) -> "Transaction":
        """Return the state after the producer begins again with this id and epoch."""
        rotated = identity.producer_id != self.producer_id
        return self._moved(
            TransactionPhase.EMPTY,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            last_producer_epoch=last_epoch,
            previous_producer_id=self.producer_id if rotated else self.previous_producer_id,
            next_producer_id=NO_PRODUCER_ID,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIME,
            updated_ms=now_ms,
        )

    def with_partitions(
        self, partitions: Iterable[TopicPartition], now_ms: int, client_version: int
    ) -> "Transaction":
        """The state after partitions join the transaction. If they are the first partitions, they begin the
        transaction."""
        begins = self.state is not TransactionPhase.ONGOING
        return self._moved(
            TransactionPhase.ONGOING,
            partitions=self.partitions.union(partitions),
            start_ms=now_ms if begins else self.start_ms,
            updated_ms=now_ms,
            client_version=client_version,
        )

    def prepared(
        self,
        now_ms: int,
        *,
        commits: bool,
        bumps: bool,
        client_version: int,
        next_producer_id: int = NO_PRODUCER_ID,
    ) -> "Transaction":
        """The state after the end is decided. With ``bumps`` the producer epoch is increased, and the markers
        have the new epoch. Late batches with the old epoch are then fenced."""
        return self._moved(
            TransactionPhase.PREPARE_COMMIT if commits else TransactionPhase.PREPARE_ABORT,
            producer_epoch=min(self.producer_epoch + 1, EPOCH_MAX) if bumps else self.producer_epoch,
            last_producer_epoch=self.producer_epoch if bumps else self.last_producer_epoch,
            next_producer_id=next_producer_id,
            start_ms=self.start_ms if self.state is TransactionPhase.ONGOING else now_ms,
            updated_ms=now_ms,
            client_version=client_version,
        )

    def rotated(self, producer_id: int, now_ms: int) -> "Transaction":
        """Return the state after the transaction is complete and its producer continues with another id."""
        return self._replace(
            producer_id=producer_id,
            producer_epoch=0,
            last_producer_epoch=NO_EPOCH,
            previous_producer_id=self.producer_id,
            updated_ms=now_ms,
        )

    def completed(self, now_ms: int) -> "Transaction":
        """The state after every partition has its marker. If all epochs of the id are used, the next id
        replaces it."""
        rotates = self.next_producer_id != NO_PRODUCER_ID
        return self._moved(
            TransactionPhase.COMPLETE_COMMIT if self.commits else TransactionPhase.COMPLETE_ABORT,
            producer_id=self.next_producer_id if rotates else self.producer_id,
            producer_epoch=0 if rotates else self.producer_epoch,
            previous_producer_id=self.producer_id if rotates else self.previous_producer_id,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
            updated_ms=now_ms,
        )

    def _moved(self, state: TransactionPhase, **changes: object) -> "Transaction":
        assert state in MOVES[self.state], f"{self.state.value} cannot become {state.value}"
        return self._replace(state=state, **changes)  # type: ignore[arg-type]
