"""Metadata and coordinator records, compared with bytes that the classes of Kafka 4.2 wrote."""

import random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio_twins import random_message

from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.records import consumer_groups as consumer
from moldau.protocol.records import groups as group
from moldau.protocol.records import metadata
from moldau.protocol.records import transactions as transaction
from moldau.protocol.records.schema import FramedRecords, UnknownRecordTypeError, latest_version
from moldau.protocol.schema import Message, parse_versions

TOPIC_ID = UUID("01020304-0506-0708-090a-0b0c0d0e0f10")
MEMBER = {
    "instance_id": None,
    "rack_id": "r",
    "client_id": "c",
    "client_host": "/h",
    "subscribed_topic_names": ["t"],
    "subscribed_topic_regex": None,
    "server_assignor": None,
}

METADATA_GOLDEN: list[tuple[Message, int, str]] = [
    (
        metadata.TopicRecord(name="orders", topic_id=TOPIC_ID),
        0,
        "010200076f72646572730102030405060708090a0b0c0d0e0f1000",
    ),
    (
        metadata.PartitionRecord(
            partition_id=3,
            topic_id=TOPIC_ID,
            replicas=[1, 2, 3],
            isr=[1, 2],
            leader=1,
            leader_epoch=5,
            partition_epoch=7,
            directories=[TOPIC_ID] * 3,
            eligible_leader_replicas=[3],
            leader_recovery_state=1,
        ),
        2,
        "010302000000030102030405060708090a0b0c0d0e0f1004000000010000000200000003030000000100000002010100000001000000"
        "0500000007040102030405060708090a0b0c0d0e0f100102030405060708090a0b0c0d0e0f100102030405060708090a0b0c0d0e0f10"
        "0200010101050200000003",
    ),
    (
        metadata.PartitionRecord(
            partition_id=3,
            topic_id=TOPIC_ID,
            replicas=[1],
            isr=[1],
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
        ),
        0,
        "010300000000030102030405060708090a0b0c0d0e0f1002000000010200000001010100000001000000000000000000",
    ),
    (
        metadata.PartitionChangeRecord(
            partition_id=3, topic_id=TOPIC_ID, isr=[1], leader=-1, directories=[TOPIC_ID]
        ),
        1,
        "010501000000030102030405060708090a0b0c0d0e0f1003000502000000010104ffffffff0811020102030405060708090a0b0c0d0e"
        "0f10",
    ),
    (
        metadata.RegisterBrokerRecord(
            broker_id=1,
            incarnation_id=TOPIC_ID,
            broker_epoch=9,
            rack=None,
            log_dirs=[TOPIC_ID],
            end_points=[metadata.BrokerEndpoint(name="PLAINTEXT", host="h", port=9092)],
        ),
        3,
        "01000300000001000102030405060708090a0b0c0d0e0f100000000000000009020a504c41494e544558540268238400000001000100"
        "010011020102030405060708090a0b0c0d0e0f10",
    ),
    (
        metadata.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=9, fenced=-1, log_dirs=[TOPIC_ID]),
        2,
        "011102000000010000000000000009020001ff0211020102030405060708090a0b0c0d0e0f10",
    ),
    (
        metadata.FeatureLevelRecord(name="metadata.version", feature_level=25),
        0,
        "010c00116d657461646174612e76657273696f6e001900",
    ),
    (
        metadata.ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value=None),
        0,
        "01040002076f72646572730d726574656e74696f6e2e6d730000",
    ),
    (metadata.BeginTransactionRecord(name="x"), 0, "0117000100020278"),
    (metadata.NoOpRecord(), 0, "01140000"),
    (
        metadata.ClientQuotaRecord(
            entity=[metadata.EntityData(entity_type="user", entity_name=None)],
            key="producer_byte_rate",
            value=1.5,
        ),
        0,
        "010e0002057573657200001370726f64756365725f627974655f726174653ff80000000000000000",
    ),
    (metadata.ClearElrRecord(topic_name="orders"), 0, "011c00076f726465727300"),
]

VALUE_GOLDEN: list[tuple[Message, int, str]] = [
    (
        group.OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=1000),
        3,
        "000300000000000000050000000200016d00000000000003e8",
    ),
    (
        group.OffsetCommitValue(offset=5, metadata="m", commit_timestamp=1000, topic_id=TOPIC_ID),
        4,
        "00040000000000000005ffffffff026d00000000000003e80100100102030405060708090a0b0c0d0e0f10",
    ),
    (
        group.GroupMetadataValue(
            protocol_type="consumer",
            generation=1,
            protocol="range",
            leader="m1",
            current_state_timestamp=7,
            members=[
                group.MemberMetadata(
                    member_id="m1",
                    client_id="c",
                    client_host="/h",
                    rebalance_timeout=1,
                    session_timeout=2,
                    subscription=b"\x01",
                    assignment=b"\x02\x03",
                )
            ],
        ),
        3,
        "00030008636f6e73756d657200000001000572616e676500026d3100000000000000070000000100026d31ffff00016300022f680000"
        "0001000000020000000101000000020203",
    ),
    (
        consumer.ConsumerGroupMemberMetadataValue(**MEMBER, classic_member_metadata=None),
        0,
        "00000002720263032f6802027400ffffffff0001000100",
    ),
    (
        consumer.ConsumerGroupMemberMetadataValue(
            **MEMBER,
            classic_member_metadata=consumer.ClassicMemberMetadata(
                session_timeout_ms=9,
                supported_protocols=[consumer.ClassicProtocol(name="range", metadata=b"\x01")],
            ),
        ),
        0,
        "00000002720263032f6802027400ffffffff000100100100000009020672616e676502010000",
    ),
    (
        consumer.ConsumerGroupMetadataValue(epoch=4, metadata_hash=77),
        0,
        "000000000004010008000000000000004d",
    ),
    (
        transaction.TransactionLogValue(
            producer_id=1,
            producer_epoch=2,
            transaction_timeout_ms=3,
            transaction_status=4,
            transaction_partitions=None,
            transaction_last_update_timestamp_ms=5,
            transaction_start_timestamp_ms=6,
            client_transaction_version=2,
            next_producer_epoch=8,
        ),
        1,
        "00010000000000000001000200000003040000000000000000050000000000000006020202000203020008",
    ),
]


