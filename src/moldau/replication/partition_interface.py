"""The interface through which request handlers access a partition, independent of where its data is stored.

Classic, diskless and tiered partitions implement this interface. The implementation for each kind of topic is
chosen in one place, where the node is composed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeAlias

from moldau.protocol.partitions import PartitionKey
from moldau.records.errors import RecordError
from moldau.replication.idle_followers import IdleFollower
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.fair_lane import FairClient
from moldau.storage.snapshots.replicated_log import LogPosition, SnapshotReader

CONSUMER_REPLICA_ID = -1


class StopReason(Enum):
    """The reason why a broker stops serving a partition. It decides which of the partition's data are
    deleted."""

    TOPIC_DELETED = "the topic is deleted: this replica's data go, and the data that brokers share"
    REPLICA_REMOVED = "other brokers hold the partition now: this replica's data go, and shared data stay"
    KEPT = "the replica is stopped and stays on this broker: nothing goes"

    @property
    def removes_replica(self) -> bool:
        """Whether this broker's own data of the partition are deleted."""
        return self is not StopReason.KEPT


class AppendOutcome(NamedTuple):
    """The outcome of a Produce request for one of its partitions."""

    error: ErrorCode = ErrorCode.none
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    message: str | None = None
    record_errors: Sequence[RecordError] = ()
    """The records that caused the refusal of a batch. The sequence is empty if the batch was not refused
    because of single records."""


class AbortedTransaction(NamedTuple):
    """A producer with an aborted transaction. Its records at or after ``first_offset`` were aborted (used for
    read_committed)."""

    producer_id: int
    first_offset: int


class ReadRequest(NamedTuple):
    """A Fetch request for one of its partitions. It is a tuple for speed, because every poll makes such an
    object for each partition."""

    offset: int
    max_bytes: int
    min_one_batch: bool = True
    """Whether the first batch is returned completely even if it is larger than ``max_bytes``."""
    read_committed: bool = False
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    replica_id: int = CONSUMER_REPLICA_ID
    client_rack: str | None = None
    """The rack of the client; ``None`` if the client cannot fetch from followers."""
    broker_epoch: int = -1
    """The follower's broker epoch, which identifies its incarnation (KIP-903); -1 when the epoch is unknown.
    """
    acknowledged_offset: int = -1
    """The offset below which the follower's copy is synced, if only synced records count. The value -1 means
    that ``offset`` is used instead."""
    log_start_offset: int = -1
    """The start of the follower's log."""
    reader_rack: str | None = None
    """The rack of the reader, from ``client_rack`` or from the reader's id; ``None`` if it is not known."""
    memory: dict[str, Any] | None = None
    """Data that belong to the connection of a consumer that names its rack. With these data, the consumer is
    not redirected to the same broker again and again. The value is ``None`` for all other readers."""


class FollowerPosition(Protocol):
    """A follower's position in a partition, and the values that this broker has last sent to it."""

    fetch_offset: int
    current_leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int
    """The start of the follower's log."""
    told_high_watermark: int
    told_log_start_offset: int
    told_error: bool
    idle: IdleFollower | None
    """The idle periods of the follower; ``None`` if the leader must visit the partition for each fetch."""


class ReadOutcome(NamedTuple):
    """The result of a read. If there is an error, the result has the known offsets and no bytes."""

    error: ErrorCode = ErrorCode.none
    views: Sequence[memoryview | bytes] = ()
    size_bytes: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[AbortedTransaction] | None = None
    diverging_epoch: tuple[int, int] | None = None
    """The epoch and the end offset up to which the fetcher's log agrees with this log (KIP-595)."""
    preferred_read_replica: int = -1
    is_cut: bool = False
    """Whether the bytes end before the end of the partition. In that case, waiting for new appends does not
    give more bytes."""
    snapshot_id: LogPosition | None = None
    """The snapshot that a follower must fetch if its log ends before this log begins (KIP-630)."""
    is_throttled: bool = False
    """Whether the bytes count towards the quota of this broker's leaders (KIP-73)."""


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """The result of a lookup by timestamp. The offset is -1 when no record was found."""

    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A producer whose state a partition has stored (DescribeProducers)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int = -1
    current_transaction_start_offset: int = -1


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """State of a partition for operators (DescribeLogDirs, the offset commands)."""

    high_watermark: int
    log_start_offset: int
    log_end_offset: int
    size_bytes: int
    log_dir: str = ""
    active_producers: Sequence[ActiveProducer] = field(default=())


