"""ConsolidationLease: an engine extends the lease on its plan, or releases it."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class ConsolidationLeasePartition(Message):
    topic_id: UUID = wire("uuid")
    topic: str = wire("string")
    partition_index: int = wire("int32")


@message
class ConsolidationLeaseRequest(Message):
    API_KEY = 11658
    VERSIONS = "0"
    FLEXIBLE = "0+"
    lease_id: UUID = wire("uuid")
    lease_ms: int = wire("int64", default=600_000)
    """Duration of the lease from now on, in ms. The value 0 releases the lease."""
    partitions: Sequence[ConsolidationLeasePartition] | None = wire(
        [ConsolidationLeasePartition], nullable="0+", default=None
    )
    """The partitions that a duration of 0 ms releases. Null means all partitions of the lease."""
    timeout_ms: int = wire("int32", default=60_000, tag=0)
    """Time for which the caller waits for the answer."""


@message
class ConsolidationLeaseResponse(Message):
    API_KEY = 11658
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    lease_until_ms: int = wire("int64", default=-1)
    """The end of the lease. The value -1 means that the lease has ended."""


REQUEST = ConsolidationLeaseRequest
RESPONSE = ConsolidationLeaseResponse
