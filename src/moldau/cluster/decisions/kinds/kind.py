"""The description of a kind of topics. It contains everything that other decisions need to know about the
kind. Pure."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from moldau.cluster.decisions.view import ControllerSettings, View
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.partition import NO_OWNER
from moldau.cluster.image.registrations import SupportedFeature
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.racks.gateways import Gateways


def _allowed(view: View, name: str, configs: Mapping[str, str]) -> None:
    """No topic is refused."""


def _no_reason(view: View, name: str, configs: Mapping[str, str]) -> str | None:
    return None


def _no_owners(view: View, count: int) -> list[int]:
    return [NO_OWNER] * count


@dataclass(frozen=True, slots=True, kw_only=True)
class RackBrokers:
    """Returns the brokers that clients of a rack use for the partitions of a kind. ``None`` is an unknown
    rack."""

    leader: Callable[[Gateways, Topic, int, str | None, Collection[int]], int]
    """Returns the leader of a partition. The arguments are the partition's number, the rack, and the brokers
    that clients can reach."""
    produce: Callable[[Gateways, Topic, int, str | None], Sequence[int]]
    """KIP-1164's ``PreferredProduceBrokers`` of a partition, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicKind:
    """The properties that all topics of the kind have."""

    name: str
    """The name of the kind, as an adjective for messages: "the sharded topics". Records of topics contain
    this name as the mark of the kind."""
    is_marked: bool = True
    """Whether records of topics have the mark. Kinds that are older than the mark are recognized by the
    owners of their partitions."""
    config_key: str | None = None
    """The config that makes a new topic a topic of this kind, if the request or the broker's default sets it
    to true. No later change of configs changes the kind."""
    enable_key: str | None = None
    """The config of a node that must be true before such topics are allowed. ``None`` means that such topics
    are always allowed."""
    feature: SupportedFeature | None = None
    """The feature that allows such topics at its levels above 0. New clusters have its highest level if the
    kind is enabled. A kind with a mark needs a feature, because nodes that do not know the mark would drop
    it."""

    reason_against: Callable[[View, str, Mapping[str, str]], str | None] = _no_reason
    """Returns the reason why a new topic with a name and some configs cannot be of this kind. The reason is a
    sentence. If there is a reason and the request does not set ``config_key``, the topic becomes classic,
    even if the default of the key is true."""
    check_configs: Callable[[View, str, Mapping[str, str]], None] = _allowed
    """Raises ``KafkaError`` if no topic of this kind may have the new configs."""
    owners: Callable[[View, int], list[int]] = _no_owners
    """Returns the owners of a number of new partitions. The owners are recorded with the partitions. Raises
    ``KafkaError``."""
    metadata_topic: str | None = None
    """The internal topic that contains the positions of the kind's records. Its partitions may be owners. It
    is deleted after the topics of the kind."""

    replicas_hold_data: bool
    """Whether records are stored on replicas. If they are not, every replica is complete. It is in sync as
    soon as its broker is active, and any replica can lead without a loss."""
    has_remote_tier: bool
    """Whether a partition's log waits for the remote tier's copy before it deletes segments. A subsystem must
    then wrap the partitions with a tier (``gives_tier`` of its claim)."""
    has_cluster_epochs: bool = True
    """Whether the leader epochs in a partition's log are the leader epochs of the metadata."""
    may_have_remote_segments: bool = False
    """Whether topics of this kind may have segments in the remote tier. It does not matter which configs they
    have."""
    no_chunks: str | None
    """Why partitions cannot be divided into chunks (KIP-1114). The text is the end of a sentence about a
    topic. If it is ``None``, a subsystem must wrap the partitions with chunks (``gives_chunks`` of its
    claim)."""
    rack_brokers: RackBrokers | None = None
    """Finds the brokers that clients use as leaders; ``None`` when all clients use the leader of the
    metadata. The gateways are those of the coordinators in ``metadata_topic``."""

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
        """The number of partitions of this kind that each owner has."""
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
    """Whether a flag is true among the configs that are set on a topic. If the flag is not set, the result is
    false."""
    return value is not None and value.strip().lower() == "true"
