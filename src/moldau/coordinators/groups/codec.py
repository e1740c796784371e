"""Kafka's encoding of the records of ``__consumer_offsets``. Keys and values begin with an int16 version.
Pure.
"""

from typing import Final

from moldau.coordinators.groups.records import (
    CommittedOffset,
    ConsumerOffsetsRecord,
    GroupRecord,
    OffsetRecord,
    StoredGroup,
    StoredMember,
)
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.records.groups import (
    RECORDS,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from moldau.protocol.records.schema import UnknownRecordTypeError
from moldau.protocol.schema import ZERO_UUID

GROUP_VALUE_VERSION: Final = 3
OFFSET_VALUE_VERSION: Final = 3
"""Version 3 of offset values and of group values is not flexible. Kafka 2.3 and all later versions can read
it."""
EXPIRING_OFFSET_VALUE_VERSION: Final = 1
"""The only version with a field for the expiry of a single commit (OffsetCommit 2-4)."""
OFFSET_WITH_TOPIC_ID_VALUE_VERSION: Final = 4


class ConsumerOffsetsCodec:
    """Converts between :data:`ConsumerOffsetsRecord` and the topic's keys and values."""

    def encode(self, record: ConsumerOffsetsRecord) -> tuple[bytes | None, bytes | None]:
        """Key and value; the value of a tombstone is ``None``."""
        match record:
            case OffsetRecord(group_id, topic, partition, value):
                key = OffsetCommitKey(group=group_id, topic=topic, partition=partition)
                return RECORDS.encode_key(key), None if value is None else _encode_offset(value)
            case GroupRecord(group_id, stored):
                return (
                    RECORDS.encode_key(GroupMetadataKey(group=group_id)),
                    None
                    if stored is None
                    else RECORDS.encode_value(_group_value(stored), GROUP_VALUE_VERSION),
                )

    def decode(self, key: bytes | None, value: bytes | None) -> ConsumerOffsetsRecord | None:
        """Decode the record; ``None`` for records of other kinds of groups. Raises ``ProtocolError``."""
        if key is None:
            raise ProtocolError("the record has no key")
        try:
            decoded = RECORDS.decode_key(key)
        except UnknownRecordTypeError:
            return None
        match decoded:
            case OffsetCommitKey() | LegacyOffsetCommitKey():
                committed = None if value is None else _decode_offset(value)
                return OffsetRecord(decoded.group, decoded.topic, decoded.partition, committed)
            case GroupMetadataKey():
                return GroupRecord(decoded.group, None if value is None else _decode_group(value))
            case _:
                return None


def _encode_offset(value: CommittedOffset) -> bytes:
    version = OFFSET_VALUE_VERSION
    if value.expire_timestamp_ms >= 0:
        version = EXPIRING_OFFSET_VALUE_VERSION
    elif value.topic_id is not None:
        version = OFFSET_WITH_TOPIC_ID_VALUE_VERSION
    message = OffsetCommitValue(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp=value.commit_timestamp_ms,
        expire_timestamp=value.expire_timestamp_ms,
        topic_id=value.topic_id or ZERO_UUID,
    )
    return RECORDS.encode_value(message, version)


def _decode_offset(value: bytes) -> CommittedOffset:
    message = RECORDS.decode_value(OffsetCommitKey(), value)
    assert isinstance(message, OffsetCommitValue)
    return CommittedOffset(
        message.offset,
        message.leader_epoch,
        message.metadata,
        message.commit_timestamp,
        message.expire_timestamp,
        None if message.topic_id == ZERO_UUID else message.topic_id,
    )


def _group_value(stored: StoredGroup) -> GroupMetadataValue:
    return GroupMetadataValue(
        protocol_type=stored.protocol_type,
        generation=stored.generation,
        protocol=stored.protocol_name,
        leader=stored.leader,
        current_state_timestamp=stored.state_timestamp_ms,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in stored.members
        ],
    )


def _decode_group(value: bytes) -> StoredGroup:
    message = RECORDS.decode_value(GroupMetadataKey(), value)
    assert isinstance(message, GroupMetadataValue)
    return StoredGroup(
        message.protocol_type,
        message.generation,
        message.protocol,
        message.leader,
        message.current_state_timestamp,
        tuple(
            StoredMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout,
                member.session_timeout,
                bytes(member.subscription),
                bytes(member.assignment),
            )
            for member in message.members
        ),
    )
