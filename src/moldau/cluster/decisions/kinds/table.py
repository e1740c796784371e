"""All kinds of topics. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from moldau.cluster.decisions.kinds.diskless import DISKLESS
from moldau.cluster.decisions.kinds.kind import TopicKind, is_true
from moldau.cluster.decisions.own_features import reasons_against
from moldau.cluster.decisions.view import View
from moldau.cluster.errors import MetadataError
from moldau.cluster.image.image import OWN_PREFIX, MetadataImage, ResourceType
from moldau.cluster.image.registrations import SupportedFeature
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import REMOTE_LOG_METADATA_TOPIC
from moldau.config.broker import BROKER
from moldau.config.definition import ConfigError, ConfigType
from moldau.config.topic_config import TOPIC, TopicConfig
from moldau.runtime import ErrorCode, KafkaError

CLASSIC: Final = TopicKind(
    name="classic", is_marked=False, replicas_hold_data=True, has_remote_tier=True, no_chunks=None
)
"""The kind of every topic that has no other kind."""


def checked_kinds(*kinds: TopicKind) -> tuple[TopicKind, ...]:
    """Return the kinds. Raises ``ValueError`` for a row that names a config that is not declared, and for two
    rows with the same name, config or feature. The error names the file that must be changed."""
    for kind in kinds:
        _check_row(kind)
    every = (CLASSIC, *kinds)
    for attribute in ("name", "config_key", "feature"):
        seen: dict[object, TopicKind] = {}
        for kind in every:
            value = getattr(kind, attribute)
            other = None if value is None else seen.setdefault(value, kind)
            if other is not None and other is not kind:
                shown = value.name if isinstance(value, SupportedFeature) else value
                raise ValueError(f"two kinds of topics ({_PLACE}) both have the {attribute} {shown}")
    return kinds


def _check_row(kind: TopicKind) -> None:
    def require(fulfilled: bool, problem: str) -> None:
        if not fulfilled:
            raise ValueError(f"the kind {kind.name} ({_PLACE}) has {problem}")

    key, enable_key, feature = kind.config_key, kind.enable_key, kind.feature
    if key is None:
        raise ValueError(f"the kind {kind.name} ({_PLACE}) has no config_key, so no topic can be of it")
    require(key in TOPIC, f"the config_key {key}, which has no row in config/keys/topic.py")
    require(TOPIC[key].type is ConfigType.BOOLEAN, f"the config_key {key}, which is no boolean key")
    # The kind's config must have ``fixed_at_creation``. Otherwise, after a change of the broker's default,
    # the effective config of an existing topic would be the config of another kind.
    require(
        TOPIC[key].fixed_at_creation or not TOPIC[key].synonyms,
        f"the config_key {key}, whose row in config/keys/topic.py needs fixed_at_creation=True",
    )
    if enable_key is not None:
        require(enable_key in BROKER, f"the enable_key {enable_key}, which has no row in config/keys/")
        is_flag = BROKER[enable_key].type is ConfigType.BOOLEAN
        require(is_flag, f"the enable_key {enable_key}, which is no boolean key")
    if feature is not None:
        is_own = feature.name.startswith(OWN_PREFIX)
        require(is_own, f"the feature {feature.name}, whose name must begin with {OWN_PREFIX}")


_PLACE: Final = "cluster/decisions/kinds/"

KINDS: Sequence[TopicKind] = checked_kinds(DISKLESS)
"""The kinds other than the classic kind."""


def kind_of(topic: Topic) -> TopicKind:
    """The kind of a topic, which never changes. Raises ``MetadataError`` for a mark that is not known."""
    for kind in KINDS:
        if kind.is_kind_of(topic):
            return kind
    if topic.kind:
        raise MetadataError(f"topic {topic.name} is of a kind that this version does not know: {topic.kind}")
    return CLASSIC


def kind_of_config(config: TopicConfig) -> TopicKind:
    """Return the kind of a topic that has these effective configs."""
    for kind in KINDS:
        if kind.config_key is not None and config.flag(kind.config_key):
            return kind
    return CLASSIC


def check_enabled(config: TopicConfig) -> None:
    """Raise ``ConfigError`` if the broker's configuration does not allow the kind of a topic."""
    kind = kind_of_config(config)
    if kind.config_key is None or kind.enable_key is None or config.broker.flag(kind.enable_key):
        return
    reason = f"{kind.name.capitalize()} topics are disabled in the broker ({kind.enable_key}=false)."
    raise ConfigError(kind.config_key, reason)


