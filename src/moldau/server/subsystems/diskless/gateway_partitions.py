"""Diskless partitions without a replica on this broker. They are opened when clients request them."""

from collections.abc import Callable, Iterable

from moldau.cluster.image.topics_image import Topic
from moldau.diskless.partition.gateway_partition import DisklessPassage
from moldau.protocol.partitions import PartitionKey
from moldau.replication.partition_interface import Partition
from moldau.storage.log.config import LogConfig


class Passages:
    """The *passages* of a broker, by partition. A passage is an object that serves a partition without a
    replica on this broker."""

    def __init__(
        self,
        open_passage: Callable[[Topic, int], DisklessPassage],
        log_config: Callable[[str], LogConfig],
    ) -> None:
        self._open = open_passage
        self._log_config = log_config
        self._open_ones: dict[PartitionKey, DisklessPassage] = {}

    def find(self, topic: Topic, index: int) -> Partition:
        """Return this broker's gateway object (``DisklessPassage``) for a partition that is in the metadata.
        Create it if it does not exist."""
        key = PartitionKey(topic.topic_id, index)
        found = self._open_ones.get(key)
        if found is None:
            found = self._open_ones[key] = self._open(topic, index)
        return found

    def reconfigure(self) -> None:
        """Apply a change of topic configurations to the passages."""
        for passage in self._open_ones.values():
            passage.config = self._log_config(passage.topic)

    def removed(self, topics: Iterable[Topic]) -> None:
        """Close the passages of deleted topics."""
        gone = {topic.topic_id for topic in topics}
        if gone:
            for key in [key for key in self._open_ones if key.topic_id in gone]:
                self.close(key)

    def close(self, key: PartitionKey) -> None:
        """Close a passage, because its partition got a replica on this broker or was deleted. Does nothing if
        there is no such passage."""
        passage = self._open_ones.pop(key, None)
        if passage is not None:
            passage.close()

    def close_all(self) -> None:
        """Close all passages, because the broker stops."""
        for key in list(self._open_ones):
            self.close(key)