AppendAnswer: TypeAlias = "AppendOutcome | asyncio.Future[AppendOutcome]"
ReadAnswer: TypeAlias = "ReadOutcome | asyncio.Future[ReadOutcome]"


class TransactionMarker(NamedTuple):
    """The end of one producer's transaction, as it is sent to the partitions."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int = 0
    decision_partition: int = -1
    decision_offset: int = -1
    """``decision_partition`` and ``decision_offset`` give the partition and the offset in
    ``__transaction_state`` of the record that decides the transaction. Both are -1 if they are not known. A
    restore compares the offset with the end of the saved log."""


class TransactionalBatch(NamedTuple):
    """A transactional batch that a client sent. The bytes of its records are valid only while the request is
    handled. The bytes of a copy from :meth:`kept` stay valid."""

    records: memoryview
    """The bytes are valid only during the call. The bytes of a batch from :meth:`kept` stay valid."""
    producer_id: int
    producer_epoch: int
    required_acks: int
    timeout_ms: int
    client: FairClient | None = None

    def kept(self) -> "TransactionalBatch":
        """Return a copy of the batch that owns its bytes, for use after the call."""
        return self._replace(records=memoryview(bytes(self.records)))


class ProducerTurn(Protocol):
    """The position of a batch among the batches that its producer sent to the partition."""

    @property
    def is_free(self) -> bool:
        """Whether no earlier batch of the producer is waiting."""
        ...

    @property
    def has_own_epoch(self) -> bool:
        """Whether no other transaction of the producer has the epoch of the batch (KIP-890, version 2)."""
        ...

    def wait(self, append: Callable[[], Awaitable[AppendAnswer]]) -> "asyncio.Future[AppendOutcome]":
        """Append after the earlier batches of the producer. ``append`` may raise ``KafkaError``."""
        ...

    def is_confirmed(self) -> bool:
        """Whether it is already known that the partition belongs to the producer's transaction, so that
        :meth:`verify` is not needed. Raises ``KafkaError``."""
        ...

    def verify(self) -> Awaitable[None]:
        """Wait until the coordinator has confirmed that the partition belongs to the producer's transaction.

        Raises ``KafkaError`` if the partition does not belong to the transaction, or if this could not be
        checked.
        """
        ...


class TransactionParticipant(Protocol):
    """A partition as a participant in transactions. Each kind of partition implements it."""

    @property
    def any_broker_marks(self) -> bool:
        """Whether any broker may write a marker. If not, only the partition's leader may."""
        ...

    def append(self, batch: TransactionalBatch, turn: ProducerTurn) -> AppendAnswer:
        """Append a batch. If the transaction is open here, the batch is appended immediately. Otherwise the
        batch is verified and appended in ``turn``.

        A guard that is issued before ``turn.verify`` prevents the append of a batch whose transaction ends in
        the meantime (KIP-890). Raises ``KafkaError`` for a refusal.
        """
        ...

    async def write_marker(self, marker: TransactionMarker) -> None:
        """Append a marker, and wait until it is committed. Raises ``KafkaError`` if the marker is refused or
        not committed."""
        ...

    async def producers(self) -> Sequence["ActiveProducer"] | None:
        """Return the producers with their open transactions (DescribeProducers). The data come from a node
        that has newer information than this replica. If the result is ``None``, the caller uses this
        replica's own state. Raises ``KafkaError`` if the call to that node fails."""
        return None


class NoTransactions:
    """The participant for a kind of partition without transactions. It refuses batches of transactions with
    INVALID_REQUEST.

    A marker is accepted without a write, because there is no transaction to end. Producers before KIP-890 add
    a partition to a transaction before they write to it. If the marker were refused, such a transaction would
    never complete.
    """

    any_broker_marks = False

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def append(self, batch: TransactionalBatch, turn: ProducerTurn) -> AppendAnswer:
        raise KafkaError(
            ErrorCode.invalid_request, f"{self._topic} takes no transactions: its kind of partition has none"
        )

    async def write_marker(self, marker: TransactionMarker) -> None:
        return None

    async def producers(self) -> Sequence["ActiveProducer"] | None:
        return None


class WithoutLog:
    """Methods for a kind of partition that has no log of its own."""

    shares_writes = False

    def stage(
        self, records: memoryview, required_acks: int, client: FairClient | None = None
    ) -> AppendOutcome | None:
        return None

    def write_staged(self) -> None:
        """Does nothing, because this kind of partition never stages batches."""

    def open_snapshot(self, snapshot_id: LogPosition, current_leader_epoch: int) -> SnapshotReader | None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition)

    def count_shared_reads(self, size_bytes: int, reader_rack: str | None, times: int) -> None:
        """Counts nothing."""

    def is_up_to_date(self, position: FollowerPosition, replica_id: int, broker_epoch: int) -> bool:
        return False


