"""A partition that leaves a broker while its log moves between log folders, or becomes a chunk."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.topics_image import Topic, TopicsImage
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.server.subsystems.partitions.hosting import PartitionHosting

NAME, KEY = TopicPartition("t", 0), PartitionKey(UUID(int=1), 0)


def topic(replica: int) -> Topic:
    registration = PartitionRegistration(
        replicas=(replica,),
        isr=(replica,),
        leader=replica,
        leader_epoch=0,
        partition_epoch=0,
        directories=(UUID(int=100),),
    )
    return Topic(NAME.topic, KEY.topic_id, (registration,))


@pytest.mark.parametrize("is_exchanged", [False, True], ids=["moved", "exchanged"])
@pytest.mark.parametrize(("is_retired", "is_removed"), [(True, False), (False, False), (True, True)])
def test_the_kind_decides_on_the_log_of_a_partition_that_has_left_the_broker(
    is_retired: bool, is_removed: bool, is_exchanged: bool
) -> None:
    """When a partition leaves the broker, its log may have become the log of a chunk. Then the log must not
    be deleted. If the topic was deleted, the log must be deleted in any case.

    The partition leaves while its log moves to another folder, or when a chunk has just ended and the
    exchange of the log has not begun yet.
    """
    must_exchange = False
    retired: list[Topic] = []
    deleted: list[TopicPartition] = []

    def retire(topic: Topic, index: int) -> bool:
        retired.append(topic)
        return is_retired

    partition = SimpleNamespace(topic=NAME.topic, key=KEY, leader_epoch=0)
    kind = SimpleNamespace(
        open=lambda topic, index: partition,
        apply_role=lambda partition, topic, applied: None,
        close=lambda partition, reason: None,
        must_exchange=lambda topic, index: must_exchange,
        may_suspend=lambda partition: True,
        retire=retire,
    )
    logs = SimpleNamespace(
        directories=(),
        lacks=lambda name, topic_id: False,
        home_of=lambda name: None,
        delete=deleted.append,
    )
    registry = SimpleNamespace(
        offline={}, add=lambda partition: None, remove=lambda key: None, get=lambda name, index: partition
    )
    listener = SimpleNamespace(no_longer_leads=lambda *replica: None)
    here, elsewhere = topic(1), topic(2)

    async def move() -> None:
        hosting = PartitionHosting(
            1, cast(Any, registry), lambda topic: cast(Any, kind), cast(Any, listener), cast(Any, logs)
        )
        hosting.apply(MetadataImage(topics=TopicsImage().updated([here], [])), ["t"], [])
        if is_exchanged:
            nonlocal must_exchange
            must_exchange = True
            hosting.apply(MetadataImage(topics=TopicsImage().updated([topic(1)], [])), ["t"], [])
        else:
            assert hosting.suspend(NAME) == KEY
        if is_removed:
            hosting.apply(MetadataImage(), [], [here])
        else:
            hosting.apply(MetadataImage(topics=TopicsImage().updated([elsewhere], [])), ["t"], [])
        if not is_exchanged:
            hosting.resume(KEY)
        hosting.freeze()

    asyncio.run(move())
    assert retired == ([] if is_removed else [elsewhere])
    assert deleted == ([] if is_retired and not is_removed else [NAME])
