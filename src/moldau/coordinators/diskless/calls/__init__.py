"""Calls to a diskless coordinator and their results. They are plain values, used in the process and over the
network.

Fields with names of KIP-1164 have the meaning that the KIP defines. Moldau adds some fields. ``created_ms``
prevents commits of old files. The closing of an object's key also prevents a commit of the object. With
``min_bytes`` and ``max_wait_ms``, a broker can wait for new batches, which it puts into its cache. If a read
begins before the WAL's start, it is not refused; its result contains ``wal_start_offset`` and
``moved_to_tier``. This module also declares calls that the KIP needs but does not define.

If a call fails as a whole, it raises :class:`moldau.runtime.KafkaError`. A single batch, partition or file
has its error in its own ``error`` field.
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
from moldau.coordinators.diskless.calls.parts import ProducerOfPartition as ProducerOfPartition
from moldau.coordinators.diskless.calls.parts import ProducersOfPartition as ProducersOfPartition
from moldau.coordinators.diskless.calls.parts import TransactionEnd as TransactionEnd
from moldau.coordinators.diskless.calls.refusals import DEFINITE_REFUSALS as DEFINITE_REFUSALS
from moldau.coordinators.diskless.calls.refusals import FORGOTTEN as FORGOTTEN
from moldau.coordinators.diskless.calls.refusals import HELD as HELD
from moldau.coordinators.diskless.calls.refusals import NUMBER_PASSED as NUMBER_PASSED
from moldau.coordinators.diskless.calls.refusals import UNGUARDED as UNGUARDED
from moldau.runtime import ErrorCode

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
"""Values of ``timestamp_type``, as in a record batch's attributes."""

OBJECT_FORMAT_WAL: Final = 1
"""The format of objects that KIP-1164 calls WRITE_AHEAD_MULTI_SEGMENT."""

MAX_FILE_BATCHES: Final = 65_536
"""Maximum number of batches in a file. A file with more batches is refused, because its record must fit in
one batch of the coordinator's log. The limit for one request is smaller, but a restore may commit older files
with more batches."""

METADATA_MAX_MESSAGE_BYTES: Final = 8 << 20
"""``max.message.bytes`` of ``__diskless_metadata``. It is large enough for the record of the largest file."""

FENCE_ONLY: Final = -1
"""If both offsets of a prune have this value, no offsets are removed. The coordinator only stores the epoch
of the prune."""


# -- commit ------------------------------------------------------------------------------------


TRANSACTIONAL: Final = 1
FOLLOWS_DROPPED: Final = 2
"""Flags of a batch to commit. FOLLOWS_DROPPED means that the broker dropped an earlier batch of the producer.
The coordinator accepts a batch with this flag only if the batch directly follows the last batch that it has
committed for the producer. If it does not know the producer, it refuses the batch."""


class BatchToCommit(NamedTuple):
    """A record batch in an uploaded object. The batches of a partition get offsets in list order."""

    topic_id: UUID
    partition_index: int
    request_id: int
    """Identifies the produce request that contained the batch. The coordinator does not use this number."""
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
    """The guard of a transactional batch; 0 for batches without a transaction."""

    @property
    def is_transactional(self) -> bool:
        return bool(self.flags & TRANSACTIONAL)


class CommitPlace(NamedTuple):
    """The position of a commit in the order in which a broker sends its commits to one coordinator."""

    broker_epoch: int
    """The broker epoch of the sender. When a broker starts again, it gets a higher epoch."""
    number: int
    """The number of the commit. The coordinator decides number n + 1 after number n."""
    open_from: int
    """The lowest number of a commit whose outcome the broker does not know yet. All commits with lower
    numbers were decided or refused."""


@dataclass(frozen=True, slots=True)
class CommitFileCall:
    """Commit an uploaded object's batches. The same call may be repeated until its outcome is known."""

    object_key: str
    size_bytes: int
    """Size of the object; below 4 GiB."""
    created_ms: int
    """Creation time of the object, by the clock of the uploader. A file that is too old is refused."""
    uploader_broker_id: int
    batches: Sequence[BatchToCommit]
    """The batches to commit. The commit is fastest when all batches of a partition are adjacent, as in a WAL
    object."""
    owner_ids: Sequence[int] = ()
    """Coordinators (metadata partitions) with batches in this file. The first coordinator owns the file."""
    object_format: int = OBJECT_FORMAT_WAL
    place: CommitPlace | None = None
    """The place in the order of the broker's commits. It is ``None`` for a commit that need not be in order
    with other commits, for example from an older broker."""


class CommittedBatch(NamedTuple):
    """The result for one batch. ``message`` is ``None`` if there is no error."""

    error: ErrorCode
    base_offset: int = -1
    log_append_time_ms: int = -1
    """The append time for LogAppendTime; -1 for CreateTime, as in a produce response."""
    log_start_offset: int = -1
    message: str | None = None
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class CommitFileResult:
    """Results in the order of the call's batches."""

    batches: Sequence[CommittedBatch]
    backlog_bytes: int = -1
    """WAL backlog of the coordinator; -1 if it was not measured."""


