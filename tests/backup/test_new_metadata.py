"""The metadata of a cluster, rewritten for the new nodes of a restore."""

import uuid
from collections.abc import Sequence

import pytest

from moldau.backup.restore.metadata import (
    EPOCH_MARGIN,
    NEVER_SAVED,
    OFFSET_MARGIN,
    PRODUCER_ID_MARGIN,
    RULES,
    NewGeneration,
    new_metadata,
    new_position,
)
from moldau.backup.restore.placement import NewBroker
from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image import MetadataImage, ResourceType
from moldau.cluster.image.log_generations import LogGenerations
from moldau.cluster.image.parts.table import PARTS
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message
from moldau.runtime import KafkaError

NODE = NewBroker(9, uuid.UUID(int=900))
COORDINATORS, ORDERS, CLASSIC = uuid.UUID(int=1), uuid.UUID(int=2), uuid.UUID(int=3)
TOPIC, BROKER = int(ResourceType.TOPIC), int(ResourceType.BROKER)


def _partition(topic_id: uuid.UUID, **fields: object) -> r.PartitionRecord:
    return r.PartitionRecord(
        partition_id=0,
        topic_id=topic_id,
        replicas=[1, 2, 3],
        isr=[2, 3],
        leader=2,
        leader_epoch=7,
        partition_epoch=11,
        **fields,  # type: ignore[arg-type]
    )


def _config(kind: int, name: str, key: str, value: str) -> r.ConfigRecord:
    return r.ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)


CHUNK = r.ChunkRecord(
    topic_id=CLASSIC,
    partition_id=0,
    start_offset=0,
    stop_offset=69,
    end_offset=69,
    chunk_epoch=3,
    replicas=[2],
    directories=[uuid.UUID(int=902)],
    isr=[2],
)
OLD: list[Message] = [
    r.FeatureLevelRecord(name="metadata.version", feature_level=26),
    r.RegisterBrokerRecord(broker_id=2, broker_epoch=50),
    r.TopicRecord(name=DISKLESS_METADATA_TOPIC, topic_id=COORDINATORS),
    _partition(COORDINATORS),
    r.TopicRecord(name="orders", topic_id=ORDERS),
    _partition(ORDERS, owner=0, generation_starts=[5]),
    r.TopicRecord(name="classic", topic_id=CLASSIC),
    _partition(CLASSIC, start_offset=70, start_timestamp=7_000),
    CHUNK,
    _config(TOPIC, DISKLESS_METADATA_TOPIC, "min.insync.replicas", "2"),
    _config(TOPIC, "classic", "min.insync.replicas", "2"),
    _config(BROKER, "2", "leader.replication.throttled.rate", "9"),
    _config(BROKER, "", "log.retention.ms", "9"),
    r.ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=4_000),
]


def _new(seen: int = -1, restores: int = 1, brokers: Sequence[NewBroker] = (NODE,)) -> MetadataImage:
    generation = NewGeneration(3, {PartitionKey(COORDINATORS, 0): 80, PartitionKey(ORDERS, 0): 40}, restores)
    return MetadataDelta().replay_all(new_metadata(OLD, brokers, generation, seen)).apply()


def test_the_node_has_every_replica_and_leads_when_it_is_registered() -> None:
    image = _new()
    assert not list(image.brokers)
    for topic_id in (COORDINATORS, ORDERS, CLASSIC):
        found = image.topics.partition(topic_id, 0)
        assert found is not None
        assert (found.replicas, found.isr, found.leader) == ((9,), (9,), -1)
        assert found.directories == (NODE.directory_id,)
        assert found.leader_epoch == 7 + EPOCH_MARGIN
        assert found.partition_epoch == 11 + EPOCH_MARGIN


def test_generations_begin_where_the_cut_ends_and_unfinished_restores_have_no_records() -> None:
    topics = _new().topics
    orders, log = topics.partition(ORDERS, 0), topics.partition(COORDINATORS, 0)
    classic = topics.partition(CLASSIC, 0)
    assert orders is not None
    assert log is not None
    assert classic is not None
    assert orders.generations == LogGenerations((5, 40, 40))
    assert log.generations == LogGenerations((80, 80, 80))
    assert classic.generations == LogGenerations()


