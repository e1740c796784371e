"""The transactional ids of one partition of ``__transaction_state``: a shard. Pure.

Every operation reads the state. An operation raises :class:`KafkaError`, or returns :class:`Effects` with one
record: the new state of one id. Some responses do not contain the decision. For example, InitProducerId gets
CONCURRENT_TRANSACTIONS while an old transaction is being aborted. But such a decision, too, is written as a
record before the response, so that it survives a restart.

Clauses: KIP-98 (states, fencing), KIP-360 (a producer requests a higher epoch), KIP-890 (version 2: each end
increases the epoch, and brokers add the partitions to which they append).
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from moldau.coordinators.effects import (
    BatchKind,
    CancelTimer,
    Effects,
    Reply,
    SetTimer,
    TimerChange,
    TimerKey,
    Token,
    answer,
)
from moldau.coordinators.shard import CanonicalState
from moldau.coordinators.transactions.codec import (
    FLEXIBLE_VALUE_VERSION,
    TransactionCodec,
    TransactionRecord,
)
from moldau.coordinators.transactions.end_requests import Ending, check_end
from moldau.coordinators.transactions.init_requests import Initialization, check_initialization, next_identity
from moldau.coordinators.transactions.join_requests import Joining, JoinLimit, WaitingJoins, check_joining
from moldau.coordinators.transactions.settings import TransactionSettings
from moldau.coordinators.transactions.states import QUIET, TransactionPhase
from moldau.coordinators.transactions.transaction import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    VERSION_WITH_BUMPS,
    ProducerIdentity,
    Transaction,
)
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import ErrorCode, KafkaError

BATCH_OVERHEAD_BYTES: Final = 256
"""An upper limit for the size of a batch header and the fixed fields of a record."""


@dataclass(frozen=True, slots=True)
class TimeoutCheck:
    """Timer of the next check for transactions that have exceeded their timeout."""


@dataclass(frozen=True, slots=True)
class ExpiryCheck:
    """Timer of the next check for transactional ids that have expired."""


class NewProducerIdNeededError(KafkaError):
    """The operation needs a new producer id, and has changed nothing. The caller must repeat it with a new
    id."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.coordinator_not_available, "a new producer id is needed")


class ProducerAnswer(NamedTuple):
    """The result of an operation about a producer: an error, or the producer's next id and epoch."""

    error: ErrorCode = ErrorCode.none
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class Unfinished(NamedTuple):
    """A transaction whose markers must be written."""

    transactional_id: str
    transaction: Transaction
    decided_at: int
    """The offset of the record that prepared the transaction."""


class TransactionFilter(NamedTuple):
    """The filter of a ListTransactions request. An empty collection matches all transactions."""

    states: Collection[TransactionPhase] = ()
    producer_ids: Collection[int] = ()
    longer_than_ms: int = -1


