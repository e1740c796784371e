"""ConsolidationPublish: an engine reports to a leader which planned segments it has copied to remote
storage.
"""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class ConsolidationCopy(Message):
    topic_id: UUID = wire("uuid")
    topic: str = wire("string")
    partition_index: int = wire("int32")
    leader_epoch: int = wire("int32")
    segment_id: UUID = wire("uuid")
    custom_metadata: bytes | None = wire("bytes", nullable="0+", default=None)
    """Custom metadata of the storage manager. They identify the copy attempt whose objects form the segment.
    """


@message
class ConsolidationPublished(Message):
    segment_id: UUID = wire("uuid")
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    """FENCED_LEADER_EPOCH means that another leader planned the segment. INVALID_UPDATE_VERSION means that
    the plan has expired.

    After these errors the copy's objects are not needed. After any other error the report may be repeated.
    """
    error_message: str | None = wire("string", nullable="0+", default=None)
    is_waiting: bool = wire("bool", default=False)
    """Whether the segment must wait until the earlier segments of its partition are published."""


@message
class ConsolidationPublishRequest(Message):
    API_KEY = 11657
    VERSIONS = "0"
    FLEXIBLE = "0+"
    lease_id: UUID = wire("uuid")
    copies: Sequence[ConsolidationCopy] = wire([ConsolidationCopy], default=())
    timeout_ms: int = wire("int32", default=60_000, tag=0)
    """Time for which the caller waits for the answer."""


@message
class ConsolidationPublishResponse(Message):
    API_KEY = 11657
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    segments: Sequence[ConsolidationPublished] = wire([ConsolidationPublished], default=())
    """The outcomes of the copies, in the same order as in the request."""


REQUEST = ConsolidationPublishRequest
RESPONSE = ConsolidationPublishResponse
