"""Each metadata record reaches the image, and each part of the image reaches snapshots and subscribers.

A part of the image is one row (``cluster/image/parts/``). The tests check all rows, all fields of the image
and all types of records, so that a missing row, field or type of record causes an error.
"""

import dataclasses
import importlib
import pkgutil
import uuid

import pytest

from moldau.cluster.image import parts
from moldau.cluster.image.changes import Changes
from moldau.cluster.image.delta import MetadataDelta, delta_between, image_of
from moldau.cluster.image.image import EMPTY_IMAGE, MetadataImage
from moldau.cluster.image.image_records import (
    encode_record,
    records_after_topics,
    records_before_topics,
    to_records,
)
from moldau.cluster.image.parts.configs import CONFIGS, config_records
from moldau.cluster.image.parts.part import ImagePart, OwnPart
from moldau.cluster.image.parts.table import NO_PARTS, PARTS, WITHOUT_STATE, PartTable
from moldau.cluster.image.parts.topics import TOPICS, topic_records
from moldau.cluster.image.persistent_map import PersistentMap
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message

LATEST_LEVEL = 30
TOPIC_ID = uuid.UUID(int=5)
PARTITION = r.PartitionRecord(
    partition_id=0,
    topic_id=TOPIC_ID,
    replicas=[1],
    isr=[1],
    leader=1,
    leader_epoch=3,
    partition_epoch=4,
    eligible_leader_replicas=[7],
)
CHUNK = r.ChunkRecord(partition_id=0, topic_id=TOPIC_ID, start_offset=3, end_offset=9, replicas=[1])
TOPIC = [r.TopicRecord(name="t", topic_id=TOPIC_ID), PARTITION]
BROKER = r.RegisterBrokerRecord(broker_id=1, broker_epoch=2, fenced=False)
FENCED = r.RegisterBrokerRecord(broker_id=1, broker_epoch=2, fenced=True)
CONTROLLER = r.RegisterControllerRecord(controller_id=1)
ACL = r.AccessControlEntryRecord(id=uuid.UUID(int=8), principal="User:a")
SCRAM = r.UserScramCredentialRecord(name="a", mechanism=1)
TOKEN = r.DelegationTokenRecord(token_id="a")
QUOTA = r.ClientQuotaRecord(entity=[r.EntityData(entity_type="user", entity_name="a")], key="k", value=1.0)

CASES: dict[type[Message], tuple[list[Message], Message]] = {
    r.TopicRecord: ([], TOPIC[0]),
    r.RemoveTopicRecord: (TOPIC, r.RemoveTopicRecord(topic_id=TOPIC_ID)),
    r.PartitionRecord: (TOPIC[:1], PARTITION),
    r.PartitionChangeRecord: (TOPIC, r.PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, leader=-1)),
    r.ClearElrRecord: (TOPIC, r.ClearElrRecord()),
    r.ChunkRecord: (TOPIC, CHUNK),
    r.ChunkChangeRecord: (
        [*TOPIC, CHUNK],
        r.ChunkChangeRecord(partition_id=0, topic_id=TOPIC_ID, start_offset=3, replicas=[]),
    ),
    r.ConfigRecord: ([], r.ConfigRecord(resource_type=2, resource_name="t", name="k", value="v")),
    r.RegisterBrokerRecord: ([], BROKER),
    r.UnregisterBrokerRecord: ([BROKER], r.UnregisterBrokerRecord(broker_id=1, broker_epoch=2)),
    r.BrokerRegistrationChangeRecord: (
        [BROKER],
        r.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=2, fenced=1),
    ),
    r.FenceBrokerRecord: ([BROKER], r.FenceBrokerRecord(id=1, epoch=2)),
    r.UnfenceBrokerRecord: ([FENCED], r.UnfenceBrokerRecord(id=1, epoch=2)),
    r.RegisterControllerRecord: ([], CONTROLLER),
    r.UnregisterControllerRecord: ([CONTROLLER], r.UnregisterControllerRecord(controller_id=1)),
    r.FeatureLevelRecord: ([], r.FeatureLevelRecord(name="f", feature_level=1)),
    r.ProducerIdsRecord: ([], r.ProducerIdsRecord(next_producer_id=1000)),
    r.ClientQuotaRecord: ([], QUOTA),
    r.AccessControlEntryRecord: ([], ACL),
    r.RemoveAccessControlEntryRecord: ([ACL], r.RemoveAccessControlEntryRecord(id=ACL.id)),
    r.UserScramCredentialRecord: ([], SCRAM),
    r.RemoveUserScramCredentialRecord: ([SCRAM], r.RemoveUserScramCredentialRecord(name="a", mechanism=1)),
    r.DelegationTokenRecord: ([], TOKEN),
    r.RemoveDelegationTokenRecord: ([TOKEN], r.RemoveDelegationTokenRecord(token_id="a")),
}
"""For each type of record: the records that must come before it, and a record of this type that changes the
image."""


