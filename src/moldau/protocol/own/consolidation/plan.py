"""ConsolidationPlan: a leader plans the next segments of diskless partitions for an engine that builds them.

The segments are recorded as COPY_SEGMENT_STARTED before the answer. Other engines do not get the same
partitions while the lease lasts.
"""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import ZERO_UUID, Message, message, wire
from moldau.runtime import ErrorCode


@message
class ConsolidationSegment(Message):
    topic_id: UUID = wire("uuid")
    topic: str = wire("string")
    partition_index: int = wire("int32")
    leader_epoch: int = wire("int32")
    """Epoch of the leader that made the plan. When the engine publishes the segment, it sends this epoch."""
    segment_id: UUID = wire("uuid")
    base_offset: int = wire("int64")
    end_offset: int = wire("int64")
    """Offset of the last record (inclusive)."""
    size_bytes: int = wire("int32")
    """Size of the segment's log in bytes. It is the sum of the sizes of its runs (see ``runs``)."""
    max_timestamp_ms: int = wire("int64")
    event_timestamp_ms: int = wire("int64")
    broker_id: int = wire("int32")
    txn_index_empty: bool = wire("bool")
    index_interval_bytes: int = wire("int32")
    runs: bytes = wire("bytes")
    """The runs of the segment, encoded as columns. A run is a range of bytes in a WAL object with adjacent
    batches of the partition. The first value is the number of runs. For each run there are these values: the
    object's number, the position of the run's first byte, its size in bytes, its last offset minus its first
    offset, and its append time or -1. The offsets of the runs have no gaps."""
    generation_starts: Sequence[int] = wire(["int64"], default=(), tag=0)
    """The first offset of each generation of the partition's log. The first generation is left out."""


@message
class ConsolidationHeldPlan(Message):
    """Partitions for which another engine has a lease."""

    engine: str = wire("string")
    until_ms: int = wire("int64")
    """End of the lease by the leader's clock, unless it is renewed."""
    partitions: int = wire("int32")


@message
class ConsolidationPlanRequest(Message):
    API_KEY = 11656
    VERSIONS = "0"
    FLEXIBLE = "0+"
    engine: str = wire("string")
    """Name of the caller. The log and other callers show this name."""
    max_bytes: int = wire("int64")
    """Approximate size of the plan in bytes. The plan is smaller when fewer bytes are available, or when
    other engines have leases on the other partitions."""
    lease_ms: int = wire("int64", default=600_000)
    topics: Sequence[str] | None = wire(["string"], nullable="0+", default=None)
    """Names of the topics that the plan may contain. Null means all topics."""
    timeout_ms: int = wire("int32", default=60_000, tag=0)
    """Time for which the caller waits for the answer."""


@message
class ConsolidationPlanResponse(Message):
    API_KEY = 11656
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    lease_id: UUID = wire("uuid", default=ZERO_UUID)
    lease_until_ms: int = wire("int64", default=-1)
    """End of the lease by the leader's clock."""
    object_keys: Sequence[str] = wire(["string"], default=())
    """The objects that contain the runs. Runs refer to them by their number, from 0."""
    segments: Sequence[ConsolidationSegment] = wire([ConsolidationSegment], default=())
    storage_class_name: str | None = wire("string", nullable="0+", default=None)
    """The leader's remote storage manager. It is null for the built-in manager."""
    storage_url: str | None = wire("string", nullable="0+", default=None)
    """URL of the built-in manager's store. If an engine used another URL, it would publish segments that are
    not in the store."""
    storage_prefix: str | None = wire("string", nullable="0+", default=None)
    held: Sequence[ConsolidationHeldPlan] = wire([ConsolidationHeldPlan], default=(), tag=0)
    """The leases of other engines on partitions of these topics."""


REQUEST = ConsolidationPlanRequest
RESPONSE = ConsolidationPlanResponse
