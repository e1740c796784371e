"""Calls to a diskless coordinator and their answers: plain values, in process and by RPC.

Fields of KIP-1164 have the same meaning here. Additional ones are: ``created_ms`` and the closing of keys
(they fence late commits), min bytes and max wait (a cacher follows the coordinator), ``wal_start`` and "moved
to tier" (a read below the WAL is answered, never out of range), and the calls that the KIP only implies.

A call that fails as a whole raises :class:`moldau.runtime.KafkaError`; errors of a single batch, partition or
file are in its own ``error``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from moldau.coordinators.diskless.calls.parts import MARKER_SIZE_BYTES as MARKER_SIZE_BYTES
from moldau.coordinators.diskless.calls.parts import EndedTransactionPart as EndedTransactionPart
from moldau.coordinators.diskless.calls.parts import GuardToIssue as GuardToIssue
from moldau.coordinators.diskless.calls.parts import IssuedGuard as IssuedGuard
from moldau.coordinators.diskless.calls.parts import MarkerToWrite as MarkerToWrite
from moldau.coordinators.diskless.calls.parts import TransactionEnd as TransactionEnd
from moldau.runtime import ErrorCode

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
"""Values of ``timestamp_type``, as in a record batch's attributes."""

OBJECT_FORMAT_WAL: Final = 1
"""KIP-1164's WRITE_AHEAD_MULTI_SEGMENT."""

MAX_FILE_BATCHES: Final = 65_536
"""A file with more is refused: its record must fit one batch of the coordinator's log."""

METADATA_MAX_MESSAGE_BYTES: Final = 8 << 20
"""``max.message.bytes`` of ``__diskless_metadata``; large enough for the record of the largest file."""

FENCE_ONLY: Final = -1
"""As both offsets of a prune, it means: only record the epoch."""

DEFINITE_REFUSALS: Final = frozenset(
    {ErrorCode.resource_not_found, ErrorCode.invalid_timestamp, ErrorCode.invalid_request}
)
"""Errors of ``commit_file`` after which nothing of the file is, or ever will be, committed.

RESOURCE_NOT_FOUND: the object was closed. INVALID_TIMESTAMP: it is older than the max commit age.
INVALID_REQUEST: the call is malformed. After any other error the outcome is unknown: repeat the call.
"""

FORGOTTEN: Final = ErrorCode.operation_not_attempted
"""Code of a refused ``commit_file`` of a file that is older than the coordinator's memory of results.

This call did nothing. The outcome of an earlier call is unknown, and stays unknown.
"""


HELD: Final = ErrorCode.not_leader_or_follower
"""Code of a batch without an offset, because an earlier batch of its producer is still missing.

Its broker commits it again with its next object, for about a second; then it lets the producer send it again.
"""


UNGUARDED: Final = ErrorCode.not_enough_replicas
"""Code of a transactional batch whose guard is not valid: nothing is committed, and it may be sent again.

Its broker gets another guard, and asks the transaction's coordinator again, before it commits the batch.
"""


class PartitionId(NamedTuple):
    """A user partition."""

    topic_id: UUID
    partition_index: int


# -- commit ------------------------------------------------------------------------------------


TRANSACTIONAL: Final = 1
FOLLOWS_DROPPED: Final = 2
"""Flags of a batch to commit. The second: its broker dropped an earlier batch of the producer. It is accepted
only directly after the producer's last batch, and refused where the coordinator does not know the producer.
"""


class BatchToCommit(NamedTuple):
    """A record batch in an uploaded object. The batches of a partition get offsets in list order."""

    topic_id: UUID
    partition_index: int
    request_id: int
    """Identifies the produce request of the batch; stored, not interpreted."""
    byte_offset: int
    size_bytes: int
    last_offset_delta: int
    records_count: int
    max_timestamp_ms: int
    timestamp_type: int
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    last_sequence: int = -1
    flags: int = 0
    guard: int = 0
    """The guard of a transactional batch; 0 for other batches."""

    @property
    def is_transactional(self) -> bool:
        return bool(self.flags & TRANSACTIONAL)


@dataclass(frozen=True, slots=True)
class CommitFileCall:
    """Commit an uploaded object's batches. The same call may be repeated until its outcome is known."""

    object_key: str
    size_bytes: int
    """Size of the object; below 4 GiB."""
    created_ms: int
    """Creation time of the object, by the uploader's clock: a file that is too old is refused."""
    uploader_broker_id: int
    batches: Sequence[BatchToCommit]
    """Fastest when the batches of a partition are adjacent, as in a WAL object."""
    owner_ids: Sequence[int] = ()
    """Coordinators (metadata partitions) with batches in this file; the first owns it."""
    object_format: int = OBJECT_FORMAT_WAL