# -- find --------------------------------------------------------------------------------------


class BatchCoordinate(NamedTuple):
    """The position of a committed batch in an object. A transaction marker has no object."""

    topic_id: UUID
    partition_index: int
    base_offset: int
    last_offset: int
    object_key: str
    byte_offset: int
    size_bytes: int
    log_append_time_ms: int
    """Time of the commit. If ``timestamp_type`` is LOG_APPEND_TIME, this is also the timestamp of all records
    in the batch."""
    max_timestamp_ms: int
    timestamp_type: int
    is_transactional: bool = False
    """Whether this is a batch of a transaction, or a marker."""
    marker: TransactionEnd | None = None
    """The end of the transaction, if this is a marker; otherwise ``None``. A marker has no object, so readers
    build its batch from this value."""


class PartitionToFind(NamedTuple):
    """The offset from which a reader requests a partition's batches."""

    topic_id: UUID
    partition_index: int
    offset: int
    max_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class FindBatchesCall:
    """Find batches, beginning at the given offsets. The call waits until ``min_bytes`` of batches are
    available, or until ``max_wait_ms`` have passed.

    The byte limit is applied in the order of the partitions. The first batch is returned even if it is larger
    than the limit. The call does not wait when a partition has an error or has moved to the tier.
    """

    partitions: Sequence[PartitionToFind]
    max_bytes: int = 50 << 20
    max_batches_per_partition: int = 0
    """Maximum number of batches of one partition. 0 means that only the byte limit applies."""
    min_bytes: int = 0
    max_wait_ms: int = 0


class AbortedRange(NamedTuple):
    """An aborted transaction: read_committed consumers skip the producer's records in this range of
    offsets."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Offset of the transaction's marker."""


class FoundPartition(NamedTuple):
    """The batches of a partition, and the partition's offsets. The first batch contains the requested
    offset."""

    topic_id: UUID
    partition_index: int
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    log_start_offset: int = -1
    wal_start_offset: int = -1
    high_watermark: int = -1
    moved_to_tier: bool = False
    """Whether the requested offset is before ``wal_start_offset``. If so, the caller must read the records
    from remote storage."""
    batches: Sequence[BatchCoordinate] = ()
    last_stable_offset: int = -1
    """The offset at which a read with isolation level read_committed ends. The coordinator has read this
    value and ``high_watermark`` at the same time."""
    aborted: Sequence[AbortedRange] = ()
    """Aborted transactions with an offset within ``batches``."""
    remote_metadata_position: int = -1
    """A reader that has read the remote metadata up to this position knows all segments before
    ``wal_start_offset``."""


# -- offsets -----------------------------------------------------------------------------------


class TimestampToList(NamedTuple):
    """Requests the offset for a timestamp, or for one of the special timestamps."""

    topic_id: UUID
    partition_index: int
    timestamp_ms: int


class ListedOffset(NamedTuple):
    """An offset, or the first *batch* that may contain a timestamp.

    When ``batch`` is set, the caller must read this batch. The caller ignores records before
    ``log_start_offset``. It looks for the first record whose timestamp is not lower than the requested
    timestamp. If the batch has no such record, the caller searches the batches after this batch. ``offset``
    is the batch's base offset, or -1 if no batch was found.
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
    """Last stable offset of the partition. A lookup with isolation level read_committed returns only offsets
    before this offset."""
    remote_metadata_position: int = -1
    """A reader that has read the remote metadata up to this position knows all segments before
    ``wal_start_offset``."""


class OffsetToDelete(NamedTuple):
    """Delete the records before ``offset``; -1 deletes all records."""

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
    """Remove the positions in objects for the offsets [from_offset, to_offset). These offsets can be read
    from remote storage.

    The coordinator compares before it makes the change: it accepts a prune only if ``from_offset`` is the
    partition's wal_start and ``epoch`` is not older than the epoch of any earlier prune. It also accepts a
    repetition of the last prune. No other step of consolidation is checked in this way.

    With ``FENCE_ONLY`` for both offsets, wal_start does not change, but from then on prunes of older epochs
    are refused. The result contains the partition's state.
    """

    topic_id: UUID
    partition_index: int
    from_offset: int
    to_offset: int
    epoch: int
    remote_metadata_position: int = -1
    """A replica must read the remote log metadata up to this position before it uses the new wal_start."""


class PrunedPartition(NamedTuple):
    topic_id: UUID
    partition_index: int
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    log_start_offset: int = -1
    wal_start_offset: int = -1
    remote_metadata_position: int = -1
    """The position in the remote metadata that the last prune contained. A reader that has read the metadata
    up to this position knows all segments before ``wal_start_offset``."""
    wal_size_bytes: int = -1
    """Approximate number of bytes of the partition in the WAL. The number is not exact, because the newest
    commits may not be in the store yet."""
    wal_batches: int = -1


class Backlog(NamedTuple):
    """Approximate WAL backlog of the coordinators that a broker leads."""

    size_bytes: int = 0
    """Total size in bytes of the batches in the WAL that are not deleted."""
    batches: int = 0
    oldest_created_ms: int | None = None
    """Creation time of the oldest object that still contains batches that are not deleted; ``None`` when
    there is no such object."""


# -- topics ------------------------------------------------------------------------------------


class PartitionsToCreate(NamedTuple):
    """Partitions of a topic that the metadata image assigns to this coordinator. The call creates the missing
    partitions, and does not change the existing partitions."""

    topic_id: UUID
    name: str
    partition_indexes: Sequence[int]


class TopicResult(NamedTuple):
    topic_id: UUID
    error: ErrorCode = ErrorCode.none
    message: str | None = None


class RetentionPolicy(NamedTuple):
    """The settings ``retention.ms`` and ``retention.bytes`` of a partition; -1 means no limit."""

    topic_id: UUID
    partition_index: int
    retention_ms: int
    retention_bytes: int


class DescribedPartition(NamedTuple):
    """A partition's offsets and the sizes of its batches in objects, for command-line tools."""

    topic_id: UUID
    partition_index: int
    topic_name: str
    log_start_offset: int
    wal_start_offset: int
    high_watermark: int
    size_bytes: int
    """Size in bytes of the partition's live batches in objects."""
    batches: int
    objects_bytes: int
    """Total size in bytes of the objects that contain live batches of the partition."""
    deleted_bytes: int
    """The part of ``objects_bytes`` that does not belong to live batches of this coordinator."""