class TransactionShard:
    """Transactions by transactional id."""

    def __init__(
        self,
        settings: TransactionSettings,
        level: Callable[[], int] = lambda: VERSION_WITH_BUMPS,
        on_prepared: Callable[[], None] = lambda: None,
        max_batch_bytes: Callable[[], int] | None = None,
    ) -> None:
        """``level`` returns the cluster's ``transaction.version``. ``on_prepared`` is called for each
        transaction whose end is decided or loaded. The markers of such a transaction must be written when the
        decision is committed (:meth:`unfinished`). ``max_batch_bytes`` returns the current limit of the
        topic."""
        self.settings = settings
        self.by_id: dict[str, Transaction] = {}
        self._level = level
        self._on_prepared = on_prepared
        self._max_batch_bytes = max_batch_bytes
        self._ongoing: dict[str, int] = {}
        """The offsets of the newest records of ongoing transactions."""
        self._prepared: dict[str, int] = {}
        """The offsets of the records that prepared transactions."""
        self._unreadable: set[str] = set()
        """Ids whose newest record could not be read. The record may have contained the decision to commit or
        abort a transaction."""
        self._checks_timeouts = False
        self._waiting = WaitingJoins()

    # replay

    def replay(self, offset: int, record: TransactionRecord, kind: BatchKind) -> None:
        """Apply one record."""
        name, value = record.transactional_id, record.value
        self._ongoing.pop(name, None)
        self._prepared.pop(name, None)
        self._unreadable.discard(name)
        if record.is_unreadable:
            self._unreadable.add(name)
        if value is None or value.state is TransactionPhase.DEAD:
            self.by_id.pop(name, None)
            return
        self.by_id[name] = value
        if value.state is TransactionPhase.ONGOING:
            self._ongoing[name] = offset
        elif value.state.is_prepared:
            self._prepared[name] = offset
            self._on_prepared()

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """Nothing is done, because the records of this topic are never part of a transaction."""

    def _find(self, transactional_id: str) -> Transaction | None:
        """The state of an id. Raises COORDINATOR_NOT_AVAILABLE if the state cannot be read."""
        if transactional_id in self._unreadable:
            raise KafkaError(
                ErrorCode.coordinator_not_available,
                "The newest record of this transactional id cannot be read: take another id.",
            )
        return self.by_id.get(transactional_id)

    # timers

    def on_loaded(self, now_ms: int) -> Effects[TransactionRecord]:
        """Schedule the checks for timeouts and expiry."""
        timers = [SetTimer(ExpiryCheck(), self.settings.expiry_check_interval_ms)]
        self._checks_timeouts = bool(self._ongoing)
        if self._ongoing:
            timers.append(SetTimer(TimeoutCheck(), self.settings.timeout_check_interval_ms))
        return Effects(timers=timers)

    def on_timer(self, key: TimerKey, now_ms: int) -> Effects[TransactionRecord]:
        """Abort transactions that have exceeded their timeout, delete ids that have expired, or refuse
        requests that have waited too long for the end of a transaction."""
        if isinstance(key, ExpiryCheck):
            return self._expire(now_ms)
        if isinstance(key, JoinLimit):
            refused = KafkaError(ErrorCode.concurrent_transactions)
            waiting = self._waiting.remove(key.transactional_id)
            return Effects(replies=[Reply(token, refused) for token, _ in waiting])
        late = [name for name in self._ongoing if self.by_id[name].is_timed_out(now_ms)]
        records = [self._record(name, self._fenced(self.by_id[name], now_ms)) for name in late]
        self._checks_timeouts = len(self._ongoing) > len(late)
        timers = (
            [SetTimer(TimeoutCheck(), self.settings.timeout_check_interval_ms)]
            if self._checks_timeouts
            else ()
        )
        return Effects(records, timers=timers, atomic=False)

    def canonical(self) -> CanonicalState:
        """The transactions, in the form of their records. The epoch before an increase is not included,
        because no record contains it."""
        encode = TransactionCodec().encode
        records = (encode(TransactionRecord(name, found)) for name, found in self.by_id.items())
        return CanonicalState(parts={"transactions": sorted(records)})

    def _expire(self, now_ms: int) -> Effects[TransactionRecord]:
        limit_ms = self.settings.id_expiration_ms
        expired = [
            TransactionRecord(name, None)
            for name, found in self.by_id.items()
            if found.state in QUIET and found.updated_ms + limit_ms <= now_ms
        ]
        timers = [SetTimer(ExpiryCheck(), self.settings.expiry_check_interval_ms)]
        return Effects(expired, timers=timers, atomic=False)

    # the producer

    def init_producer(
        self, token: Token, request: Initialization, new_id: int | None, now_ms: int
    ) -> Effects[TransactionRecord]:
        """Handle InitProducerId. The result is a :class:`ProducerAnswer`.

        An ongoing transaction is aborted with the next epoch. The producer must repeat its request after the
        abort. Raises PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, and :class:`NewProducerIdNeededError`.
        """
        name = request.transactional_id
        found = self._find(name)
        if found is None:
            if new_id is None:
                raise NewProducerIdNeededError
            found = Transaction(producer_id=new_id, timeout_ms=request.timeout_ms)
            return self._initialize(token, request, found, ProducerIdentity(new_id, 0), NO_EPOCH, now_ms)
        check_initialization(found, request)
        if found.state is TransactionPhase.ONGOING:
            fenced = self._record(name, self._fenced(found, now_ms))
            return answer(token, ProducerAnswer(ErrorCode.concurrent_transactions), [fenced])
        goes_on, last_epoch = next_identity(found, request)
        if goes_on is None:
            if new_id is None:
                raise NewProducerIdNeededError
            goes_on = ProducerIdentity(new_id, 0)
        return self._initialize(token, request, found, goes_on, last_epoch, now_ms)

    def _initialize(
        self,
        token: Token,
        request: Initialization,
        found: Transaction,
        identity: ProducerIdentity,
        last_epoch: int,
        now_ms: int,
    ) -> Effects[TransactionRecord]:
        value = found.initialized(request.timeout_ms, now_ms, identity, last_epoch)
        records = [self._record(request.transactional_id, value)]
        return answer(token, ProducerAnswer(ErrorCode.none, *identity), records)

    def _fenced(self, found: Transaction, now_ms: int) -> Transaction:
        """Return the ongoing transaction in the state "prepare abort", with the next epoch. This epoch fences
        the producer."""
        fenced = found.prepared(now_ms, commits=False, bumps=True, client_version=found.client_version)
        # The fenced producer did not request this higher epoch. The old epoch is not stored as
        # ``last_producer_epoch``. So an InitProducerId with the old epoch does not count as a repetition, and
        # the producer is fenced.
        return fenced._replace(last_producer_epoch=NO_EPOCH)

    # partitions

    def add_partitions(self, token: Token, joining: Joining, now_ms: int) -> Effects[TransactionRecord]:
        """Handle AddPartitionsToTxn and AddOffsetsToTxn. The result is ``None``.

        While the last transaction of the id is being completed, the request waits, for
        ``TransactionSettings.join_wait_ms`` at most, and then gets CONCURRENT_TRANSACTIONS. If it may not
        wait, this error is raised. Raises INVALID_PRODUCER_ID_MAPPING and PRODUCER_FENCED. Raises
        MESSAGE_TOO_LARGE when the transaction has more partitions than fit into a record.
        """
        name = joining.transactional_id
        found = self._find(name)
        try:
            value = self._joined(found, joining, now_ms)
        except KafkaError as error:
            wait_ms = self.settings.join_wait_ms
            is_busy = error.code is ErrorCode.concurrent_transactions
            if not (is_busy and wait_ms and joining.may_wait):
                raise
            is_first = self._waiting.add(token, joining)
            return Effects(timers=(SetTimer(JoinLimit(name), wait_ms),) if is_first else ())
        if value is found:
            return answer(token, None)
        return Effects([self._record(name, value)], (Reply(token, None),), self._timeout_check())

    def _joined(self, found: Transaction | None, joining: Joining, now_ms: int) -> Transaction:
        """Return the transaction with the partitions of the request. It is ``found`` itself if nothing
        changes. Raises the errors of :meth:`add_partitions`, and CONCURRENT_TRANSACTIONS."""
        found = check_joining(found, joining.producer)
        if found.state is TransactionPhase.ONGOING and found.partitions.issuperset(joining.partitions):
            return found
        value = found.with_partitions(joining.partitions, now_ms, joining.client_version)
        self._check_size(joining.transactional_id, value)
        return value

    def _timeout_check(self) -> tuple[SetTimer, ...]:
        """Start the checks for timeouts, because there is an ongoing transaction."""
        if self._checks_timeouts:
            return ()
        self._checks_timeouts = True
        return (SetTimer(TimeoutCheck(), self.settings.timeout_check_interval_ms),)

    def verify(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Check whether partitions belong to the transaction (KIP-890). Raises INVALID_PRODUCER_ID_MAPPING,
        PRODUCER_FENCED and CONCURRENT_TRANSACTIONS.
        """
        found = check_joining(self._find(transactional_id), producer)
        return {
            each: ErrorCode.none if each in found.partitions else ErrorCode.transaction_abortable
            for each in partitions
        }

    def confirms(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partition: TopicPartition,
        committed_end: int,
    ) -> bool:
        """Whether a record before ``committed_end`` says that the partition belongs to the producer's ongoing
        transaction, and no later record about the transactional id exists. Then :meth:`verify` would confirm
        the partition."""
        if self._ongoing.get(transactional_id, committed_end) >= committed_end:
            return False
        found = self.by_id[transactional_id]
        return found.identity == producer and not producer.is_for_fencing and partition in found.partitions

    def _check_size(self, transactional_id: str, value: Transaction) -> None:
        topics = {topic for topic, _ in value.partitions}
        size_bytes = (
            4 * len(transactional_id)
            + sum(4 * len(topic) + 16 for topic in topics)
            + 4 * len(value.partitions)
        )
        limit_bytes = self.settings.max_record_bytes
        if self._max_batch_bytes is not None:
            limit_bytes = min(limit_bytes, self._max_batch_bytes() - BATCH_OVERHEAD_BYTES)
        if size_bytes > limit_bytes:
            raise KafkaError(ErrorCode.message_too_large, "The transaction has too many partitions.")

    # the end of a transaction

    def end(
        self, token: Token, request: Ending, new_id: int | None, now_ms: int
    ) -> Effects[TransactionRecord]:
        """Handle EndTxn. The result is a :class:`ProducerAnswer`, which is sent when the end is decided.

        Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE, and
        :class:`NewProducerIdNeededError`.
        """
        found = self._find(request.transactional_id)
        if found is None:
            raise KafkaError(ErrorCode.invalid_producer_id_mapping)
        if request.producer.is_for_fencing:
            raise KafkaError(ErrorCode.producer_fenced)
        if check_end(found, request):
            if found.identity.is_for_fencing:
                # The current epoch is the last possible epoch, because the coordinator has aborted the
                # transaction with it. No client may use this epoch, so the producer gets a new id.
                if new_id is None:
                    raise NewProducerIdNeededError
                found = found.rotated(new_id, now_ms)
                records = [self._record(request.transactional_id, found)]
                return answer(token, ProducerAnswer(ErrorCode.none, *found.identity), records)
            return answer(token, ProducerAnswer(ErrorCode.none, *found.identity))
        bumps = request.client_version >= VERSION_WITH_BUMPS
        next_id = NO_PRODUCER_ID
        if bumps and found.is_exhausted:
            if new_id is None:
                raise NewProducerIdNeededError
            next_id = new_id
        value = found.prepared(
            now_ms,
            commits=request.committed,
            bumps=bumps,
            client_version=request.client_version,
            next_producer_id=next_id,
        )
        goes_on = value.identity if next_id == NO_PRODUCER_ID else ProducerIdentity(next_id, 0)
        records = [self._record(request.transactional_id, value)]
        return answer(token, ProducerAnswer(ErrorCode.none, *goes_on), records)

    def unfinished(self) -> list[Unfinished]:
        """The transactions whose markers must be written."""
        return [Unfinished(name, self.by_id[name], offset) for name, offset in self._prepared.items()]

    def complete(self, token: Token, ended: Unfinished, now_ms: int) -> Effects[TransactionRecord]:
        """Complete a transaction, because every partition has its marker. The result is ``None``. If the id
        has another transaction now, the call is ignored. Requests that have waited for the completion begin
        the next transaction."""
        name = ended.transactional_id
        found = self.by_id.get(name)
        if found is None or not found.state.is_prepared or found.ended != ended.transaction.ended:
            return answer(token, None)
        value = found.completed(now_ms)
        waiting = self._waiting.of(name)
        if not waiting:
            return answer(token, None, [self._record(name, value)])
        effects = self._complete_and_begin(token, name, value, waiting, now_ms)
        self._waiting.remove(name)
        return effects

    def _complete_and_begin(
        self,
        token: Token,
        name: str,
        completed: Transaction,
        waiting: Iterable[tuple[Token, Joining]],
        now_ms: int,
    ) -> Effects[TransactionRecord]:
        replies, timers = [Reply(token, None)], list[TimerChange]((CancelTimer(JoinLimit(name)),))
        records, value = [self._record(name, completed)], completed
        for waiter, joining in waiting:
            try:
                value = self._joined(value, joining, now_ms)
            except KafkaError as error:
                replies.append(Reply(waiter, error))
            else:
                replies.append(Reply(waiter, None))
        if value is not completed:
            records.append(self._record(name, value))
            timers += self._timeout_check()
        # Each record fits into a batch, but both together may be too large.
        return Effects(records, replies, timers, atomic=False)

    def _record(self, transactional_id: str, value: Transaction) -> TransactionRecord:
        version = FLEXIBLE_VALUE_VERSION if self._level() > 0 else 0
        return TransactionRecord(transactional_id, value, version)

    # queries

    def describe(self, transactional_id: str) -> Transaction:
        """Handle DescribeTransactions. Raises TRANSACTIONAL_ID_NOT_FOUND."""
        found = self._find(transactional_id)
        if found is None:
            raise KafkaError(ErrorCode.transactional_id_not_found)
        return found

    def list_transactions(
        self, names: Iterable[str], wanted: TransactionFilter, now_ms: int
    ) -> list[tuple[str, Transaction]]:
        """Handle ListTransactions for some of the ids."""
        return [
            (name, found)
            for name in names
            if (found := self.by_id.get(name)) is not None
            and (not wanted.states or found.state in wanted.states)
            and (not wanted.producer_ids or found.producer_id in wanted.producer_ids)
            and (wanted.longer_than_ms < 0 or _runs_longer(found, wanted.longer_than_ms, now_ms))
        ]


def _runs_longer(found: Transaction, duration_ms: int, now_ms: int) -> bool:
    return found.state not in QUIET and now_ms - found.start_ms > duration_ms
