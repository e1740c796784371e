"""The order in which a broker opens and closes partitions. The image of the tests contains very large
topics."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.topics_image import Topic, TopicsImage
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC, REMOTE_LOG_METADATA_TOPIC
from moldau.server.subsystems.partitions.hosting import PartitionHosting


def topic(number: int, name: str, partitions: int) -> Topic:
    replica = PartitionRegistration(
        replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0, directories=(UUID(int=100),)
    )
    return Topic(name, UUID(int=number), (replica,) * partitions)


def test_coordinators_and_small_topics_do_not_wait_for_a_large_topic() -> None:
    followed: list[str] = []

    def open_one(topic: Topic, index: int) -> Any:
        followed.append(f"{topic.name}-{index}")
        return SimpleNamespace(topic=topic.name)

    kind = SimpleNamespace(
        open=open_one,
        apply_role=lambda partition, topic, applied: None,
        must_exchange=lambda topic, index: False,
    )
    logs = SimpleNamespace(directories=(), lacks=lambda name, topic_id: False, home_of=lambda name: None)
    registry = SimpleNamespace(offline={}, add=lambda partition: None)
    topics = [
        topic(1, "a-large-one", 1_000),
        topic(2, "a-small-one", 1),
        topic(3, REMOTE_LOG_METADATA_TOPIC, 4),
        topic(4, DISKLESS_METADATA_TOPIC, 2),
    ]
    image = MetadataImage(topics=TopicsImage().updated(topics, []))

    async def follow() -> None:
        hosting = PartitionHosting(
            1, cast(Any, registry), lambda topic: cast(Any, kind), cast(Any, None), cast(Any, logs)
        )
        hosting.apply(image, [each.name for each in topics], [])
        hosting.freeze()

    asyncio.run(follow())
    state = [
        *(f"__diskless_metadata-{n}" for n in range(2)),
        *(f"__remote_log_metadata-{n}" for n in range(4)),
    ]
    assert followed[:8] == [*state, "a-small-one-0", "a-large-one-0"]