def test_replicas_stay_on_brokers_that_exist_again() -> None:
    brokers = [NewBroker(node_id, uuid.UUID(int=900 + node_id)) for node_id in (2, 3, 4)]
    image = _new(brokers=brokers)
    found = image.topics.partition(ORDERS, 0)
    assert found is not None
    assert found.replicas == found.isr == (4, 2, 3)
    assert found.directories == tuple(uuid.UUID(int=each) for each in (904, 902, 903))
    assert image.config(ResourceType.TOPIC, DISKLESS_METADATA_TOPIC) == {"min.insync.replicas": "2"}
    assert image.config(ResourceType.BROKER, "2") == {"leader.replication.throttled.rate": "9"}


def test_one_replica_is_enough_for_the_logs_of_coordinators() -> None:
    image = _new()
    assert image.config(ResourceType.TOPIC, DISKLESS_METADATA_TOPIC) == {"min.insync.replicas": "1"}
    assert image.config(ResourceType.TOPIC, "classic") == {"min.insync.replicas": "2"}


def test_configs_of_old_nodes_are_left_out() -> None:
    image = _new()
    assert not image.config(ResourceType.BROKER, "2")
    assert image.config(ResourceType.BROKER, "") == {"log.retention.ms": "9"}


def test_new_producer_ids_are_higher_than_all_earlier_ids() -> None:
    assert _new().next_producer_id == 4_000 + PRODUCER_ID_MARGIN
    assert _new(seen=77_000).next_producer_id == 77_001 + PRODUCER_ID_MARGIN


def test_producer_ids_begin_above_ids_that_were_allocated_after_the_save() -> None:
    """The first producer of the cluster may have got its id after the save, and its client may still run."""
    old = [each for each in OLD if not isinstance(each, r.ProducerIdsRecord)]
    generation = NewGeneration(1, {}, restores=2)
    image = MetadataDelta().replay_all(new_metadata(old, (NODE,), generation, -1)).apply()
    assert image.next_producer_id == 2 * PRODUCER_ID_MARGIN


def test_another_restore_of_the_same_state_gives_out_other_numbers() -> None:
    first, second = _new(restores=1), _new(restores=2)
    assert second.next_producer_id == first.next_producer_id + PRODUCER_ID_MARGIN
    found = second.topics.partition(ORDERS, 0)
    assert found is not None
    assert found.leader_epoch == 7 + 2 * EPOCH_MARGIN
    assert new_position(10, 3, 2) == (10 + 2 * OFFSET_MARGIN, 3 + 2 * EPOCH_MARGIN)


def test_a_chunk_is_lost_with_the_disks_of_its_brokers() -> None:
    """Broker 2 exists again, but its disks are empty."""
    for brokers in ([NODE], [NewBroker(2, uuid.UUID(int=2))]):
        found = _new(brokers=brokers).topics.partition(CLASSIC, 0)
        assert found is not None
        assert found.chunks == ()
        assert (found.start_offset, found.start_timestamp_ms) == (70, 7_000)


def test_every_record_of_the_image_has_a_rule() -> None:
    """A record without a rule could name brokers, log directories or epochs of the old cluster."""
    assert not RULES.keys() & NEVER_SAVED
    unlisted = [cls.__name__ for cls in PARTS.replays.keys() - RULES.keys() - NEVER_SAVED]
    assert not unlisted, f"add {unlisted} to RULES or NEVER_SAVED (backup/restore/metadata.py)"
    assert RULES.keys() | NEVER_SAVED == PARTS.replays.keys()


def test_a_record_without_a_rule_ends_the_restore() -> None:
    records = [*OLD, r.UnregisterBrokerRecord(broker_id=2, broker_epoch=50)]
    with pytest.raises(KafkaError, match="have a UnregisterBrokerRecord, and no rule"):
        list(new_metadata(records, [NODE], NewGeneration(3, {}), -1))
