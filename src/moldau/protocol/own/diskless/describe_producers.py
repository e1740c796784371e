"""DisklessDescribeProducers: get the producers of diskless partitions, with their open transactions."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class DisklessPartitionToDescribe(Message):
    partition_index: int = wire("int32")


@message
class DisklessTopicToDescribe(Message):
    topic_id: UUID = wire("uuid")
    partitions: Sequence[DisklessPartitionToDescribe] = wire([DisklessPartitionToDescribe], default=())


@message
class DisklessProducer(Message):
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int32")
    last_sequence: int = wire("int32", default=-1)
    last_timestamp: int = wire("int64", default=-1)
    coordinator_epoch: int = wire("int32", default=-1)
    current_txn_start_offset: int = wire("int64", default=-1)


@message
class DisklessPartitionProducers(Message):
    partition_index: int = wire("int32")
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    producers: Sequence[DisklessProducer] = wire([DisklessProducer], default=())


@message
class DisklessTopicProducers(Message):
    topic_id: UUID = wire("uuid")
    partitions: Sequence[DisklessPartitionProducers] = wire([DisklessPartitionProducers], default=())


@message
class DisklessDescribeProducersRequest(Message):
    API_KEY = 11672
    VERSIONS = "0"
    FLEXIBLE = "0+"
    coordinator_id: int = wire("int32", default=0)
    topics: Sequence[DisklessTopicToDescribe] = wire([DisklessTopicToDescribe], default=())
    timeout_ms: int = wire("int32", default=60000)


@message
class DisklessDescribeProducersResponse(Message):
    API_KEY = 11672
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    topics: Sequence[DisklessTopicProducers] = wire([DisklessTopicProducers], default=())


REQUEST = DisklessDescribeProducersRequest
RESPONSE = DisklessDescribeProducersResponse
