"""The partitions that this broker serves, by name and by id."""

from collections.abc import Callable, Iterator
from uuid import UUID

from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.topics_image import Topic
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.schema import ZERO_UUID
from moldau.replication.partition_interface import Partition
from moldau.runtime.errors import ErrorCode, KafkaError


class PartitionRegistry:
    """The lookup of partitions for handlers. The code that hosts partitions adds and removes
    them."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        stand_in: Callable[[Topic, int], Partition | None] = lambda topic, index: None,
    ) -> None:
        """``stand_in`` finds the object that serves a partition without a replica on this broker. The
        partition is in the metadata."""
        self._image = image
        self._stand_in = stand_in
        self.offline: dict[PartitionKey, str] = {}
        """Partitions of this broker that could not be opened, with the reason."""
        self._by_name: dict[tuple[str, int], Partition] = {}
        self._by_key: dict[tuple[UUID, int], Partition] = {}
        # The partitions by two kinds of keys: the bytes of the topic's name, or the bytes of the topic's id,
        # as they are in requests, each with the partition number.
        self._by_raw_name: dict[tuple[bytes, int], Partition] = {}
        self._by_raw_id: dict[tuple[bytes, int], Partition] = {}

    def __iter__(self) -> Iterator[Partition]:
        return iter(tuple(self._by_key.values()))

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, partition: Partition) -> None:
        self._by_name[partition.topic, partition.key.partition] = partition
        self._by_key[partition.key] = partition
        self._by_raw_name[partition.topic.encode(), partition.key.partition] = partition
        self._by_raw_id[partition.key.topic_id.bytes, partition.key.partition] = partition

    def remove(self, key: PartitionKey) -> Partition | None:
        partition = self._by_key.pop(key, None)
        self._by_raw_id.pop((key.topic_id.bytes, key.partition), None)
        if partition is not None and self._by_name.get((partition.topic, key.partition)) is partition:
            del self._by_name[partition.topic, key.partition]
            del self._by_raw_name[partition.topic.encode(), key.partition]
        return partition

    def get(self, topic: str, index: int) -> Partition | None:
        return self._by_name.get((topic, index))

    def get_by_id(self, topic_id: UUID, index: int) -> Partition | None:
        return self._by_key.get((topic_id, index))

    def raw(self, *, by_id: bool) -> Callable[[tuple[bytes, int]], Partition | None]:
        """A lookup of partitions. It uses the partition number and the bytes of the topic's name or id in a
        request."""
        return self._by_raw_id.get if by_id else self._by_raw_name.get

    def name_of(self, topic_id: UUID) -> str | None:
        """The name of the topic with this id. The topic can be any topic of the cluster, even if this broker
        has no partition of it."""
        return self._image().topic_name(topic_id)

    def find(self, topic: str, topic_id: UUID, index: int) -> Partition:
        """Return the partition that a request names. The topic id is used if the request has an id.

        Raises ``KafkaError`` when the topic or its id is unknown, or when the partition is unknown. It also
        raises this error when this broker has no replica, or when the replica is offline.
        """
        # Compare by identity first. The decoder often returns the same object, and comparing two UUIDs runs
        # Python code.
        if topic_id is ZERO_UUID or topic_id == ZERO_UUID:
            partition = self._by_name.get((topic, index))
        else:
            partition = self._by_key.get((topic_id, index))
        if partition is not None:
            return partition
        found = self._elsewhere(topic, topic_id, index)
        if isinstance(found, KafkaError):
            raise found
        return found

    def _elsewhere(self, topic: str, topic_id: UUID, index: int) -> "Partition | KafkaError":
        topics = self._image().topics
        by_id = topic_id != ZERO_UUID
        known = topics.get_by_id(topic_id) if by_id else topics.get(topic)
        if known is None:
            return KafkaError(ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition)
        if not 0 <= index < len(known.partitions):
            return KafkaError(ErrorCode.unknown_topic_or_partition)
        reason = self.offline.get(PartitionKey(known.topic_id, index))
        if reason is not None:
            return KafkaError(ErrorCode.kafka_storage_error, reason)
        return self._stand_in(known, index) or KafkaError(ErrorCode.not_leader_or_follower)
