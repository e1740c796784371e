"""The changed topics that the hosting of partitions applies, their order, and the partitions that wait for
their logs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.partition import NO_LEADER
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import STATE_TOPICS
from moldau.protocol.partitions import PartitionKey

_MANY_PARTITIONS: Final = 400
"""If there are more partitions than this number, many iterations of the event loop are needed to apply the
topics. The order of the topics then matters."""


@dataclass(slots=True)
class TopicChange:
    """A topic whose partitions are reconciled with the metadata. This happens partition by partition."""

    topic: Topic
    is_removed: bool
    next_index: int = 0


def in_order(image: MetadataImage, names: Iterable[str]) -> list[Topic]:
    """The topics with these names. If they have many partitions in total, internal topics come first, because
    clients of the other topics need the coordinators that use internal topics. Then small topics come before
    large topics."""
    topics = (image.topics.get(name) for name in names)
    found = [topic for topic in topics if topic is not None]
    if sum(len(topic.partitions) for topic in found) < _MANY_PARTITIONS:
        return found
    return sorted(found, key=lambda topic: (topic.name not in STATE_TOPICS, len(topic.partitions)))


def without_leader(topic: Topic, leader: int) -> Topic:
    """Return a copy of the topic. In the copy, the broker ``leader`` leads no partition."""
    return replace(
        topic,
        partitions=tuple(
            replace(each, leader=NO_LEADER) if each.leader == leader else each for each in topic.partitions
        ),
    )


@dataclass(slots=True)
class NewPartition:
    """A partition that cannot be opened yet, because its log must be created first."""

    topic: Topic
    """The topic of the partition in the newest metadata."""
    is_being_made: bool = False
    is_exchanged: bool = False
    """Whether the partition's log is being exchanged for a copy in another folder."""
    has_left: bool = False
    """Whether the partition has left this broker while its log was being created."""


def creatable(new: Mapping[PartitionKey, NewPartition]) -> dict[PartitionKey, NewPartition]:
    """Return the partitions whose logs can be created now.

    A topic may have been deleted during an exchange, and another topic may already have its name. The folders
    of the two topics have the same names. Therefore the new topic waits for the end of the exchange.
    """
    exchanged = {(each.topic.name, key.partition) for key, each in new.items() if each.is_exchanged}
    return {
        key: each
        for key, each in new.items()
        if not each.is_being_made and (each.topic.name, key.partition) not in exchanged
    }