def test_every_type_of_record_is_replayed_and_checked() -> None:
    classes = set(r.RECORDS.classes)
    assert classes == set(PARTS.replays) | WITHOUT_STATE
    assert classes - WITHOUT_STATE == set(CASES), "add an example of the new record"


def test_every_declared_part_has_a_row() -> None:
    """Without a row for the part, its records would never be replayed."""
    missing = [
        f"{name} of {each.name}"
        for each in pkgutil.iter_modules(parts.__path__)
        for name, value in vars(importlib.import_module(f"{parts.__name__}.{each.name}")).items()
        if isinstance(value, ImagePart) and not any(value is part for part in PARTS.parts)
    ]
    assert not missing, f"add {missing} to PARTS (cluster/image/parts/table.py)"


def test_every_field_of_the_image_is_a_part_that_some_record_changes() -> None:
    names = {field.name for field in dataclasses.fields(MetadataImage)} - NO_PARTS
    assert names == {part.name for part in PARTS.parts if not isinstance(part, OwnPart)}
    assert {part.name for part in PARTS.parts} == {PARTS.replays[cls][0].name for cls in CASES}


@pytest.mark.parametrize("cls", CASES, ids=lambda cls: cls.__name__)
def test_a_change_survives_the_log_and_a_snapshot_and_reaches_subscribers(cls: type[Message]) -> None:
    before_it, record = CASES[cls]
    before = image_of(before_it)
    decoded = r.RECORDS.decode(encode_record(record, LATEST_LEVEL))
    after = image_of([decoded], before)
    part = PARTS.replays[cls][0]
    assert part.of(after) != part.of(before), "the record changes its part"
    assert [other.name for other in PARTS.parts if other.of(after) != other.of(before)] == [part.name]

    restored = image_of(r.RECORDS.decode(encode_record(each, LATEST_LEVEL)) for each in to_records(after))
    assert restored == after
    assert part.of(restored) == part.of(after)
    for earlier, later in ((before, after), (EMPTY_IMAGE, after), (after, EMPTY_IMAGE)):
        delta = delta_between(earlier, later)
        assert part.of(delta.apply()) == part.of(later)
        assert delta.apply() == later
    assert _entries(delta_between(before, after), part) == _entries(
        MetadataDelta(before).replay_all([record]), part
    )


def _entries(delta: MetadataDelta, part: ImagePart) -> object:
    """Return the changes of a part as a subscriber gets them."""
    changes = delta.changes(part)
    if part is TOPICS:
        return [*changes.changed], [*changes.removed]
    return changes.entries if isinstance(changes, Changes) else changes.value


def test_the_backup_saves_every_part() -> None:
    image = image_of([record for before, after in CASES.values() if not before for record in [after]])
    image = image_of([PARTITION, CHUNK], image)
    assert [part.name for part in PARTS.parts if not any(part.to_records(part.of(image)))] == []
    topics = [record for topic in image.topics for record in topic_records(topic)]
    saved = [
        *records_before_topics(image),
        *topics,
        *config_records(image.configs),
        *records_after_topics(image),
    ]
    assert saved == list(to_records(image))


def test_a_field_without_a_row_is_named() -> None:
    with pytest.raises(ValueError, match=r"add a row for \['configs'\] of MetadataImage"):
        PartTable(*(part for part in PARTS.parts if part is not CONFIGS))


def test_a_record_without_a_part_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class LostRecord(Message):
        API_KEY, VERSIONS, FLEXIBLE = 11_900, "0", "0+"

    monkeypatch.setattr(r.RECORDS, "_classes", {**r.RECORDS._classes, 11_900: LostRecord})
    with pytest.raises(ValueError, match="no part of the image replays LostRecord"):
        PartTable(*PARTS.parts)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        (
            {"features": {}},
            "ChunkRecord of topics: records of Moldau have a number from 11000 on and a feature",
        ),
        ({"versions": {r.NoOpRecord: ((0, 0),)}}, "topics names a record that it does not replay"),
        ({"effects": {r.NoOpRecord: lambda delta, record: None}}, "topics names a record that it"),
        ({"name": "configs"}, "two parts of the image have one name"),
    ],
)
def test_an_incomplete_row_is_refused(changed: dict[str, object], error: str) -> None:
    other = dataclasses.replace(TOPICS, **changed)
    with pytest.raises(ValueError, match=error):
        PartTable(*(other if part is TOPICS else part for part in PARTS.parts))


def test_a_record_belongs_to_one_part() -> None:
    other = dataclasses.replace(CONFIGS, records={**CONFIGS.records, r.FeatureLevelRecord: print})
    with pytest.raises(ValueError, match="FeatureLevelRecord belongs to configs and features"):
        PartTable(*(other if part is CONFIGS else part for part in PARTS.parts))


def test_parts_that_did_not_change_are_the_same_objects() -> None:
    before = image_of([BROKER, *TOPIC])
    after = image_of([r.ConfigRecord(resource_type=2, resource_name="t", name="k", value="v")], before)
    assert after.topics is before.topics
    assert after.brokers is before.brokers
    assert isinstance(after.configs, PersistentMap)
