"""All kinds of topics. Pure."""

from collections.abc import Callable, Mapping
from typing import Final

from moldau.cluster.decisions.kinds.diskless import DISKLESS
from moldau.cluster.decisions.kinds.kind import TopicKind, is_true
from moldau.cluster.decisions.view import View
from moldau.cluster.image.image import MetadataImage, ResourceType
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import REMOTE_LOG_METADATA_TOPIC
from moldau.config.topic_config import TopicConfig
from moldau.runtime import ErrorCode, KafkaError

CLASSIC: Final = TopicKind(name="classic", is_kind_of=lambda topic: True, replicas_hold_data=True)
"""The kind of every topic that belongs to no other kind."""

KINDS: Final = (DISKLESS,)
"""The kinds other than the classic kind. If several kinds match a topic, it has the first of them."""


def kind_of(topic: Topic) -> TopicKind:
    """The kind of a topic, which never changes."""
    for kind in KINDS:
        if kind.is_kind_of(topic):
            return kind
    return CLASSIC


def kind_of_config(config: TopicConfig) -> TopicKind:
    """The kind of a topic with these effective configs."""
    for kind in KINDS:
        if kind.config_key is not None and config.flag(kind.config_key):
            return kind
    return CLASSIC


def enabled_kinds(is_true: Callable[[str], bool]) -> frozenset[str]:
    """The names of the kinds that a node's configuration enables. ``is_true`` reads a config of the node."""
    return frozenset(kind.name for kind in KINDS if kind.enable_key is None or is_true(kind.enable_key))


def new_topic_configs(view: View, name: str, configs: Mapping[str, str]) -> Mapping[str, str]:
    """The configs to record for a new topic. Raises ``KafkaError`` if a kind refuses them."""
    for kind in KINDS:
        configs = kind.new_configs(view, name, configs)
    return configs


def owners_of_new(view: View, configs: Mapping[str, str], count: int) -> list[int]:
    """The coordinators of ``count`` new partitions of a topic; ``NO_COORDINATOR`` if the kind has no
    coordinators.

    Raises ``KafkaError(coordinator_not_available)``.
    """
    return _requested(configs).owners(view, count)


def fixed_configs(configs: Mapping[str, str]) -> dict[str, str]:
    """The configs that determine a topic's kind. Tools that replace all configs need not know these
    configs."""
    keys = (kind.config_key for kind in KINDS)
    return {key: configs[key] for key in keys if key is not None and key in configs}


def check_change(view: View, name: str, old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Raise ``KafkaError(invalid_config)`` for a change of configs that a topic's kind forbids."""
    for kind in KINDS:
        key = kind.config_key
        if key is not None and is_true(old.get(key)) != is_true(new.get(key)):
            raise KafkaError(
                ErrorCode.invalid_config, f"{key} of topic {name} was fixed when it was created."
            )
    _requested(new).check_configs(view, name, new)


def check_removal(image: MetadataImage, topic: Topic) -> None:
    """Raise ``KafkaError(invalid_request)`` for an internal topic on which the records of other topics
    depend.
    """
    for kind in KINDS:
        if topic.name == kind.metadata_topic and any(map(kind.is_kind_of, image.topics)):
            raise KafkaError(
                ErrorCode.invalid_request,
                f"{topic.name} says where the records of the {kind.name} topics are; delete those first.",
            )
    if topic.name != REMOTE_LOG_METADATA_TOPIC:
        return
    for other in image.topics:
        configs = image.config(ResourceType.TOPIC, other.name)
        if kind_of(other).may_have_remote_segments or is_true(configs.get("remote.storage.enable")):
            raise KafkaError(
                ErrorCode.invalid_request,
                f"{topic.name} says where the remote segments of {other.name} are; delete that topic first.",
            )


def check_feature_off(image: MetadataImage, feature: str) -> None:
    """Raise ``KafkaError(invalid_update_version)`` for level 0 of the feature of an existing topic's kind."""
    for kind in KINDS:
        if kind.feature is None or kind.feature.name != feature:
            continue
        topic = next(filter(kind.is_kind_of, image.topics), None)
        if topic is not None:
            raise KafkaError(
                ErrorCode.invalid_update_version,
                f"Topic {topic.name} is {kind.name}: {feature} can be 0 when no such topic is left.",
            )


def _requested(configs: Mapping[str, str]) -> TopicKind:
    for kind in KINDS:
        if kind.config_key is not None and is_true(configs.get(kind.config_key)):
            return kind
    return CLASSIC