@pytest.mark.parametrize(("record", "version", "golden"), METADATA_GOLDEN)
def test_metadata_records_are_the_bytes_of_kafka(record: Message, version: int, golden: str) -> None:
    assert metadata.encode_record(record, version).hex() == golden
    assert metadata.RECORDS.decode_versioned(bytes.fromhex(golden)) == (record, version)


@pytest.mark.parametrize(("value", "version", "golden"), VALUE_GOLDEN)
def test_coordinator_values_are_the_bytes_of_kafka(value: Message, version: int, golden: str) -> None:
    records = transaction.RECORDS if isinstance(value, transaction.TransactionLogValue) else group.RECORDS
    key = next(key for key, value_class in records.pairs if isinstance(value, value_class))()
    assert records.encode_value(value, version).hex() == golden
    assert records.decode_value(key, bytes.fromhex(golden)) == value


def test_keys_start_with_their_type() -> None:
    key = group.OffsetCommitKey(group="g", topic="t", partition=1)
    assert group.encode_key(key).hex() == "0001" + "000167" + "000174" + "00000001"
    assert group.decode_key(group.encode_key(key)) == key
    assert group.decode_key(b"\0\0" + group.encode_key(key)[2:]) == group.LegacyOffsetCommitKey(
        group="g", topic="t", partition=1
    )
    assert group.RECORDS.decode(group.encode_key(key), None) == (key, None)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None, database=None)
def test_every_record_survives_a_round_trip_in_every_version(seed: int) -> None:
    rng = random.Random(seed)
    for cls in metadata.RECORDS.classes:
        versions = parse_versions(cls.VERSIONS)
        for version in range(versions.min, versions.max + 1):
            record = random_message(rng, cls, version)
            value = metadata.encode_record(record, version)
            assert metadata.RECORDS.decode_versioned(value) == (record, version)
            with pytest.raises(ProtocolError):
                metadata.decode_record(value[: rng.randrange(len(value))])
    for records in (group.RECORDS, transaction.RECORDS):
        for key_class, value_class in records.pairs:
            key = random_message(rng, key_class, 0)
            versions = parse_versions(value_class.VERSIONS)
            version = rng.randint(versions.min, versions.max)
            value = random_message(rng, value_class, version)
            assert records.decode(records.encode_key(key), records.encode_value(value, version)) == (
                key,
                value,
            )


def test_unknown_and_malformed_records_are_refused() -> None:
    for value in (b"", b"\1", b"\2\2\0", b"\1\x63\0\0", b"\1\2\x09\0", b"\1\2\0\4ab", b"\xff" * 9):
        with pytest.raises(ProtocolError):
            metadata.decode_record(value)
    with pytest.raises(UnknownRecordTypeError):
        group.decode_key(b"\x7f\0\0")
    for key in (b"", b"\0", b"\0\1\0\5a"):
        with pytest.raises(ProtocolError):
            group.decode_key(key)
    with pytest.raises(ProtocolError):
        group.decode_value(group.GroupMetadataKey(group="g"), b"\0\x09")
    with pytest.raises(ValueError, match="no version 9"):
        metadata.encode_record(metadata.NoOpRecord(), 9)


def test_a_record_type_is_registered_once() -> None:
    records = FramedRecords(metadata.NoOpRecord)
    with pytest.raises(ValueError, match="taken"):
        records.register(metadata.NoOpRecord)
    assert latest_version(metadata.RegisterBrokerRecord) == 4


def test_a_later_consumer_protocol_is_read_as_far_as_it_is_known() -> None:
    subscription = group.ConsumerProtocolSubscription(topics=["a", "b"], rack_id=None, generation_id=4)
    data = group.encode_subscription(subscription)
    assert data[:2] == b"\0\3"
    assert group.decode_subscription(data) == subscription
    assert group.decode_subscription(b"\0\x07" + data[2:] + b"more") == subscription
    assignment = group.ConsumerProtocolAssignment(user_data=b"x")
    assert group.decode_assignment(group.encode_assignment(assignment, 0)) == assignment
    for broken in (b"", b"\xff\xff", b"\0\0\0"):
        with pytest.raises(ProtocolError):
            group.decode_assignment(broken)
