"""Records of ``__consumer_offsets`` (offsets, classic groups and KIP-848 groups), and the metadata of classic
members.

By default the newest version is written. Kafka writes OffsetCommitValue 3 (or 1, if the offset has an expire
timestamp) and GroupMetadataValue 3, so that older brokers can read the records. To write version 3 like
Kafka, pass ``version=3``.
"""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from moldau.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from moldau.protocol.records.consumer_groups import PAIRS as CONSUMER_GROUP_PAIRS
from moldau.protocol.records.schema import KeyedRecords, decode_versioned, encode_versioned
from moldau.protocol.schema import ZERO_UUID, Message, message, wire
from moldau.runtime.buffers import Buffer


@message
class LegacyOffsetCommitKey(Message):
    """Key type 0. Brokers before 0.9 and some tools write it. Moldau reads it, but never writes it."""

    API_KEY = 0
    VERSIONS = "0"
    group: str = wire("string", default="")
    topic: str = wire("string", default="")
    partition: int = wire("int32", default=0)


@message
class LegacyOffsetCommitValue(Message):
    API_KEY = 0
    VERSIONS = "0"
    offset: int = wire("int64", default=0)
    metadata: str = wire("string", default="")
    commit_timestamp: int = wire("int64", default=0)


@message
class OffsetCommitKey(Message):
    API_KEY = 1
    VERSIONS = "0"
    group: str = wire("string", default="")
    topic: str = wire("string", default="")
    partition: int = wire("int32", default=0)


@message
class OffsetCommitValue(Message):
    API_KEY = 1
    VERSIONS = "0-4"
    FLEXIBLE = "4+"
    offset: int = wire("int64", default=0)
    leader_epoch: int = wire("int32", "3+", default=-1)
    metadata: str = wire("string", default="")
    commit_timestamp: int = wire("int64", default=0)
    expire_timestamp: int = wire("int64", "1", default=-1)
    topic_id: UUID = wire("uuid", "4+", default=ZERO_UUID, tag=0, tagged="4+")


@message
class GroupMetadataKey(Message):
    API_KEY = 2
    VERSIONS = "0"
    group: str = wire("string", default="")


@message
class MemberMetadata(Message):
    member_id: str = wire("string", default="")
    group_instance_id: str | None = wire("string", "3+", default=None, nullable="3+")
    client_id: str = wire("string", default="")
    client_host: str = wire("string", default="")
    rebalance_timeout: int = wire("int32", "1+", default=-1)
    session_timeout: int = wire("int32", default=0)
    subscription: bytes = wire("bytes", default=b"")
    assignment: bytes = wire("bytes", default=b"")


@message
class GroupMetadataValue(Message):
    API_KEY = 2
    VERSIONS = "0-4"
    FLEXIBLE = "4+"
    protocol_type: str = wire("string", default="")
    generation: int = wire("int32", default=0)
    protocol: str | None = wire("string", default="", nullable="0+")
    leader: str | None = wire("string", default="", nullable="0+")
    current_state_timestamp: int = wire("int64", "2+", default=-1)
    members: Sequence[MemberMetadata] = wire([MemberMetadata], default=())


RECORDS = KeyedRecords(
    (LegacyOffsetCommitKey, LegacyOffsetCommitValue),
    (OffsetCommitKey, OffsetCommitValue),
    (GroupMetadataKey, GroupMetadataValue),
    *CONSUMER_GROUP_PAIRS,
)
"""All records of the group coordinator. Records of share and streams groups are not supported yet."""

encode_key = RECORDS.encode_key
encode_value = RECORDS.encode_value
decode_key = RECORDS.decode_key
decode_value = RECORDS.decode_value


def encode_subscription(subscription: ConsumerProtocolSubscription, version: int | None = None) -> bytes:
    """A classic consumer's metadata in JoinGroup."""
    return encode_versioned(subscription, version)


def decode_subscription(data: Buffer) -> ConsumerProtocolSubscription:
    """Read a classic consumer's metadata. In a later version, only the known fields are read."""
    decoded = decode_versioned(ConsumerProtocolSubscription, data)
    assert isinstance(decoded, ConsumerProtocolSubscription)
    return decoded


def encode_assignment(assignment: ConsumerProtocolAssignment, version: int | None = None) -> bytes:
    """A classic consumer's assignment in SyncGroup."""
    return encode_versioned(assignment, version)


def decode_assignment(data: Buffer) -> ConsumerProtocolAssignment:
    """Read a classic consumer's assignment. In a later version, only the known fields are read."""
    decoded = decode_versioned(ConsumerProtocolAssignment, data)
    assert isinstance(decoded, ConsumerProtocolAssignment)
    return decoded
