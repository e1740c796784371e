"""The image in the object store. A test builds the same image from the object again. When the image changes,
only changed parts are encoded again."""

import asyncio
from uuid import UUID

import pytest

from moldau.backup import image_object
from moldau.backup.image_object import ImageEncoder, decode_image
from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.image_records import encode_record, to_records
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message

VERSION = 26
SIZES = {"big": 2_500, **{f"topic-{number}": 3 for number in range(400)}}


def partition(topic: int, index: int, leader: int = 1) -> Message:
    return r.PartitionRecord(
        partition_id=index,
        topic_id=UUID(int=topic + 1),
        replicas=[1, 2],
        isr=[1, 2],
        leader=leader,
        leader_epoch=4,
        partition_epoch=0,
    )


@pytest.fixture(scope="module")
def image() -> MetadataImage:
    records: list[Message] = [r.FeatureLevelRecord(name="metadata.version", feature_level=VERSION)]
    for topic, (name, count) in enumerate(SIZES.items()):
        records.append(r.TopicRecord(name=name, topic_id=UUID(int=topic + 1)))
        records += [partition(topic, index) for index in range(count)]
        records.append(
            r.ConfigRecord(resource_type=2, resource_name=name, name="retention.ms", value=str(topic))
        )
    records.append(r.ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=77))
    return MetadataDelta().replay_all(records).apply()


def changed(image: MetadataImage, *records: Message) -> MetadataImage:
    return MetadataDelta(image).replay_all(records).apply()


def read(content: bytes) -> MetadataImage:
    return MetadataDelta().replay_all(decode_image(memoryview(content))).apply()


def test_the_object_builds_the_image_after_each_change(image: MetadataImage) -> None:
    encoder = ImageEncoder()
    assert asyncio.run(encoder.encode(image)) == asyncio.run(ImageEncoder().encode(image))
    assert list(decode_image(memoryview(asyncio.run(encoder.encode(image))))) == list(to_records(image))
    for records in (
        [partition(5, 1, leader=2)],
        [partition(0, 1_700, leader=2)],
        [r.RemoveTopicRecord(topic_id=UUID(int=9))],
        [r.ConfigRecord(resource_type=2, resource_name="topic-7", name="retention.ms", value="1")],
        [r.TopicRecord(name="new", topic_id=UUID(int=5_000))],
        [r.FeatureLevelRecord(name="metadata.version", feature_level=VERSION + 1)],
    ):
        image = changed(image, *records)
        assert read(asyncio.run(encoder.encode(image))) == image


def test_only_changes_are_encoded_again(image: MetadataImage, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = 0

    def counting(record: Message, version: int) -> bytes:
        nonlocal encoded
        encoded += 1
        return encode_record(record, version)

    monkeypatch.setattr(image_object, "encode_record", counting)
    encoder = ImageEncoder()
    asyncio.run(encoder.encode(image))
    assert encoded == len(list(to_records(image)))
    encoded = 0
    asyncio.run(encoder.encode(changed(image, partition(5, 1, leader=2))))
    assert 0 < encoded < 600  # only the group of small topics with this topic is encoded
    encoded = 0
    asyncio.run(encoder.encode(changed(image, partition(0, 1_700, leader=2))))
    assert 0 < encoded < 1_700  # a part of the big topic and the changed group are encoded
