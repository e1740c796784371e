"""The remote storage manager (KIP-405's ``RemoteStorageManager``): where the bytes of remote segments live.

The class in ``remote.log.storage.manager.class.name`` is called as a :data:`StorageManagerMaker`.
"""

import enum
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from moldau.metrics import Meters
from moldau.objects.storage import ObjectInfo
from moldau.runtime import Machine
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata

__all__ = [
    "Buffer",
    "CustomMetadataSizeLimitExceededError",
    "HostedStorageManager",
    "IndexType",
    "ListableSegments",
    "LogSegmentData",
    "RemotePlace",
    "RemoteResourceNotFoundError",
    "RemoteStorageError",
    "RemoteStorageManager",
    "StorageManagerMaker",
    "check_custom_metadata",
]

Buffer: TypeAlias = bytes | bytearray | memoryview


class RemotePlace(NamedTuple):
    """The place of a broker's remote segments, for builders elsewhere; without secrets."""

    class_name: str | None
    """``None`` for the built-in storage manager, which the other fields describe."""
    url: str | None
    prefix: str | None


class RemoteStorageError(Exception):
    """Remote storage or its metadata refused, failed or did not answer; one line for a person.

    ``transient`` says whether the same call may succeed later without intervention.
    """

    def __init__(self, message: str, *, transient: bool = True) -> None:
        super().__init__(message)
        self.transient = transient


class RemoteResourceNotFoundError(RemoteStorageError):
    """No such segment, index or partition (Kafka's ``RemoteResourceNotFoundException``)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=False)


class CustomMetadataSizeLimitExceededError(RemoteStorageError):
    """A storage manager returned more than ``remote.log.metadata.custom.metadata.max.bytes``."""


def check_custom_metadata(segment: str, custom: bytes | None, max_bytes: int) -> None:
    """Raise :class:`CustomMetadataSizeLimitExceededError`, which a repetition cannot avoid."""
    if custom is not None and len(custom) > max_bytes:
        raise CustomMetadataSizeLimitExceededError(
            f"{segment}: custom metadata of {len(custom)} bytes exceed"
            f" remote.log.metadata.custom.metadata.max.bytes={max_bytes}",
            transient=False,
        )


class IndexType(enum.Enum):
    """The files beside a segment's log, by Kafka's names; each in Kafka's own file format."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    PRODUCER_SNAPSHOT = "producer-snapshot"
    TRANSACTION = "transaction"
    LEADER_EPOCH = "leader-epoch"


@dataclass(frozen=True, slots=True)
class LogSegmentData:
    """The files of one segment, as bytes in Kafka's file formats.

    A local segment's log is passed as a view of its (closed) file, ``runtime.File.view``, which costs no
    memory. ``transaction_index`` is None when the segment contains no aborted transaction.
    ``producer_snapshot`` and ``leader_epochs`` (the text of a ``leader-epoch-checkpoint``) are the state
    *after* the segment: a replica that starts at its end needs nothing before.
    """

    log_segment: Buffer
    offset_index: Buffer
    time_index: Buffer
    transaction_index: Buffer | None
    producer_snapshot: Buffer
    leader_epochs: Buffer

    def index(self, index_type: IndexType) -> Buffer | None:
        """One of the files beside the log; None for a missing transaction index."""
        match index_type:
            case IndexType.OFFSET:
                return self.offset_index
            case IndexType.TIMESTAMP:
                return self.time_index
            case IndexType.PRODUCER_SNAPSHOT:
                return self.producer_snapshot
            case IndexType.TRANSACTION:
                return self.transaction_index
            case IndexType.LEADER_EPOCH:
                return self.leader_epochs


class RemoteStorageManager(Protocol):
    """Stores, reads and removes the bytes of segments. Every call may raise :class:`RemoteStorageError`.

    A call that is cancelled or fails may have taken effect in part; ``delete_log_segment_data`` removes the
    rest of a failed copy, given only the segment's metadata in COPY_SEGMENT_STARTED.
    """

    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        """Store a segment durably; every reader sees it whole once this has returned.

        Returns custom metadata that goes into the segment's COPY_SEGMENT_FINISHED event (at most
        ``remote.log.metadata.custom.metadata.max.bytes``), or None. Repeating a copy with the same id
        overwrites it.
        """
        ...

    async def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> memoryview:
        """The segment's bytes from ``start_position`` up to, not including, ``end_position`` or its end.

        A shorter answer means that the segment ends there. (Kafka's ``endPosition`` is inclusive; this one is
        Python's.) Raises :class:`RemoteResourceNotFoundError` when the segment does not exist.
        """
        ...

    async def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> Buffer:
        """A whole index. Raises :class:`RemoteResourceNotFoundError` when it does not exist.

        Also for the transaction index of a segment that has none.
        """
        ...

    async def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Remove everything that was stored for a segment in any state; absent data counts as removed."""
        ...

    async def close(self) -> None:
        """Release connections; nothing may be under way."""
        ...


class ListableSegments(Protocol):
    """The objects of a storage manager that can be listed."""

    def list_objects(self, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages of all objects, in order of their keys. Raises ``StorageError``."""
        ...

    async def delete_objects(self, keys: Collection[str]) -> None:
        """Remove objects of segments by their keys. Raises ``StorageError``."""
        ...

    def attempt_of(self, metadata: RemoteLogSegmentMetadata) -> str:
        """The attempt whose objects are a finished segment. Raises :class:`RemoteStorageError`."""
        ...


class HostedStorageManager(RemoteStorageManager, Protocol):
    """A storage manager as a broker has it: the built-in one, or ``ForeignStorageManager`` around a
    plug-in.
    """

    @property
    def problem(self) -> str | None:
        """The store's problem, in one sentence; None when it works, and for plug-ins."""
        ...

    @property
    def listable(self) -> ListableSegments | None:
        """Its objects, to scan for orphans; None for plug-ins, whose objects may not be listable."""
        ...


StorageManagerMaker: TypeAlias = Callable[[Mapping[str, str], Machine, Meters], RemoteStorageManager]
"""Function named by ``remote.log.storage.manager.class.name``, as a dotted path.

Called with the broker's keys under ``remote.log.storage.manager.impl.prefix`` (without that prefix) and
``broker.id``, ``cluster.id`` and ``log.dir``, as Kafka passes them to ``configure``; and with the machine's
ports and meters. It raises :class:`RemoteStorageError` that names an invalid key.
"""