class Partition(Protocol):
    """A partition on this broker."""

    @property
    def key(self) -> PartitionKey: ...

    @property
    def topic(self) -> str: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def is_leader(self) -> bool:
        """Whether this broker accepts records for the partition."""
        ...

    @property
    def is_under_replicated(self) -> bool:
        """Whether this broker leads the partition and some replicas are not in sync. It is always False if an
        object store replicates the data."""
        ...

    @property
    def transactions(self) -> TransactionParticipant:
        """Appends the batches and markers of transactions. By default a kind of partition refuses them."""
        return NoTransactions(self.topic)

    @property
    def shares_writes(self) -> bool:
        """Whether the appends that arrive together on a connection may share a write. If so, the caller uses
        :meth:`stage` and :meth:`write_staged`."""
        return False

    def stage(
        self, records: memoryview, required_acks: int, client: FairClient | None = None
    ) -> AppendOutcome | None:
        """Append like :meth:`append`, but :meth:`write_staged` writes the records before any other access to
        the partition.

        The result ``None`` means that nothing was staged. The caller then calls :meth:`append`. ``records``
        must stay valid until the write.
        """
        return None

    def write_staged(self) -> None:
        """Write the staged records. Raises ``KafkaError(kafka_storage_error)`` when the disk fails."""

    def open_snapshot(self, snapshot_id: LogPosition, current_leader_epoch: int) -> SnapshotReader | None:
        """Open a snapshot for a follower (KIP-630); ``None`` when there is no such snapshot.

        Raises ``KafkaError`` if the epoch is fenced or unknown, or if the kind of partition has no snapshots.
        """
        raise KafkaError(ErrorCode.unknown_topic_or_partition)

    def append(
        self, records: memoryview, *, required_acks: int, timeout_ms: int, client: FairClient | None = None
    ) -> AppendAnswer:
        """Append the records that a producer sent on the connection ``client``.

        Batches of transactions go to ``transactions`` instead. ``records`` is only valid during the call. The
        outcome is returned immediately if no wait is needed. Otherwise the result is a future. A refusal is
        also returned as an outcome, so this method never raises ``KafkaError``.
        """
        ...

    def read(self, request: ReadRequest) -> ReadAnswer:
        """Read whole batches, beginning with the batch that contains ``request.offset``. The read never waits
        for new data."""
        ...

    def count_shared_reads(self, size_bytes: int, reader_rack: str | None, times: int) -> None:
        """Count the ``size_bytes`` bytes of a read ``times`` times more, because other consumers in the same
        rack get them, too."""

    def is_up_to_date(self, position: FollowerPosition, replica_id: int, broker_epoch: int) -> bool:
        """Record the fetch of a follower that already has all records and offsets of this partition. Returns
        ``False``, and records nothing, if :meth:`read` may return something new for the follower.

        This method takes a fifth of the time of a read. If ``position.idle`` is set, an idle period begins
        (:mod:`moldau.replication.idle_followers`). The next fetches then need no call while the period lasts.
        """
        return False

    async def find_offset(
        self,
        timestamp_ms: int,
        *,
        read_committed: bool,
        current_leader_epoch: int,
        client: FairClient | None = None,
        is_replica: bool = False,
        deadline_s: float | None = None,
    ) -> FoundOffset:
        """Return the first record at or after a time, or the offset for one of the special timestamps.

        For a follower (``is_replica``), the log ends at the last record of the leader, and not at the high
        watermark or the last stable offset. ``deadline_s`` is the time of the event loop's clock at which a
        search in the remote tier ends; ``None`` means after ``remote.list.offsets.request.timeout.ms``.

        Raises ``KafkaError`` for a fenced or unknown leader epoch, for a broker that does not lead, and for a
        storage error.
        """
        ...

    async def delete_records(self, before_offset: int, timeout_s: float | None = None) -> int:
        """Move the log start up to ``before_offset`` (-1 means the high watermark). Returns the new low
        watermark. A partition with followers waits until they have moved their log starts too, for at most
        ``timeout_s`` seconds."""
        ...

    def end_offset_for_epoch(self, leader_epoch: int, current_leader_epoch: int) -> tuple[int, int]:
        """Find ``leader_epoch``, or the next lower epoch of this partition. Returns that epoch and its end
        offset. The result is ``(-1, -1)`` if there is no such epoch."""
        ...

    def state(self) -> PartitionStatus: ...
