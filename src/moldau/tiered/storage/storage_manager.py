"""The remote storage manager (KIP-405's ``RemoteStorageManager``), which stores the bytes of remote segments.

``remote.log.storage.manager.class.name`` names a function or a class. The broker calls it to create the
manager (see :data:`StorageManagerMaker`).
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from moldau.metrics import Meters
from moldau.objects.fence import StoreFence
from moldau.objects.storage import ObjectInfo
from moldau.runtime import Machine
from moldau.runtime.buffers import Buffer
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata
from moldau.tiered.storage.segment_files import IndexType, LogSegmentData

__all__ = [
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


class RemotePlace(NamedTuple):
    """The location of a broker's remote segments, without secrets, for builders on other machines."""

    class_name: str | None
    """``None`` for the built-in storage manager, which the other fields describe."""
    url: str | None
    prefix: str | None


class RemoteStorageError(Exception):
    """Remote storage or its metadata refused a call, failed or did not respond. The message is a line for the
    operator.

    ``transient`` means that the same call may succeed later without intervention.
    """

    def __init__(self, message: str, *, transient: bool = True) -> None:
        super().__init__(message)
        self.transient = transient


class RemoteResourceNotFoundError(RemoteStorageError):
    """The segment, index or partition does not exist (Kafka's ``RemoteResourceNotFoundException``)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=False)


class CustomMetadataSizeLimitExceededError(RemoteStorageError):
    """A storage manager returned more than ``remote.log.metadata.custom.metadata.max.bytes``."""


def check_custom_metadata(segment: str, custom: bytes | None, max_bytes: int) -> None:
    """Raise :class:`CustomMetadataSizeLimitExceededError` if ``custom`` has more than ``max_bytes`` bytes.
    The copy would fail again with the same error, so it is not repeated."""
    if custom is not None and len(custom) > max_bytes:
        raise CustomMetadataSizeLimitExceededError(
            f"{segment}: custom metadata of {len(custom)} bytes exceed"
            f" remote.log.metadata.custom.metadata.max.bytes={max_bytes}",
            transient=False,
        )


class RemoteStorageManager(Protocol):
    """Stores, reads and removes the bytes of segments. Every call may raise :class:`RemoteStorageError`.

    A call that is cancelled or fails may have taken effect in part. ``delete_log_segment_data`` removes the
    data that a failed copy has stored. It needs only the metadata that are in COPY_SEGMENT_STARTED.
    """

    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        """Store a segment durably. After the return of this call, every reader finds the whole segment.

        Returns custom metadata, or ``None``. They are stored in the segment's COPY_SEGMENT_FINISHED event (at
        most ``remote.log.metadata.custom.metadata.max.bytes``). A second copy with the same id overwrites the
        first copy.
        """
        ...

    async def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> memoryview:
        """The segment's bytes from ``start_position`` up to, and not including, ``end_position`` or the
        segment's end.

        If the result is shorter, the segment ends there. (Kafka's ``endPosition`` is inclusive. Here
        ``end_position`` is exclusive, as in Python.) Raises :class:`RemoteResourceNotFoundError` when the
        segment does not exist.
        """
        ...

    async def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> Buffer:
        """A whole index. Raises :class:`RemoteResourceNotFoundError` when the index does not exist.

        For example, a segment without aborted transactions has no transaction index.
        """
        ...

    async def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Remove everything that was stored for a segment, in any state. Data that do not exist count as
        removed."""
        ...

    async def close(self) -> None:
        """Close the connections. No call may be in progress."""
        ...


class ListableSegments(Protocol):
    """The objects of a storage manager that can be listed."""

    def list_objects(self, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """All objects in pages, in order of their keys. Raises ``StorageError`` if the store fails."""
        ...

    async def delete_objects(self, keys: Collection[str]) -> None:
        """Remove objects of segments by their keys. Raises ``StorageError`` if the store fails."""
        ...

    def attempt_of(self, metadata: RemoteLogSegmentMetadata) -> str:
        """The attempt whose objects form a finished segment. Raises :class:`RemoteStorageError` if the
        segment names no valid attempt."""
        ...


class HostedStorageManager(RemoteStorageManager, Protocol):
    """A storage manager as a broker uses it: the built-in one, or ``ForeignStorageManager`` around a
    plug-in.
    """

    fence: StoreFence
    """Each copy and each deletion begins with a check of this fence, which may refuse the operation."""

    @property
    def problem(self) -> str | None:
        """The store's problem, in a sentence; ``None`` when the store works, and for plug-ins."""
        ...

    @property
    def listable(self) -> ListableSegments | None:
        """The manager's objects, for the orphan scan. ``None`` for plug-ins, because perhaps their objects
        cannot be listed."""
        ...


StorageManagerMaker: TypeAlias = Callable[[Mapping[str, str], Machine, Meters], RemoteStorageManager]
"""The function that ``remote.log.storage.manager.class.name`` names as a dotted path.

It is called with the broker's keys under ``remote.log.storage.manager.impl.prefix`` (without that prefix) and
``broker.id``, ``cluster.id`` and ``log.dir``, as Kafka passes them to ``configure``. It also gets the
machine's ports and meters. For an invalid key it raises :class:`RemoteStorageError`, which names the key.
"""
