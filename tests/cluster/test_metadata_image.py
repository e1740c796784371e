"""Images, deltas and snapshots."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.cluster.errors import MetadataError
from moldau.cluster.image.delta import MetadataDelta, image_of
from moldau.cluster.image.image import EMPTY_IMAGE, MetadataImage, ResourceType
from moldau.cluster.image.image_records import encode_record, to_records
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message

ids = st.integers(1000, 1007).map(lambda number: uuid.UUID(int=number))
names = st.sampled_from(["a", "b.c", "d", "e-f", "g_h"])
starts = st.sampled_from([0, 10, 20, 30])
brokers = st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True).map(tuple)
words = st.text(st.characters(codec="utf-8", exclude_characters="\x00\x01"), max_size=5)


def _partition(topic_id: uuid.UUID, index: int, replicas: tuple[int, ...], owner: int) -> Message:
    return r.PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=replicas,
        isr=replicas[:1],
        leader=replicas[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=[uuid.UUID(int=0)] * len(replicas),
        owner=owner,
    )


records = st.one_of(
    st.builds(r.TopicRecord, name=names, topic_id=ids, kind=st.sampled_from(["", "sharded"])),
    st.builds(_partition, ids, st.integers(0, 3), brokers, st.integers(-1, 2)),
    st.builds(
        r.PartitionChangeRecord,
        partition_id=st.integers(0, 3),
        topic_id=ids,
        isr=st.none() | brokers,
        leader=st.integers(-2, 5),
        leader_recovery_state=st.integers(-1, 1),
        replicas=st.none() | brokers,
        adding_replicas=st.none() | brokers,
        removing_replicas=st.none() | brokers,
        eligible_leader_replicas=st.none() | brokers,
        last_known_elr=st.none() | brokers,
        start_offset=st.integers(-1, 40),
        start_timestamp=st.integers(-1, 40),
    ),
    st.builds(
        r.ChunkRecord,
        partition_id=st.integers(0, 3),
        topic_id=ids,
        start_offset=starts,
        start_timestamp=st.integers(-1, 40),
        stop_offset=st.integers(40, 80),
        end_offset=st.integers(40, 80),
        chunk_epoch=st.integers(0, 3),
        replicas=brokers,
        directories=st.lists(ids, max_size=3),
        isr=brokers,
        adding_replicas=st.just(()) | brokers,
        removing_replicas=st.just(()) | brokers,
        max_timestamp=st.integers(-1, 40),
        size_bytes=st.integers(0, 2**40),
    ),
    st.builds(
        r.ChunkChangeRecord,
        partition_id=st.integers(0, 3),
        topic_id=ids,
        start_offset=starts,
        chunk_epoch=st.integers(0, 9),
        replicas=st.none() | st.just(()) | brokers,
        directories=st.none() | st.lists(ids, max_size=3),
        isr=st.none() | st.just(()) | brokers,
        adding_replicas=st.none() | st.just(()) | brokers,
        removing_replicas=st.none() | st.just(()) | brokers,
    ),
    st.builds(r.RemoveTopicRecord, topic_id=ids),
    st.builds(r.ClearElrRecord, topic_name=st.just("") | names),
    st.builds(
        r.ConfigRecord,
        resource_type=st.sampled_from([2, 4, 16]),
        resource_name=names,
        name=words,
        value=st.none() | words,
    ),
    st.builds(
        r.RegisterBrokerRecord,
        broker_id=st.integers(0, 2),
        broker_epoch=st.integers(0, 2),
        incarnation_id=ids,
        end_points=st.just([r.BrokerEndpoint(name="X", host="h", port=1, security_protocol=0)]),
        features=st.just([r.BrokerFeature(name="f", min_supported_version=0, max_supported_version=3)]),
        rack=st.none() | words,
        fenced=st.booleans(),
        in_controlled_shutdown=st.booleans(),
        log_dirs=st.lists(ids, max_size=2, unique=True),
    ),
    st.builds(
        r.BrokerRegistrationChangeRecord,
        broker_id=st.integers(0, 2),
        broker_epoch=st.integers(0, 2),
        fenced=st.integers(-1, 1),
        in_controlled_shutdown=st.integers(0, 1),
        log_dirs=st.lists(ids, max_size=2, unique=True),
    ),
    st.builds(r.FenceBrokerRecord, id=st.integers(0, 2), epoch=st.integers(0, 2)),
    st.builds(r.UnfenceBrokerRecord, id=st.integers(0, 2), epoch=st.integers(0, 2)),
    st.builds(r.UnregisterBrokerRecord, broker_id=st.integers(0, 2), broker_epoch=st.integers(0, 2)),
    st.builds(r.RegisterControllerRecord, controller_id=st.integers(0, 2), incarnation_id=ids),
    st.builds(r.UnregisterControllerRecord, controller_id=st.integers(0, 2)),
    st.builds(
        r.FeatureLevelRecord,
        name=names | st.just("moldau.chunk.version"),
        feature_level=st.integers(0, 30),
    ),
    st.builds(r.ProducerIdsRecord, next_producer_id=st.integers(0, 2**62)),
    st.builds(
        r.ClientQuotaRecord,
        entity=st.lists(
            st.builds(
                r.EntityData,
                entity_type=st.sampled_from(["user", "client-id"]),
                entity_name=st.none() | words,
            ),
            min_size=1,
            max_size=2,
            unique_by=lambda data: data.entity_type,
        ),
        key=st.sampled_from(["producer_byte_rate", "consumer_byte_rate"]),
        value=st.floats(0, 1e9),
        remove=st.booleans(),
    ),
    st.builds(r.AccessControlEntryRecord, id=ids, principal=words, resource_name=words),
    st.builds(r.RemoveAccessControlEntryRecord, id=ids),
    st.builds(
        r.UserScramCredentialRecord, name=words, mechanism=st.integers(1, 2), salt=st.binary(max_size=3)
    ),
    st.builds(r.RemoveUserScramCredentialRecord, name=words, mechanism=st.integers(1, 2)),
    st.builds(r.DelegationTokenRecord, owner=words, token_id=words),
    st.builds(r.RemoveDelegationTokenRecord, token_id=words),
    st.builds(r.NoOpRecord),
)


def _replay_what_fits(candidates: list[Message]) -> tuple[MetadataImage, list[Message]]:
    """An image of all records that do not contradict an earlier record."""
    image, kept = EMPTY_IMAGE, []
    for record in candidates:
        try:
            image = image_of([record], image)
        except MetadataError:
            continue
        kept.append(record)
    return image, kept


@given(st.lists(records, max_size=60))
def test_a_snapshot_has_the_same_content_as_the_log(candidates: list[Message]) -> None:
    image, kept = _replay_what_fits(candidates)
    snapshot = list(to_records(image))
    again = image_of(snapshot)
    assert again == image
    assert list(to_records(again)) == snapshot
    assert again.topics.owner_load == image.topics.owner_load
    # The result is the same with one delta for all records and with one delta for each record.
    assert image_of(kept) == image
    for topic in image.topics:
        assert image.topics.get_by_id(topic.topic_id) is topic
        assert image.topics.colliding_name(topic.name) is not None


@given(st.lists(records, max_size=30))
def test_snapshots_are_unchanged_after_encoding_and_decoding(candidates: list[Message]) -> None:
    image, _ = _replay_what_fits(candidates)
    values = [encode_record(record, 29) for record in to_records(image)]
    assert image_of(r.RECORDS.decode(value) for value in values) == image


def _topic(name: str, number: int, partitions: int = 1) -> list[Message]:
    topic_id = uuid.UUID(int=number)
    return [
        r.TopicRecord(name=name, topic_id=topic_id),
        *(_partition(topic_id, index, (1, 2), -1) for index in range(partitions)),
    ]


def test_changing_a_topic_shares_the_others() -> None:
    everything = [record for number in range(2_000) for record in _topic(f"t{number}", number + 1000)]
    before = image_of(everything)
    change = r.PartitionChangeRecord(partition_id=0, topic_id=uuid.UUID(int=1500), leader=2)
    after = image_of([change], before)
    same = sum(mine is theirs for mine, theirs in zip(before.topics, after.topics, strict=True))
    assert same == 1_999
    assert after.brokers is before.brokers
    partition = after.topics.partition(uuid.UUID(int=1500), 0)
    assert partition is not None
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (2, 1, 1)


def test_deleting_a_topic_takes_its_configs_along() -> None:
    config = r.ConfigRecord(resource_type=2, resource_name="a", name="k", value="v")
    image = image_of([*_topic("a", 1000), config])
    assert image.config(ResourceType.TOPIC, "a") == {"k": "v"}
    image = image_of([r.RemoveTopicRecord(topic_id=uuid.UUID(int=1000))], image)
    assert image == EMPTY_IMAGE


def test_a_topic_name_can_be_deleted_and_created_in_one_delta() -> None:
    before = image_of(_topic("a.b", 1000))
    delta = MetadataDelta(before)
    delta.replay(r.RemoveTopicRecord(topic_id=uuid.UUID(int=1000)))
    delta.replay_all(_topic("a_b", 1001))
    after = delta.apply()
    assert [topic.name for topic in after.topics] == ["a_b"]
    assert after.topics.colliding_name("a.b") == "a_b"
    assert [topic.name for topic in delta.topics.removed.values()] == ["a.b"]


@pytest.mark.parametrize(
    "record",
    [
        r.PartitionRecord(partition_id=0, topic_id=uuid.UUID(int=7)),
        r.RemoveTopicRecord(topic_id=uuid.UUID(int=7)),
        r.PartitionChangeRecord(partition_id=5, topic_id=uuid.UUID(int=1000)),
        r.ChunkRecord(partition_id=5, topic_id=uuid.UUID(int=1000)),
        r.ChunkChangeRecord(partition_id=0, topic_id=uuid.UUID(int=1000), start_offset=7),
        r.TopicRecord(name="a", topic_id=uuid.UUID(int=1001)),
        r.TopicRecord(name="b", topic_id=uuid.UUID(int=1000)),
        r.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1),
    ],
)
def test_a_record_that_contradicts_the_image_stops_the_replay(record: Message) -> None:
    with pytest.raises(MetadataError):
        image_of([record], image_of(_topic("a", 1000)))


def test_record_versions_follow_the_metadata_version() -> None:
    register = r.RegisterBrokerRecord(broker_id=1)
    assert encode_record(register, 29)[:3] == bytes([1, 0, 3])
    assert encode_record(register, 30)[:3] == bytes([1, 0, 4])
    assert encode_record(r.PartitionRecord(), 22)[:3] == bytes([1, 3, 1])
