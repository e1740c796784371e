"""DisklessDescribeCoordinator: get a coordinator's state and its progress, for tools."""

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class DisklessDescribeCoordinatorRequest(Message):
    API_KEY = 11655
    VERSIONS = "0"
    FLEXIBLE = "0+"
    coordinator_id: int = wire("int32", default=0)
    """The partition of ``__diskless_metadata`` whose coordinator must answer. A broker may lead several
    of these partitions.
    """
    timeout_ms: int = wire("int32", default=60000)


@message
class DisklessDescribeCoordinatorResponse(Message):
    API_KEY = 11655
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    epoch: int = wire("int32", default=-1)
    """Leader epoch of the coordinator's partition."""
    partitions: int = wire("int64", default=0)
    live_batches: int = wire("int64", default=0)
    files: int = wire("int64", default=0)
    applied_offset: int = wire("int64", default=-1)
    log_start_offset: int = wire("int64", default=-1)
    log_end_offset: int = wire("int64", default=-1)
    snapshot_offset: int = wire("int64", default=-1)
    """The offset of the coordinator's last snapshot. It is -1 when the coordinator has no snapshot."""
    snapshot_epoch: int = wire("int32", default=-1)


REQUEST = DisklessDescribeCoordinatorRequest
RESPONSE = DisklessDescribeCoordinatorResponse