class CommittedBatch(NamedTuple):
    """The outcome of one batch. ``message`` is ``None`` unless ``error`` is set."""

    error: ErrorCode
    base_offset: int = -1
    log_append_time_ms: int = -1
    """-1 for batches of CreateTime, as in a produce response."""
    log_start_offset: int = -1
    message: str | None = None
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class CommitFileResult:
    """Outcomes in the order of the call's batches."""

    batches: Sequence[CommittedBatch]


# -- find --------------------------------------------------------------------------------------


class BatchCoordinate(NamedTuple):
    """The position of a committed batch in an object; or a transaction marker, which is in none."""

    topic_id: UUID
    partition_index: int
    base_offset: int
    last_offset: int
    object_key: str
    byte_offset: int
    size_bytes: int
    log_append_time_ms: int
    """Time of the commit; the timestamp of its records if ``timestamp_type`` is LOG_APPEND_TIME."""
    max_timestamp_ms: int
    timestamp_type: int
    is_transactional: bool = False
    """A batch of a transaction, or a marker."""
    marker: TransactionEnd | None = None
    """Set for a marker, without an object: readers build its batch."""


class PartitionToFind(NamedTuple):
    """The offset from which a partition's batches are requested."""

    topic_id: UUID
    partition_index: int
    offset: int
    max_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class FindBatchesCall:
    """Find batches from offsets on, waiting until ``min_bytes`` of them are there or ``max_wait_ms`` is over.

    Bytes are spent in the order of the partitions, and at least one batch is found if there is any. An
    error, or a partition that has moved to the tier, is answered at once.
    """

    partitions: Sequence[PartitionToFind]
    max_bytes: int = 50 << 20
    max_batches_per_partition: int = 0
    """0: as many as fit the bytes."""
    min_bytes: int = 0
    max_wait_ms: int = 0


class AbortedRange(NamedTuple):
    """An aborted transaction: read_committed consumers skip the producer's records in this range."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Offset of its marker."""


class FoundPartition(NamedTuple):
    """A partition's batches from the one that contains the requested offset on, and its offsets."""

    topic_id: UUID
    partition_index: int
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    log_start_offset: int = -1
    wal_start_offset: int = -1
    high_watermark: int = -1
    moved_to_tier: bool = False
    """The offset is below ``wal_start_offset``: read it from remote storage."""
    batches: Sequence[BatchCoordinate] = ()
    last_stable_offset: int = -1
    """The end of a read_committed read, as of ``high_watermark``."""
    aborted: Sequence[AbortedRange] = ()
    """Aborted transactions with an offset within ``batches``."""


# -- offsets -----------------------------------------------------------------------------------


class TimestampToList(NamedTuple):
    """Requests an offset by timestamp, or one of the special timestamps."""

    topic_id: UUID
    partition_index: int
    timestamp_ms: int


class ListedOffset(NamedTuple):
    """An offset; for a timestamp, the first *batch* that may contain it.

    With ``batch`` set, open it for the first record that has the timestamp and is not below
    ``log_start_offset``; when it contains none, repeat the call from its last offset on. ``offset`` is then
    the batch's base, or -1 where nothing is found.
    """

    topic_id: UUID
    partition_index: int
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    timestamp_ms: int = -1
    offset: int = -1
    log_start_offset: int = -1
    wal_start_offset: int = -1
    batch: BatchCoordinate | None = None
    last_stable_offset: int = -1
    """Last stable offset of the partition; a read_committed lookup returns only offsets below it."""


class OffsetToDelete(NamedTuple):
    """Records below ``offset`` are deleted; -1 means all."""

    topic_id: UUID
    partition_index: int
    offset: int


class DeletedRecords(NamedTuple):
    topic_id: UUID
    partition_index: int
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    low_watermark: int = -1


class PruneCall(NamedTuple):
    """Offsets [from_offset, to_offset) are readable from remote storage: remove their positions in objects.

    The only compare-and-set of consolidation: ``from_offset`` must be the partition's wal_start and
    ``epoch`` not older than the newest that pruned. A repeat of the prune that was done last succeeds.

    With ``FENCE_ONLY`` for both offsets nothing moves: prunes of older epochs are refused afterwards, and the
    answer contains the partition's state.
    """

    topic_id: UUID
    partition_index: int
    from_offset: int
    to_offset: int
    epoch: int
    remote_metadata_position: int = -1
    """Position in the remote log metadata that a replica must have read before it uses the new wal_start."""