def enabled_kinds(is_true: Callable[[str], bool]) -> frozenset[str]:
    """Return the names of the kinds that a node's configuration enables. ``is_true`` reads a config of the
    node."""
    return frozenset(kind.name for kind in KINDS if kind.enable_key is None or is_true(kind.enable_key))


def kind_of_new(view: View, name: str, configs: Mapping[str, str]) -> tuple[TopicKind, Mapping[str, str]]:
    """Return the kind of a new topic, and the configs to record for the topic.

    A broker default can select a kind for new topics. A topic that does not set the kind's config then gets
    this kind, if the kind allows the topic. The config is recorded with the topic, because later changes of
    the default must not affect existing topics. Raises ``KafkaError(invalid_config)`` if the topic cannot be
    of the requested kind. It also raises this error if the level of the kind's feature does not allow topics
    of the kind.
    """
    for kind in KINDS:
        if name == kind.metadata_topic:
            _check_level(view, kind, f"The topic {name}")
    requested = [kind for kind in KINDS if kind.config_key and is_true(configs.get(kind.config_key))]
    if len(requested) > 1:
        keys = " and ".join(str(kind.config_key) for kind in requested)
        raise _invalid(f"{keys} of topic {name} are true, and a topic has one kind.")
    for kind in requested:
        if not kind.is_enabled(view.settings):
            raise _invalid(f"{kind.config_key}=true needs {kind.enable_key}=true on the cluster.")
        if reason := kind.reason_against(view, name, configs):
            raise _invalid(reason)
        _check_level(view, kind, f"A topic with {kind.config_key}=true")
        return kind, configs
    for kind in KINDS:
        key = kind.config_key
        if key is None or key in configs or not is_true(view.configs.default(ResourceType.TOPIC, key)):
            continue
        if kind.is_enabled(view.settings) and kind.reason_against(view, name, configs) is None:
            _check_level(view, kind, f"A topic without {key}=false")
            return kind, {**configs, key: "true"}
    return CLASSIC, configs


def _check_level(view: View, kind: TopicKind, what: str) -> None:
    """Raise ``KafkaError(invalid_config)`` if the level of a kind's feature does not allow topics of the
    kind."""
    if kind.feature is None or kind.level(view.image):
        return
    feature, latest = kind.feature.name, kind.feature.max_level
    reason = next(reasons_against(view, feature, latest), None)
    advice = (
        f"raise it with `moldau cluster upgrade {feature}={latest}`"
        if reason is None
        else f"it cannot be raised, because {reason[0].lower()}{reason[1:]}"
    )
    raise _invalid(f"{what} needs {feature} 1, and it is 0: {advice}.")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_config, message)


def fixed_configs(configs: Mapping[str, str]) -> dict[str, str]:
    """Return the configs that determine the kind of a topic. Tools that replace all configs do not have to
    know these configs."""
    keys = (kind.config_key for kind in KINDS)
    return {key: configs[key] for key in keys if key is not None and key in configs}


def check_change(view: View, name: str, old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Raise ``KafkaError(invalid_config)`` if the kind of a topic forbids a change of configs."""
    for kind in KINDS:
        key = kind.config_key
        if key is not None and is_true(old.get(key)) != is_true(new.get(key)):
            raise _invalid(f"{key} of topic {name} was fixed when it was created.")
    topic = view.image.topics.get(name)
    if topic is not None:
        kind_of(topic).check_configs(view, name, new)


def check_removal(image: MetadataImage, topic: Topic) -> None:
    """Raise ``KafkaError(invalid_request)`` if records of other topics depend on this internal topic."""
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
    """Raise ``KafkaError(invalid_update_version)`` for level 0 of a feature if topics of the feature's kind
    exist.
    """
    for kind in KINDS:
        if kind.feature is None or kind.feature.name != feature:
            continue
        topic = next(filter(kind.is_kind_of, image.topics), None)
        if topic is not None:
            raise KafkaError(
                ErrorCode.invalid_update_version,
                f"Topic {topic.name} is {kind.name}: {feature} can be 0 when no such topic is left.",
            )