class DescribedObjects(NamedTuple):
    """The objects that contain remaining batches of a topic at one coordinator, for command-line tools. An
    object with batches of several partitions is counted only once."""

    objects: int = 0
    size_bytes: int = 0
    deleted_bytes: int = 0
    """The number of bytes in these objects that do not belong to remaining batches of this coordinator's
    topics."""
    object_keys: Sequence[str] = ()
    """Keys of the objects, if the request asks for them."""


class DescribeTopicsCall(NamedTuple):
    """Describe some topics, or all topics (``None``). With ``with_object_keys``, the result contains the keys
    of their objects."""

    topic_ids: Sequence[UUID] | None = None
    with_object_keys: bool = False


class DescribedTopics(NamedTuple):
    """The partitions of the topics, grouped by topic, and the objects of each topic."""

    partitions: Sequence[DescribedPartition]
    objects: Mapping[UUID, DescribedObjects]


class DescribedCoordinator(NamedTuple):
    """The state of a coordinator, for command-line tools."""

    coordinator_id: int
    epoch: int
    partitions: int
    live_batches: int
    files: int
    applied_offset: int
    """The offset of the coordinator's log up to which the SQLite file contains the state."""
    log_start_offset: int
    log_end_offset: int
    snapshot_offset: int = -1
    """End offset of the newest snapshot; -1 when there is no snapshot."""
    snapshot_epoch: int = -1


# -- files -------------------------------------------------------------------------------------


class DescribeFilesCall(NamedTuple):
    """Describe some objects. With ``None``, describe the next ``limit`` known objects after a key."""

    object_keys: Sequence[str] | None
    after_key: str = ""
    limit: int = 1000


class DescribedFile(NamedTuple):
    """State of an object in one coordinator."""

    object_key: str
    is_known: bool = False
    is_closed: bool = False
    """Whether this coordinator has closed the object's key, so that it will commit no more batches of the
    object."""
    has_live_batches: bool = False
    size_bytes: int = -1
    used_bytes: int = 0
    live_batches: int = 0
    created_ms: int = -1
    is_owned: bool = False
    """Whether this coordinator is the owner, which must release the object when the object is unused."""
    next_owner_ids: Sequence[int] = ()
    """The next owners in order. Each of them must release the object before the object is deleted."""
    unused_since_ms: int = -1
    """Time at which this coordinator removed its last batch of the object; -1 while it still has a batch in
    the object."""


class ClosedFile(NamedTuple):
    """The result for one object key of a request to close files. ``error`` is set only if this coordinator
    has committed the file, and still has the file or the result of its commit.
    """

    object_key: str
    error: ErrorCode = ErrorCode.none
    message: str | None = None


class FileToHandOver(NamedTuple):
    """A file whose owner has no batches in it any more. Other coordinators may still have batches in the
    file, so the owner must hand the file over to the first of the remaining owners."""

    object_key: str
    remaining_owner_ids: Sequence[int]
    """The remaining owners in order; the first is the next owner."""
    size_bytes: int
    created_ms: int


class FreeFile(NamedTuple):
    """An unused file. Its object must be deleted when one grace period has passed since ``free_since_ms``."""

    object_key: str
    free_since_ms: int
    size_bytes: int
