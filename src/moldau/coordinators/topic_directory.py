"""The topics of the current metadata image, as coordinators need them."""

from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from moldau.cluster.image.image import MetadataImage


class TopicDirectory(Protocol):
    """The topics of the cluster in this node's current metadata image."""

    def topic_name(self, topic_id: UUID) -> str | None:
        """Return the name of a topic, or ``None`` when the topic does not exist."""
        ...

    def topic_id(self, name: str) -> UUID | None:
        """Return the id of a topic, or ``None`` when the topic does not exist."""
        ...

    def partition_count(self, name: str) -> int:
        """Number of partitions; 0 when the topic does not exist."""
        ...


class ImageTopicDirectory:
    """Implements :class:`TopicDirectory` with the current metadata image."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image

    def topic_name(self, topic_id: UUID) -> str | None:
        return self._image().topic_name(topic_id)

    def topic_id(self, name: str) -> UUID | None:
        topic = self._image().topics.get(name)
        return None if topic is None else topic.topic_id

    def partition_count(self, name: str) -> int:
        topic = self._image().topics.get(name)
        return 0 if topic is None else len(topic.partitions)
