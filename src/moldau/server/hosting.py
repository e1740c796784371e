"""Opens, leads and closes this broker's partitions as the metadata says.

The one place where the kind of a topic decides what stands behind the partition interface.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from moldau.cluster.image import MetadataImage
from moldau.cluster.topics_image import Topic
from moldau.replication.partition import Partition, PartitionKey, StopReason
from moldau.runtime.errors import KafkaError
from moldau.server.registry import PartitionRegistry

logger = logging.getLogger(__name__)


class PartitionKind(Protocol):
    """How partitions of one kind (classic, diskless) live on a broker."""

    def open(self, topic: Topic, index: int) -> Partition:
        """Open what this broker has of a partition, or make it. Raises ``KafkaError``."""
        ...

    def take_role(self, partition: Partition, topic: Topic) -> None:
        """Lead or follow, as the topic's metadata says."""
        ...

    def reconfigure(self, partition: Partition) -> None:
        """The topic's or the broker's configuration has changed."""
        ...

    def close(self, partition: Partition, reason: StopReason) -> None:
        """Stop serving a partition, and delete the data that ``reason`` says."""
        ...


class LeadershipListener(Protocol):
    """Told when this broker begins or ends to lead a partition of an internal topic."""

    def leads(self, partition: Partition) -> None: ...

    def leads_no_more(self, topic: str, index: int) -> None: ...


class PartitionHosting:
    """Follows the image; every change of it is applied before the next request sees it."""

    def __init__(
        self,
        local_id: int,
        registry: PartitionRegistry,
        kind_of: Callable[[Topic], PartitionKind],
        listener: LeadershipListener,
    ) -> None:
        self._local_id = local_id
        self._registry = registry
        self._kind_of = kind_of
        self._listener = listener
        self._kinds: dict[PartitionKey, PartitionKind] = {}
        self._seen: dict[int, Topic] = {}
        self.offline: dict[PartitionKey, str] = {}
        """Partitions that could not be opened, and why."""

    def apply(self, image: MetadataImage, changed: Iterable[str], removed: Iterable[Topic]) -> None:
        """Bring this broker's partitions in line with topics that were changed or removed."""
        for topic in removed:
            self._seen.pop(topic.topic_id.int, None)
            for index in range(len(topic.partitions)):
                self._close(PartitionKey(topic.topic_id, index), topic.name, StopReason.TOPIC_DELETED)
        for name in changed:
            current = image.topics.get(name)
            if current is not None and self._seen.get(current.topic_id.int) is not current:
                self._apply_topic(current)
                self._seen[current.topic_id.int] = current

    def reconfigure(self, topic_names: Iterable[str] | None) -> None:
        """Configurations have changed: of some topics, or (None) of the broker and so of all."""
        names = None if topic_names is None else set(topic_names)
        for partition in self._registry:
            if names is None or partition.topic in names:
                self._kinds[partition.key].reconfigure(partition)

    def _apply_topic(self, topic: Topic) -> None:
        for index, metadata in enumerate(topic.partitions):
            key = PartitionKey(topic.topic_id, index)
            if self._local_id not in metadata.replicas:
                self._close(key, topic.name, StopReason.REPLICA_REMOVED)
                continue
            partition = self._registry.get_by_id(*key) or self._open(topic, key)
            if partition is None:
                continue
            self._kinds[key].take_role(partition, topic)
            if metadata.leader == self._local_id:
                self._listener.leads(partition)
            else:
                self._listener.leads_no_more(topic.name, index)

    def _open(self, topic: Topic, key: PartitionKey) -> Partition | None:
        kind = self._kind_of(topic)
        try:
            partition = kind.open(topic, key.partition)
        except KafkaError as error:
            self.offline[key] = str(error)
            logger.error(
                "partition cannot be opened",
                extra={"topic": topic.name, "partition": key.partition, "reason": str(error)},
            )
            return None
        self._kinds[key] = kind
        self.offline.pop(key, None)
        self._registry.add(partition)
        return partition

    def _close(self, key: PartitionKey, topic: str, reason: StopReason) -> None:
        partition = self._registry.remove(key)
        kind = self._kinds.pop(key, None)
        if partition is None or kind is None:
            return
        self._listener.leads_no_more(topic, key.partition)
        kind.close(partition, reason)