class PrunedPartition(NamedTuple):
    topic_id: UUID
    partition_index: int
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    log_start_offset: int = -1
    wal_start_offset: int = -1
    remote_metadata_position: int = -1
    """The position given with the last prune. A reader of the metadata up to it knows all segments below
    ``wal_start_offset``.
    """
    wal_size_bytes: int = -1
    """Approximate bytes in the WAL: the store is slightly behind the commits."""
    wal_batches: int = -1


class Backlog(NamedTuple):
    """Approximate WAL backlog of the coordinators that a broker leads."""

    size_bytes: int = 0
    """Size of live batches."""
    batches: int = 0
    oldest_created_ms: int | None = None
    """Creation time of the oldest object with live batches; ``None`` when there is none."""


# -- topics ------------------------------------------------------------------------------------


class PartitionsToCreate(NamedTuple):
    """Partitions of a topic that the metadata assign to this coordinator. Existing ones are not changed."""

    topic_id: UUID
    name: str
    partition_indexes: Sequence[int]


class TopicResult(NamedTuple):
    topic_id: UUID
    error: ErrorCode = ErrorCode.none
    message: str | None = None


class RetentionPolicy(NamedTuple):
    """A partition's ``retention.ms`` and ``retention.bytes``; -1 for none."""

    topic_id: UUID
    partition_index: int
    retention_ms: int
    retention_bytes: int


class DescribedPartition(NamedTuple):
    """For tools: a partition's offsets and its part in objects."""

    topic_id: UUID
    partition_index: int
    topic_name: str
    log_start_offset: int
    wal_start_offset: int
    high_watermark: int
    size_bytes: int
    """Size of its live batches in objects."""
    batches: int
    objects_bytes: int
    """Total size of the objects that hold live batches of it."""
    deleted_bytes: int
    """Bytes of those objects that belong to no live batch of this coordinator."""


class DescribedObjects(NamedTuple):
    """For tools: the objects with live batches of a topic at one coordinator, each counted once."""

    objects: int = 0
    size_bytes: int = 0
    deleted_bytes: int = 0
    """Bytes that belong to no live batch of a topic of this coordinator."""
    object_keys: Sequence[str] = ()
    """Keys of the objects, if the request asks for them."""


class DescribeTopicsCall(NamedTuple):
    """Describe some topics, or (``None``) all; ``with_object_keys`` names the objects, too."""

    topic_ids: Sequence[UUID] | None = None
    with_object_keys: bool = False


class DescribedTopics(NamedTuple):
    """The partitions of topics, those of one topic together, and the objects by topic."""

    partitions: Sequence[DescribedPartition]
    objects: Mapping[UUID, DescribedObjects]


class DescribedCoordinator(NamedTuple):
    """For tools: the state of a coordinator."""

    coordinator_id: int
    epoch: int
    partitions: int
    live_batches: int
    files: int
    applied_offset: int
    """The SQLite file contains the state up to this offset."""
    log_start_offset: int
    log_end_offset: int
    snapshot_offset: int = -1
    """End of the newest snapshot; -1 when there is none."""
    snapshot_epoch: int = -1


# -- files -------------------------------------------------------------------------------------


class DescribeFilesCall(NamedTuple):
    """Describe some objects or, with ``None``, ``limit`` known ones after a key."""

    object_keys: Sequence[str] | None
    after_key: str = ""
    limit: int = 1000


class DescribedFile(NamedTuple):
    """State of an object at a coordinator."""

    object_key: str
    is_known: bool = False
    is_closed: bool = False
    """Nothing of it will be committed here any more."""
    has_live_batches: bool = False
    size_bytes: int = -1
    used_bytes: int = 0
    live_batches: int = 0
    created_ms: int = -1
    is_owned: bool = False
    """Whether this coordinator frees it when it is unused."""
    next_owner_ids: Sequence[int] = ()
    """The next owners in order, each of which must release it before it is freed."""
    unused_since_ms: int = -1
    """Time at which its last batch here was removed; -1 while it has some."""


class ClosedFile(NamedTuple):
    """The outcome of closing a key: an error only when the file still has live batches here."""

    object_key: str
    error: ErrorCode = ErrorCode.none
    message: str | None = None


class FileToHandOver(NamedTuple):
    """A file whose last batch at its owner is removed and that has further owners: hand it over to the
    first.
    """

    object_key: str
    remaining_owner_ids: Sequence[int]
    """The next owner first."""
    size_bytes: int
    created_ms: int


class FreeFile(NamedTuple):
    """An unused file: delete the object when ``free_since_ms`` is a grace period ago."""

    object_key: str
    free_since_ms: int
    size_bytes: int
