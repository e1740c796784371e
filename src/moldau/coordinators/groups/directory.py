"""Access to topics for group coordinators."""

from typing import Protocol
from uuid import UUID


class TopicDirectory(Protocol):
    """The topics of the cluster in this node's current metadata image."""

    def topic_name(self, topic_id: UUID) -> str | None:
        """The name of a topic, ``None`` when it does not exist."""
        ...

    def topic_id(self, name: str) -> UUID | None:
        """The id of a topic, ``None`` when it does not exist."""
        ...

    def partition_count(self, name: str) -> int:
        """Number of partitions; 0 when the topic does not exist."""
        ...
