"""An internal topic cannot be deleted if it contains the positions of existing records."""

import uuid

import pytest

from moldau.cluster.decisions.kinds.table import check_removal
from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image import MetadataImage, ResourceType
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC, REMOTE_LOG_METADATA_TOPIC
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message
from moldau.runtime import KafkaError

INTERNAL = (DISKLESS_METADATA_TOPIC, REMOTE_LOG_METADATA_TOPIC)


def _image(*, coordinator: int = -1, configs: dict[str, str] | None = None) -> MetadataImage:
    """Make an image with the internal topics and a topic ``orders``, which may have an owner and configs."""
    records: list[Message] = []
    for number, name in enumerate((*INTERNAL, "orders"), 1):
        topic_id = uuid.UUID(int=number)
        owner = coordinator if name == "orders" else -1
        records += [
            r.TopicRecord(name=name, topic_id=topic_id),
            r.PartitionRecord(
                partition_id=0, topic_id=topic_id, replicas=[1], isr=[1], leader=1, owner=owner
            ),
        ]
    for key, value in (configs or {}).items():
        kind = int(ResourceType.TOPIC)
        records.append(r.ConfigRecord(resource_type=kind, resource_name="orders", name=key, value=value))
    return MetadataDelta().replay_all(records).apply()


def _removable(image: MetadataImage) -> list[str]:
    found = []
    for name in INTERNAL:
        topic = image.topics.get(name)
        assert topic is not None
        try:
            check_removal(image, topic)
        except KafkaError:
            continue
        found.append(name)
    return found


@pytest.mark.parametrize(
    ("image", "removable"),
    [
        (_image(), list(INTERNAL)),
        (_image(configs={"remote.storage.enable": "false"}), list(INTERNAL)),
        (_image(configs={"remote.storage.enable": "true"}), [DISKLESS_METADATA_TOPIC]),
        (_image(coordinator=0), []),
    ],
    ids=["classic", "tier off", "tiered", "diskless"],
)
def test_topics_that_may_be_deleted(image: MetadataImage, removable: list[str]) -> None:
    assert _removable(image) == removable
