"""The description of a kind of topics. All decisions of the controller get the properties of a kind from this
description. Pure."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from moldau.cluster.decisions.view import ControllerSettings, View
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.partition import NO_OWNER
from moldau.cluster.image.registrations import SupportedFeature
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.racks.gateways import Gateways


def _allowed(view: View, name: str, configs: Mapping[str, str]) -> None:
    """The default check, which refuses no topic."""


def _no_reason(view: View, name: str, configs: Mapping[str, str]) -> str | None:
    return None


def _no_owners(view: View, count: int) -> list[int]:
    return [NO_OWNER] * count


@dataclass(frozen=True, slots=True, kw_only=True)
class RackBrokers:
    """Two functions for a kind of topics. They find the brokers that clients of a rack use for a partition.
    Both get the client's rack, or ``None`` if it is unknown."""

    leader: Callable[[Gateways, Topic, int, str | None, Collection[int]], int]
    """Returns the leader of a partition. The arguments are the partition's number, the rack, and the brokers
    that clients can reach."""
    produce: Callable[[Gateways, Topic, int, str | None], Sequence[int]]
    """Returns KIP-1164's ``PreferredProduceBrokers`` of a partition. The best broker comes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicKind:
    """The properties that all topics of the kind have."""

    name: str
    """The name of the kind, as an adjective for messages: "the sharded topics". Records of topics contain
    this name as the mark of the kind."""
    is_marked: bool = True
    """Whether the metadata records of this kind's topics contain the mark. If they do not, because the kind
    is older than the marks, a topic of the kind is recognized by the owners of its partitions."""
    config_key: str | None = None
    """The topic config that selects this kind. If the request or the broker's default sets this config to
    true, the new topic is of this kind. A later change of configs does not change the kind."""
    enable_key: str | None = None
    """The config of a node that must be true before topics of this kind are allowed. ``None`` means that
    there is no such config, and that only the level of ``feature`` decides."""
    feature: SupportedFeature | None = None
    """The feature whose levels above 0 allow topics of this kind. New clusters have its highest level if
    ``enable_key`` is true at the first active controller. Without an ``enable_key`` new clusters have level
    0, because nodes of Apache Kafka cannot join a cluster with the feature. An operator can raise the level.
    A kind with a mark needs a feature, because nodes that do not know the mark would drop it."""

    reason_against: Callable[[View, str, Mapping[str, str]], str | None] = _no_reason
    """Returns the reason, as a sentence, why a new topic with this name and these configs cannot be of this
    kind; ``None`` if it can. A topic with a reason becomes classic if its request does not set
    ``config_key``, even if the default of ``config_key`` is true."""
    check_configs: Callable[[View, str, Mapping[str, str]], None] = _allowed
    """Raises ``KafkaError`` if no topic of this kind may have the new configs."""
    owners: Callable[[View, int], list[int]] = _no_owners
    """Returns the owners of a number of new partitions. The owners are recorded with the partitions. Raises
    ``KafkaError``."""
    metadata_topic: str | None = None
    """The internal topic that contains the positions of the kind's records. Its partitions may own partitions
    of the kind. It can be deleted only when no topic of the kind exists."""

    replicas_hold_data: bool
    """Whether records are stored on replicas. If records are not stored on replicas, every replica is
    complete. Each replica is then in sync as soon as its broker is active, and any replica can lead without a
    loss."""
    has_remote_tier: bool
    """Whether topics of this kind can be tiered. In a tiered topic, a partition's log keeps each segment
    until the segment is copied to the remote tier. If the field is true, a subsystem must wrap the partitions
    with a tier (``gives_tier`` of its ``KindClaim``)."""
    has_cluster_epochs: bool = True
    """Whether the leader epochs in a partition's log are the leader epochs of the metadata."""
    may_have_remote_segments: bool = False
    """Whether each topic of this kind may have segments in the remote tier, even if no config of the topic
    enables remote storage."""
    no_chunks: str | None
    """The reason why partitions of this kind cannot be divided into chunks (KIP-1114). The text is the end of
    a sentence about a topic. ``None`` means that the partitions can be divided into chunks. In this case a
    subsystem must wrap the partitions with chunks (``gives_chunks`` of its ``KindClaim``)."""
    rack_brokers: RackBrokers | None = None
    """Finds the brokers that clients use as leaders; ``None`` when all clients use the leader in the
    metadata. These brokers are gateways. The coordinators in ``metadata_topic`` have gateways in each
    rack."""

    def __post_init__(self) -> None:
        """Raises ``ValueError`` for a mark that nodes could drop, and for gateways without coordinators."""
        if self.rack_brokers is not None and self.metadata_topic is None:
            raise ValueError(f"the kind {self.name} has rack_brokers: they need a metadata_topic")
        if self.is_marked and self.feature is None:
            raise ValueError(f"the kind {self.name} needs a feature: nodes that do not know its mark drop it")

    @property
    def mark(self) -> str:
        """The kind's name in the records of topics; empty for a kind without a mark."""
        return self.name if self.is_marked else ""

    def is_kind_of(self, topic: Topic) -> bool:
        """Whether a topic of the image is of this kind. The kind of a topic never changes."""
        if topic.kind or self.is_marked:
            return topic.kind == self.mark
        return topic.has_owners is (self.owners is not _no_owners)

    def load(self, image: MetadataImage) -> dict[int, int]:
        """Return the number of partitions of this kind that each owner has."""
        return {owner: count for (mark, owner), count in image.topics.owner_load.items() if mark == self.mark}

    def level(self, image: MetadataImage) -> int:
        """The level of the kind's feature.

        In clusters that are older than the feature, the feature has no level, although topics of the kind may
        exist. If there are such topics without a mark, the result is 1.
        """
        if self.feature is None:
            return 0
        level = image.features.get(self.feature.name)
        if level is None:
            return 0 if self.is_marked or not self.load(image) else 1
        return int(level)

    def is_enabled(self, settings: ControllerSettings) -> bool:
        """Whether the node's configuration allows topics of this kind."""
        return self.enable_key is None or self.name in settings.enabled_kinds


def is_true(value: str | None) -> bool:
    """Whether ``value``, the value of a boolean config of a topic, is true. If the config is not set on the
    topic (``None``), the result is false."""
    return value is not None and value.strip().lower() == "true"
