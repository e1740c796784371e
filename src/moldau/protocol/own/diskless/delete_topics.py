"""DisklessDeleteTopics: delete topics from the state of a coordinator (KIP-1164's API 94)."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class DisklessDeletableTopicState(Message):
    topic_id: UUID = wire("uuid")


@message
class DisklessDeletableTopicResult(Message):
    topic_id: UUID = wire("uuid")
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)


@message
class DisklessDeleteTopicsRequest(Message):
    API_KEY = 11641
    VERSIONS = "0"
    FLEXIBLE = "0+"
    coordinator_id: int = wire("int32", default=0)
    """Moldau's own field: the partition of ``__diskless_metadata`` whose coordinator must answer. A broker
    may lead several of these partitions."""
    topics: Sequence[DisklessDeletableTopicState] = wire([DisklessDeletableTopicState], default=())
    timeout_ms: int = wire("int32", default=60000)


@message
class DisklessDeleteTopicsResponse(Message):
    API_KEY = 11641
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    """Moldau's own field: the error of the whole call."""
    error_message: str | None = wire("string", nullable="0+", default=None)
    responses: Sequence[DisklessDeletableTopicResult] = wire([DisklessDeletableTopicResult], default=())


REQUEST = DisklessDeleteTopicsRequest
RESPONSE = DisklessDeleteTopicsResponse
