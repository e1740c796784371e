"""The row of a kind of topics: the answers of the kind to all other decisions. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from moldau.cluster.decisions.view import ControllerSettings, View
from moldau.cluster.image.partition import NO_COORDINATOR
from moldau.cluster.image.registrations import SupportedFeature
from moldau.cluster.image.topics_image import Topic


def _unchanged(view: View, name: str, configs: Mapping[str, str]) -> Mapping[str, str]:
    return configs


def _allowed(view: View, name: str, configs: Mapping[str, str]) -> None:
    """No configs are refused."""


def _no_owners(view: View, count: int) -> list[int]:
    return [NO_COORDINATOR] * count


def _is_enabled(settings: ControllerSettings) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicKind:
    """The properties that the topics of a kind have in common."""

    name: str
    """An adjective in messages: "the diskless topics"."""
    is_kind_of: Callable[[Topic], bool]
    """Whether a topic of the image is of this kind, which never changes."""
    config_key: str | None = None
    """The config that makes a new topic one of this kind; no later change of configs changes it."""
    is_enabled: Callable[[ControllerSettings], bool] = _is_enabled
    """Whether the node's settings allow such topics."""
    feature: SupportedFeature | None = None
    """The feature whose levels above 0 allow such topics; new clusters have its highest level."""

    new_configs: Callable[[View, str, Mapping[str, str]], Mapping[str, str]] = _unchanged
    """The configs to record for a new topic of any kind. Raises ``KafkaError``, usually INVALID_CONFIG."""
    check_configs: Callable[[View, str, Mapping[str, str]], None] = _allowed
    """Raises ``KafkaError`` for configs that no topic of this kind may be changed to."""
    owners: Callable[[View, int], list[int]] = _no_owners
    """The coordinators of a number of new partitions, recorded with them. Raises ``KafkaError``."""
    metadata_topic: str | None = None
    """The internal topic that contains the positions of their records. It is deleted after them."""

    replicas_hold_data: bool
    """Whether records live on replicas. Otherwise every replica is complete. It is in sync as soon as its
    broker is active, and any replica can lead without a loss."""
    has_remote_tier: bool = True
    """Whether a partition's log waits for the remote tier's copy before it deletes segments."""
    has_cluster_epochs: bool = True
    """Whether the leader epochs in a partition's log are those of the metadata."""
    leader_depends_on_rack: bool = False
    """Whether clients see the broker of their own rack as the leader."""


def is_true(value: str | None) -> bool:
    """Whether a flag among the configs that are set on a topic is true; a flag that is not set is false."""
    return value is not None and value.strip().lower() == "true"
