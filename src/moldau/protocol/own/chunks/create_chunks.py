"""CreateChunks: end the active chunk of partitions, and begin the next chunk on other brokers (KIP-1114).

A tool sends topics, partitions and brokers to the leader. The leader sends the same request to the
controller. The leader adds the border and all values that the controller checks.
"""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import ZERO_UUID, Message, message, wire
from moldau.runtime import ErrorCode


@message
class CreateChunksTopicPartition(Message):
    topic_name: str = wire("string")
    partition_id: int = wire("int32")
    broker_ids: Sequence[int] = wire(["int32"])
    """The replicas of the new active chunk. The preferred replica comes first."""
    start_offset: int = wire("int64", default=-1)
    """The border, which is the first offset of the new active chunk. It is -1 if a tool sends the request."""
    start_timestamp: int = wire("int64", default=-1)
    """All records of the new chunk are appended at or after this time, in milliseconds. It is -1 if a tool
    sends the request."""
    prev_stop_offset: int = wire("int64", default=-1)
    """The last offset of the chunk that ends, inclusive. It is -1 if a tool sends the request."""
    # Moldau's own fields, which only the leader sets.
    topic_id: UUID = wire("uuid", default=ZERO_UUID, tag=0)
    leader_epoch: int = wire("int32", default=-1, tag=1)
    partition_epoch: int = wire("int32", default=-1, tag=2)
    """The partition epoch in the leader's metadata. The controller refuses the request when the partition
    epoch in its own metadata differs."""
    in_sync: Sequence[int] = wire(["int32"], default=(), tag=3)
    """The brokers that have acknowledged the hand-over. The new chunk begins with them as its in-sync
    replicas."""
    max_timestamp: int = wire("int64", default=-1, tag=4)
    """The largest timestamp in the chunk that ends. It is -1 if the chunk's records have no timestamps."""
    size_bytes: int = wire("int64", default=0, tag=5)
    """Size of the chunk that ends, in bytes."""
    first_offset: int = wire("int64", default=-1, tag=6)
    """The first offset of the chunk that ends, if this chunk is the partition's first chunk."""
    first_timestamp: int = wire("int64", default=-1, tag=7)
    """The timestamp at ``first_offset``, if the chunk that ends is the partition's first chunk."""


@message
class CreateChunksResult(Message):
    topic_name: str = wire("string")
    partition_id: int = wire("int32")
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    start_offset: int = wire("int64", default=-1, tag=0)
    """Moldau's own field: the border of a chunk that was created."""


@message
class CreateChunksRequest(Message):
    API_KEY = 11140
    VERSIONS = "0"
    FLEXIBLE = "0+"
    topic_partitions: Sequence[CreateChunksTopicPartition] = wire([CreateChunksTopicPartition], default=())
    timeout_ms: int = wire("int32", default=60_000, tag=0)
    """Time for which the caller waits for the answer."""
    broker_id: int = wire("int32", default=-1, tag=1)
    """The leader that sends the request to the controller. It is -1 if a tool sends the request."""
    broker_epoch: int = wire("int64", default=-1, tag=2)


@message
class CreateChunksResponse(Message):
    API_KEY = 11140
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    results: Sequence[CreateChunksResult] = wire([CreateChunksResult], default=())
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none, tag=0)
    """Moldau's own field: the error of the whole call."""
    error_message: str | None = wire("string", nullable="0+", default=None, tag=1)


REQUEST = CreateChunksRequest
RESPONSE = CreateChunksResponse
