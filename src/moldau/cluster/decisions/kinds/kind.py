"""The row of a kind of topics. It contains everything that other decisions need to know about the kind.
Pure."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from moldau.cluster.decisions.view import ControllerSettings, View
from moldau.cluster.image.partition import NO_COORDINATOR
from moldau.cluster.image.registrations import SupportedFeature
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.racks.gateways import Gateways


def _unchanged(view: View, name: str, configs: Mapping[str, str]) -> Mapping[str, str]:
    return configs


def _allowed(view: View, name: str, configs: Mapping[str, str]) -> None:
    """No configs are refused."""


def _no_owners(view: View, count: int) -> list[int]:
    return [NO_COORDINATOR] * count


@dataclass(frozen=True, slots=True, kw_only=True)
class RackBrokers:
    """The brokers that clients of a rack get for the partitions of a kind. ``None`` is an unknown rack."""

    leader: Callable[[Gateways, Topic, int, str | None, Collection[int]], int]
    """The leader of a partition, given its number, the rack, and the brokers that clients can reach."""
    produce: Callable[[Gateways, Topic, int, str | None], Sequence[int]]
    """KIP-1164's ``PreferredProduceBrokers`` of a partition, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicKind:
    """The properties that the topics of a kind have in common."""

    name: str
    """An adjective in messages: "the diskless topics"."""
    is_kind_of: Callable[[Topic], bool]
    """Whether a topic of the image is of this kind, which never changes."""
    config_key: str | None = None
    """The config that makes a new topic a topic of this kind. Later changes of configs do not change the
    kind."""
    enable_key: str | None = None
    """The config of a node that must be true before such topics are allowed; ``None`` when such topics are
    always allowed."""
    feature: SupportedFeature | None = None
    """The feature whose levels above 0 allow such topics. New clusters have its highest level."""

    new_configs: Callable[[View, str, Mapping[str, str]], Mapping[str, str]] = _unchanged
    """The configs to record for a new topic of any kind. Raises ``KafkaError``, usually INVALID_CONFIG."""
    check_configs: Callable[[View, str, Mapping[str, str]], None] = _allowed
    """Raises ``KafkaError`` for configs that no topic of this kind may be changed to."""
    owners: Callable[[View, int], list[int]] = _no_owners
    """The coordinators of a number of new partitions, recorded with them. Raises ``KafkaError``."""
    metadata_topic: str | None = None
    """The internal topic that contains the positions of their records. It is deleted after the topics of the
    kind."""

    replicas_hold_data: bool
    """Whether records are stored on replicas. Otherwise every replica is complete. It is in sync as soon as
    its broker is active, and any replica can lead without a loss."""
    has_remote_tier: bool = True
    """Whether a partition's log waits for the remote tier's copy before it deletes segments."""
    has_cluster_epochs: bool = True
    """Whether the leader epochs in a partition's log are those of the metadata."""
    may_have_remote_segments: bool = False
    """Whether topics may have segments in the remote tier, with any configs."""
    no_chunks: str | None = None
    """Why partitions cannot be divided into chunks (KIP-1114). The text is the end of a sentence about a
    topic."""
    rack_brokers: RackBrokers | None = None
    """Finds the brokers that clients use as leaders; ``None`` when all clients use the leader of the
    metadata."""

    def is_enabled(self, settings: ControllerSettings) -> bool:
        """Whether the node's configuration allows such topics."""
        return self.enable_key is None or self.name in settings.enabled_kinds


def is_true(value: str | None) -> bool:
    """Whether a flag among the configs that are set on a topic is true; a flag that is not set is false."""
    return value is not None and value.strip().lower() == "true"
