"""Records of ``__diskless_metadata``: the coordinator's decisions, as Python objects. Pure.

``codecs/codec.py`` converts them to keys and values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias
from uuid import UUID

from moldau.coordinators.diskless.state.partitions import PartitionState
from moldau.coordinators.diskless.state.producers import Window
from moldau.runtime import ErrorCode


class PartitionCreated(NamedTuple):
    topic_id: UUID
    name: str
    partition_index: int


class TopicDeleted(NamedTuple):
    topic_id: UUID


class RecordsDeleted(NamedTuple):
    """The partition's log now begins at ``log_start_offset``."""

    topic_id: UUID
    partition_index: int
    log_start_offset: int


class FilesClosed(NamedTuple):
    """The coordinator of this log will never commit the objects ``object_keys``."""

    closed_ms: int
    object_keys: Sequence[str]


class FileTakenOver(NamedTuple):
    """The coordinator of this log has become the owner of a file. If the coordinator did not know the file's
    object, the record also closes the object."""

    object_key: str
    size_bytes: int
    created_ms: int
    taken_ms: int
    remaining_owner_ids: Sequence[int]


class FilesReleased(NamedTuple):
    """The files ``object_keys`` were handed over to other coordinators or deleted."""

    object_keys: Sequence[str]


class Pruned(NamedTuple):
    """From now on, offsets before ``to_offset`` are read from remote storage."""

    topic_id: UUID
    partition_index: int
    from_offset: int
    to_offset: int
    epoch: int
    remote_metadata_position: int


class Expired(NamedTuple):
    """Removes old state. The removal is a record, so that a coordinator's state depends on its log alone."""

    files_before_ms: int
    """A time. The results of files that were committed before this time are removed, and the object keys that
    were closed before this time are removed."""
    producers_before_ms: int
    """Producers are removed if their last batch was committed before this time."""


class Run(NamedTuple):
    """A run: accepted batches of one partition that are adjacent in the request."""

    topic_id: UUID
    partition_index: int
    base_offset: int
    """Offset of the first batch. The other batches follow without a gap."""
    batches: int


class Moved(NamedTuple):
    """The state of a partition after a run was added to it."""

    partition: PartitionState
    next_offset: int
    windows: Mapping[int, Window]
    """The windows of producers after the run, by producer id. Only producers with batches in the file are
    included."""


class Rejected(NamedTuple):
    """A batch that gets no new offset. The batch is refused, or (when ``error`` is none) it is a duplicate of
    an accepted batch."""

    position: int
    """Position of the batch in the request."""
    error: ErrorCode
    base_offset: int = -1
    log_append_time_ms: int = -1


class MarkerExtent(NamedTuple):
    """The end of a transaction in a partition. It is stored as an extent of one offset without an object."""

    topic_id: UUID
    partition_index: int
    base_offset: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    decision_partition: int = -1
    decision_offset: int = -1
    """The position of the record that decides the transaction: its partition of ``__transaction_state``, and
    its offset in this partition; -1 if they are not known. A restore compares the offset with the end of the
    saved log."""


class TransactionsEnded(NamedTuple):
    """Transaction markers that one call has written."""

    ended_ms: int
    markers: Sequence[MarkerExtent]


FLAG_LOG_APPEND_TIME = 1
FLAG_TRANSACTIONAL = 2

NO_PRODUCER = 0
"""The value in ``producer_indexes`` for a batch without a producer. Producer ``i`` has the number ``i + 1``.
"""


@dataclass(slots=True)
class FileCommitted:
    """A file and its accepted batches, column by column in the order of the request.

    Its columns do not change after the record is decided or read. The codec sets ``receipt``, which is the
    encoded result. The result is kept for repeated requests.
    """

    object_key: str
    object_format: int
    size_bytes: int
    uploader_broker_id: int
    owner_ids: Sequence[int]
    created_ms: int
    committed_ms: int
    runs: list[Run]
    offset_deltas: list[int]
    flags: list[int]
    rejected: list[Rejected]
    byte_offsets: list[int]
    sizes_bytes: list[int]
    max_timestamps_ms: list[int]
    producers: list[tuple[int, int]]
    """Pairs of producer id and epoch. Each pair appears once."""
    producer_indexes: list[int]
    base_sequences: list[int]
    broker_epoch: int = -1
    """``broker_epoch`` and ``commit_number`` are the place of this commit in the order of the uploader's
    commits (:class:`CommitPlace`); both are -1 if the commit has no place."""
    commit_number: int = -1
    receipt: bytes = field(default=b"", compare=False, repr=False)


DisklessRecord: TypeAlias = (
    PartitionCreated
    | TopicDeleted
    | FileCommitted
    | RecordsDeleted
    | FilesClosed
    | FileTakenOver
    | FilesReleased
    | Pruned
    | Expired
    | TransactionsEnded
)
