"""A snapshot of the metadata contains each field of a partition."""

import dataclasses
import uuid
from typing import Any

import pytest

from moldau.cluster.image.delta import image_of
from moldau.cluster.image.image_records import encode_record, to_records
from moldau.cluster.image.log_generations import LogGenerations
from moldau.cluster.image.partition import LeaderRecoveryState, PartitionRegistration
from moldau.protocol.records import metadata as r

LATEST_LEVEL = 30
TOPIC_ID = uuid.UUID(int=5)
PLAIN = r.PartitionRecord(
    partition_id=0, topic_id=TOPIC_ID, replicas=[1], isr=[1], leader=1, leader_epoch=3, partition_epoch=4
)
FIELDS: dict[str, tuple[dict[str, Any], Any]] = {
    "replicas": ({"replicas": [1, 2]}, (1, 2)),
    "isr": ({"isr": [2]}, (2,)),
    "leader": ({"leader": 7}, 7),
    "leader_epoch": ({"leader_epoch": 8}, 8),
    "partition_epoch": ({"partition_epoch": 9}, 9),
    "leader_recovery_state": ({"leader_recovery_state": 1}, LeaderRecoveryState.RECOVERING),
    "directories": ({"directories": [uuid.UUID(int=700)]}, (uuid.UUID(int=700),)),
    "removing_replicas": ({"removing_replicas": [1]}, (1,)),
    "adding_replicas": ({"adding_replicas": [1]}, (1,)),
    "eligible_leader_replicas": ({"eligible_leader_replicas": [3]}, (3,)),
    "last_known_eligible_leader_replicas": ({"last_known_elr": [4]}, (4,)),
    "generations": ({"owner": 0, "generation_starts": [7]}, LogGenerations((7,))),
    "owner": ({"owner": 2}, 2),
    "start_offset": ({"start_offset": 40}, 40),
    "start_timestamp_ms": ({"start_offset": 40, "start_timestamp": 5}, 5),
}
"""Fields of the partition's record, each with the value that the image's partition must have."""
OF_OTHER_RECORDS = {"chunks"}


def test_every_field_is_checked() -> None:
    names = {field.name for field in dataclasses.fields(PartitionRegistration)}
    assert names == set(FIELDS) | OF_OTHER_RECORDS, "add a new field here: a snapshot must not lose it"


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_survives_a_snapshot(name: str) -> None:
    given, value = FIELDS[name]
    image = image_of([r.TopicRecord(name="t", topic_id=TOPIC_ID), dataclasses.replace(PLAIN, **given)])
    plain = image_of([r.TopicRecord(name="t", topic_id=TOPIC_ID), PLAIN]).topics.partition(TOPIC_ID, 0)
    assert getattr(plain, name) != value, "the value must not be the usual one"
    again = image_of(r.RECORDS.decode(encode_record(each, LATEST_LEVEL)) for each in to_records(image))
    assert getattr(again.topics.partition(TOPIC_ID, 0), name) == value
