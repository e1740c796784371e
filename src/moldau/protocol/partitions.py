"""The identity of a partition, by name and by id. Pure."""

from typing import NamedTuple
from uuid import UUID


class TopicPartition(NamedTuple):
    """A topic's name and the number of one of its partitions."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class PartitionKey(NamedTuple):
    """A topic's id and the number of one of its partitions. A topic name may be used again after a deletion,
    but a key is never used again."""

    topic_id: UUID
    partition: int
