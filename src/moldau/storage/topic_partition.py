"""The name of a partition."""

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A topic's name and the number of one of its partitions."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
