"""DisklessCreatePartitions: add diskless partitions to the state of a coordinator (KIP-1164's API 93)."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class DisklessCreatablePartitions(Message):
    topic_id: UUID = wire("uuid")
    name: str = wire("string")
    num_partitions: int = wire("int32", default=0)
    partition_indexes: Sequence[int] | None = wire(["int32"], nullable="0+", default=None)
    """Moldau's own field: the partitions that belong to this coordinator. Null means all partitions from 0 to
    ``num_partitions - 1``."""


@message
class DisklessCreatablePartitionsResult(Message):
    topic_id: UUID = wire("uuid")
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)


@message
class DisklessCreatePartitionsRequest(Message):
    API_KEY = 11640
    VERSIONS = "0"
    FLEXIBLE = "0+"
    coordinator_id: int = wire("int32", default=0)
    """Moldau's own field: the partition of ``__diskless_metadata`` whose coordinator must answer. A broker
    may lead several of these partitions."""
    topics: Sequence[DisklessCreatablePartitions] = wire([DisklessCreatablePartitions], default=())
    timeout_ms: int = wire("int32", default=60000)


@message
class DisklessCreatePartitionsResponse(Message):
    API_KEY = 11640
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    """Moldau's own field: the error of the whole call."""
    error_message: str | None = wire("string", nullable="0+", default=None)
    topics: Sequence[DisklessCreatablePartitionsResult] = wire(
        [DisklessCreatablePartitionsResult], default=()
    )


REQUEST = DisklessCreatePartitionsRequest
RESPONSE = DisklessCreatePartitionsResponse
