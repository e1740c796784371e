"""Records of KIP-848 consumer groups in ``__consumer_offsets``. :mod:`moldau.protocol.records.groups` has the
other records of this topic."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import ZERO_UUID, Message, message, wire


@message
class ConsumerGroupMetadataKey(Message):
    API_KEY = 3
    VERSIONS = "0"
    group_id: str = wire("string", default="")


@message
class ConsumerGroupMetadataValue(Message):
    API_KEY = 3
    VERSIONS = "0"
    FLEXIBLE = "0+"
    epoch: int = wire("int32", default=0)
    metadata_hash: int = wire("int64", default=0, tag=0)


@message
class ConsumerGroupPartitionMetadataKey(Message):
    API_KEY = 4
    VERSIONS = "0"
    group_id: str = wire("string", default="")


@message
class PartitionMetadata(Message):
    partition: int = wire("int32", default=0)
    racks: Sequence[str] = wire(["string"], default=())


@message
class TopicMetadata(Message):
    topic_id: UUID = wire("uuid", default=ZERO_UUID)
    topic_name: str = wire("string", default="")
    num_partitions: int = wire("int32", default=0)
    partition_metadata: Sequence[PartitionMetadata] = wire([PartitionMetadata], default=())


@message
class ConsumerGroupPartitionMetadataValue(Message):
    API_KEY = 4
    VERSIONS = "0"
    FLEXIBLE = "0+"
    topics: Sequence[TopicMetadata] = wire([TopicMetadata], default=())


@message
class ConsumerGroupMemberMetadataKey(Message):
    API_KEY = 5
    VERSIONS = "0"
    group_id: str = wire("string", default="")
    member_id: str = wire("string", default="")


@message
class ClassicProtocol(Message):
    name: str = wire("string", default="")
    metadata: bytes = wire("bytes", default=b"")


@message
class ClassicMemberMetadata(Message):
    session_timeout_ms: int = wire("int32", default=0)
    supported_protocols: Sequence[ClassicProtocol] = wire([ClassicProtocol], default=())


@message
class ConsumerGroupMemberMetadataValue(Message):
    API_KEY = 5
    VERSIONS = "0"
    FLEXIBLE = "0+"
    instance_id: str | None = wire("string", default="", nullable="0+")
    rack_id: str | None = wire("string", default="", nullable="0+")
    client_id: str = wire("string", default="")
    client_host: str = wire("string", default="")
    subscribed_topic_names: Sequence[str] = wire(["string"], default=())
    subscribed_topic_regex: str | None = wire("string", default="", nullable="0+")
    rebalance_timeout_ms: int = wire("int32", default=-1)
    server_assignor: str | None = wire("string", default="", nullable="0+")
    # Null for a member of the new protocol. Kafka's default is not null, so null is written explicitly.
    classic_member_metadata: ClassicMemberMetadata | None = wire(
        ClassicMemberMetadata, default=ClassicMemberMetadata(), nullable="0+", tag=0
    )


@message
class ConsumerGroupTargetAssignmentMetadataKey(Message):
    API_KEY = 6
    VERSIONS = "0"
    group_id: str = wire("string", default="")


@message
class ConsumerGroupTargetAssignmentMetadataValue(Message):
    API_KEY = 6
    VERSIONS = "0"
    FLEXIBLE = "0+"
    assignment_epoch: int = wire("int32", default=0)


@message
class ConsumerGroupTargetAssignmentMemberKey(Message):
    API_KEY = 7
    VERSIONS = "0"
    group_id: str = wire("string", default="")
    member_id: str = wire("string", default="")


@message
class TargetTopicPartitions(Message):
    topic_id: UUID = wire("uuid", default=ZERO_UUID)
    partitions: Sequence[int] = wire(["int32"], default=())


@message
class ConsumerGroupTargetAssignmentMemberValue(Message):
    API_KEY = 7
    VERSIONS = "0"
    FLEXIBLE = "0+"
    topic_partitions: Sequence[TargetTopicPartitions] = wire([TargetTopicPartitions], default=())


@message
class ConsumerGroupCurrentMemberAssignmentKey(Message):
    API_KEY = 8
    VERSIONS = "0"
    group_id: str = wire("string", default="")
    member_id: str = wire("string", default="")


@message
class CurrentTopicPartitions(Message):
    topic_id: UUID = wire("uuid", default=ZERO_UUID)
    partitions: Sequence[int] = wire(["int32"], default=())
    assignment_epochs: Sequence[int] | None = wire(["int32"], default=None, nullable="0+", tag=0)


@message
class ConsumerGroupCurrentMemberAssignmentValue(Message):
    API_KEY = 8
    VERSIONS = "0"
    FLEXIBLE = "0+"
    member_epoch: int = wire("int32", default=0)
    previous_member_epoch: int = wire("int32", default=0)
    state: int = wire("int8", default=0)
    assigned_partitions: Sequence[CurrentTopicPartitions] = wire([CurrentTopicPartitions], default=())
    partitions_pending_revocation: Sequence[CurrentTopicPartitions] = wire(
        [CurrentTopicPartitions], default=()
    )


@message
class ConsumerGroupRegularExpressionKey(Message):
    API_KEY = 16
    VERSIONS = "0"
    group_id: str = wire("string", default="")
    regular_expression: str = wire("string", default="")


@message
class ConsumerGroupRegularExpressionValue(Message):
    API_KEY = 16
    VERSIONS = "0"
    FLEXIBLE = "0+"
    topics: Sequence[str] = wire(["string"], default=())
    version: int = wire("int64", default=0)
    timestamp: int = wire("int64", default=0)


PAIRS = (
    (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    (ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
    (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
)
