"""AlterChunkAssignments: move inactive chunks to other brokers (KIP-1114). The controller decides on the
move."""

from collections.abc import Sequence

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class AlterChunkAssignment(Message):
    topic_name: str = wire("string")
    partition_id: int = wire("int32")
    start_offset: int = wire("int64")
    chunk_epoch: int = wire("int32", default=-1)
    """The epoch that the caller knows. The value -1 means any epoch."""
    broker_ids: Sequence[int] | None = wire(["int32"], nullable="0+", default=())
    """The target replicas of the chunk. Null cancels a move in progress. The KIP does not have this use of
    null."""


@message
class AlterChunkAssignmentResult(Message):
    topic_name: str = wire("string")
    partition_id: int = wire("int32")
    start_offset: int = wire("int64")
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)


@message
class AlterChunkAssignmentsRequest(Message):
    API_KEY = 11141
    VERSIONS = "0"
    FLEXIBLE = "0+"
    chunks: Sequence[AlterChunkAssignment] = wire([AlterChunkAssignment], default=())
    timeout_ms: int = wire("int32", default=60_000, tag=0)
    """Time for which the caller waits for the answer."""


@message
class AlterChunkAssignmentsResponse(Message):
    API_KEY = 11141
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    results: Sequence[AlterChunkAssignmentResult] = wire([AlterChunkAssignmentResult], default=())
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none, tag=0)
    """Moldau's own field: the error of the whole call."""
    error_message: str | None = wire("string", nullable="0+", default=None, tag=1)


REQUEST = AlterChunkAssignmentsRequest
RESPONSE = AlterChunkAssignmentsResponse
